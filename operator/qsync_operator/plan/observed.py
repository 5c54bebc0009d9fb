"""The controller's observations, immutable: the input of every decision.

An `Observed` refers to no process and no pod. A platform creates it and the plan reads it. All of
it may be stale or missing. A member without `status` did not answer, and nothing else follows from
that. State that must survive the controller is in `RecordedMember`, which a platform stores
durably; `Memory` can be lost without harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qsync_node.format.proofs import ORDER_SCHEME
from qsync_operator.api.names import MemberKind
from qsync_operator.api.reasons import FailoverReason, Reason
from qsync_operator.api.status import ClusterStatus, LastFailover, LastRun
from qsync_operator.plan.objects import ObjectInputs
from qsync_operator.resources.nodeconfig import Drift

DISK_FULL = "its disk is full"
"""The member acknowledges nothing; with a nearly full disk it still does."""
DISK_LOW = "its disk is nearly full"
ARCHIVE_PATIENCE_S = 30.0
"""Age of the oldest row that is not archived after which a failing archive is a problem."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A member according to a node's log; `is_live` and `acknowledged_index` are the leader's."""

    uuid: str
    name: str
    replica_id: int = 0
    role: str = "voter"
    is_voting: bool = True
    is_live: bool = False
    acknowledged_index: int = 0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of one node, as it reports it."""

    uuid: str
    role: str
    term: int = 0
    last_term: int = 0
    last_index: int = 0
    confirmed_index: int = 0
    replica_id: int = 0
    leader_uuid: str = ""
    is_writable: bool = False
    can_stand: bool = False
    hears_leader: bool = False
    is_open: bool = False
    split_brain: str = ""
    refused: str = ""
    quorum: int = 0
    cut_rows: int = 0
    is_fenced: bool = False
    ro_reason: str = ""
    disk: str = ""  # problem of the disk, or ""
    archive_error: str = ""  # of the last request to the archive
    archive_lag_s: float = 0.0  # age of the oldest confirmed row that is not archived
    takes_orders: bool = True  # False for versions before signed orders, which can only be observed
    registered: tuple[Registered, ...] = ()
    is_proven: bool = True  # False if the answer may come from an intermediary

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "NodeStatus":
        """Parse the JSON of /status.

        Raises:
            KeyError: a field is missing.
            TypeError: a field has another type.
            ValueError: a field has an invalid value.
        """
        archive = said.get("archive") or {}
        if not isinstance(archive, Mapping):
            raise TypeError("archive is no object")
        return cls(
            uuid=str(said["uuid"]),
            role=str(said["role"]),
            term=int(_bounded(said["term"])),
            last_term=int(_bounded(said["last_term"])),
            last_index=int(_bounded(said["last_index"])),
            confirmed_index=int(_bounded(said["confirmed_index"])),
            replica_id=int(_bounded(said["replica_id"])),
            leader_uuid=str(said["leader_uuid"]),
            is_writable=bool(said["is_writable"]),
            can_stand=bool(said["can_stand"]),
            hears_leader=bool(said.get("hears_leader", False)),
            is_open=bool(said["is_open"]),
            split_brain=str(said["split_brain"] or ""),
            refused=str(said["refused"] or ""),
            quorum=int(_bounded(said["quorum"])),
            cut_rows=int(_bounded(said.get("cut_rows", 0))),
            is_fenced=bool(said.get("is_fenced", False)),
            ro_reason=str(said.get("ro_reason") or ""),
            disk=_disk(said),
            archive_error=str(archive.get("error") or ""),
            archive_lag_s=float(_bounded(archive.get("lag_seconds") or 0.0)),
            takes_orders=ORDER_SCHEME in (said.get("order_schemes") or ()),
            registered=tuple(
                Registered(
                    uuid=str(member["uuid"]),
                    name=str(member["name"]),
                    replica_id=int(_bounded(member["replica_id"])),
                    role=str(member["role"]),
                    is_voting=bool(member["is_voting"]),
                    is_live=bool(member.get("is_live", False)),
                    acknowledged_index=int(_bounded(member.get("acknowledged_index", 0))),
                )
                for member in said["members"]
                if member["role"] != "stock"  # a Tarantool replica, which has no place here
            ),
        )


def _bounded(value: float) -> float:
    """Return a number of 64 bits; JSON may hold larger numbers, and Python reads infinite ones."""
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} is no number of 64 bits")
    return value


def _disk(said: Mapping[str, Any]) -> str:
    if said.get("is_disk_full"):
        return DISK_FULL
    return DISK_LOW if said.get("is_space_low") else ""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member that has a place (directory, volume), whether it runs or not."""

    name: str
    kind: MemberKind
    has_disk: bool = True
    is_running: bool = True
    has_process: bool = True  # False only if it is certain that no process of it runs
    is_leaving: bool = False  # it is stopping but still answers, so nothing may rely on it
    status: NodeStatus | None = None
    uuid: str = ""  # last observed instance on its disk, or ""
    drift: Drift = "none"
    failure: str = ""  # why it cannot be kept running, as one sentence
    address: str = ""
    admin_address: str = ""
    ended_at_ns: int = 0
    pid: int | None = None
    directory: str | None = None

    @property
    def role(self) -> str:
        return self.status.role if self.status is not None else "down"

    @property
    def is_empty(self) -> bool:
        """Return whether the member answers and has neither rows nor a registration."""
        said = self.status
        return said is not None and said.role == "joining" and not said.registered

    @property
    def is_leader(self) -> bool:
        return self.role == "leader"

    @property
    def takes_orders(self) -> bool:
        return self.status is None or self.status.takes_orders


@dataclass(frozen=True, slots=True)
class RecordedMember:
    """State that a platform stores before it is used, and keeps as long as the data."""

    replicaset_uuid: str
    bootstrap_member: str = ""
    bootstrap_uuid: str = ""
    is_formed: bool = False
    fenced: tuple[str, ...] = ()  # members that were fenced by an annotation


@dataclass(frozen=True, slots=True)
class StorageView:
    """The volumes compared with the specification; `outgrown` names StatefulSets or claims."""

    outgrown: tuple[str, ...] = ()
    refusal: str = ""
    size: str = ""  # size of the largest existing volumes


@dataclass(frozen=True, slots=True)
class SchemaView:
    """The declared spaces compared with the database.

    Attributes:
        is_known: whether they were compared.
        missing: names of spaces that are missing or differ.
        refusal: why the declaration cannot be satisfied, or "".
        kept: sentences about fields and indexes that the manifest omits, and the database keeps.
    """

    is_known: bool = False
    missing: tuple[str, ...] = ()
    refusal: str = ""
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessView:
    """Users and roles that differ from their declarations, or why they cannot be changed."""

    missing: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class BrokersView:
    """Brokers of journals, as the key space has them; empty while no plan needs to know them.

    Attributes:
        holding: members whose broker has journals that another broker could take over.
        exiting: members whose broker hands its journals over.
        undrained: members whose broker may have bytes that no store and no other broker has.
        missing: voters without a live broker.
    """

    holding: frozenset[str] = frozenset()
    exiting: frozenset[str] = frozenset()
    undrained: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem with one object of the cluster."""

    reason: Reason
    message: str
    is_essential: bool = True  # without it members cannot run as specified

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Nomination:
    """A nominated member, the term, and the time of the nomination."""

    member: str
    term: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Memory:
    """State that the controller keeps between turns; losing it causes delays but no harm."""

    leader: str = ""
    leader_term: int = 0
    seen_at_ns: int = 0  # when the leader was last observed to accept writes
    lost_at_ns: int = 0
    reason: FailoverReason | Literal[""] = ""
    nominations: tuple[Nomination, ...] = ()
    last_failover: LastFailover | None = None
    leader_cut_rows: int = 0  # as the leader's process counted them at the last observation
    old_cut_rows: int = 0  # the same of the previous leader, when it lost leadership
    refusal: str = ""  # of the last refused action
    troubles: tuple[Trouble, ...] = ()  # returned by the last `reconcile`


@dataclass(frozen=True, slots=True)
class Observed:
    """One observation of a cluster."""

    members: tuple[MemberView, ...]
    record: RecordedMember
    schema: SchemaView = field(default_factory=SchemaView)
    memory: Memory = field(default_factory=Memory)
    previous: ClusterStatus = field(default_factory=ClusterStatus)
    storage: StorageView = field(default_factory=StorageView)
    access: AccessView = field(default_factory=AccessView)
    warnings: tuple[str, ...] = ()  # parts of the specification that cannot be satisfied here
    certificate_refusal: str = ""
    troubles: tuple[Trouble, ...] = ()  # returned by the last `reconcile`
    last_audit: LastRun | None = None
    last_compaction: LastRun | None = None
    brokers: BrokersView = field(default_factory=BrokersView)
    inputs: ObjectInputs | None = None  # of the objects, on a platform that has any

    def member(self, name: str) -> MemberView | None:
        return next((member for member in self.members if member.name == name), None)

    def by_uuid(self, uuid: str) -> MemberView | None:
        """Return the member that runs this instance now."""
        return next((m for m in self.members if m.status and m.status.uuid == uuid), None)

    def leader(self) -> MemberView | None:
        """Return the leader; if two members report that they lead, the one in the later term."""
        leaders = [member for member in self.members if member.status and member.is_leader]
        return max(leaders, key=lambda m: m.status.term if m.status else 0, default=None)

    def writable_leader(self) -> MemberView | None:
        leader = self.leader()
        return leader if leader and leader.status and leader.status.is_writable else None

    def registered(self) -> tuple[Registered, ...]:
        """Return the members according to the leader, or else to the longest log that answered."""
        leader = self.leader()
        if leader is not None and leader.status is not None:
            return leader.status.registered
        known = [member.status for member in self.members if member.status]
        best = max(known, key=lambda s: (s.last_term, s.last_index), default=None)
        return best.registered if best is not None else ()

    def voting(self) -> tuple[Registered, ...]:
        return tuple(member for member in self.registered() if member.is_voting)

    def is_live(self, uuid: str) -> bool:
        """Return whether an instance answers the operator and, if there is a leader, the leader."""
        member = self.by_uuid(uuid)
        if member is None or not member.is_running or member.is_leaving:
            return False
        leader = self.leader()
        if leader is None or leader.status is None:
            return True
        return any(r.uuid == uuid and r.is_live for r in leader.status.registered)
