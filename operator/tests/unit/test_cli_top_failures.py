"""Failed observations of the live view."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.top import screen
from qsync_operator.views.live import LiveModel, LiveSample

SAMPLE = LiveSample(1.0, "12:00:00", ["orders: Ready"], [])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            Failure(FailureReason.NOT_FOUND, "cluster orders was deleted"),
            "cluster orders was deleted",
        ),
        (ValueError("unknown field"), "the observation failed: unknown field"),
        (
            OSError(24, "Too many open files"),
            "the observation failed: [Errno 24] Too many open files",
        ),
        (KeyError("role"), "the observation failed: 'role'"),
    ],
)
def test_view_shows_each_failure_and_continues(
    monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    answers: Iterator[LiveSample | Exception] = iter([SAMPLE, error])
    shown: list[str] = []

    def sample() -> LiveSample:
        found = next(answers, SAMPLE)
        if isinstance(found, Exception):
            raise found
        return found

    @contextmanager
    def no_keys() -> Iterator[Callable[[], bool]]:
        yield lambda: False

    def show(model: LiveModel, found: "screen.FoundSamples", is_ended: Callable[[], bool]) -> None:
        shown.append(str(found.get(timeout=30)))
        assert found.get(timeout=30) == SAMPLE

    monkeypatch.setattr(screen, "_keys", no_keys)
    monkeypatch.setattr(screen, "_show", show)
    screen.observe(sample, 0.001)
    assert shown == [text]
