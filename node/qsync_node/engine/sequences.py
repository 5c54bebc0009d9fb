"""Sequences: rows of `_sequence` define them, rows of `_sequence_data` hold their last values."""

from typing import NamedTuple, Protocol

from qsync_node.errors import ClientError
from qsync_node.format.mp import pack

from . import errors, numbers, system
from .fields import decode
from .space import SpaceChange, SpaceData


class _SequenceReader(Protocol):
    def space(self, space_id: int) -> SpaceData: ...


class Sequence(NamedTuple):
    """One row of `_sequence`."""

    id: int
    owner: int
    name: str
    step: int
    least: int
    greatest: int
    start: int
    cache: int
    is_cyclic: bool


def read_sequence(state: _SequenceReader, sequence_id: int) -> Sequence:
    packed = state.space(system.SEQUENCE_ID).indexes[0].get(sequence_id)
    if packed is None:
        raise no_such_sequence(sequence_id)
    return Sequence(*decode(packed)[:9])


def no_such_sequence(sequence_id: int) -> ClientError:
    return ClientError(errors.NO_SUCH_SEQUENCE, f"Sequence '{sequence_id}' does not exist")


def last_value(state: _SequenceReader, sequence_id: int) -> int | None:
    packed = state.space(system.SEQUENCE_DATA_ID).indexes[0].get(sequence_id)
    return None if packed is None else int(decode(packed)[1])


def next_value(state: _SequenceReader, sequence_id: int) -> int:
    """Return the value for a new tuple; the change that records it advances the sequence."""
    sequence = read_sequence(state, sequence_id)
    last = last_value(state, sequence_id)
    if last is None:
        return sequence.start
    value = last + sequence.step
    if sequence.least <= value <= sequence.greatest:
        return value
    if not sequence.is_cyclic:
        raise ClientError(errors.SEQUENCE_OVERFLOW, f"Sequence '{sequence.name}' has overflowed")
    return sequence.least if sequence.step > 0 else sequence.greatest


def record_value(state: _SequenceReader, sequence_id: int, value: object) -> list[SpaceChange]:
    """Return the change that advances the sequence past a value; none if it is already past it."""
    if type(value) is not int or value > numbers.SIGNED_MAX:
        return []
    sequence = read_sequence(state, sequence_id)
    last = last_value(state, sequence_id)
    is_ahead = last is not None and (value <= last if sequence.step > 0 else value >= last)
    is_restart = sequence.is_cyclic and value in (sequence.least, sequence.greatest)
    if is_ahead and not is_restart:
        return []
    packed = pack([sequence_id, value])
    return [state.space(system.SEQUENCE_DATA_ID).change_to(packed, [sequence_id, value], False)]
