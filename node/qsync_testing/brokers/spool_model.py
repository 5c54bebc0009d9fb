"""A model of journals at one broker, and random batches that a broker could apply."""

import hashlib
from dataclasses import dataclass, field, replace
from random import Random

from qsync_broker.operations import (
    NO_SUM,
    CommitAppend,
    CompletedSpool,
    Drop,
    Roll,
    SpoolKey,
    SpoolOperation,
    SpoolState,
    WriteContent,
)
from qsync_broker.storage.files import Files
from qsync_broker.storage.storage import SpoolStorage, StorageSettings

DIRECTORY = "/data"
SMALL = StorageSettings(segment_bytes=3000, inline_bytes=300, flush_threads=1, open_files=3)


def sum_of(data: bytes) -> bytes:
    return hashlib.sha1(data).digest() if data else NO_SUM


def open_small(files: Files, settings: StorageSettings = SMALL) -> SpoolStorage:
    return SpoolStorage.open(DIRECTORY, settings, files)


@dataclass(frozen=True)
class Open:
    """An open spool and its committed bytes."""

    state: SpoolState
    data: bytes = b""


@dataclass(frozen=True)
class SpoolModel:
    """All spools of a broker. Models are compared as a whole and are never changed."""

    open: dict[str, Open] = field(default_factory=dict)
    completed: dict[SpoolKey, tuple[CompletedSpool, bytes]] = field(default_factory=dict)

    def journal(
        self, name: str
    ) -> tuple[Open | None, dict[SpoolKey, tuple[CompletedSpool, bytes]]]:
        """Return what exists of one journal."""
        return self.open.get(name), {k: v for k, v in self.completed.items() if k.journal == name}


def fresh(name: str, journal_id: int, begin: int = 0, epoch: int = 1) -> SpoolState:
    return SpoolState(SpoolKey(name, journal_id, begin), epoch, begin, NO_SUM, b"", begin, 1, 0)


def extended(spool: Open, data: bytes, **changes: object) -> Open:
    """Return the spool after an append."""
    whole = spool.data + data
    state = spool.state._replace(
        end=spool.state.end + len(data),
        sum=sum_of(whole),
        **changes,  # type: ignore[arg-type]  # of the named fields
    )
    return Open(state, whole)


class Batches:
    """A generator of batches."""

    def __init__(self, rng: Random, names: list[str]) -> None:
        self.rng = rng
        self.names = names
        self.next_id = 10
        self.partial: dict[str, bytes] = {}  # uncommitted content of earlier batches

    def make(self, model: SpoolModel) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        """Return a batch, and the models after each of its operations."""
        batch: list[SpoolOperation] = []
        models = [model]
        for _ in range(self.rng.randint(1, 5)):
            name = self.rng.choice(self.names)
            operations, after = self._step(models[-1], name)
            batch += operations
            models += after
        return batch, models

    def _step(self, model: SpoolModel, name: str) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        spool = model.open.get(name)
        if spool is None:
            self.next_id += 1
            self.partial.pop(name, None)
            begun = Open(fresh(name, self.next_id))
            return [CommitAppend(begun.state)], [replace(model, open={**model.open, name: begun})]
        kinds = [self._append] * 8 + [self._undo, self._roll, self._confirm, self._content]
        kinds += [self._drop_completed] * 2 + [self._delete] * (self.rng.random() < 0.3)
        return self.rng.choice(kinds)(model, name, spool)

    def _bytes(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([1, 10, 60, 200, 290, 700]))

    def _with(self, model: SpoolModel, name: str, spool: Open) -> SpoolModel:
        return replace(model, open={**model.open, name: spool})

    def _append(
        self, model: SpoolModel, name: str, spool: Open
    ) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        partial = self.partial.pop(name, b"")
        if partial and self.rng.random() < 0.3:
            partial = b""  # the client broke off
        data = self._bytes()
        after = extended(spool, partial + data, registers=self.rng.randbytes(3), first_append=5)
        operations: list[SpoolOperation] = []
        at = spool.state.end + len(partial)
        cut = self.rng.randint(0, len(data))
        operations += [
            WriteContent(spool.state.key, at, data[:cut]),
            WriteContent(spool.state.key, at + cut, memoryview(data)[cut:]),
            CommitAppend(after.state),
        ]
        return operations, [self._with(model, name, after)]

    def _content(
        self, model: SpoolModel, name: str, spool: Open
    ) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        data = self._bytes()
        self.partial[name] = data
        return [WriteContent(spool.state.key, spool.state.end, data)], []

    def _confirm(
        self, model: SpoolModel, name: str, spool: Open
    ) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        confirmed = self.rng.randint(spool.state.confirmed, spool.state.end)
        epoch = spool.state.epoch + self.rng.randint(0, 1)
        after = Open(spool.state._replace(confirmed=confirmed, epoch=epoch), spool.data)
        return [CommitAppend(after.state)], [self._with(model, name, after)]

    def _cut(self, spool: Open) -> Open:
        end = self.rng.randint(spool.state.confirmed, spool.state.end)
        data = spool.data[: end - spool.state.key.begin]
        return Open(spool.state._replace(end=end, sum=sum_of(data)), data)

    def _undo(
        self, model: SpoolModel, name: str, spool: Open
    ) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        self.partial.pop(name, None)
        after = self._cut(spool)
        after = replace(after, state=after.state._replace(epoch=after.state.epoch + 1))
        return [CommitAppend(after.state)], [self._with(model, name, after)]

    def _roll(
        self, model: SpoolModel, name: str, spool: Open
    ) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        self.partial.pop(name, None)
        if self.rng.random() < 0.5:
            spool = self._cut(spool)
        key, end = spool.state.key, spool.state.end
        begin = end + self.rng.choice([0, 0, 100])
        begun = Open(fresh(name, key.journal_id, begin, spool.state.epoch + 1))
        after = self._with(model, name, begun)
        if end > key.begin:
            completed = CompletedSpool(
                key, end, spool.state.sum, spool.state.codec, spool.state.first_append
            )
            after = replace(after, completed={**after.completed, key: (completed, spool.data)})
        return [Roll(key, end, spool.state.sum, begun.state)], [after]

    def _drop_completed(
        self, model: SpoolModel, name: str, spool: Open
    ) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        keys = list(model.completed)
        if not keys:
            return [], []
        key = self.rng.choice(keys)
        rest = {one: value for one, value in model.completed.items() if one != key}
        return [Drop(key)], [replace(model, completed=rest)]

    def _delete(
        self, model: SpoolModel, name: str, spool: Open
    ) -> tuple[list[SpoolOperation], list[SpoolModel]]:
        self.partial.pop(name, None)
        rest = {one: value for one, value in model.open.items() if one != name}
        return [Drop(spool.state.key)], [replace(model, open=rest)]


def found(storage: SpoolStorage) -> SpoolModel:
    """Return the recovered state as a model, after checks of sums and histories."""
    model = SpoolModel()
    for state, history in storage.recovered.open:
        key = state.key
        data = storage.read(key, key.begin, state.end - key.begin)
        assert len(data) == state.end - key.begin
        ends = [entry.end for entry in history]
        assert ends == sorted(set(ends)), ends
        assert ends[-1] == state.end
        assert ends[0] <= max(state.confirmed, key.begin) or len(ends) == 1 or ends[0] == key.begin
        for entry in history:
            prefix = data[: entry.end - key.begin]
            assert entry.sum == sum_of(prefix)
            assert entry.hash.digest() == hashlib.sha1(prefix).digest()
        assert history[-1].registers == state.registers
        model.open[key.journal] = Open(state, data)
    for completed in storage.recovered.completed:
        key = completed.key
        data = storage.read(key, key.begin, completed.end - key.begin + 1)
        assert len(data) == completed.end - key.begin, "a completed file has its exact size"
        model.completed[key] = (completed, data)
    return model
