"""Turns of the event loop: all inputs of one turn are one step of the node.

Sockets and disk threads append inputs to a list. One scheduled callback takes the list and steps
the node. A request needs no task, future, lock or queue (architecture.md).

    IDLE ──feed──► SCHEDULED ──call_soon──► the turn ──► IDLE
      └── the timer of the node's next deadline ─► the turn
"""

import asyncio
import time
from collections.abc import Callable

from qsync_node.consensus import effects as fx


class Turns:
    """Inputs of the next step, and the time of the next turn without one.

    Attributes:
        count: steps so far.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        prepare: Callable[[], None],
        step: Callable[[list[fx.Input]], int],
        on_bug: Callable[[Exception], None],
    ) -> None:
        """Begin without inputs.

        Args:
            loop: the event loop.
            prepare: runs before the inputs of a scheduled turn are taken, and may feed more.
            step: performs a step, and returns the node's next deadline in nanoseconds.
            on_bug: receives an unforeseen error of either.
        """
        self._loop = loop
        self._prepare = prepare
        self._step = step
        self._on_bug = on_bug
        self.count = 0
        self._inputs: list[fx.Input] = []
        self._is_scheduled = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def feed(self, item: fx.Input) -> None:
        """Append one input for the next step."""
        self._inputs.append(item)
        if not self._is_scheduled:
            self.schedule()

    def schedule(self) -> None:
        """Let a turn follow the events that have arrived."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def deliver(self, inputs: list[fx.Input]) -> None:
        """Pass inputs from another thread."""
        self._loop.call_soon_threadsafe(self._feed_all, inputs)

    def stop(self) -> None:
        """Perform no further turn."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _feed_all(self, inputs: list[fx.Input]) -> None:
        self._inputs += inputs
        if not self._is_scheduled:
            self._turn()

    def _turn(self) -> None:
        """Perform one step, or report an unforeseen error."""
        if self._is_over:
            self._is_scheduled = False
            return
        try:
            self._prepare()
            self._is_scheduled = False
            inputs, self._inputs = self._inputs, []
            self.count += 1
            self._set_timer(self._step(inputs))
        except Exception as error:  # noqa: BLE001  # any failure ends this process run
            self._on_bug(error)

    def _set_timer(self, deadline_ns: int) -> None:
        at = self._loop.time() + max(deadline_ns - time.monotonic_ns(), 0) / 1e9
        if self._timer is not None:
            if self._timer_at <= at + 0.0005:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_scheduled:
            self._turn()
