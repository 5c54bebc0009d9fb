"""Updates by a field's name are replayed with the format that the space had then."""

import time
from typing import Any

import pytest

from qsync_node.format.keys import INSERT, REPLACE, UPDATE, Key
from qsync_node.format.mp import pack
from qsync_spark.audit.catalogue import KeyCatalogue, SystemChange, build_catalogue
from qsync_spark.audit.context import in_order
from qsync_spark.audit.fold import Fold
from qsync_spark.decode.schema_rows import INDEX, SPACE

PARTS = [[0, "unsigned"]]


def format_of(at: int, *names: str, row_type: int = REPLACE) -> SystemChange:
    layout = [{"name": name} for name in names]
    body = {Key.SPACE_ID: SPACE, Key.TUPLE: [512, 1, "s", "memtx", 0, {}, layout]}
    return SystemChange(at, row_type, SPACE, pack(body))


def partial(at: int, space: int, key: list[Any]) -> SystemChange:
    body = {Key.SPACE_ID: space, Key.KEY: key, Key.TUPLE: [["=", 5, []]]}
    return SystemChange(at, UPDATE, space, pack(body))


def after_update(catalogue: KeyCatalogue, at: int) -> list[Any] | None:
    """Return a tuple after an update of its field `a`; None if it is not known."""
    fold = Fold(catalogue)
    fold.begin(512, pack([1]))
    fold.take(at - 1, INSERT, pack({Key.SPACE_ID: 512, Key.TUPLE: [1, 0, 0]}), "", 0)
    body = {Key.SPACE_ID: 512, Key.KEY: [1], Key.TUPLE: [["=", "a", 7]]}
    fold.take(at, UPDATE, pack(body), "", 0)
    return None if fold.why_unknown else fold.fields


@pytest.mark.parametrize(
    ("at", "wanted"), [(5, [1, 7, 0]), (15, [1, 0, 7]), (25, None), (35, [1, 7, 0])]
)
def test_a_name_is_that_of_the_format_at_the_row(at: int, wanted: list[Any] | None) -> None:
    changes = [
        format_of(0, "id", "a", "b"), format_of(10, "id", "b", "a"), partial(20, SPACE, [512]),
        format_of(30, "id", "a"),
    ]  # fmt: skip
    assert after_update(build_catalogue({512: PARTS}, changes, []), at) == wanted


def test_rows_before_the_first_snapshot_precede_its_formats() -> None:
    """The oldest file of a compacted archive begins before the snapshot of the compaction."""
    basis = [format_of(10, "id", "a", "b")]
    logged = [format_of(3, "id", "x"), partial(10, SPACE, [512]), format_of(20, "id", "b", "a")]
    changes = in_order(basis, logged, 10)
    assert after_update(build_catalogue({512: PARTS}, changes, []), 15) == [1, 7, 0]
    assert after_update(build_catalogue({512: PARTS}, changes, []), 25) == [1, 0, 7]


@pytest.mark.parametrize(("key", "is_supported"), [([512, 0], False), ([512, 1], True)])
def test_a_primary_key_that_was_changed_in_part_is_unknown(
    key: list[Any], is_supported: bool
) -> None:
    found = build_catalogue({512: PARTS}, [partial(10, INDEX, key)], [])
    assert (512 not in found.unsupported) == is_supported


def test_the_work_of_a_row_does_not_grow_with_the_number_of_truncations() -> None:
    fold = Fold(KeyCatalogue(keys={512: (0,)}, clears={512: list(range(0, 4_000_000, 2))}))
    fold.begin(512, pack([1]))
    body = pack({Key.SPACE_ID: 512, Key.TUPLE: [1]})
    began = time.thread_time()
    for index in range(3_999_001, 3_999_201, 2):
        fold.since = index - 2
        fold.take(index, INSERT, body, "", 0)
    assert fold.since == 3_999_199
    assert not fold.odd, "each INSERT follows a truncation"
    assert time.thread_time() - began < 1.0
