"""Durations and errors of a process run: requests, writes, flushes, and delays of the event loop.

The memory is constant: types of requests and codes of errors are few.
"""

import asyncio
from collections.abc import Iterator
from time import monotonic_ns

from qsync_client.protocol.constants import Type
from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.histogram import Histogram
from qsync_node.transactions.calls import LOGGING_TYPES

LOOP_CHECK_S = 0.1
STALL_S = 0.1
"""Delay of the event loop that counts as a stall. Heartbeats are late then."""
OPERATIONAL = tuple(
    int(code)
    for code in (
        ErrorCode.MEMORY_ISSUE, ErrorCode.READONLY, ErrorCode.TIMEOUT, ErrorCode.LOADING,
        ErrorCode.SYNC_QUORUM_TIMEOUT, ErrorCode.SYNC_QUEUE_FULL, ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.DISK_FULL,
    )
)  # fmt: skip
"""Errors with a series from the start, so that a rate includes the first one."""
_NAMES = {int(one): one.name.lower() for one in Type}


class Timings:
    """Durations of requests, and errors by code.

    Attributes:
        writes: from the arrival of a write at the node to its answer as committed.
        flushes: writes of the log, each with its flush. The thread of the log observes them.
        loop: delays of the event loop.
        stalls: delays of at least `STALL_S`.
        errors: answers with an error, by code.
    """

    def __init__(self) -> None:
        self.writes = Histogram()
        self.flushes = Histogram()
        self.loop = Histogram()
        self.stalls = 0
        self.errors = dict.fromkeys(OPERATIONAL, 0)
        self._requests: dict[int, Histogram] = {}
        self._begun_ns = self._kind = self._alike = 0
        self._is_write = False
        self._timer: asyncio.TimerHandle | None = None

    def note(self, kind: int, begun_ns: int, answer: fx.Answer) -> None:
        """Note the answer of a request.

        Requests that arrived together and are answered in one turn are counted together, because
        this is on the path of every write.

        Args:
            kind: type of the request.
            begun_ns: when the node received it, in nanoseconds.
            answer: its answer.
        """
        # A linearizable read has an index, too.
        is_write = answer.log_index > 0 and not answer.code and kind in LOGGING_TYPES
        if (
            begun_ns == self._begun_ns
            and kind == self._kind
            and is_write is self._is_write
            and not answer.code
        ):
            self._alike += 1
            return
        self.end_turn()
        self._begun_ns, self._kind, self._alike = begun_ns, kind, 1
        self._is_write = is_write
        if answer.code:
            self.note_error(answer.code)
            self.end_turn()

    def end_turn(self) -> None:
        """Count the answers of the turn: later ones have waited longer."""
        if not self._alike:
            return
        duration_s, alike = (monotonic_ns() - self._begun_ns) * 1e-9, self._alike
        histogram = self._requests.get(self._kind)
        if histogram is None:
            histogram = self._requests[self._kind] = Histogram()
        histogram.observe(duration_s, alike)
        if self._is_write:
            self.writes.observe(duration_s, alike)
        self._alike = self._begun_ns = 0

    def note_error(self, code: int) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def requests(self) -> Iterator[tuple[str, Histogram]]:
        """Yield the name of each type of request with its durations."""
        for kind, histogram in sorted(self._requests.items()):
            yield _NAMES.get(kind, str(kind)), histogram

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure the delay of a timer again and again, until `stop`."""
        due_s = loop.time() + LOOP_CHECK_S

        def measure() -> None:
            delay_s = max(loop.time() - due_s, 0.0)
            self.loop.observe(delay_s)
            self.stalls += delay_s >= STALL_S
            self.watch_loop(loop)

        self._timer = loop.call_at(due_s, measure)

    def stop(self) -> None:
        """Measure the event loop no longer."""
        if self._timer is not None:
            self._timer.cancel()
