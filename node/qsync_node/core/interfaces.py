"""What the components of consensus require of the replica that joins them, and of the database.

A component gets these interfaces as arguments, together with the shared `Context`. It imports
neither the replica nor a database.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from qsync_node.core.entries import Entry
from qsync_node.core.history import TermStart
from qsync_node.core.limbo import Limbo
from qsync_node.core.membership import Configuration
from qsync_node.core.system import body_of_key, body_of_term
from qsync_node.core.tail import Tail


class Transitions(Protocol):
    """Changes of the state of a replica that concern more than one component."""

    def take_up(self, term: int, vote: str = "") -> None: ...
    def become_leader(self, keep_index: int) -> None: ...
    def step_down(self, reason: str) -> None: ...
    def confirm(self, index: int) -> None: ...
    def forget_behind(self, index: int) -> None: ...
    def replace_log(self, tail: Tail, limbo: Limbo) -> None: ...
    def on_split_brain(self, reason: str) -> None: ...


class RowBodies(Protocol):
    """A read view of the rows of a state."""

    def bodies(self) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class View:
    """Confirmed state at `index`: rows, the history of terms and idempotency keys (S2).

    The state is fixed when the view is taken. Bodies are encoded as they are drawn, so that a large
    state does not block the node.
    """

    index: int
    vclock: dict[int, int]
    starts: list[TermStart]
    state: RowBodies
    keys: list[tuple[tuple[str, int], tuple[int, int]]]

    def bodies(self) -> Iterator[bytes]:
        """Yield all row bodies, in the order of a snapshot."""
        yield from self.state.bodies()
        for start in self.starts:
            yield body_of_term(start)
        for key, value in self.keys:
            yield body_of_key(key, value)


class Loader(Protocol):
    """A state that is built from the rows of a snapshot, beside the one in use."""

    rows: int
    checksum: int

    def add(self, bodies: Iterable[bytes]) -> None: ...
    def id_of_space(self, name: str) -> int | None: ...


class StateMachine(Protocol):
    """Callbacks from the replica to its state machine, in log order and never nested."""

    def on_confirmed(self, taken: list[Entry], removed: list[Entry]) -> None: ...
    def on_written(self, entries: list[Entry]) -> None: ...
    def on_leadership_gained(self) -> None: ...
    def on_leadership_lost(self, reason: str) -> None: ...
    def on_decision_written(self) -> None: ...
    def on_acknowledged_lost(self, writes: int) -> None: ...
    def snapshot_view(self, spaces: frozenset[int] = frozenset()) -> View: ...
    def new_loader(self) -> Loader: ...
    def install(self, loader: Loader) -> Configuration: ...
    def discard(self, loader: Loader) -> None: ...
    def confirmable(self, index: int) -> int: ...
    def can_apply(self, entry: Entry) -> bool: ...
    def checkpoint(self) -> bool: ...
    def work(self) -> int: ...
