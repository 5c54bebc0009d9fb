"""Every story plays as it was recorded; `QSYNC_REWRITE_STORIES=1` records all of them again."""

import os
from pathlib import Path

import pytest

from qsync_sim.story import DIRECTORY, play

STORIES = sorted(DIRECTORY.glob("*.txt"))


def test_there_are_stories() -> None:
    assert len(STORIES) >= 20


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    told = play(path)
    if os.environ.get("QSYNC_REWRITE_STORIES"):
        path.write_text(told)
    assert told == path.read_text()


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_settles(path: Path) -> None:
    assert "nothing settled" not in path.read_text()
    assert " within 20 s" not in path.read_text()
