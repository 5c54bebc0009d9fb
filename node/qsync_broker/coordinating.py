"""The cluster that a broker belongs to, as its event loop uses it."""

from collections.abc import Callable
from typing import Protocol

from qsync_broker.events import Watched
from qsync_broker.keyspace import KeyChange
from qsync_broker.operations import Publication


class Coordinating(Protocol):
    """The cluster that a broker belongs to, see `qsync_broker.coordination`.

    Attributes:
        cluster: UUID of the cluster, "" before it is known.
    """

    cluster: str

    async def watch(self, deliver: Callable[[Watched], None]) -> None:
        """Deliver changes of the key space until the task is cancelled."""

    def rewatch(self) -> None:
        """Open the watch again, after a pause."""

    async def transact(self, change: KeyChange) -> bool:
        """Carry out a change, and return whether it is known to be committed."""

    async def call(self, name: str, *arguments: object) -> bool:
        """Call a procedure that writes, and return whether it is known to be committed."""

    async def publications(
        self, journal: str, journal_id: int, after: int, limit: int
    ) -> list[Publication] | None:
        """Return confirmed publications after a sequence, or None if they cannot be read."""

    async def close(self) -> None:
        """Close the connections."""
