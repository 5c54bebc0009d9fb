"""What the controller sees, frozen: the input of every decision.

An `Observed` names no process and no pod. A platform fills it, the plan reads it, and everything
in it may be old or missing: a member without `status` did not answer, and nothing is concluded
from that but that it did not answer. What must survive the controller is in `Record`, which a
platform stores durably; `Memory` is lost without harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qsync_node.format.proofs import ORDER_SCHEME
from qsync_operator.models.status import ClusterStatus, LastFailover, LastRun

Kind = Literal["voter", "async", "anonymous"]
Drift = Literal["none", "live", "restart"]

DISK_FULL = "its disk is full"
"""It acknowledges nothing; where a disk is nearly full it still does."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A member as the log of some node has it; the last two are known to the leader only."""

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
    disk: str = ""  # what is wrong with it
    takes_orders: bool = True  # False for versions before signed orders: it can only be watched
    registered: tuple[Registered, ...] = ()
    is_proven: bool = True  # False for an answer that anybody on the way could have given

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "NodeStatus":
        """Raises KeyError, TypeError or ValueError on what is not a status."""
        return cls(
            uuid=str(said["uuid"]),
            role=str(said["role"]),
            term=int(said["term"]),
            last_term=int(said["last_term"]),
            last_index=int(said["last_index"]),
            confirmed_index=int(said["confirmed_index"]),
            replica_id=int(said["replica_id"]),
            leader_uuid=str(said["leader_uuid"]),
            is_writable=bool(said["is_writable"]),
            can_stand=bool(said["can_stand"]),
            hears_leader=bool(said.get("hears_leader", False)),
            is_open=bool(said["is_open"]),
            split_brain=str(said["split_brain"] or ""),
            refused=str(said["refused"] or ""),
            quorum=int(said["quorum"]),
            cut_rows=int(said.get("cut_rows", 0)),
            is_fenced=bool(said.get("is_fenced", False)),
            ro_reason=str(said.get("ro_reason") or ""),
            disk=_disk(said),
            takes_orders=ORDER_SCHEME in (said.get("order_schemes") or ()),
            registered=tuple(
                Registered(
                    uuid=str(member["uuid"]),
                    name=str(member["name"]),
                    replica_id=int(member["replica_id"]),
                    role=str(member["role"]),
                    is_voting=bool(member["is_voting"]),
                    is_live=bool(member.get("is_live", False)),
                    acknowledged_index=int(member.get("acknowledged_index", 0)),
                )
                for member in said["members"]
                if member["role"] != "stock"  # a Tarantool: it has no place of ours
            ),
        )


def _disk(said: Mapping[str, Any]) -> str:
    if said.get("is_disk_full"):
        return DISK_FULL
    return "its disk is nearly full" if said.get("is_space_low") else ""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member that has a place (directory, volume), whether it runs or not."""

    name: str
    kind: Kind
    has_disk: bool = True
    is_running: bool = True
    has_process: bool = True  # False only where it is certain that nothing of it runs
    is_leaving: bool = False  # it is stopping but still answers: nothing may rely on it
    status: NodeStatus | None = None
    uuid: str = ""  # of the instance on its disk, as last seen; "" when never seen
    drift: Drift = "none"
    failure: str = ""  # why it cannot be kept running, one sentence
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
        """Whether it answers and has nothing: neither rows nor a place in a cluster."""
        said = self.status
        return said is not None and said.role == "joining" and not said.registered

    @property
    def is_leader(self) -> bool:
        return self.role == "leader"

    @property
    def takes_orders(self) -> bool:
        return self.status is None or self.status.takes_orders


@dataclass(frozen=True, slots=True)
class Record:
    """What a platform stores before it is acted upon, and keeps as long as the data."""

    replicaset_uuid: str
    bootstrap_member: str = ""
    bootstrap_uuid: str = ""
    is_formed: bool = False
    fenced: tuple[str, ...] = ()  # members that were fenced because an annotation asked for it


@dataclass(frozen=True, slots=True)
class StorageView:
    """How the volumes compare with what is asked for; `outgrown` names sets of them."""

    outgrown: tuple[str, ...] = ()
    refusal: str = ""
    size: str = ""  # of the largest volumes that there are


@dataclass(frozen=True, slots=True)
class SchemaView:
    """How the declared spaces compare with the database; `is_known` after the first comparison."""

    is_known: bool = False
    missing: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class AccessView:
    """Users and roles that are not as declared, or why they cannot be."""

    missing: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One object of the cluster that is not as it is wanted, and why."""

    reason: str  # stable, for tools: ObjectRefused, NameTaken, ApiUnavailable or StartFailed
    message: str
    is_essential: bool = True  # without it members cannot run as they are asked to

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Nomination:
    """Who was nominated in which term, and when."""

    member: str
    term: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What the controller remembers between two looks; forgetting it delays, never harms."""

    leader: str = ""
    leader_term: int = 0
    seen_at_ns: int = 0  # when it was last seen to take writes
    lost_at_ns: int = 0
    reason: str = ""
    nominations: tuple[Nomination, ...] = ()
    last_failover: LastFailover | None = None
    leader_cut_rows: int = 0  # as the leader's process counted them when it was last seen
    old_cut_rows: int = 0  # and that of the one before, when it lost its place
    refusal: str = ""  # of the last action that did not happen
    troubles: tuple[Trouble, ...] = ()  # of the last `keep`


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at everything."""

    members: tuple[MemberView, ...]
    record: Record
    schema: SchemaView = field(default_factory=SchemaView)
    memory: Memory = field(default_factory=Memory)
    previous: ClusterStatus = field(default_factory=ClusterStatus)
    storage: StorageView = field(default_factory=StorageView)
    access: AccessView = field(default_factory=AccessView)
    warnings: tuple[str, ...] = ()  # what is asked for and cannot be done here
    certificate_refusal: str = ""
    troubles: tuple[Trouble, ...] = ()  # of the last `keep`
    last_audit: LastRun | None = None
    last_compaction: LastRun | None = None

    def member(self, name: str) -> MemberView | None:
        return next((member for member in self.members if member.name == name), None)

    def by_uuid(self, uuid: str) -> MemberView | None:
        """The member that runs this instance now."""
        return next((m for m in self.members if m.status and m.status.uuid == uuid), None)

    def leader(self) -> MemberView | None:
        """The one leader: of two that say so, the one of the later term."""
        leaders = [member for member in self.members if member.status and member.is_leader]
        return max(leaders, key=lambda m: m.status.term if m.status else 0, default=None)

    def writable_leader(self) -> MemberView | None:
        leader = self.leader()
        return leader if leader and leader.status and leader.status.is_writable else None

    def registered(self) -> tuple[Registered, ...]:
        """Membership as the leader has it, or else the longest log that answered."""
        leader = self.leader()
        if leader is not None and leader.status is not None:
            return leader.status.registered
        known = [member.status for member in self.members if member.status]
        best = max(known, key=lambda s: (s.last_term, s.last_index), default=None)
        return best.registered if best is not None else ()

    def voting(self) -> tuple[Registered, ...]:
        return tuple(member for member in self.registered() if member.is_voting)

    def is_live(self, uuid: str) -> bool:
        """Whether it answers us and, if a leader tells, answers the leader too."""
        member = self.by_uuid(uuid)
        if member is None or not member.is_running or member.is_leaving:
            return False
        leader = self.leader()
        if leader is None or leader.status is None:
            return True
        return any(r.uuid == uuid and r.is_live for r in leader.status.registered)
