"""`qsync events -f`: each event is printed once, in the columns of the table."""

import json
from collections.abc import Callable, Iterator

import pytest
import typer

from qsync_cli.local import events
from qsync_cli.options import Output


def event(second: int, reason: str) -> dict[str, str]:
    time = f"2026-01-31T12:00:{second:02}.000+00:00"
    return {
        "time": time, "type": "Normal", "reason": reason, "object": "orders", "message": "done",
    }  # fmt: skip


EVENTS = [event(number, reason) for number, reason in enumerate(("PhaseCreating", "Late", "Last"))]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, str]]]:
    """Return a reader that finds one event more each time, until it is interrupted."""
    monkeypatch.setattr(events, "FOLLOW_S", 0)

    def growing() -> Iterator[list[dict[str, str]]]:
        yield EVENTS[:1]
        yield EVENTS[:2]
        yield EVENTS[1:]  # the first one has expired
        raise KeyboardInterrupt

    return growing().__next__


def test_followed_events_are_printed_once(
    read: Callable[[], list[dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    events.show(read, True, None)
    titles, *lines = capsys.readouterr().out.rstrip().splitlines()
    column = titles.index("MESSAGE")
    assert [line.index("done") for line in lines] == [column] * 3
    assert ["PhaseCreating" in lines[0], "Late" in lines[1], "Last" in lines[2]] == [True] * 3


def test_followed_documents_have_one_event_in_a_line(
    read: Callable[[], list[dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    events.show(read, True, Output.json)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == EVENTS
    with pytest.raises(typer.BadParameter, match="use -o json"):
        events.show(read, True, Output.yaml)
