"""The repository's check of commit subjects, and the files that images are built from."""

import re
import subprocess
from pathlib import Path

import pytest

from qsync_testing.paths import ROOT

HOOK = ROOT / ".ci" / "hooks" / "commit-msg"


def checked(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "message"
    path.write_text(message)
    return subprocess.run([HOOK, path], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "message",
    [
        "docs: fix list indentation in the operations guide\n\nThe body states why.\n",
        "# a comment of git\nconsensus: bring a follower up to date in steps\n",
        "Merge branch 'main'\n",
    ],
)
def test_good_subject_is_accepted(tmp_path: Path, message: str) -> None:
    done = checked(tmp_path, message)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Fix the list\n", "begin with one of these areas"),
        ("misc: fix the list\n", "begin with one of these areas"),
        ("docs: fixed the list\n", "imperative"),
        ("docs: the list is fixed\n", "imperative"),
        ("docs: Fix the list\n", "lower case"),
        ("docs: fix the list.\n", "full stop"),
        (f"docs: fix {'x' * 70}\n", "at most 72"),
        ("", "begin with one of these areas"),
    ],
)
def test_bad_subject_is_refused_with_its_reason(tmp_path: Path, message: str, reason: str) -> None:
    done = checked(tmp_path, message)
    assert done.returncode == 1
    assert done.stderr.startswith("commit refused: ")
    assert reason in done.stderr


def test_dockerignore_lets_through_whatever_the_images_copy() -> None:
    shown = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copies = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    copied = {source.rstrip("/") for line in copies for source in line.split()}
    assert "node/qsync_node" in copied
    hidden = {source for source in copied if not {source, source.partition("/")[0]} & shown}
    assert not hidden
