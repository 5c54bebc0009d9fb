"""Pauses before a process of a local member is started again."""

import sys
import time
from pathlib import Path

import pytest

from qsync_local import processes as processes_of_system
from qsync_local.store import ClusterFiles, MemberRecord
from qsync_local.supervision import PAUSE_MAX_S, STABLE_AFTER_S, Program, Supervision

MEMBER = "orders-0"


class SteppedClock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SteppedClock:
    found = SteppedClock()
    monkeypatch.setattr(time, "monotonic", found.monotonic)
    monkeypatch.setattr(processes_of_system, "watch_end", lambda pid, ended: True)
    return found


@pytest.fixture
def processes(tmp_path: Path) -> Supervision:
    """Return the supervision of a member whose process ends at once."""
    return Supervision(
        ClusterFiles(tmp_path),
        {MEMBER: MemberRecord("voter", 1, 2)},
        lambda: None,
        Program(lambda _: [sys.executable, "-c", ""], lambda _: tmp_path / "log"),
        lambda: None,
    )


def ended(processes: Supervision) -> None:
    """Start the process, wait for its end, and observe that."""
    processes.start(MEMBER)
    child = processes.watched(MEMBER).child
    assert child is not None
    child.wait()
    assert not processes.observe(MEMBER)


def test_pause_doubles_from_the_second_end_up_to_a_limit(
    processes: Supervision, clock: SteppedClock
) -> None:
    pauses = []
    for _ in range(8):
        ended(processes)
        pauses.append(processes.watched(MEMBER).not_before_s - clock.now_s)
        assert processes.may_start(MEMBER) == (pauses[-1] == 0)
        clock.now_s += pauses[-1]
        assert processes.may_start(MEMBER)
    assert pauses == pytest.approx([0, 0.2, 0.4, 0.8, 1.6, 3.2, PAUSE_MAX_S, PAUSE_MAX_S])


def test_process_that_ran_for_long_begins_without_a_pause(
    processes: Supervision, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        ended(processes)
        clock.now_s = processes.watched(MEMBER).not_before_s
    assert processes.failure_of(MEMBER).startswith("its process ended 4 times")
    processes.start(MEMBER)
    with monkeypatch.context() as patch:
        patch.setattr(Supervision, "is_running", lambda *_: True)
        clock.now_s += STABLE_AFTER_S
        processes.observe(MEMBER)
        assert processes.failure_of(MEMBER)
        clock.now_s += 1
        processes.observe(MEMBER)
    assert not processes.failure_of(MEMBER)
    child = processes.watched(MEMBER).child
    assert child is not None
    child.wait()
    assert not processes.observe(MEMBER)
    assert processes.may_start(MEMBER)
