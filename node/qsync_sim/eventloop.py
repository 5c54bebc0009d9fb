"""The event loop of a simulated process: it runs one callback at a time, and steps take time.

state    event                        next
-------  ---------------------------  ----------------------------------------------------------
free     a callback                   it runs at once; then a step with the inputs it has fed
busy     a callback                   busy: it waits for the end of the step
busy     the step ends                all callbacks that wait run, and then one step
paused   a callback                   paused: it waits
paused   the process continues        as at the end of a step
any      the process ends             ended: nothing runs any more
"""

from collections.abc import Callable

from qsync_sim.timeline import Timeline


class EventLoop:
    """The loop of one process run.

    Attributes:
        is_step_due: whether a step follows without inputs, too.
        is_paused: whether the process is stopped (SIGSTOP).
    """

    __slots__ = ("_busy_until_ns", "_is_running", "_is_scheduled", "_ready", "_timeline", "_turn",
                 "is_ended", "is_paused", "is_step_due")  # fmt: skip

    def __init__(self, timeline: Timeline, turn: Callable[[], int]) -> None:
        """Begin free.

        Args:
            timeline: the clock.
            turn: performs a step if one is due, and returns its duration in nanoseconds.
        """
        self._timeline = timeline
        self._turn = turn
        self._ready: list[Callable[[], None]] = []
        self._busy_until_ns = 0
        self._is_running = False
        self._is_scheduled = False
        self.is_step_due = False
        self.is_paused = False
        self.is_ended = False

    def run(self, callback: Callable[[], None]) -> None:
        """Run a callback, now or when the loop is free."""
        if self.is_ended:
            return
        self._ready.append(callback)
        if self._is_running or self._is_scheduled or self.is_paused:
            return
        if self._busy_until_ns > self._timeline.now_ns:
            self._schedule()
        else:
            self._run_all()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._timeline.at(self._busy_until_ns, self._on_free)

    def _on_free(self) -> None:
        self._is_scheduled = False
        if not self.is_paused:
            self._run_all()

    def _run_all(self) -> None:
        self._is_running = True
        while self._ready and not self.is_ended:
            ready, self._ready = self._ready, []
            for callback in ready:
                if not self.is_ended:
                    callback()
            duration_ns = 0 if self.is_ended else self._turn()
            if duration_ns:
                self._busy_until_ns = self._timeline.now_ns + duration_ns
                if self._ready:
                    self._schedule()
                break
        self._is_running = False

    def pause(self) -> None:
        """Stop the process: callbacks wait."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue the process, if it is stopped."""
        if not self.is_paused:
            return
        self.is_paused = False
        if self._ready and not self._is_scheduled and not self._is_running:
            self._busy_until_ns = max(self._busy_until_ns, self._timeline.now_ns)
            self._schedule()

    def end(self) -> None:
        """End the process."""
        self.is_ended = True
        self._ready.clear()
