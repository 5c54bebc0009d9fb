"""A simulated cluster of plain objects that performs the plan's actions, for tests of the plan.

It is stricter than a real cluster. Members hold no elections, and the test fails on every action
that would break the quorum or a rule of membership.
"""

from dataclasses import dataclass, field, replace

from qsync_node.consensus.quorum import needed
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import MemberKind
from qsync_operator.api.status import ClusterStatus
from qsync_operator.plan import actions as act
from qsync_operator.plan.failover import after_nomination, track_leader
from qsync_operator.plan.observed import (
    MemberView,
    Memory,
    NodeStatus,
    Observed,
    RecordedMember,
    Registered,
    SchemaView,
)
from qsync_operator.plan.planner import Plan, plan
from qsync_operator.resources.nodeconfig import Drift

STEP_NS = 100_000_000


def ordered_member(action: act.Action) -> str:
    """Return the name of the member that receives `action` as an order, or "" if it is no order."""
    match action:
        case act.Switchover(leader) | act.Unregister(leader) | act.Bootstrap(leader):
            return leader
        case act.Nominate(name) | act.Configure(name) | act.Fence(name) | act.Unfence(name):
            return name
    return ""


@dataclass
class Incarnation:
    """State of one member: its disk, its process and its configuration."""

    kind: MemberKind
    uuid: str
    is_running: bool = True
    is_dead: bool = False  # its process never starts again
    has_disk: bool = True
    disk: str = ""
    cut_rows: int = 0
    index: int = 10
    drift: Drift = "none"
    has_joined: bool = False
    is_fenced: bool = False
    leaving: int = 0  # steps in which its deleted pod still answers
    takes_orders: bool = True  # False for an image older than signed orders


@dataclass
class ModelEntry:
    """One registration in the membership of the cluster."""

    name: str
    role: str
    is_voting: bool


@dataclass
class ModelWorld:
    """Members, registrations and leader of a cluster, and the memory of its controller."""

    cluster: QsyncCluster
    incarnations: dict[str, Incarnation] = field(default_factory=dict)
    registered: dict[str, ModelEntry] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    record: RecordedMember = field(default_factory=lambda: RecordedMember("rs"))
    leader: str = ""
    term: int = 1
    spaces: set[str] = field(default_factory=set)
    now_ns: int = STEP_NS
    memory: Memory = field(default_factory=Memory)
    status: ClusterStatus = field(default_factory=ClusterStatus)
    is_forgetful: bool = False
    lingers: bool = False  # a restarted pod stops slowly before its replacement starts
    image_takes_orders: bool = True  # the image after a restart takes orders
    born: int = 0
    history: list[str] = field(default_factory=list)

    # --- observation ------------------------------------------------------------------------

    def live_voters(self) -> list[str]:
        return [
            uuid
            for uuid, entry in self.registered.items()
            if entry.is_voting and self._incarnation_of(uuid) is not None
        ]

    def voters(self) -> list[str]:
        return [uuid for uuid, entry in self.registered.items() if entry.is_voting]

    def has_quorum(self) -> bool:
        return len(self.live_voters()) >= self.quorum(len(self.voters()))

    def quorum(self, voters: int) -> int:
        replication = self.cluster.spec.replication
        return needed(voters, replication.quorum) if voters else 0

    def _incarnation_of(self, uuid: str) -> Incarnation | None:
        return next(
            (m for m in self.incarnations.values() if m.uuid == uuid and m.is_running), None
        )

    def observe(self) -> Observed:
        missing = [s.name for s in self.cluster.spec.spaces if s.name not in self.spaces]
        return Observed(
            members=tuple(
                self._view(name, incarnation) for name, incarnation in self.incarnations.items()
            ),
            record=self.record,
            schema=SchemaView(is_known=bool(self.leader), missing=tuple(missing)),
            memory=self.memory,
            previous=self.status,
        )

    def _view(self, name: str, incarnation: Incarnation) -> MemberView:
        said = self._status(name, incarnation) if incarnation.is_running else None
        return MemberView(
            name=name,
            kind=incarnation.kind,
            has_disk=incarnation.has_disk,
            is_running=incarnation.is_running,
            is_leaving=incarnation.leaving > 0,
            status=said,
            uuid=incarnation.uuid,
            drift=incarnation.drift,
        )

    def _status(self, name: str, incarnation: Incarnation) -> NodeStatus:
        entry = self.registered.get(incarnation.uuid)
        is_leader = name == self.leader
        role = "joining"
        if is_leader:
            role = "leader"
        elif incarnation.kind == "anonymous" and incarnation.has_joined:
            role = "anonymous"
        elif entry is not None and entry.role == "async":
            role = "async"
        elif entry is not None and entry.is_voting:
            role = "follower"
        return NodeStatus(
            uuid=incarnation.uuid,
            role=role,
            term=self.term,
            last_term=1,
            last_index=incarnation.index,
            confirmed_index=incarnation.index,
            is_writable=is_leader and self.has_quorum(),
            can_stand=entry is not None and entry.is_voting and not incarnation.is_fenced,
            is_fenced=incarnation.is_fenced,
            disk=incarnation.disk,
            takes_orders=incarnation.takes_orders,
            cut_rows=incarnation.cut_rows,
            registered=tuple(
                Registered(
                    uuid=uuid,
                    name=other.name,
                    replica_id=position + 1,
                    role=other.role,
                    is_voting=other.is_voting,
                    is_live=is_leader and self._incarnation_of(uuid) is not None,
                    acknowledged_index=found.index if (found := self._incarnation_of(uuid)) else 0,
                )
                for position, (uuid, other) in enumerate(self.registered.items())
            )
            if entry is not None or incarnation.has_joined
            else (),
        )

    # --- turns of the controller, and time ----------------------------------------------------

    def step(self, actions_max: int = 100) -> Plan:
        """Run one turn of the controller, then advance time by one step.

        Args:
            actions_max: number of planned actions to perform; 1 if the world is forgetful.

        Returns:
            The whole plan, with the actions beyond this number.
        """
        self.memory = Memory() if self.is_forgetful else self.memory
        observed = self.observe()
        self.memory = track_leader(observed, self.now_ns, self.now_ns / 1e9)
        observed = replace(observed, memory=self.memory)
        planned = plan(self.cluster, observed, self.now_ns, self.now_ns / 1e9)
        self.status = planned.status
        chosen = planned.actions[: 1 if self.is_forgetful else actions_max]
        for action in chosen:
            self.history.append(str(action))
            self.perform(action)
        self.pass_time()
        return planned

    def pass_time(self) -> None:
        self.now_ns += STEP_NS
        for incarnation in self.incarnations.values():
            if incarnation.has_disk and not incarnation.is_dead:
                incarnation.is_running = True
            if incarnation.leaving:
                incarnation.leaving -= 1
                incarnation.is_running = incarnation.leaving > 0
        if self.leader and not self.incarnations[self.leader].is_running:
            self.leader = ""
        if not self.leader or not self.has_quorum():
            return
        for entry in self.registered.values():
            if entry.role == "voter" and not entry.is_voting:
                entry.is_voting = True
                return  # one membership change at a time
        for name, incarnation in self.incarnations.items():
            if not incarnation.is_running or incarnation.uuid in (*self.registered, *self.removed):
                continue
            incarnation.has_joined = True
            if incarnation.kind != "anonymous":
                self.registered[incarnation.uuid] = ModelEntry(name, incarnation.kind, False)
                return

    # --- actions ------------------------------------------------------------------------------

    def perform(self, action: act.Action) -> None:
        ordered = ordered_member(action)
        assert not ordered or self.incarnations[ordered].takes_orders, f"{ordered} takes no orders"
        match action:
            case act.CreateMember(name, kind):
                self._create(name, kind)
            case act.RecordBootstrap(name, uuid):
                assert not self.record.bootstrap_uuid, "the founder is recorded once"
                self.record = replace(self.record, bootstrap_member=name, bootstrap_uuid=uuid)
            case act.Bootstrap(name, uuid, voters):
                assert self.record.bootstrap_uuid == uuid, "recorded before ordered (M1)"
                assert not self.registered, "a cluster is founded once (M1)"
                assert voters == self.cluster.spec.replicas
                self.registered[uuid] = ModelEntry(name, "voter", True)
                self.incarnations[name].has_joined = True
                self.leader = name
            case act.RecordFormed():
                self.record = replace(self.record, is_formed=True)
            case act.Nominate(name, term):
                self._nominate(action, name, term)
            case act.Switchover(leader, target, _):
                assert leader == self.leader
                assert self.registered[self.incarnations[target].uuid].is_voting
                self.leader, self.term = target, self.term + 1
            case act.Unregister(leader, name, uuid, _):
                self._unregister(leader, name, uuid)
            case act.RemoveMember(name):
                assert self.incarnations[name].uuid not in self.registered, (
                    "unregistered before stopped"
                )
                del self.incarnations[name]
            case act.Configure(name):
                assert self.incarnations[name].drift == "live"
                self.incarnations[name].drift = "none"
            case act.Restart(name):
                self._restart(name)
            case act.CreateSpaces(leader, names):
                assert leader == self.leader
                self.spaces.update(names)
            case _:
                self._perform_fence(action)

    def _perform_fence(self, action: act.Action) -> None:
        match action:
            case act.RecordFenced(names):
                self.record = replace(self.record, fenced=names)
            case act.Fence(name):
                assert name in self.record.fenced, "recorded before it is done"
                self.incarnations[name].is_fenced = True
                if self.leader == name:
                    self.leader = ""
            case act.Unfence(name):
                self.incarnations[name].is_fenced = False

    def _create(self, name: str, kind: MemberKind) -> None:
        old = self.incarnations.get(name)
        assert old is None or not old.has_disk, "a disk is never overwritten"
        if self.registered and kind == "voter":
            assert all(e.is_voting for e in self.registered.values() if e.role == "voter"), (
                "one voter at a time"
            )
            assert len(self.live_voters()) + 1 >= self.quorum(len(self.voters()) + 1)
        self.born += 1
        self.incarnations[name] = Incarnation(kind, f"new-{self.born}", index=0)

    def _nominate(self, action: act.Nominate, name: str, term: int) -> None:
        assert not self.leader, "no member is nominated while another leads"
        self.memory = after_nomination(self.memory, action, self.now_ns)
        best = max(
            (
                incarnation.index
                for incarnation in self.incarnations.values()
                if self._can_win(incarnation)
            ),
            default=0,
        )
        assert term == self.term
        if self.incarnations[name].index >= best and self.has_quorum():
            self.leader, self.term = name, self.term + 1

    def _can_win(self, incarnation: Incarnation) -> bool:
        entry = self.registered.get(incarnation.uuid)
        return incarnation.is_running and entry is not None and entry.is_voting

    def _unregister(self, leader: str, name: str, uuid: str) -> None:
        assert leader == self.leader
        assert uuid != self.incarnations[leader].uuid, "the leader is never removed"
        assert self.registered[uuid].name == name
        self.removed.add(uuid)
        if self.registered.pop(uuid).is_voting:
            assert self.has_quorum(), "no action loses quorum"

    def _restart(self, name: str) -> None:
        incarnation = self.incarnations[name]
        voters = self.voters()
        if incarnation.uuid in voters and len(voters) > 2:
            if incarnation.takes_orders:
                assert name != self.leader, "the leader hands over before it restarts"
            rest = [u for u in self.live_voters() if u != incarnation.uuid and self._stays(u)]
            assert len(rest) >= self.quorum(len(voters)), "no action loses quorum"
        incarnation.drift = "none"
        if name == self.leader and not incarnation.takes_orders:
            self._hand_over(name)
        incarnation.takes_orders = self.image_takes_orders
        if self.lingers:
            incarnation.leaving = 3
        elif name == self.leader:
            self.leader = ""

    def _hand_over(self, name: str) -> None:
        """Transfer leadership like the preStop hook of the leader's pod."""
        others = [
            one
            for one, incarnation in self.incarnations.items()
            if one != name and self._can_win(incarnation)
        ]
        self.leader, self.term = min(others, default=""), self.term + 1

    def _stays(self, uuid: str) -> bool:
        incarnation = self._incarnation_of(uuid)
        return incarnation is not None and not incarnation.leaving
