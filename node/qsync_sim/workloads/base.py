"""Sessions of workloads: each follows a script, sends one request at a time and records the answer.

A script is a generator. It yields a `WorkloadRequest` to send, or a number of milliseconds to wait,
and continues when the request is answered or its outcome is unknown. After the loss of a member the
session connects to another one. A transaction is lost with its connection, so its next request gets
the outcome `LOST` and is not sent.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import msgpack

from qsync_node.consensus import effects as fx
from qsync_node.format.keys import (
    KEY_AFTER_POSITION,
    KEY_AFTER_TUPLE,
    KEY_FETCH_POSITION,
    KEY_INDEX_ID,
    KEY_ITERATOR,
    KEY_KEY,
    KEY_LIMIT,
    KEY_OFFSET,
    KEY_OPS,
    KEY_SPACE_ID,
    KEY_TIMEOUT,
    KEY_TUPLE,
    KEY_TXN_ISOLATION,
)
from qsync_sim import faults
from qsync_sim.clients import BEGIN, ROLLED_BACK, UNKNOWN
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_sim.workloads.order import ConfirmedOrder

MILLISECOND = 1_000_000
GIVE_UP_MS = 30_000
"""A client stops waiting after twice the deadline that a member has for its answer."""
SESSIONS_FROM = 100_000
"""Numbers of the sessions of workloads; the basic clients use smaller ones."""
LOST = "lost"
SECOND_BEGIN = "second begin"
"""A BEGIN in the stream of an open transaction; it opens no transaction."""
STRIKES, STRIKES_MS = 2, (200, 6_000)
"""Number of times when a workload lets members refuse rows, and between which times of it."""
WAKE_MS = (0, 0, 5, 20, 50)
THINK_MS = (0, 2, 10, 40, 250, 900)
_NAMES = {
    "space": KEY_SPACE_ID, "index": KEY_INDEX_ID, "limit": KEY_LIMIT, "offset": KEY_OFFSET,
    "iterator": KEY_ITERATOR, "fetch_position": KEY_FETCH_POSITION, "key": KEY_KEY,
    "tuple": KEY_TUPLE, "ops": KEY_OPS, "after_position": KEY_AFTER_POSITION,
    "after_tuple": KEY_AFTER_TUPLE, "timeout": KEY_TIMEOUT, "isolation": KEY_TXN_ISOLATION,
}  # fmt: skip


def body_of(**named: object) -> bytes:
    """Return the body of a request from its named fields."""
    packed: bytes = msgpack.packb({_NAMES[name]: value for name, value in named.items()})
    return packed


@dataclass(slots=True)
class WorkloadRequest:
    """A request and its answer; `outcome` is empty until then."""

    kind: str
    type: int
    body: bytes
    tag: str = ""  # the unique value that identifies its row
    user: str = "admin"
    stream: int = 0
    key: Any = None
    note: Any = None  # for the check of its workload
    member: str = ""
    called_ns: int = 0
    returned_ns: int = 0
    outcome: str = ""
    code: int = 0
    reason: str = ""
    index: int = 0
    tuples: list[Any] = field(default_factory=list)
    position: bytes | None = None
    floor_index: int = 0  # the greatest index that any client had received before it
    ceiling_index: int = 0  # the greatest confirmed anywhere when the answer came

    @property
    def fields(self) -> dict[int, Any]:
        """Return the decoded body."""
        decoded: dict[int, Any] = msgpack.unpackb(self.body, strict_map_key=False)
        return decoded


Script = Generator[WorkloadRequest | int, WorkloadRequest | None, None]


class WorkloadSession:
    """A client of one workload."""

    def __init__(self, world: Cluster, number: int, rng: Random, script: Script) -> None:
        self.world = world
        self.rng = rng
        self.session = SESSIONS_FROM * number
        self.script = script
        self.member: Shell | None = None
        self.waiting: WorkloadRequest | None = None
        self.is_stopped = False
        self._incarnation = 0
        self._sync = 0
        self._streams: set[int] = set()  # of open transactions
        self._pause = 0  # counts pauses
        self._is_pausing = False
        self._answered: WorkloadRequest | None = None  # before the pause
        world.guests.append(self)
        self._later(rng.choice(THINK_MS))

    def disconnect(self) -> None:
        """End the connection; the next request begins a new one."""
        if self.member is not None and self.member.incarnation == self._incarnation:
            self.member.step([fx.SessionClosed(self.session)])
        self.member = None

    def _later(self, milliseconds: int, answered: WorkloadRequest | None = None) -> None:
        self._pause += 1
        self._is_pausing = True
        self._answered = answered
        pause, delay_ns = self._pause, milliseconds * MILLISECOND + self.rng.randrange(100_000)
        self.world.after(delay_ns, lambda: self._advance(pause))

    def wake(self) -> None:
        """Continue soon if the session pauses, so that its next request meets a fault."""
        if self._is_pausing:
            self._later(self.rng.choice(WAKE_MS), self._answered)

    def _advance(self, pause: int) -> None:
        if self.is_stopped or pause != self._pause:
            return
        self._is_pausing = False
        answered, self._answered = self._answered, None
        try:
            item = self.script.send(answered)
        except StopIteration:
            self.is_stopped = True
            return
        if isinstance(item, int):
            self._later(item)
        else:
            self._send(item)

    # --- requests -----------------------------------------------------------------------------

    def _connect(self) -> bool:
        if (
            self.member is not None
            and self.member.incarnation == self._incarnation
            and self.member.is_alive
        ):
            return True
        alive = [
            shell
            for shell in self.world.shells.values()
            if shell.is_alive and not shell.is_removed and not shell.settings.spaces
        ]
        if not alive:
            return False
        self.session += 1
        self.member = self.rng.choice(alive)
        self._incarnation = self.member.incarnation
        self._streams.clear()
        return True

    def _send(self, request: WorkloadRequest) -> None:
        if self.is_stopped:
            return
        if not self._connect():
            self.world.after(50 * MILLISECOND, lambda: self._send(request))
            return
        if request.type == BEGIN and request.kind != SECOND_BEGIN:
            self._streams.add(request.stream)
        elif request.stream and request.stream not in self._streams:
            request.outcome = LOST
            self._later(0, request)
            return
        self._submit(request)

    def _submit(self, request: WorkloadRequest) -> None:
        world, member = self.world, self.member
        assert member is not None
        self._sync += 1
        request.member = member.name
        request.called_ns = world.now_ns
        request.floor_index = world.told_index
        self.waiting = request
        incarnation, session, sync = member.incarnation, self.session, self._sync
        sent = fx.Request(
            session, sync, request.type, request.body, request.stream, request.user, request.key
        )

        def arrive() -> None:
            if member.incarnation == incarnation:
                member.step([sent])
            else:
                self._on_lost(session, sync)

        world.clients_by_session[session] = self
        world.after(self.rng.randrange(50_000, 400_000), arrive)
        world.after(GIVE_UP_MS * MILLISECOND, lambda: self._give_up(session, sync))

    def _give_up(self, session: int, sync: int) -> None:
        if self.waiting is not None and (session, sync) == (self.session, self._sync):
            member = self.member
            if member is not None and member.incarnation == self._incarnation:
                self.world.fail(f"G3: {self.waiting.kind} at {member.name} has no answer")
            self.disconnect()
            self._on_lost(session, sync)

    # --- answers ------------------------------------------------------------------------------

    def on_answer(self, answer: fx.Answer) -> None:
        """Record the answer of the request that waits."""
        request = self.waiting
        if request is None or (answer.session, answer.sync) != (self.session, self._sync):
            return
        request.code, request.reason = answer.code, answer.reason
        request.index = answer.log_index
        request.tuples = [msgpack.unpackb(packed) for packed in answer.tuples]
        request.position = answer.position
        if answer.code == 0:
            request.outcome = "committed"
            self.world.told_index = max(self.world.told_index, answer.log_index)
        elif answer.code in ROLLED_BACK:
            request.outcome = "rolled back"
        elif answer.code in UNKNOWN:
            request.outcome = "unknown"
        else:
            request.outcome = "refused"
        self._ended(request)

    def on_member_stopped(self, shell: Shell) -> None:
        """Record an unknown outcome if the member had the request."""
        if self.member is shell:
            self._on_lost(self.session, self._sync)

    def _on_lost(self, session: int, sync: int) -> None:
        if (session, sync) != (self.session, self._sync):
            return
        self.member = None
        if self.waiting is not None:
            self.waiting.outcome = "unknown"
            self._ended(self.waiting)

    def _ended(self, request: WorkloadRequest) -> None:
        request.returned_ns = self.world.now_ns
        request.ceiling_index = self.world.confirmed_anywhere
        self.waiting = None
        if request.outcome == "unknown" and self.rng.random() < 0.5:
            self.disconnect()
        self._later(self.rng.choice(THINK_MS), request)


class Workload(ABC):
    """Requests of one kind in a schedule, and their check against the order of confirmed rows."""

    name = ""
    number = 0
    """Determines the session numbers of the workload, which must be its own."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.rng = Random(f"{self.name} in {world.seed}")
        self.sessions: list[WorkloadSession] = []
        self.requests: list[WorkloadRequest] = []
        self.is_stopped = False

    def settings(self) -> dict[str, Any]:
        """Return the settings of members that the workload needs."""
        return {}

    def set_up(self) -> None:  # noqa: B027  # many workloads need nothing
        """Create the spaces and users of the sessions, before any fault."""

    @abstractmethod
    def scripts(self) -> list[Script]:
        """Return the script of each session."""

    def start(self) -> None:
        """Start the sessions."""
        for position, script in enumerate(self.scripts()):
            rng = Random(self.rng.random())
            self.sessions.append(
                WorkloadSession(self.world, 10 * self.number + position, rng, script)
            )
        for _ in range(STRIKES):
            self.world.after(self.rng.randrange(*STRIKES_MS) * MILLISECOND, self._strike)

    def _strike(self) -> None:
        """Let most members refuse rows for a moment, so that requests are rolled back (T7)."""
        if not self.is_stopped:
            faults.nack_by_most(self.world)
            self.world.on_fault()
            self.wake()

    def wake(self) -> None:
        """Let the sessions that pause send soon: a fault begins."""
        for session in self.sessions:
            session.wake()

    def stop(self) -> None:
        """Let the sessions send nothing more."""
        self.is_stopped = True
        for session in self.sessions:
            session.is_stopped = True

    def disconnect(self) -> None:
        """Close the connections of all sessions."""
        for session in self.sessions:
            session.disconnect()

    @property
    def is_idle(self) -> bool:
        """Return whether no request waits for its answer."""
        return all(session.waiting is None for session in self.sessions)

    @abstractmethod
    def check(self, order: "ConfirmedOrder") -> None:
        """Compare all answers with the order of confirmed rows.

        Raises:
            Violation: an answer breaks a rule.
        """

    def sent(self, request: WorkloadRequest) -> WorkloadRequest:
        """Note a request that is about to be sent, and return it."""
        self.requests.append(request)
        return request

    def until_beat(self, milliseconds: int) -> int:
        """Return the milliseconds until all sessions that wait for this beat send at once."""
        return milliseconds - self.world.now_ns // MILLISECOND % milliseconds

    def new_tag(self) -> str:
        """Return a value that no other request of the schedule has."""
        return f"{self.name}-{len(self.requests)}-{self.rng.randrange(1_000_000)}"

    def fail(self, request: WorkloadRequest, reason: str) -> None:
        """Raise a violation that describes the request."""
        raise InvariantViolation(
            f"{reason}; {self.name}: {request.kind} {request.fields if request.body else ''} "
            f"of {request.user} at {request.member}, "
            f"{request.called_ns / 1e6:.3f} .. {request.returned_ns / 1e6:.3f} ms, answered "
            f"{request.outcome} ({request.code} {request.reason}) index {request.index} "
            f"{request.tuples}"
        )
