"""A client that appends texts of its own, at whatever broker serves the journal."""

from collections.abc import Callable

from qsync_broker.requests import Append, Appended
from qsync_broker.status import Status
from qsync_sim.journals.clock import MS
from qsync_sim.journals.world import BrokerWorld

HOPS_MAX = 3
Taken = Callable[[str, Appended, bytes], None]


class AppendingClient:
    """Appends to journals, and reports acknowledged appends.

    Attributes:
        world: the brokers.
        on_commit: gets the journal, the result and the bytes of each acknowledged append.
    """

    def __init__(self, world: BrokerWorld, on_commit: Taken) -> None:
        self.world = world
        self.on_commit = on_commit
        self._texts = 0

    def append(self, name: str, journal: str) -> None:
        """Append one to three pieces at a broker, which may name another one."""
        rng = self.world.rng
        self._texts += 1
        sizes = [rng.choice((10, 300, 1500)) for _ in range(rng.randrange(1, 4))]
        pieces = [(f"<{self._texts}.{n}>".encode() * size)[:size] for n, size in enumerate(sizes)]
        self._append(name, journal, pieces, HOPS_MAX)

    def _append(self, name: str, journal: str, pieces: list[bytes], hops: int) -> None:
        world = self.world
        if not world.processes[name].is_alive:
            return

        def done(result: Appended, is_proxied: bool) -> None:
            if is_proxied and hops:
                self._append(result.resolution.broker.suffix, journal, pieces, hops - 1)
            elif not is_proxied and not result.error and result.resolution.status is Status.OK:
                self.on_commit(journal, result, b"".join(pieces))

        # A slow client still sends its content while brokers join and leave the journal.
        pause_ns = (800 if world.rng.random() < 0.1 else 3) * MS
        world.append(name, Append(journal), pieces, done, pause_ns=pause_ns)
