"""Decoding a user's request takes bounded work before the engine executes any part of it."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from msgpack import packb

from qsync_client.protocol.constants import Key
from qsync_client.protocol.markers import BIN8, EXT8, FIXEXT1, FIXMAP, FIXSTR, INT8, STR8, UINT8
from qsync_node.engine import Database, Pending, Update, User
from qsync_node.engine.fields import decode
from qsync_node.engine.operations import read_operations, work_of
from qsync_node.engine.overlay import UPDATE_WORK_MAX
from qsync_node.engine.requests import decode_request, decode_user_request
from qsync_node.engine.tuples import TUPLE_BYTES_MAX, array_header
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.body import put_body
from qsync_node.format.mp import BAD_MSGPACK, UNPACK_WORK_MAX, decoding_work, unpack_bounded
from qsync_testing.speed import is_within

pytestmark = pytest.mark.usefixtures("collector_of_a_server")

UNIT = 25e-9  # seconds per unit of `work_of` and `decoding_work`
INSERT, SELECT, UPDATE, DELETE, UPSERT = 2, 1, 4, 5, 9
DEAR = {
    "empty maps": b"\x80",
    "empty arrays": b"\x90",
    "arrays": b"\x91\xc0",
    "maps": b"\x81\x01\x01",
    "maps by an array": b"\x81\x90\xc0",
    "numbers": b"\x01",
    "strings": b"\xa1a",
    "extensions": b"\xd4\x05\x01",
    "long extensions": b"\xc7\x01\x05\x01",
    "decimals": b"\xd6\x01\x01\x00\x00\x1c",
    "datetimes": b"\xd7\x04" + bytes(8),
    "timestamps": b"\xd6\xff" + bytes(4),
    "uuids": b"\xd8\x02" + bytes(16),
    "short arrays": b"\xdc\x00\x08" + bytes(8),
    "long strings": b"\xda\x00\x01\x90",
}


def array_of(item: bytes, size: int) -> bytes:
    """Return an array of about `size` bytes that repeats an item."""
    count = size // len(item)
    return array_header(count) + item * count


def cpu_seconds(action: Callable[[], Any]) -> float:
    started = time.thread_time()
    action()
    return time.thread_time() - started


ENCODINGS = {
    "small number": b"\x7f",
    "small negative number": b"\xff",
    "nil": b"\xc0",
    "false": b"\xc2",
    "float": b"\xca" + bytes(4),
    "double": b"\xcb" + bytes(8),
    **{f"uint{8 << n}": bytes((UINT8 + n,)) + bytes(1 << n) for n in range(4)},
    **{f"int{8 << n}": bytes((INT8 + n,)) + bytes(1 << n) for n in range(4)},
    **{f"fixstr of {n}": bytes((FIXSTR + n,)) + b"\x90" * n for n in (0, 1, 31)},
    **{
        f"{kind}{8 << n}": bytes((first + n,)) + (60).to_bytes(1 << n, "big") + b"\x90" * 60
        for kind, first in (("bin", BIN8), ("str", STR8))
        for n in range(3)
    },
}
EXTENSIONS = {
    **{f"fixext{1 << n}": bytes((FIXEXT1 + n, 5)) + b"\x90" * (1 << n) for n in range(5)},
    **{
        f"ext{8 << n}": bytes((EXT8 + n,)) + (60).to_bytes(1 << n, "big") + b"\x05" + b"\x90" * 60
        for n in range(3)
    },
}
CONTAINERS = {
    "empty map": (b"\x80", 1),
    "empty array": (b"\x90", 1),
    "array": (b"\x92\xc0\xc0", 3),
    "map": (b"\x82\xc0\xc0\xc2\xc0", 5),
    "array16": (b"\xdc\x00\x02\xc0\xc0", 3),
    "array32": (b"\xdd\x00\x00\x00\x02\xc0\xc0", 3),
    "map16": (b"\xde\x00\x01\xc0\xc0", 3),
    "map32": (b"\xdf\x00\x00\x00\x01\xc0\xc0", 3),
}


@pytest.mark.parametrize(
    ("item", "values", "each"),
    [
        *(pytest.param(item, 1, 0, id=name) for name, item in ENCODINGS.items()),
        *(pytest.param(item, 1, 72, id=name) for name, item in EXTENSIONS.items()),
        *(pytest.param(item, n, 12, id=name) for name, (item, n) in CONTAINERS.items()),
    ],
)
def test_values_are_counted_in_every_encoding(item: bytes, values: int, each: int) -> None:
    """Text that looks like containers makes the estimate count values one by one."""
    text = b"\xdb" + (200_000).to_bytes(4, "big") + b"\x90" * 200_000
    packed = array_header(1001) + item * 1000 + text
    work = decoding_work(packed) - len(packed) // 2
    outer = 2 * 6 + 12
    assert work == 1000 * (values * 6 + each) + outer


HUGE = array_of(b"\x80", 8 * TUPLE_BYTES_MAX)


@pytest.mark.parametrize("item", [pytest.param(item, id=name) for name, item in DEAR.items()])
def test_work_of_decoding_is_known_beforehand(item: bytes) -> None:
    packed = array_of(item, TUPLE_BYTES_MAX // 2)
    claimed = decoding_work(packed) * UNIT
    taken = min(cpu_seconds(lambda: decode(packed)) for _ in range(3))
    assert is_within(taken, 3 * claimed + 0.01), f"{taken:.3f} s, claimed {claimed:.3f} s"


@pytest.mark.parametrize(
    ("type_", "fields", "code"),
    [
        pytest.param(
            INSERT, {Key.SPACE_ID: 512, Key.TUPLE: HUGE}, ErrorCode.SLAB_ALLOC_MAX, id="insert"
        ),
        pytest.param(
            INSERT, {Key.TUPLE: HUGE, Key.SPACE_ID: 512}, ErrorCode.SLAB_ALLOC_MAX, id="shuffled"
        ),
        pytest.param(
            UPSERT,
            {Key.SPACE_ID: 512, Key.TUPLE: HUGE, Key.OPS: b"\x90"},
            ErrorCode.SLAB_ALLOC_MAX,
            id="upsert",
        ),
        pytest.param(
            UPDATE,
            {Key.SPACE_ID: 512, Key.KEY: HUGE, Key.TUPLE: b"\x90"},
            ErrorCode.ILLEGAL_PARAMS,
            id="update",
        ),
        pytest.param(
            DELETE, {Key.SPACE_ID: 512, Key.KEY: HUGE}, ErrorCode.ILLEGAL_PARAMS, id="delete"
        ),
        pytest.param(
            SELECT,
            {Key.SPACE_ID: 512, Key.LIMIT: b"\x01", Key.KEY: HUGE},
            ErrorCode.ILLEGAL_PARAMS,
            id="select",
        ),
        pytest.param(
            SELECT,
            {Key.SPACE_ID: 512, Key.LIMIT: b"\x01", Key.KEY: b"\x90", Key.AFTER_TUPLE: HUGE},
            ErrorCode.ILLEGAL_PARAMS,
            id="after-tuple",
        ),
        pytest.param(
            SELECT,
            {Key.SPACE_ID: 512, Key.LIMIT: b"\x01", Key.KEY: b"\x90", Key.AFTER_POSITION: HUGE},
            ErrorCode.ILLEGAL_PARAMS,
            id="after-position",
        ),
        pytest.param(
            SELECT, {Key.SPACE_ID: 512, Key.LIMIT: HUGE, Key.KEY: b"\x90"}, 20, id="limit"
        ),
    ],
)
def test_what_is_larger_than_a_tuple_is_refused_before_it_is_decoded(
    type_: int, fields: dict[int, Any], code: int
) -> None:
    parts = [bytes((FIXMAP | len(fields),))]
    for key, value in fields.items():
        parts += [bytes((key,)), value if isinstance(value, bytes) else packb(value)]
    body = b"".join(parts)
    refusals = []

    def refuse() -> None:
        with pytest.raises(ClientError) as refused:
            decode_user_request(type_, body)
        refusals.append(refused.value.code)

    assert is_within(cpu_seconds(refuse), 0.2)
    assert refusals == [code]


def test_a_key_of_a_body_that_is_no_number_is_not_decoded() -> None:
    body = b"\x83\x10\x01\x20\x90" + HUGE + b"\x01"
    assert is_within(cpu_seconds(lambda: decode_user_request(DELETE, body)), 0.2)


def test_rows_of_the_log_are_read_whatever_their_size() -> None:
    packed = b"\x91" + packb("v" * 2 * TUPLE_BYTES_MAX)
    assert decode_request(INSERT, put_body(512, packed))
    with pytest.raises(ClientError, match="tuple is too large"):
        decode_user_request(INSERT, put_body(512, packed))


@pytest.mark.parametrize("body", [b"\x82\x21" + HUGE + b"\x22\xa1f", HUGE])
@pytest.mark.untraced
def test_other_bodies_take_bounded_work(body: bytes) -> None:
    def refuse() -> None:
        with pytest.raises(BAD_MSGPACK):
            unpack_bounded(body)

    assert decoding_work(body) > UNPACK_WORK_MAX
    assert is_within(cpu_seconds(refuse), 0.1)


def space_with(packed: bytes) -> tuple[Database, User]:
    """Return a database whose space 512 holds one tuple, and the user admin."""
    database = Database.bootstrap("aaaaaaaa-0000-4000-8000-000000000001")
    for space_id, row in (
        (280, packb([512, 1, "t", "memtx", 0, {}, []])),
        (288, packb([512, 0, "pk", "tree", {}, [[0, "unsigned"]]])),
        (512, packed),
    ):
        database.apply(INSERT, put_body(space_id, row))
    admin = database.user_by_name("admin")
    assert admin is not None
    return database, admin


def update_of(ops: bytes) -> Update:
    request = decode_user_request(UPDATE, b"\x83\x10\xcd\x02\x00\x20\x91\x07\x21" + ops)
    assert isinstance(request, Update)
    return request


@pytest.mark.parametrize("item", [pytest.param(item, id=name) for name, item in DEAR.items()])
@pytest.mark.parametrize("operation", ["=", "!", "+", "#"])
@pytest.mark.untraced
def test_operations_with_large_values_take_what_is_claimed(operation: str, item: bytes) -> None:
    ops = b"\x91\x93" + packb(operation) + b"\x01" + array_of(item, 2 * TUPLE_BYTES_MAX)
    claimed = work_of(b"\x91\x07", ops)
    if claimed > UPDATE_WORK_MAX:
        database, admin = space_with(b"\x91\x07")

        def refuse() -> None:
            with pytest.raises(ClientError, match="too much work"):
                Pending(database).execute(update_of(ops), admin)

        assert is_within(min(cpu_seconds(refuse) for _ in range(3)), 0.1)
        return

    def read() -> None:
        with suppress(ClientError):
            read_operations(ops, 0, {})

    taken = min(cpu_seconds(read) for _ in range(3))
    assert is_within(taken, 3 * claimed * UNIT + 0.02)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(["Ж" * 1000] * 450, id="cyrillic"),
        pytest.param(["界" * 1000] * 300, id="chinese"),
        pytest.param(["ش" * 1000] * 450, id="arabic"),
        pytest.param(["א" * 1000] * 450, id="hebrew"),
        pytest.param(["😀" * 1000] * 220, id="emoji"),
        pytest.param([{"имя": "Ж" * 20} for _ in range(18_000)], id="small-texts"),
        pytest.param(list(range(200_000)), id="numbers"),
        pytest.param([{"name": f"n{n}", "is": [n]} for n in range(40_000)], id="objects"),
    ],
)
def test_common_values_are_no_work(value: object) -> None:
    database, admin = space_with(packb([7, 0]))
    ops = packb([["=", 1, value]])
    assert len(ops) > 600_000
    assert Pending(database).execute(update_of(ops), admin).rows


def test_result_that_is_too_large_is_not_decoded() -> None:
    dear = array_of(DEAR["maps by an array"], 1_000_000)
    database, admin = space_with(b"\x93\x07" + dear + b"\xc0")
    request = update_of(b"\x91\x93\xa1=\x02" + packb("v" * 100_000))

    def refuse() -> None:
        with pytest.raises(ClientError, match="tuple is too large"):
            Pending(database).execute(request, admin)

    one_pass = cpu_seconds(lambda: decode(dear))
    assert cpu_seconds(refuse) < one_pass / 2


@pytest.mark.parametrize("type_", [UPDATE, UPSERT])
def test_malformed_extension_in_a_value_is_refused(type_: int) -> None:
    database, admin = space_with(packb([7, 0]))
    ops = b"\x91\x93\xa1=\x01\x91\xc7\x03\x02abc"
    body = (
        b"\x83\x10\xcd\x02\x00"
        + {
            UPDATE: b"\x20\x91\x07\x21" + ops,
            UPSERT: b"\x21\x92\x07\x00\x28" + ops,
        }[type_]
    )
    with pytest.raises(ClientError) as refused:
        Pending(database).execute(decode_user_request(type_, body), admin)
    assert refused.value.code == ErrorCode.INVALID_MSGPACK


def test_key_of_a_large_tuple_stays() -> None:
    database, admin = space_with(packb([7, "v" * 10_000]))
    with pytest.raises(ClientError, match="part of index"):
        Pending(database).execute(update_of(packb([["=", 0, 8]])), admin)
    assert Pending(database).execute(update_of(packb([["=", 0, 7], ["=", 2, 1]])), admin).rows
    as_long = b"\x91\x93\xa1=\x00\xcc\x07"  # the same number in a longer encoding
    assert Pending(database).execute(update_of(as_long), admin).rows
