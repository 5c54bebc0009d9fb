"""Field values: their order across kinds, extensions, and numbers that must not be rounded."""

import itertools
import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgpack
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qsync_node.engine.fields import Datetime, Uuid, decode, sort_number, sort_scalar
from qsync_node.engine.keydef import KeyDef, KeyPart
from qsync_node.engine.numbers import add, pack_decimal
from qsync_node.engine.paths import AnyItem, Malformed, PathError, parse_path, read_steps
from qsync_node.errors import ClientError

INTEGERS = st.integers(-(2**63), 2**64 - 1)
DECIMALS = st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-(10**18), max_value=10**18, places=4
)
NUMBERS = INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | DECIMALS


@given(NUMBERS, NUMBERS)
def test_numbers_of_all_kinds_compare_exactly(one: Any, two: Any) -> None:
    left, right = sort_number(one), sort_number(two)
    assert (left < right, left == right) == (
        Fraction(one) < Fraction(two),
        Fraction(one) == Fraction(two),
    )
    if left == right:
        assert hash(left) == hash(right)


def test_nan_is_one_number_and_the_least() -> None:
    one, two = (decode(msgpack.packb(math.nan)) for _ in range(2))
    assert sort_number(one) == sort_number(two)
    assert hash(sort_number(one)) == hash(sort_number(two))
    assert sort_number(one) < sort_number(-math.inf)
    assert sort_number(Decimal(-1)) > sort_number(one)


def test_scalars_order_by_kind_first() -> None:
    values: list[Any] = [
        False, True, math.nan, -math.inf, -1, Decimal("0.5"), 1, 1.5, math.inf,
        "", "a", b"", b"a", Uuid(bytes(16)), Uuid(b"\x01" * 16), Datetime(0, 0), Datetime(0, 5),
    ]  # fmt: skip
    keys = [sort_scalar(value) for value in values]
    assert sorted(reversed(keys)) == keys
    assert all(a < b for a, b in itertools.pairwise(keys))


@given(DECIMALS)
def test_decimals_survive_packing(value: Decimal) -> None:
    back = decode(pack_decimal(value))
    assert back == value
    assert back.as_tuple() == value.as_tuple() or value == 0


def test_decimals_as_tarantool_packs_them() -> None:
    known = {"1.5": "c7030101015c", "-1": "d501001d", "0": "d501000c", "12.345": "d6010312345c"}
    assert {text: pack_decimal(Decimal(text)).hex() for text in known} == known


@pytest.mark.parametrize(
    "packed",
    [
        b"\xd5\x01\x00\x0f"[:3],
        b"\xd5\x01\x00\x05",
        b"\xd5\x01\x00\xac",
        b"\xd4\x02\x00",
        b"\xd4\x04\x00",
    ],
)
def test_malformed_extensions_are_error_20(packed: bytes) -> None:
    with pytest.raises(ClientError) as refused:
        decode(packed)
    assert refused.value.code == 20


def test_datetimes_compare_by_moment() -> None:
    moment = struct.pack("<qihh", 1_600_000_000, 7, 180, 0)
    assert decode(msgpack.packb(msgpack.ExtType(4, moment))) == Datetime(1_600_000_000, 7)
    short = decode(msgpack.packb(msgpack.ExtType(4, struct.pack("<q", -5))))
    assert short == Datetime(-5, 0)


def test_strings_that_are_not_utf8_are_kept() -> None:
    assert decode(b"\xa2\xff\xfe") == "\udcff\udcfe"


@given(INTEGERS, INTEGERS, st.booleans())
def test_integer_arithmetic_is_exact_or_overflows(one: int, two: int, is_minus: bool) -> None:
    result = one - two if is_minus else one + two
    packed = add(one, two, is_minus)
    if -(2**63) <= result < 2**64:
        assert packed is not None
        assert decode(packed) == result
    else:
        assert packed is None


@given(st.floats(allow_nan=False, width=32), st.floats(allow_nan=False, width=32))
def test_a_double_is_stored_short_only_if_nothing_is_lost(one: float, two: float) -> None:
    assume(not math.isnan(one + two))
    packed = add(one, two, False)
    assert packed is not None
    assert decode(packed) == one + two


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("a", ("a",)),
        ("[1]", (0,)),
        ("a.b[2]", ("a", "b", 1)),
        ("[3]['x y'].z", (2, "x y", "z")),
        ('a["k"][10]', ("a", "k", 9)),
        (".a.xⅷ", ("a", "xⅷ")),
        ("a[4294967298]", ("a", 1)),
    ],
)
def test_paths(path: str, steps: tuple[Any, ...]) -> None:
    assert parse_path(path) == steps


@pytest.mark.parametrize(
    "path",
    ["", "[0]", "[", "[1", "a.", "a..b", "1a", "a b", "a[]", "ab[1]c", "a[*]", 'a[""]', "ⅷ", "b.²"],
)
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(PathError):
        parse_path(path)


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("a..b", ("a", Malformed(3))),
        ("a.b[", ("a", "b", Malformed(4))),
        ("a[0].b", ("a", Malformed(3))),
        ('["a"x', (Malformed(5),)),
        ("['a", (Malformed(4),)),
        ("a[*].b.", ("a", AnyItem(3), "b", Malformed(8))),
        ("a['\udcff']", ("a", Malformed(4))),
    ],
)
def test_a_path_is_read_up_to_where_it_goes_wrong(path: str, steps: tuple[Any, ...]) -> None:
    assert read_steps(path) == steps


PRIMARY = [KeyPart(0, "unsigned")]


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(0, 50)), unique=True))
def test_null_sorts_first_and_equal_keys_by_primary_key(pairs: list[Any]) -> None:
    key_def = KeyDef([KeyPart(1, "integer", is_nullable=True)], False, PRIMARY)
    keys = sorted(key_def.entry_key([pk, value]) for value, pk in pairs)
    wanted = sorted(pairs, key=lambda p: (p[0] is not None, p[0] or 0, p[1]))
    assert keys == [key_def.entry_key([pk, value]) for value, pk in wanted]


def test_which_indexes_have_plain_keys() -> None:
    assert KeyDef([KeyPart(0, "string")], True, PRIMARY).is_plain
    assert not KeyDef([KeyPart(0, "string")], False, PRIMARY).is_plain
    assert not KeyDef([KeyPart(0, "string", is_nullable=True)], True, PRIMARY).is_plain
    assert KeyDef([KeyPart(2, "uuid")], True, PRIMARY).entry_key([1, 2, "u"]) == "u"


def test_keys_inside_of_documents() -> None:
    part = KeyPart(1, "unsigned", path=("a", 0))
    key_def = KeyDef([part], True, PRIMARY)
    assert key_def.entry_key([1, {"a": [7, 8]}]) == 7
    assert key_def.entry_key([1, {"b": 1}]) is None
