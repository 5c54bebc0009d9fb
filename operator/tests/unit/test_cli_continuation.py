"""Imports and feeds that continue: the same keys, the same counts, and no row twice."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qsync_cli.data import following, importing
from qsync_cli.data.connecting import Endpoint
from qsync_cli.data.files import FileFormat, read_rows
from qsync_cli.data.importing import ImportReport, ImportState
from qsync_cli.data.records import Read
from qsync_cli.failure import Failure
from qsync_client import Committed, ErrorCode, Field, Index, Outcome, RequestKey, Row, Space
from qsync_client.feed import FeedRefused

KEY = Index(0, "primary", "tree", True, (0,))
SPACE = Space(512, "things", (Field("id", "unsigned"), Field("is_new", "boolean", True)), (KEY,))
TWO = Endpoint(["a:1", "b:1"], "", "")


class KeyedClient:
    """A client that records the key of each row; it draws the marks 100, 101, ..."""

    def __init__(self) -> None:
        self.keys: dict[int, tuple[int, int]] = {}
        self.mark = 99

    async def __aenter__(self) -> "KeyedClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def new_key(self) -> RequestKey:
        self.mark += 1
        return RequestKey("other", 1, self.mark)

    async def insert(self, space: int, row: list[Any], request_key: RequestKey) -> Outcome:
        self.keys[row[0]] = (request_key.number, request_key.mark)
        return Committed([row])


def test_interrupted_import_repeats_one_batch_under_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, report, path = KeyedClient(), ImportReport(5), tmp_path / "state"
    monkeypatch.setattr(importing, "Client", lambda *_, **__: client)
    rows = iter([Read(number, [number]) for number in range(1, 8)])
    state = ImportState([], "things", 2, False, "me", 7, first=2, bad=1, is_repeated=True)
    asyncio.run(importing._import(TWO, SPACE, rows, state, path, report))
    assert client.keys == {3: (3, 7), 4: (4, 7), 5: (5, 100), 6: (6, 100), 7: (7, 101)}
    assert (report.written, report.repeated, report.bad) == (6, 1, 1)
    saved = json.loads(path.read_text())
    assert (saved["first"], saved["mark"], saved["is_repeated"]) == (6, 101, False)


def test_number_of_tolerated_rows_is_exact() -> None:
    report = ImportReport(1)
    report.refuse(1, "", "wrong")
    with pytest.raises(Failure, match="more than 1 rows"):
        report.refuse(2, "", "wrong")


def test_csv_of_other_programs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfid,is_new\r\n\r\n1,TRUE\r\n2,False\r\n")
    read = read_rows(path, FileFormat.csv, SPACE, lambda _: None)
    assert [one.row for one in read] == [[1, True], [2, False]]
    path.write_text("id,id\n1,2\n")
    with pytest.raises(Failure, match="must name fields"):
        list(read_rows(path, FileFormat.csv, SPACE, lambda _: None))


@pytest.mark.parametrize(("kind", "least", "most"), [("unsigned", 0, 2**64 - 1),
                                                     ("integer", -(2**63), 2**64 - 1)])  # fmt: skip
def test_bounds_of_integers_are_those_of_the_wire(
    tmp_path: Path, kind: str, least: int, most: int
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id\n{least - 1}\n{least}\n{most}\n{most + 1}\n")
    space = Space(512, "things", (Field("id", kind),), (KEY,))
    read = read_rows(path, FileFormat.csv, space, lambda _: None)
    assert [one.row for one in read] == [None, [least], [most], None]


def test_snapshot_that_broke_is_not_continued_at_another_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def broken(endpoint: Endpoint, address: str, spaces: object) -> Iterator[object]:
        asked.append(address)
        if len(asked) > 1:
            yield [Row([1], SPACE)], 0
        raise ConnectionError("the member closed the connection")

    monkeypatch.setattr(following, "_snapshot", broken)
    three = Endpoint([*TWO.addresses, "c:1"], "", "")
    with pytest.raises(Failure, match="is incomplete"):
        list(following.snapshot(three, [SPACE]))
    assert asked == ["a:1", "b:1"]


def test_gap_of_one_member_is_filled_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(endpoint: Endpoint, address: str, position: following.Position,
             *_: object) -> Iterator[list[object]]:  # fmt: skip
        if address == "a:1":
            raise FeedRefused(int(ErrorCode.XLOG_GAP), "the log begins later")
        yield []
        position.index += 1

    monkeypatch.setattr(following, "_rows", rows)
    monkeypatch.setattr(following, "RETRY_S", 0.0)
    position = following.Position(41)
    assert list(following.follow(TWO, position, (), 43)) == [[], []]
    assert position.index == 43
