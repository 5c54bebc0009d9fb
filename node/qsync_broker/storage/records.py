"""Records of the commit log: the operations of a batch, and the whole state of a new segment."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from qsync_broker.operations import (
    CommitAppend,
    CompletedSpool,
    Copied,
    Drop,
    Roll,
    SetAside,
    SpoolKey,
    SpoolState,
)
from qsync_broker.storage.catalogue import OpenSpool, SpoolCatalogue, journal_of

STATE_RECORDS_PER_FRAME = 1000

_COMMIT, _ROLL, _DROP, _OPEN, _COMPLETED, _COPIED = range(1, 7)


class Included(NamedTuple):
    """A commit whose last `size` bytes are in the record."""

    state: SpoolState
    size: int


class OpenRecord(NamedTuple):
    """An open spool in the state at the beginning of a segment."""

    commits: tuple[SpoolState, ...]


SpoolRecord = Included | Roll | Copied | Drop | OpenRecord | CompletedSpool


def plain(operation: CommitAppend | Roll | Copied | Drop | SetAside, size: int = 0) -> SpoolRecord:
    """Return the record of an operation. `size` is the number of included bytes of a commit."""
    match operation:
        case CommitAppend(state):
            return Included(state, size)
        case SetAside(key):
            return Drop(key)
        case Roll() | Copied() | Drop():
            return operation


def _flat(state: SpoolState) -> tuple[Any, ...]:
    return (*state.key, *state[1:])


def _state(fields: list[Any]) -> SpoolState:
    return SpoolState(SpoolKey(*fields[:3]), *fields[3:])


def _encode(record: SpoolRecord) -> tuple[Any, ...]:
    match record:
        case Included(state, size):
            return (_COMMIT, _flat(state), size)
        case Roll(completed, end, checksum, state):
            return (_ROLL, completed, end, checksum, _flat(state))
        case Copied(spool):
            return (_COPIED, spool)
        case Drop(key):
            return (_DROP, key)
        case OpenRecord(commits):
            return (_OPEN, [_flat(state) for state in commits])
        case CompletedSpool():
            return (_COMPLETED, record)


def _decode(fields: list[Any]) -> SpoolRecord:
    match fields:
        case [1, state, size]:
            return Included(_state(state), size)
        case [2, completed, end, checksum, state]:
            return Roll(SpoolKey(*completed), end, checksum, _state(state))
        case [3, key]:
            return Drop(SpoolKey(*key))
        case [4, states]:
            return OpenRecord(tuple(map(_state, states)))
        case [5, [key, *rest]]:
            return CompletedSpool(SpoolKey(*key), *rest)
        case [6, [key, *rest]]:
            return Copied(CompletedSpool(SpoolKey(*key), *rest))
    raise ValueError(f"unknown record of type {fields[:1]}")


def encode_records(records: list[SpoolRecord]) -> bytes:
    return bytes(msgpack.packb([_encode(record) for record in records]))


def decode_records(data: bytes) -> list[SpoolRecord]:
    """Return the records of a frame.

    Raises:
        ValueError: the records have an unknown type or form.
    """
    try:
        return [_decode(fields) for fields in msgpack.unpackb(data)]
    except (TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"the records are invalid: {error}") from error


def state_records(catalogue: SpoolCatalogue) -> Iterator[list[SpoolRecord]]:
    """Yield the whole state in lists of a bounded length."""
    records: list[SpoolRecord] = [OpenRecord(spool.commits) for spool in catalogue.open.values()]
    records += catalogue.completed.values()
    for start in range(0, len(records), STATE_RECORDS_PER_FRAME):
        yield records[start : start + STATE_RECORDS_PER_FRAME]


def restore(catalogue: SpoolCatalogue, record: OpenRecord | CompletedSpool) -> None:
    """Apply a record of a segment's beginning."""
    if isinstance(record, CompletedSpool):
        catalogue.completed[record.key] = record
    else:
        state = record.commits[-1]
        catalogue.open[journal_of(state.key)] = OpenSpool(record.commits, state.end)
