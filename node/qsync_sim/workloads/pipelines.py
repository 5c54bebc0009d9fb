"""Transactions whose client sends all requests without awaiting an answer (T6, T10).

A session sends BEGIN, writes of unique values and COMMIT or ROLLBACK, at once or within seconds.
It may repeat the transaction with the same idempotency key, and send another one in the same
stream. Its member may find or lose a leader in between. None of the writes may take effect
alone, or twice.
"""

from random import Random
from typing import Any, NamedTuple

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import REPLACE
from qsync_sim.clients import BEGIN, COMMIT, ROLLBACK, ROLLED_BACK, UNKNOWN
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation
from qsync_sim.workloads.base import MILLISECOND, SESSIONS_FROM, body_of
from qsync_sim.workloads.checks import CIRCUMSTANCES
from qsync_sim.workloads.order import ConfirmedOrder

STREAM = 1
SPREAD_MS = (0, 20, 1_000, 4_000)
"""Within which time the requests of a transaction arrive at its member."""
ANSWER_NS_MAX = 400_000
"""The longest way of an answer: the member has sent it before."""
TWICE = 0.5
"""Part of the sessions with another transaction, and of these with a retry of the first one."""
_ALLOWED = {
    *CIRCUMSTANCES,
    *ROLLED_BACK,
    *UNKNOWN,
    ErrorCode.TRANSACTION_CONFLICT,
    ErrorCode.TRANSACTION_TIMEOUT,
}
_UNDECIDED = {*UNKNOWN, ErrorCode.TIMEOUT}
"""Errors of a BEGIN or a statement that takes effect if its COMMIT does."""


class PipelinedPart(NamedTuple):
    """A transaction: its requests have the numbers from `begin`; the last one ends it."""

    begin: int
    tags: list[str]
    end: int

    @property
    def number_of_end(self) -> int:
        """Return the number of its COMMIT or ROLLBACK."""
        return self.begin + len(self.tags) + 1


class PipelinedTransaction:
    """Up to three transactions, sent by a session of its own in one stream."""

    def __init__(self, world: Cluster, rng: Random, space: int, session: int) -> None:
        self.world = world
        self.rng = rng
        self.session = session
        self.requests: list[tuple[int, bytes]] = []
        self.parts = [self._new_part(space, rng.choice([COMMIT, COMMIT, COMMIT, ROLLBACK]))]
        self.is_retried = False
        if rng.random() < TWICE:
            self.is_retried = self.parts[0].end == COMMIT and rng.random() < TWICE
            if self.is_retried:
                self.parts.append(self.parts[0]._replace(begin=len(self.requests) + 1))
                self.requests *= 2
            self.parts.append(self._new_part(space, COMMIT))
        self.tags = [tag for part in self.parts for tag in part.tags]
        self.answers: dict[int, fx.Answer] = {}
        self.answered_ns: dict[int, int] = {}
        self.arrived_ns: dict[int, int] = {}
        self._key: list[Any] | None = None
        self._member: Shell | None = None
        self._incarnation = 0

    def _new_part(self, space: int, end: int) -> PipelinedPart:
        begin = len(self.requests) + 1
        writes = range(self.rng.choice([1, 2, 3]))
        tags = [f"pipeline-{self.session}-{begin + number}" for number in writes]
        self.requests += [
            (BEGIN, b""),
            *(
                (REPLACE, body_of(space=space, tuple=[self.rng.randrange(1 << 40), tag]))
                for tag in tags
            ),
            (end, b""),
        ]
        return PipelinedPart(begin, tags, end)

    def start(self, member: Shell) -> None:
        """Send all requests to a member, in their order."""
        self._member, self._incarnation = member, member.incarnation
        self.world.clients_by_session[self.session] = self
        if self.is_retried and member.node is not None:
            self._key = [f"pipeline-{self.session}", 1, member.node.context.limbo.confirmed_index]
        spread_ns = self.rng.choice(SPREAD_MS) * MILLISECOND
        for delay_ns in sorted(self.rng.randrange(spread_ns + 1) for _ in self.requests):
            self.world.after(delay_ns, self._send)

    def _send(self) -> None:
        """Send the next request, if the member still runs."""
        member, number = self._member, len(self.arrived_ns) + 1
        if member is None or self._is_lost():
            return
        kind, body = self.requests[number - 1]
        is_keyed = kind == COMMIT and self.is_retried and number <= self.parts[1].number_of_end
        self.arrived_ns[number] = self.world.now_ns
        member.step(
            [
                fx.Request(
                    self.session,
                    number,
                    kind,
                    body,
                    STREAM,
                    "admin",
                    self._key if is_keyed else None,
                )
            ]
        )

    def on_answer(self, answer: fx.Answer) -> None:
        """Note an answer."""
        if answer.sync in self.answers:
            raise InvariantViolation(f"K1: two answers to request {answer.sync} of {self.tags}")
        self.answers[answer.sync] = answer
        self.answered_ns[answer.sync] = self.world.now_ns

    def _is_lost(self) -> bool:
        return self._member is None or self._member.incarnation != self._incarnation

    @property
    def is_idle(self) -> bool:
        """Whether each request has an answer, unless the member stopped."""
        return self._is_lost() or len(self.answers) == len(self.requests)

    def disconnect(self) -> None:
        """Close the session."""
        if self._member is not None and not self._is_lost():
            self._member.step([fx.SessionClosed(self.session)])

    # --- checks -------------------------------------------------------------------------------

    def check(self, order: ConfirmedOrder) -> None:
        """Check that the writes are in the order together, or not at all (T6, T10).

        Raises:
            InvariantViolation: some take effect alone, or an answer is wrong.
        """
        for number, answer in self.answers.items():
            if answer.code and answer.code not in _ALLOWED:
                self._fail(f"T6: no rule allows the error {answer.code} of request {number}")
        if self.is_retried:
            self._check_retry(order)
        for part in self.parts[2:] if self.is_retried else self.parts:
            self._check_part(order, part)

    def _check_retry(self, order: ConfirmedOrder) -> None:
        """Check two attempts of one transaction: at most one takes effect (T9)."""
        first, second = self.parts[:2]
        begins = [self.answers.get(part.begin) for part in (first, second)]
        if any(begin is not None and begin.code for begin in begins):
            return  # requests that arrived after a refused BEGIN run alone (T10)
        places = sorted(place for tag in first.tags for place in order.places.get(tag, ()))
        if places and places != list(range(places[0], places[0] + len(places))):
            self._fail(f"T6: its writes are apart in the order, at {places}")
        self._check_once(order, first)
        numbers = range(1, second.number_of_end + 1)
        codes = [self.answers[number].code for number in numbers if number in self.answers]
        if len(codes) == len(numbers) and not any(codes):
            if len(places) != len(first.tags):
                self._fail(f"T9: committed twice, but in the order at {places}")
            self.world.count("pipelined transactions retried")

    def _check_once(self, order: ConfirmedOrder, part: PipelinedPart) -> None:
        found = {tag: order.places[tag] for tag in part.tags if tag in order.places}
        if any(len(places) > 1 for places in found.values()):
            self._fail(f"T9: writes are in the order at {found}")

    def _check_part(self, order: ConfirmedOrder, part: PipelinedPart) -> None:
        self._check_once(order, part)
        found = {tag: order.places[tag] for tag in part.tags if tag in order.places}
        begin, end = self.answers.get(part.begin), self.answers.get(part.number_of_end)
        if begin is not None and begin.code:
            self._check_alone(order, part, is_refused=begin.code not in _UNDECIDED)
            return
        if part.end == ROLLBACK:
            if found:
                self._fail(f"T6: rolled back, but in the order at {found}")
            self.world.count("pipelined transactions rolled back")
            return
        codes = self._decided_codes(part)
        written = {tag for tag in part.tags if codes.get(tag) == 0 or not any(codes.values())}
        if found and not written <= found.keys() <= written | (set(part.tags) - codes.keys()):
            self._fail(f"T6: only a part of them is in the order, at {found}")
        if end is not None:
            self._check_end(end, written, [places[0] for places in found.values()])

    def _decided_codes(self, part: PipelinedPart) -> dict[str, int]:
        """Return the codes of the statements whose answers state an outcome."""
        return {
            tag: self.answers[number].code
            for number, tag in enumerate(part.tags, part.begin + 1)
            if number in self.answers and self.answers[number].code not in _UNDECIDED
        }

    def _check_alone(self, order: ConfirmedOrder, part: PipelinedPart, *, is_refused: bool) -> None:
        """Check the writes that arrived before BEGIN was answered with an error (T10).

        Those that arrived later are transactions of their own, as in Tarantool.

        Args:
            order: the order of confirmed rows.
            part: the transaction.
            is_refused: whether BEGIN was refused; its outcome is unknown otherwise.
        """
        answered_ns = self.answered_ns[part.begin] - ANSWER_NS_MAX
        codes = self._decided_codes(part)
        early = [
            tag
            for number, tag in enumerate(part.tags, part.begin + 1)
            if self.arrived_ns.get(number, answered_ns + 1) <= answered_ns
        ]
        found = [order.places[tag][0] for tag in early if tag in order.places]
        if is_refused and found:
            self._fail(f"T10: writes took effect alone, at {found}")
        whole = sum(not codes.get(tag) for tag in early)
        if found and (len(found) != whole or found[-1] - found[0] != len(found) - 1):
            self._fail(f"T6: writes took effect alone, at {found}")
        if is_refused and early:
            self.world.counters["pipelined writes refused with their BEGIN"] += len(early)

    def _check_end(self, commit: fx.Answer, written: set[str], found: list[int]) -> None:
        """Check the outcome of COMMIT (T6)."""
        if commit.code == 0:
            last = commit.log_index
            if written and found != list(range(last - len(written) + 1, last + 1)):
                self._fail(f"T6: committed at {last}, but in the order at {found}")
            self.world.count("pipelined transactions committed")
        elif commit.code not in UNKNOWN and found:
            self._fail(f"T6: COMMIT failed with {commit.code}, but the order has {found}")

    def _fail(self, reason: str) -> None:
        member: Any = self._member.name if self._member is not None else None
        answers = {number: (one.code, one.reason) for number, one in self.answers.items()}
        raise InvariantViolation(f"{reason}; {self.tags} at {member}, answered {answers}")


class PipelinedTransactions:
    """The pipelined transactions of a schedule, in a part of the schedules with transactions."""

    PART = 0.25
    INTERVAL_MS = (50, 1_500)

    def __init__(self, world: Cluster, space: int, number: int) -> None:
        """Choose whether the schedule has any.

        Args:
            world: the schedule's cluster.
            space: id of a space whose tuples begin with a number.
            number: of the workload.
        """
        self.world = world
        self.rng = Random(f"pipelined in {world.seed}")
        self.is_chosen = self.rng.random() < self.PART
        self.is_stopped = False
        self._space = space
        self._first_session = SESSIONS_FROM * (10 * number + 9)
        self._all: list[PipelinedTransaction] = []

    def start(self) -> None:
        """Begin a transaction at random times."""
        if self.is_chosen:
            self.world.after(self.rng.randrange(*self.INTERVAL_MS) * MILLISECOND, self._begin)

    def _begin(self) -> None:
        if self.is_stopped:
            return
        members = [
            shell
            for shell in self.world.shells.values()
            if shell.is_alive and not shell.is_removed and not shell.settings.spaces
        ]
        if members:
            session = self._first_session + len(self._all)
            pipeline = PipelinedTransaction(self.world, self.rng, self._space, session)
            self._all.append(pipeline)
            pipeline.start(self.rng.choice(members))
        self.start()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its answer."""
        return all(pipeline.is_idle for pipeline in self._all)

    def disconnect(self) -> None:
        """Close all sessions."""
        for pipeline in self._all:
            pipeline.disconnect()

    def check(self, order: ConfirmedOrder) -> None:
        """Check all of them. Raises InvariantViolation."""
        for pipeline in self._all:
            pipeline.check(order)
