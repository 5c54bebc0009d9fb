"""Updates of large and deep tuples: exact results, and work bounded by the tuple's size (G1)."""

import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
from msgpack import packb, unpackb

from qsync_client.protocol.constants import Key, Type
from qsync_node.engine import Database, OpenTransaction, Pending, Update, User
from qsync_node.engine.fields import decode
from qsync_node.engine.keydef import KeyPart, packed_values
from qsync_node.engine.operations import work_of
from qsync_node.engine.overlay import UPDATE_WORK_MAX
from qsync_node.engine.paths import Malformed, read_steps
from qsync_node.engine.pieces import RUN_ITEMS, ArrayPieces, MapPieces, item_of, with_item
from qsync_node.engine.requests import decode_request
from qsync_node.engine.tuples import array_header, split_array
from qsync_node.engine.updates import apply_operations
from qsync_node.errors import ClientError
from qsync_node.format.body import put_body

ITEMS = 100_000
OPERATIONS = 200
UPDATE = 4
UNIT = 25e-9  # seconds per unit of `work_of`


def cpu_seconds(action: Callable[[], Any]) -> float:
    started = time.thread_time()
    action()
    return time.thread_time() - started


def update(packed: bytes, operations: list[Any], *, is_upsert: bool = False) -> Any:
    changed = apply_operations(packed, packb(operations), 1, {}, is_upsert=is_upsert)
    return unpackb(changed, strict_map_key=False)


FLAT = array_header(ITEMS) + b"\x01" * ITEMS
PAIRS = packb({f"k{number}": 1 for number in range(ITEMS // 2)})
MANY_PLACES = Random(7).choices(range(1, ITEMS // 2), k=2000)
PLACES = Random(13).sample(range(1, ITEMS - OPERATIONS), OPERATIONS)


@pytest.mark.parametrize(
    ("packed", "operations"),
    [
        pytest.param(
            b"\x92\x01" + FLAT, [["=", f"[2][{place}]", 5] for place in PLACES], id="in-array"
        ),
        pytest.param(FLAT, [["!", place, 5] for place in MANY_PLACES], id="insert-fields"),
        pytest.param(FLAT, [["#", place, 3] for place in MANY_PLACES], id="delete-fields"),
        pytest.param(
            b"\x92\x01" + PAIRS,
            [["=", f"[2].k{place // 2}", 5] for place in sorted({p // 2 * 2 for p in PLACES})],
            id="in-map",
        ),
        pytest.param(
            b"\x91" * 60 + FLAT,
            [["=", "[1]" * 60 + f"[{place}]", 5] for place in PLACES],
            id="deep",
        ),
    ],
)
def test_many_operations_cost_a_few_passes_over_the_tuple(
    packed: bytes, operations: list[Any]
) -> None:
    one_pass = min(cpu_seconds(lambda: split_array(FLAT)) for _ in range(3))
    ops = packb(operations)
    taken = min(cpu_seconds(lambda: apply_operations(packed, ops, 1, {})) for _ in range(2))
    assert taken < 10 * one_pass, f"{taken:.3f} s, one pass takes {one_pass:.3f} s"


@pytest.mark.parametrize(
    ("field", "operation"),
    [
        pytest.param(FLAT, ["+", 2, 1], id="number-expected"),
        pytest.param(packb("x" * 50 * ITEMS), [":", 2, -60 * ITEMS, 1, ""], id="out-of-bound"),
        # 2 * ITEMS digits precede the point, so the sum overflows each time.
        pytest.param(
            b"\xc9" + (ITEMS + 2).to_bytes(4, "big") + b"\x01\x00" + b"\x99" * ITEMS + b"\x9c",
            ["+", 2, 1],
            id="decimal-overflow",
        ),
    ],
)
def test_operations_that_an_upsert_skips_cost_no_pass_each(
    field: bytes, operation: list[Any]
) -> None:
    one_pass = min(cpu_seconds(lambda: split_array(FLAT)) for _ in range(3))
    packed = b"\x92\x01" + field
    ops = packb([operation] * 4000)
    taken = min(
        cpu_seconds(lambda: apply_operations(packed, ops, 1, {}, is_upsert=True)) for _ in range(2)
    )
    assert taken < 100 * one_pass, f"{taken:.3f} s, one pass takes {one_pass:.3f} s"
    assert apply_operations(packed, ops, 1, {}, is_upsert=True) == packed


def database_with(packed: bytes) -> tuple[Database, User]:
    """Return a database whose space 512 holds one tuple, and the user admin."""
    database = Database.bootstrap("aaaaaaaa-0000-4000-8000-000000000001")
    for space_id, row in (
        (280, packb([512, 1, "t", "memtx", 0, {}, []])),
        (288, packb([512, 0, "pk", "tree", {}, [[0, "unsigned"]]])),
        (512, packed),
    ):
        database.apply(Type.INSERT, put_body(space_id, row))
    admin = database.user_by_name("admin")
    assert admin is not None
    return database, admin


def update_body(operations: list[Any]) -> bytes:
    """Return the body of an UPDATE of the tuple with key 7."""
    body = {Key.SPACE_ID: 512, Key.KEY: [7], Key.TUPLE: operations, Key.INDEX_BASE: 1}
    return bytes(packb(body))


def request_of(body: bytes) -> Update:
    request = decode_request(UPDATE, body)
    assert isinstance(request, Update)
    return request


@pytest.mark.parametrize(
    ("field", "operations"),
    [
        pytest.param(
            array_header(9 * ITEMS) + b"\x01" * 9 * ITEMS,
            [["=", f"[2][{place}]", 5] for place in range(1, 3501)],
            id="large",
        ),
        pytest.param(
            b"\x91" * 90 + FLAT,
            [["=", "[2]" + "[1]" * 90 + f"[{place}]", 5] for place in range(1, 601)],
            id="deep",
        ),
    ],
)
def test_users_are_refused_what_takes_long_and_the_log_is_not(
    field: bytes, operations: list[Any]
) -> None:
    database = Database.bootstrap("aaaaaaaa-0000-4000-8000-000000000001")
    database, admin = database_with(b"\x92\x07" + field)
    body = update_body(operations)
    with pytest.raises(ClientError, match="too much work"):
        Pending(database).execute(request_of(body), admin)
    with pytest.raises(ClientError, match="too much work"):
        OpenTransaction(Pending(database)).execute(request_of(body), admin)
    assert Pending(database).execute(request_of(update_body(operations[:100])), admin).rows
    database.apply(UPDATE, body)
    assert database.work > UPDATE_WORK_MAX


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([["=", place, "v" * 1000] for place in range(2, 102)], id="many-fields"),
        pytest.param([["!", -1, "v" * 200]] * 4000, id="most-operations"),
        pytest.param([["=", "[2]", "v" * 500_000]], id="large-value"),
    ],
)
def test_values_of_operations_are_no_work(operations: list[Any]) -> None:
    database, admin = database_with(packb([7, *range(100)]))
    assert Pending(database).execute(request_of(update_body(operations)), admin).rows


QUOTED = "[1]" + "['x']" * 95
NUMERALS = "".join(c for c in map(chr, range(0x2000)) if unicodedata.category(c) == "No")


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(packb([["=", QUOTED + "a" * 700_000, 1]]), id="steps-before-a-name"),
        pytest.param(packb([["=", QUOTED + "['é" + "a" * 700_000, 1]]), id="quote-not-closed"),
        pytest.param(packb([["=", QUOTED + "a" * 32_000, 1]] * 20), id="many-long-paths"),
        pytest.param(packb([["=", "a" * 700_000 + NUMERALS, 1]]), id="numerals-behind-a-name"),
        pytest.param(
            b"\x91\xdd" + (1 << 21).to_bytes(4, "big") + b"\xa1=" * (1 << 21),
            id="operation-of-many-parts",
        ),
    ],
)
def test_long_places_and_operations_are_read_in_one_pass(ops: bytes) -> None:
    packed = b"\x92\x07\x91\x81\xa1x\x01"
    claimed: list[int] = []
    assert cpu_seconds(lambda: claimed.append(work_of(packed, ops))) < 0.02

    def apply() -> None:
        with suppress(ClientError):
            apply_operations(packed, ops, 0, {}, is_upsert=True)

    taken = min(cpu_seconds(apply) for _ in range(3))
    assert taken < 3 * claimed[0] * UNIT + 0.02, f"{taken:.3f} s, claimed {claimed[0] * UNIT:.3f} s"


def test_too_many_operations_are_refused_as_such() -> None:
    database, admin = database_with(packb([7, 0]))
    with pytest.raises(ClientError, match="too many operations"):
        Pending(database).execute(request_of(update_body([["+", 2, 1]] * 300_000)), admin)


@pytest.mark.parametrize("count", [0, 1, RUN_ITEMS, RUN_ITEMS + 1, 5 * RUN_ITEMS])
def test_array_pieces_do_what_a_list_does(count: int) -> None:
    rng = Random(count)
    model = [packb(rng.choice([1, "ab", [1, 2], 300])) for _ in range(count)]
    pieces = ArrayPieces(array_header(count) + b"".join(model))
    pieces.is_changed = True
    for _ in range(400):
        place = rng.randint(0, len(model))
        item = packb(rng.randrange(1000))
        action = rng.randrange(4)
        if action == 0:
            model.insert(place, item)
            pieces.insert(place, item)
        elif place < len(model) and action == 1:
            wanted = rng.choice([1, 2, RUN_ITEMS, 3 * RUN_ITEMS])
            del model[place : place + wanted]
            pieces.remove(place, wanted)
        elif place < len(model):
            model[place] = item
            assert isinstance(pieces[place], bytes)
            pieces[place] = item
        assert len(pieces) == len(model)
    assert pieces.join() == array_header(len(model)) + b"".join(model)


def test_map_pieces_find_the_first_of_equal_keys() -> None:
    pairs: list[Any] = [(1, "a"), (True, "b"), (1.0, "c"), ("x", "d"), ([1], "e")]
    packed = b"\x85" + b"".join(packb(key) + packb(value) for key, value in pairs)
    pieces = MapPieces(packed)
    pieces.is_changed = True
    assert [decode(pieces[1]), decode(pieces["x"])] == ["a", "d"]
    pieces.remove(1)
    assert decode(pieces[1]) == "b"
    pieces.remove(1)
    pieces.remove(1)
    assert 1 not in pieces
    pieces.add("y", packb("y"), packb(2))
    assert pieces.join() == b"\x83" + b"".join(map(packb, ["y", 2, "x", "d", [1], "e"]))


def test_skipped_operation_leaves_every_byte_as_it_was() -> None:
    odd = b"\xdd\x00\x00\x00\x02\x01\xdc\x00\x01\xde\x00\x01\x01\xd1\x00\x02"
    packed = b"\x92\x05" + odd
    ops = packb([["!", "[2][2][1][1]", 1], ["+", "[2][2][1]", 1], ["=", "[2][9]", 1]])
    assert apply_operations(packed, ops, 1, {}, is_upsert=True) == packed


def test_operations_see_the_result_of_those_before() -> None:
    packed = packb([1, [10, 20, 30], {"a": [1]}])
    operations = [
        ["!", "[2][1]", 5],
        ["=", "[2][4]", 31],
        ["!", "[3].b", 7],
        ["+", "[3].a[1]", 2],
        ["!", 1, 0],
    ]
    assert update(packed, operations) == [0, 1, [5, 10, 20, 31], {"b": 7, "a": [3]}]


@pytest.mark.parametrize(
    ("first", "second"), [("[2][1]", "[2][1][1]"), ("[2][1][1]", "[2][1]"), ("[2][1]", "[2][1]")]
)
def test_place_on_the_way_of_another_is_a_double_update(first: str, second: str) -> None:
    packed = packb([1, [[1, 2], 3]])
    with pytest.raises(ClientError) as refused:
        update(packed, [["=", first, 1], ["=", second, 1]])
    assert refused.value.code == 29


@pytest.mark.parametrize("field", [2, -1])
def test_double_stays_one_although_a_float_would_lose_nothing(field: int) -> None:
    packed = apply_operations(
        packb([1, 1.5]), packb([["+", field, 1]]), 1, {}, doubles=frozenset({1})
    )
    assert packed == packb([1, 2.5])


@pytest.mark.parametrize(("value", "operand"), [(True, 1), (1, True)])
@pytest.mark.parametrize("name", ["+", "-", "&", "|"])
def test_boolean_is_no_number(value: object, operand: object, name: str) -> None:
    with pytest.raises(ClientError, match="expected a") as refused:
        update(packb([1, value]), [[name, 2, operand]])
    assert refused.value.code == 26


def test_too_many_operations_are_refused_before_they_are_read() -> None:
    one_pass = min(cpu_seconds(lambda: split_array(FLAT)) for _ in range(3))
    ops = array_header(20 * ITEMS) + b"\x01" * (20 * ITEMS)

    def refuse() -> None:
        with pytest.raises(ClientError) as refused:
            apply_operations(b"\x91\x01", ops, 1, {})
        assert refused.value.code == 1

    assert cpu_seconds(refuse) < 2 * one_pass


def test_body_with_too_many_keys_is_refused() -> None:
    body = packb(
        {Key.SPACE_ID: 512, Key.KEY: [1], Key.TUPLE: [], **{1000 + n: 0 for n in range(2000)}}
    )
    with pytest.raises(ClientError) as refused:
        decode_request(UPDATE, body)
    assert refused.value.code == 20


def test_long_path_is_read_in_little_time() -> None:
    one_pass = min(cpu_seconds(lambda: split_array(FLAT)) for _ in range(3))
    for path in ("a" * 20 * ITEMS, "[" + "1" * 20 * ITEMS + "]", '["' + "é" * 20 * ITEMS + '"]'):
        assert cpu_seconds(partial(read_steps, path)) < 2 * one_pass
    assert len(read_steps("[1]" * ITEMS, 7)) == 7


def test_names_and_positions_of_a_path_end_where_they_did() -> None:
    assert read_steps("a²") == ("a", Malformed(2))
    assert read_steps("é_Ⅷ٣.x") == ("é_Ⅷ٣", "x")
    assert read_steps("[4294967297]") == (0,)
    assert read_steps("[0]") == (Malformed(2),)
    assert read_steps('["a\udc80"]') == (Malformed(4),)


def test_item_of_a_large_array_is_read_and_replaced() -> None:
    assert item_of(FLAT, ITEMS - 1) == b"\x01"
    changed = with_item(FLAT, ITEMS - 2, packb("new"))
    assert decode(changed)[-3:] == [1, "new", 1]
    assert len(changed) == len(FLAT) + 3


def test_document_with_many_parts_of_a_key_is_opened_once() -> None:
    """Followers, too, read the key of a changed tuple while they must answer heartbeats (G1)."""
    packed = packb([{f"k{number}": number for number in range(20_000)}])
    parts = [KeyPart(0, "unsigned", path=(f"k{number}",)) for number in range(60)]
    one_part = min(cpu_seconds(lambda: packed_values(packed, parts[:1])) for _ in range(3))
    taken = min(cpu_seconds(lambda: packed_values(packed, parts)) for _ in range(3))
    assert taken < 10 * one_part
    assert packed_values(packed, parts) == [packb(number) for number in range(60)]
