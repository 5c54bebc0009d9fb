"""Facts on their way from a worker to the driver, and the runs of rows from which they are made."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from qsync_client.protocol.constants import Key
from qsync_node.archive.manifest import Mark
from qsync_node.format.keys import RAFT_PROMOTE
from qsync_node.format.mp import pack
from qsync_node.format.row import LogRow, encode_row
from qsync_spark.decode import runs
from qsync_spark.decode.blocks import BlockRows, RestartMark
from qsync_spark.decode.parts import FilePart
from qsync_spark.decode.runs import InvalidBlock, RowRun, runs_of
from qsync_spark.facts.kinds import KINDS, FileFact, RowCopy
from qsync_spark.facts.table import COPIES, FACTS, FactList, copies_of, facts_of, table_of

VALUES: dict[Any, Any] = {
    str: "text", int: 7, float: 0.5, bool: True, bytes: b"\x00\xff", float | None: None,
    tuple[int, ...]: (1, 2), tuple[tuple[int, ...], ...]: ((1, 2, 3), (4, 5, 6)),
}  # fmt: skip


def example(kind: type[FileFact]) -> FileFact:
    hints = get_type_hints(kind)
    return kind(*(VALUES[hints[one.name]] for one in fields(kind)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_fact_is_the_same_after_its_way_through_the_table(kind: type[FileFact]) -> None:
    fact = example(kind)
    batch = table_of([fact])
    assert batch.schema == FACTS
    assert list(facts_of(batch.to_pylist())) == [fact]


def test_facts_of_all_kinds_share_a_table_in_which_other_columns_are_null() -> None:
    facts = [example(kind) for kind in KINDS]
    rows = table_of(facts).to_pylist()
    assert list(facts_of(rows)) == facts
    for row in rows:
        structs = [name for name in FACTS.names if isinstance(row[name], dict)]
        assert structs in ([], [row["fact"]])


def test_binary_values_of_spark_become_bytes() -> None:
    copy = example(RowCopy)
    row = {name: getattr(copy, name) for name in COPIES.names}
    (found,) = copies_of([row | {"digest": bytearray(row["digest"])}])
    assert found == copy
    assert type(found.digest) is bytes


def test_list_of_facts_selects_by_kind_and_file() -> None:
    listed = FactList(example(kind) for kind in KINDS)
    for kind in KINDS:
        assert {type(one) for one in listed.of(kind)} >= {kind}
        assert listed.of(kind, "segment") == []
    assert len(listed.of(FileFact, "text")) == len(KINDS)


def row(lsn: int, replica_id: int = 1, kind: int = 3) -> bytes:
    return encode_row(
        LogRow(kind, replica_id, lsn, 1.0, pack({Key.SPACE_ID: 600, Key.TUPLE: [lsn]}))
    )


def runs_in(monkeypatch: pytest.MonkeyPatch, blocks: list[bytes]) -> list[Any]:
    """Return the runs of a segment, with the data of its rows removed."""
    part = FilePart("", "m/f", "segment", "m", [Mark(0, 1, {1: 10})], 1, 1, "", 1, 10, 0, {}, "",
                    {1: 10}, None)  # fmt: skip
    rows = [BlockRows(100 * number, data) for number, data in enumerate(blocks)]
    monkeypatch.setattr(runs, "batches_of", lambda part: iter([RestartMark(0), rows]))
    found = [one for one in runs_of(part) if not isinstance(one, RestartMark)]
    return [
        (one.replica_id, one.lsn, one.first_index, one.before, one.rows.size, one.stated)
        if isinstance(one, RowRun)
        else one
        for one in found
    ]


@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([row(11) + row(12), row(13)], [(1, 11, 11, 10, 3, None)]),
        ([row(11), row(12, kind=RAFT_PROMOTE) + row(13)],
         [(1, 11, 11, 10, 1, None), (1, 12, 12, 11, 2, None)]),
        ([row(11) + row(13) + row(14)], [(1, 11, 11, 10, 1, None), (1, 13, 13, 11, 2, None)]),
        ([row(11) + row(12) + row(11) + row(13)],
         [(1, 11, 11, 10, 2, None), (1, 11, 11, 12, 1, None), (1, 13, 13, 12, 1, None)]),
        ([row(11) + row(1, 2) + row(12)],
         [(1, 11, 11, 10, 1, None), (2, 1, 12, 0, 1, None), (1, 12, 13, 11, 1, None)]),
        ([row(11) + row(99, 3) + row(13)],
         [(1, 11, 11, 10, 1, None), (1, 12, 12, 11, 1, (3, 99)), (1, 13, 13, 12, 1, None)]),
    ],
    ids=["regular", "promote", "gap", "repeated", "two writers", "mislabelled"],
)  # fmt: skip
def test_rows_are_cut_into_runs_where_their_order_is_irregular(
    monkeypatch: pytest.MonkeyPatch, blocks: list[bytes], expected: list[Any], is_by_row: bool
) -> None:
    if is_by_row:
        monkeypatch.setattr(runs, "columns_of", lambda _: None)
    found = runs_in(monkeypatch, blocks)
    if is_by_row and expected == [(1, 11, 11, 10, 3, None)]:  # a run ends with its block
        expected = [(1, 11, 11, 10, 2, None), (1, 13, 13, 12, 1, None)]
    assert found == expected


def test_block_without_rows_or_labels_is_invalid_and_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unlabelled = pack({0: 3, 3: 12}) + pack({Key.SPACE_ID: 600, Key.TUPLE: [1]})
    first, invalid, also, last = runs_in(monkeypatch, [row(11), b"\xc1", unlabelled, row(12)])
    assert first[1] == 11
    assert isinstance(invalid, InvalidBlock)
    assert also.why.endswith("a row lacks its replica id or LSN")
    assert (invalid.offset, also.offset) == (100, 200)
    assert last == (1, 12, 12, 11, 1, None)
