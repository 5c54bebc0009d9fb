"""Rows and batches: encoding, decoding, and refused input."""

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qsync_client.protocol.constants import Key
from qsync_node.format.batch import LogBatch, cut_batch, drop_rows_up_to, split_batches
from qsync_node.format.row import (
    LogRow,
    RowError,
    decode_rows,
    encode_row,
    encode_rows,
    encode_singles,
    encode_uint,
    scan_rows,
)

# A busy machine may delay examples: no test here depends on a duration.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

lsns = st.integers(1, 2**63)
bodies = st.dictionaries(st.integers(0, 127), st.binary(max_size=20), max_size=4).map(msgpack.packb)
keys = st.none() | st.text(max_size=9) | st.binary(max_size=9) | st.lists(st.integers(0, 9))


@st.composite
def rows(draw: st.DrawFn) -> LogRow:
    lsn = draw(lsns)
    distance = draw(st.integers(0, min(lsn - 1, 300)))
    return LogRow(
        draw(st.sampled_from([2, 3, 5, 31, 40, 41])),
        draw(st.integers(0, 31)),
        lsn,
        draw(st.floats(0, 2e9)),
        draw(bodies),
        group_id=draw(st.integers(0, 1)),
        tsn=lsn - distance,
        is_commit=draw(st.booleans()),
        flags=draw(st.sampled_from([0, 2, 4, 6])),
        idempotency=draw(keys),
    )


@given(st.lists(rows(), max_size=5))
def test_rows_come_back(wanted: list[LogRow]) -> None:
    data = encode_rows(wanted)
    assert decode_rows(data) == wanted
    ends = [end for _, _, end, _ in scan_rows(data)] if all(r.replica_id for r in wanted) else []
    if ends:
        assert ends[-1] == len(data)


@given(st.lists(rows(), min_size=1, max_size=3), st.data())
def test_cut_rows_are_refused_at_the_row_that_is_cut(
    wanted: list[LogRow], data: st.DataObject
) -> None:
    whole = encode_rows(wanted)
    last = len(whole) - len(encode_row(wanted[-1]))
    size = data.draw(st.integers(last + 1, len(whole) - 1))
    with pytest.raises(RowError) as caught:
        decode_rows(whole[:size])
    assert caught.value.offset == last


@given(st.binary(max_size=60))
def test_garbage_raises_nothing_but_row_errors(data: bytes) -> None:
    for decode in (
        decode_rows,
        lambda raw: list(scan_rows(raw)),
        lambda raw: split_batches(raw, 0),
    ):
        offset = 0
        try:
            decode(data)
        except RowError as error:
            offset = error.offset
        assert 0 <= offset <= len(data)


@given(lsns, st.integers(1, 31), st.floats(1, 2e9), st.sampled_from([0, 2, 6]), bodies)
def test_the_fast_path_writes_the_same_bytes(
    lsn: int, replica_id: int, timestamp: float, flags: int, body: bytes
) -> None:
    plain = encode_row(LogRow(3, replica_id, lsn, timestamp, body, flags=flags))
    many = encode_singles([(3, body), (5, body)], replica_id, lsn, timestamp, flags)
    second = encode_row(LogRow(5, replica_id, lsn + 1, timestamp, body, flags=flags))
    assert many == [plain, second]


@given(st.integers(0, 2**64 - 1))
def test_numbers_have_their_shortest_form(value: int) -> None:
    assert encode_uint(value) == msgpack.packb(value)


@pytest.mark.parametrize(
    "header",
    [
        {0: "x"},
        {0: 2, 3: -1},
        {0: 2, 4: 5},
        {0: 2, 3: 1, 8: 2},
        {0: 2, Key.TUPLE_META: 5},
        {0: 2, 9: None},
    ],
)
def test_a_header_with_a_wrong_value_is_refused(header: dict[int, object]) -> None:
    with pytest.raises(RowError):
        decode_rows(msgpack.packb(header) + b"\x80")


def test_a_body_that_is_no_map_is_refused() -> None:
    with pytest.raises(RowError, match="a map"):
        decode_rows(msgpack.packb({0: 2, 3: 1}) + b"\x01")


def multi(first: int, count: int, replica_id: int = 1) -> list[LogRow]:
    """Return one transaction of `count` rows."""
    return [
        LogRow(3, replica_id, lsn, 1.0, b"\x80", tsn=first, is_commit=lsn == first + count - 1)
        for lsn in range(first, first + count)
    ]


def test_batches_are_split_by_origin() -> None:
    first, second = multi(7, 3) + multi(10, 1), multi(4, 2, replica_id=2)
    data = encode_rows(first) + encode_rows(second) + encode_rows(multi(11, 1))
    batches = split_batches(data, 100)
    assert [
        (b.first_index, b.last_index, b.replica_id, b.first_lsn, b.last_lsn) for b in batches
    ] == [
        (101, 104, 1, 7, 10),
        (105, 106, 2, 4, 5),
        (107, 107, 1, 11, 11),
    ]
    assert b"".join(batch.data for batch in batches) == data
    assert batches[1].data == encode_rows(second)


def test_a_batch_does_not_end_inside_a_transaction() -> None:
    rows = multi(1, 3)
    with pytest.raises(RowError, match="is incomplete"):
        split_batches(encode_rows(rows[:2]), 0)
    with pytest.raises(RowError, match="another sequence"):
        split_batches(encode_rows(rows[:2] + multi(1, 1, replica_id=2)), 0)
    (batch,) = split_batches(encode_rows(rows), 0)
    with pytest.raises(RowError, match="inside a transaction"):
        cut_batch(batch, 2)


def test_a_batch_is_cut_between_transactions() -> None:
    (batch,) = split_batches(encode_rows(multi(1, 2) + multi(3, 2)), 0)
    head, tail = cut_batch(batch, 2)
    assert head == LogBatch(1, 2, 1, 2, encode_rows(multi(1, 2)))
    assert tail == LogBatch(3, 4, 1, 4, encode_rows(multi(3, 2)))
    assert drop_rows_up_to([batch], 2) == [tail]
    assert drop_rows_up_to([batch], 0) == [batch]
    assert drop_rows_up_to([batch], 4) == []
