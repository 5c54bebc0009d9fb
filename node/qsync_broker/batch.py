"""Batches: many appends to one journal in one request, for clients that append without pause.

The body of a request is a sequence of values in MessagePack. Each of them is an append: its content
as `bin`, or a map:

    content    bin    the content
    offset     int    offset at which it must begin
    check      str    selector that the registers must match
    union      map    registers to set
    subtract   map    registers to remove

The body of the answer is a sequence of arrays in the same order: status, begin, end, SHA-1 (20
bytes), registers (a map), and the sentence of an error. Each append is committed or not on its own,
except that several may fail together. Appends of a batch are begun in their order.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack

from qsync_broker.calls import AppendCall
from qsync_broker.grouping import Grouped
from qsync_broker.labels import LabelSelector, LabelSet, parse_selector
from qsync_broker.reader import CHUNK
from qsync_broker.refusals import explain
from qsync_broker.registers import REGISTERS_MAX, registers_problem
from qsync_broker.requests import Append, Appended, Finish, Piece
from qsync_broker.server import BrokerServer
from qsync_broker.status import Status

BATCH_BYTES = 4 << 20
"""Maximum size of the body of a batch in bytes."""
BATCHES_BYTES = 64 << 20
"""Maximum size of all batches under way at a broker in bytes."""
MEDIA_TYPE = "application/msgpack"
BATCH_APPENDS = 4096
"""Maximum number of appends in a batch."""
CHECKS_MAX = 16 << 10
"""Maximum size of all distinct checks of a batch in bytes: parsing one is slow."""
AT_ONCE = 64
"""Appends of a batch under way that are not grouped: all at once would occupy the broker."""
PAIRS_MAX = 16_384
"""Maximum number of registers that a batch adds or removes."""
APPEND_S = 60.0
_FIELDS = {"content", "offset", "check", "union", "subtract"}
_OFFSET_MAX = (1 << 63) - 1


class BatchItem(NamedTuple):
    """One append of a batch."""

    request: Append
    content: bytes


class BatchOutcome(NamedTuple):
    """The result of one append of a batch.

    Attributes:
        status: name of the status.
        begin: first offset of its bytes.
        end: offset after them.
        sum: SHA-1 of its bytes.
        registers: registers after it.
        error: sentence, if it failed: what failed, the cause, and what to do. Without a status,
            its outcome may be unknown.
    """

    status: str
    begin: int = 0
    end: int = 0
    sum: bytes = b""
    registers: dict[str, str] = {}  # noqa: RUF012  # never changed
    error: str = ""


def encode_item(value: bytes | dict[str, Any]) -> bytes:
    """Return one append as it is in the body of a batch.

    Raises:
        ValueError: a broker would refuse a batch with this append.
    """
    try:
        data: bytes = msgpack.packb(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the append is invalid: {error}") from None
    if type(value) is not bytes:
        decode_items(data, Append(""), lambda _: "the append")
    return data


def _name_in_batch(number: int) -> str:
    return f"append {number} of the batch"


def decode_items(
    body: bytes, base: Append, name_of: Callable[[int], str] = _name_in_batch
) -> list[BatchItem]:
    """Return the appends of a batch.

    Args:
        body: the body of the request.
        base: what all of them have in common.
        name_of: function that returns the name of an append in errors by its number.

    Raises:
        ValueError: the body is invalid; the message names the append by its number.
    """
    if len(body) > BATCH_BYTES:
        raise ValueError(f"the batch has {len(body)} bytes: send at most {BATCH_BYTES}")
    unpacker = msgpack.Unpacker(
        max_buffer_size=BATCH_BYTES,
        strict_map_key=True,
        max_map_len=REGISTERS_MAX,
        max_array_len=1,
    )
    unpacker.feed(body)
    conditions = _Conditions()
    items: list[BatchItem] = []
    end = 0
    try:
        for value in unpacker:
            end = unpacker.tell()
            if len(items) == BATCH_APPENDS:
                raise ValueError(f"the batch has more than {BATCH_APPENDS} appends")
            items.append(
                BatchItem(base, value) if type(value) is bytes else _item(value, base, conditions)
            )
    except (ValueError, msgpack.UnpackException, TypeError) as error:
        cause = str(error) or "the bytes are no MessagePack"
        raise ValueError(f"{name_of(len(items))} is invalid: {cause}") from None
    # The position of the unpacker can be after the header of a value that is cut off.
    if end != len(body):
        raise ValueError(f"{name_of(len(items))} is incomplete")
    return items


def _item(value: object, base: Append, conditions: "_Conditions") -> BatchItem:
    if not isinstance(value, dict):
        raise ValueError("use bytes, or a map")
    unknown = sorted(set(value) - _FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}: use {', '.join(sorted(_FIELDS))}")
    content, offset = value.get("content", b""), value.get("offset", 0)
    if not isinstance(content, bytes):
        raise ValueError("content: use bytes")
    if type(offset) is not int or not 0 <= offset <= _OFFSET_MAX:
        raise ValueError("offset: use a number of bytes")
    request = base._replace(
        offset=offset,
        check=conditions.check(value.get("check")),
        union=conditions.registers(value, "union"),
        subtract=conditions.registers(value, "subtract"),
    )
    return BatchItem(request, content)


class _Conditions:
    """Checks and registers of one batch, which together must not occupy the broker for long."""

    def __init__(self) -> None:
        self._parsed: dict[str, LabelSelector] = {}
        self._size = 0
        self._pairs = 0

    def check(self, text: object) -> LabelSelector | None:
        """Return the selector of a check. Raises ValueError."""
        if text is None:
            return None
        if not isinstance(text, str):
            raise ValueError("check: use a string")
        if text not in self._parsed:
            self._size += len(text.encode())
            if self._size > CHECKS_MAX:
                raise ValueError(f"check: all distinct ones may have {CHECKS_MAX} bytes: split it")
            self._parsed[text] = parse_selector(text)
        return self._parsed[text]

    def registers(self, value: dict[str, Any], field: str) -> LabelSet | None:
        """Return the registers in a field of an append. Raises ValueError."""
        found = value.get(field)
        if found is None:
            return None
        if not isinstance(found, dict) or not all(
            isinstance(text, str) for pair in found.items() for text in pair
        ):
            raise ValueError(f"{field}: use a map of strings")
        self._pairs += len(found)
        if self._pairs > PAIRS_MAX:
            raise ValueError(f"{field}: the batch may have {PAIRS_MAX} registers: split it")
        registers = LabelSet.of(found.items())
        problem = registers_problem(registers)
        if problem:
            raise ValueError(f"{field}: {problem}")
        return registers


def encode_outcomes(outcomes: Sequence[BatchOutcome]) -> bytes:
    """Return the body of an answer."""
    pack = msgpack.Packer().pack
    return b"".join(map(pack, outcomes))


def decode_outcomes(body: bytes) -> list[BatchOutcome]:
    """Return the outcomes in the body of an answer.

    Raises:
        ValueError: the body is invalid.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(body) or 1)
    unpacker.feed(body)
    try:
        outcomes = [BatchOutcome(*value) for value in unpacker]
    except (msgpack.UnpackException, TypeError) as error:
        raise ValueError(f"the answer to a batch is invalid: {error}") from None
    for one in outcomes:
        if not _is_valid(one):
            raise ValueError(f"the answer to a batch is invalid: it has {one!s:.200}")
    return outcomes


def _is_valid(outcome: BatchOutcome) -> bool:
    """Return whether an outcome can be used: a later version may add statuses, for example."""
    status, begin, end, checksum, registers, error = outcome
    return (
        (status == "" or (isinstance(status, str) and status in Status.__members__))
        and type(begin) is int
        and type(end) is int
        and isinstance(checksum, bytes)
        and isinstance(registers, dict)
        and all(isinstance(text, str) for pair in registers.items() for text in pair)
        and isinstance(error, str)
    )


def outcome_of(item: BatchItem, found: tuple[Appended, bool]) -> BatchOutcome:
    """Return the outcome of an append with this result; one to be proxied was not carried out."""
    result, is_proxied = found
    registers = dict(result.registers) if result.registers else {}
    if is_proxied:
        status = Status.NOT_JOURNAL_PRIMARY_BROKER
        return BatchOutcome(status.name, error=explain(item.request, status))
    if result.error:
        return BatchOutcome("", registers=registers, error=result.error)
    status = result.resolution.status
    if status is not Status.OK:
        text = explain(item.request, status, head=result.head, reason=result.reason)
        return BatchOutcome(status.name, registers=registers, error=text)
    return BatchOutcome(status.name, result.begin, result.end, result.sum, registers)


async def append_items(
    server: BrokerServer, items: Sequence[BatchItem]
) -> list[tuple[Appended, bool]]:
    """Append the items in their order; return the results, and whether each is to be proxied."""
    waiting: list[Grouped | AppendCall] = []
    alone: deque[AppendCall] = deque()
    for item in items:
        if server.groups.may_join(item.request, len(item.content)):
            waiting.append(server.groups.append(item.request, item.content))
            continue
        if len(alone) >= AT_ONCE:
            await asyncio.shield(alone.popleft().result)
        alone.append(_begin(server, item))
        waiting.append(alone[-1])
    results = []
    for one in waiting:
        call = one.group if isinstance(one, Grouped) else one
        if not call.result.done():
            await asyncio.shield(call.result)
        found = call.result.result()
        results.append(one.part_of(*found) if isinstance(one, Grouped) else found)
    return results


def _begin(server: BrokerServer, item: BatchItem) -> AppendCall:
    call = server.append(item.request, APPEND_S)
    for begin in range(0, len(item.content), CHUNK):
        call.give(Piece(item.content[begin : begin + CHUNK]))
    call.give(Finish())
    return call
