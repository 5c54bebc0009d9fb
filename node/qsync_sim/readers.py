"""Reads at members that have just become leader or begun to follow one.

A linearizable read can be too old only for a moment: until a new leader has its PROMOTE confirmed,
and until a member that returns has applied the rows that it lacks (R2). The requests of other
clients seldom meet these moments. The checker judges the answers like those of other clients.
"""

from random import Random

from qsync_sim.clients import KEYS, SimClient
from qsync_sim.cluster import Cluster
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell

NUMBERS_FROM = 50
"""Numbers of these clients; others have smaller ones."""
CHANCES = {"leader": 1.0, "following": 0.5}
"""Probability of a read after an event."""


class EarlyReader(SimClient):
    """A client that only reads after an event of the member that it asks."""

    def __init__(self, world: Cluster, number: int) -> None:
        # The randomness of its own keeps the other clients of a seed as they are.
        super().__init__(world, NUMBERS_FROM + number, Random(f"reader {number} in {world.seed}"))

    def on_event(self, shell: Shell, event: str) -> None:
        """Read at a member that reports an event."""
        if self.is_stopped or self.waiting is not None or shell.is_removed:
            return
        if self.rng.random() >= CHANCES.get(event, 0.0):
            return
        self.disconnect()
        self.session += 1
        self.member, self.member_incarnation = shell, shell.incarnation
        kind = self.rng.choice(["linearizable", "linearizable scan"])
        self.world.count("early reads")
        self._do(kind, SPACE, self.rng.randrange(KEYS))

    def _later(self, milliseconds: int) -> None:
        """Wait for the next event, not for a time."""
