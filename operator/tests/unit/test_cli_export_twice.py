"""Two exports into the same file at the same time."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from qsync_cli.data import exporting
from qsync_cli.data.files import FileFormat
from qsync_cli.failure import Failure
from qsync_client import Committed, Field, Index, Outcome, Row, Space

KEY = Index(0, "primary", "tree", True, (0,))
SPACE = Space(512, "numbers", (Field("id", "unsigned"),), (KEY,))


class PagesOfNumbers:
    """A client with three pages of one row; `between` is called before each further one."""

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        self._between = between

    def select(self, space: int, *, after: bytes, **_: object) -> Outcome:
        if after:
            self._between()
        first = int(after or b"0")
        return Committed([Row([first], SPACE)][: 3 - first], position=str(first + 1).encode())


def exported(client: PagesOfNumbers, path: Path) -> None:
    exporting._resumable(client, SPACE, path, FileFormat.csv, False)  # type: ignore[arg-type]  # a double


@pytest.fixture(autouse=True)
def pages_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "PAGE_ROWS", 1)


def test_second_export_into_the_same_file_is_refused(tmp_path: Path) -> None:
    exported(PagesOfNumbers(), tmp_path / "whole")
    path, refused = tmp_path / "rows", []

    def export_again() -> None:
        for export in (exported, exported_at_once):
            with pytest.raises(Failure, match="another export writes it"):
                export(PagesOfNumbers(), path)
            refused.append(export)

    exported(PagesOfNumbers(export_again), path)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(refused) == 6
    assert sorted(one.name for one in tmp_path.iterdir()) == ["rows", "whole"]


def exported_at_once(client: PagesOfNumbers, path: Path) -> None:
    with exporting._whole_file(path, SPACE, FileFormat.csv) as writer:
        writer.write([Row([7], SPACE)])


def test_export_that_ended_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows"
    lock = fcntl.flock

    def end_first(file: object, operation: int) -> None:
        """Let the other export end between the opening of its part and the lock."""
        monkeypatch.setattr(fcntl, "flock", lock)
        path.with_name("rows.part").rename(path)

    monkeypatch.setattr(fcntl, "flock", end_first)
    with pytest.raises(Failure, match="another export writes it"):
        exported(PagesOfNumbers(), path)
    assert path.read_bytes() == b""
