"""Logs of local members, which may be large, and may begin again while a command follows them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qsync_cli.local import logs
from qsync_local.store import ClusterFiles, MemberRecord
from qsync_local.supervision import FAILURES_TOLD, Program, Supervision


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "node.log"


def refuse(*_: object, **__: object) -> None:
    pytest.fail("the whole log is read")


def huge(log: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a log that is too large to be read whole."""
    log.write_text("started\n" * 100_000 + end)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)


def test_cause_is_read_from_the_end_of_a_huge_log(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge(log, "qsync-node: the port is taken\n", monkeypatch)
    supervision = Supervision(
        ClusterFiles(log.parent),
        {"orders-0": MemberRecord("voter", 1, 2)},
        lambda: None,
        Program(lambda _: [], lambda _: log),
        lambda: None,
    )
    supervision.watched("orders-0").failures = FAILURES_TOLD
    assert supervision.failure_of("orders-0").endswith(": qsync-node: the port is taken")


def test_last_lines_of_a_huge_log_are_read_from_its_end(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "é" * 100_000
    huge(log, f"first\n{long}\nlast\n", monkeypatch)
    assert logs.last_lines(log, 2) == [long, "last"]
    assert logs.last_lines(log, 0) == []


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("", 3, []),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb\n", 3, ["a", "b"]),
        ("a\nb\n", None, ["a", "b"]),
        ("a\nb", 1, ["a"]),  # a node writes this line at the moment
        ("a\n\n\n", 2, ["", ""]),
        ("a\u2028b\n", 1, ["a\u2028b"]),
    ],
)
def test_last_lines_are_whole(log: Path, text: str, count: int | None, expected: list[str]) -> None:
    log.write_text(text)
    assert logs.last_lines(log, count) == expected


def follow(
    log: Path, steps: Iterator[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Follow a log with `--tail 1`; each pause does a step, and then Ctrl-C comes."""

    def pause(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        logs.print_lines({"": log}, follow=True, tail=1)


def test_line_that_is_incomplete_at_first_is_printed_once(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("one\ntwo\nthr")
    steps = iter([lambda: log.write_text("one\ntwo\nthree\n")])
    follow(log, steps, monkeypatch)
    assert capsys.readouterr().out == "two\nthree\n"


def test_log_that_begins_again_is_followed(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("old member\n")
    steps: list[Callable[[], object]] = [log.unlink, lambda: log.write_text("new\n")]
    follow(log, iter(steps), monkeypatch)
    assert capsys.readouterr().out == "old member\nnew\n"
