"""The states of a broker's spools, as operations define them: a model without bytes."""

from collections.abc import Iterable
from typing import NamedTuple

from qsync_broker.operations import (
    CommitAppend,
    CompletedSpool,
    Copied,
    RecoveredSpools,
    Roll,
    SpoolKey,
    SpoolOperation,
    SpoolState,
    WriteContent,
)


class States(NamedTuple):
    """All spools of a broker. It never changes.

    Attributes:
        open: the open spool of each journal, by name and id.
        completed: the completed spools.
    """

    open: dict[tuple[str, int], SpoolState]
    completed: dict[SpoolKey, CompletedSpool]

    @classmethod
    def of(cls, recovered: RecoveredSpools) -> "States":
        """Return the states that a storage has recovered."""
        return cls(
            {(state.key.journal, state.key.journal_id): state for state, _ in recovered.open},
            {spool.key: spool for spool in recovered.completed},
        )

    def after(self, batch: Iterable[SpoolOperation]) -> "States":
        """Return the states after a batch."""
        changed = States(dict(self.open), dict(self.completed))
        for operation in batch:
            changed._apply(operation)
        return changed

    def _apply(self, operation: SpoolOperation) -> None:
        match operation:
            case WriteContent():
                pass
            case CommitAppend(state):
                self.open[state.key.journal, state.key.journal_id] = state
            case Roll(key, end, checksum, state):
                former = self.open.get((key.journal, key.journal_id))
                if end > key.begin:
                    assert former is not None, f"{key} is not open"
                    self.completed[key] = CompletedSpool(
                        key, end, checksum, former.codec, former.first_append
                    )
                self.open[state.key.journal, state.key.journal_id] = state
            case Copied(spool):
                self.completed[spool.key] = spool
            case _:
                key = operation.key
                self.completed.pop(key, None)
                former = self.open.get((key.journal, key.journal_id))
                if former is not None and former.key == key:
                    del self.open[key.journal, key.journal_id]

    def end_of(self, key: SpoolKey) -> tuple[int, bytes] | None:
        """Return the end and the checksum of a spool, None if it does not exist."""
        state = self.open.get((key.journal, key.journal_id))
        if state is not None and state.key == key:
            return state.end, state.sum
        completed = self.completed.get(key)
        return None if completed is None else (completed.end, completed.sum)

    def covers(self, journal: str, begin: int, end: int) -> bool:
        """Return whether a spool of a journal has all bytes between two offsets."""
        spans = [(one.key, one.end) for one in self.open.values()]
        spans += [(one.key, one.end) for one in self.completed.values()]
        return any(
            key.journal == journal and key.begin <= begin and end <= spool_end
            for key, spool_end in spans
        )


NO_STATES = States({}, {})


def keys_of(batch: Iterable[SpoolOperation]) -> list[SpoolKey]:
    """Return the spools that a batch changes, each one once."""
    keys: dict[SpoolKey, None] = {}
    for operation in batch:
        match operation:
            case CommitAppend(state):
                keys[state.key] = None
            case Roll(completed, _, _, state):
                keys[completed] = keys[state.key] = None
            case Copied(spool):
                keys[spool.key] = None
            case _:
                keys[operation.key] = None
    return list(keys)
