"""Rows and fragments of journals in a restore; `test_cli_restore_journals.py` uses brokers."""

import hashlib
import random
from pathlib import Path

import obstore
import pytest

from qsync_node.archive.location import open_store
from qsync_node.archive.restore import journals
from qsync_node.archive.restore.journals import (
    GAP_S,
    Former,
    Fragment,
    JournalRestoreError,
    copy_fragments,
    detach,
    final,
)
from qsync_node.engine.database import Database
from qsync_node.format.body import put_body
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    NO_ROUTE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    Route,
    decode_row,
    definitions,
    encode_row,
)
from qsync_node.format.keys import INSERT
from qsync_node.format.mp import pack
from qsync_node.transactions.own_rows import rows_of
from qsync_testing.brokers.stores import url_of
from qsync_testing.object_server import ObjectServer, Weakness

BROKER = BrokerId("zone", "broker-0")
NAME = "a/journal"


def database(stores: list[str]) -> Database:
    found = Database()
    for space, fields in definitions():
        found.apply(INSERT, put_body(space, pack(fields)))
    spec = {"replication": 1, "fragment": {"length": 1024, "stores": stores}}
    route = Route((BROKER,), 0)
    for space, row in (
        (JOURNAL_SPACE, JournalRow(NAME, spec, 0, 0, 9, 7, route, 3, 4, (BROKER,), ((7, 1024),))),
        (BROKER_SPACE, BrokerRow(BROKER, "http://h:1", "h:2", 9, False, 10, "p", 5, 3, 3)),
        (ASSIGNMENT_SPACE, AssignmentRow(NAME, BROKER, 0, 3, 3)),
    ):
        found.apply(INSERT, put_body(space, pack(encode_row(row))))
    return found


def journal(state: Database) -> JournalRow:
    (fields,) = rows_of(state, JOURNAL_SPACE)
    row = decode_row(JOURNAL_SPACE, fields)
    assert isinstance(row, JournalRow)
    return row


def test_brokers_are_removed_and_the_epoch_is_kept() -> None:
    state = database(["s3://old/one/", "s3://old/two/"])
    assert detach(state, "s3://new/one") == [Former(NAME, ("s3://old/one/", "s3://old/two/"))]
    row = journal(state)
    assert (row.route, row.partial, row.ends) == (NO_ROUTE, (), ())
    assert (row.epoch, row.ballot) == (7, 9)
    assert row.spec["fragment"] == {"length": 1024, "stores": ["s3://new/one/"]}
    assert rows_of(state, ASSIGNMENT_SPACE) == rows_of(state, BROKER_SPACE) == []


def test_store_of_the_former_cluster_is_refused() -> None:
    for url, cause in (
        ("", "name a store of the new one"),
        ("s3://old/one/", "is that of the former cluster"),
        ("s3://old/one/inner/", "is that of the former cluster"),
        ("s3://old", "is that of the former cluster"),
    ):
        with pytest.raises(JournalRestoreError, match=cause):
            detach(database(["s3://old/one/"]), url)
    state = database([])
    assert detach(state, "") == []
    assert journal(state).spec["fragment"]["stores"] == []
    assert detach(Database(), "") == []


def put(store: Path, begin: int, content: bytes, folder: str = "") -> str:
    name = f"{begin:016x}-{begin + len(content):016x}-{hashlib.sha1(content).hexdigest()}.raw"
    path = f"{NAME}/{folder}{name}"
    (store / path).parent.mkdir(parents=True, exist_ok=True)
    (store / path).write_bytes(content)
    return path


@pytest.fixture(params=["file", "s3"])
def server(request: pytest.FixtureRequest, object_store: ObjectServer) -> ObjectServer | None:
    return object_store if request.param == "s3" else None


def test_fragments_are_copied_and_a_killed_copy_is_continued(
    tmp_path: Path, server: ObjectServer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, new = tmp_path / "one", tmp_path / "two", tmp_path / "new"
    paths = {put(one, 0, b"first"), put(two, 5, b"second", "date=2026-01-01/")}
    (one / NAME / "note.txt").write_text("no fragment")
    former = [Former(NAME, (url_of(one, server), url_of(two, server)))]
    new_url = url_of(new, server)
    copied = journals._copy

    def killed(fragment: Fragment, url: str) -> None:
        if fragment.begin:
            raise KeyboardInterrupt
        copied(fragment, url)

    monkeypatch.setattr(journals, "_copy", killed)
    with pytest.raises(KeyboardInterrupt):
        copy_fragments(former, new_url)
    monkeypatch.setattr(journals, "_copy", copied)
    assert copy_fragments(former, new_url) == 1
    assert copy_fragments(former, new_url) == 0
    found = {str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()}
    assert found == paths
    assert (new / put(two, 5, b"second", "date=2026-01-01/")).read_bytes() == b"second"
    put(new, 11, b"of another cluster")
    with pytest.raises(JournalRestoreError, match="of another cluster"):
        copy_fragments(former, new_url)


def test_large_fragment_is_copied_as_a_whole_or_not_at_all(
    tmp_path: Path, object_store: ObjectServer
) -> None:
    """The library uploads it in parts, with the encoding that readers need."""
    one, new = tmp_path / "one", tmp_path / "new"
    former, url = [Former(NAME, (url_of(one, object_store),))], url_of(new, object_store)
    content = random.Random(2).randbytes(11 << 20)
    path = put(one, 0, content).removesuffix(".raw")  # an encoded object has no extension
    (one / f"{path}.raw").rename(one / path)
    for fault in ("cut", "torn", "failing"):
        object_store.weakness = Weakness(**{fault: 1.0})
        with pytest.raises(JournalRestoreError, match="retry"):
            copy_fragments(former, url)
        object_store.weakness = Weakness()
        assert not [one for one in new.rglob("*") if one.is_file()], fault
    assert copy_fragments(former, url) == 1
    assert (new / path).read_bytes() == content
    found = obstore.head(open_store(url), path)
    assert found["size"] == len(content)
    assert object_store.encodings[new / path] == "gzip"


def fragment(begin: int, end: int, age_s: float) -> Fragment:
    return Fragment(begin, end, "file:///store/", str(begin), 1, int(10 * GAP_S - age_s))


def test_fragments_after_a_recent_gap_are_left_out() -> None:
    now_s = 10.0 * GAP_S
    old = [fragment(5, 9, 60), fragment(0, 5, 60), fragment(20, 30, GAP_S + 60)]
    assert [one.begin for one in final([*old, fragment(40, 50, 60)], now_s)] == [0, 5, 20]
    assert [one.begin for one in final([*old, fragment(30, 50, 60)], now_s)] == [0, 5, 20, 30]


def test_fragment_within_another_one_is_no_gap() -> None:
    """Brokers persist overlapping fragments, for example after a failover."""
    found = [fragment(0, 9, 60), fragment(2, 5, 60), fragment(9, 12, 60)]
    assert final(found, 10.0 * GAP_S) == found
