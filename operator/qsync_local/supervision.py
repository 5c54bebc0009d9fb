"""Keeps local members running: starts missing processes, notices ended ones, and backs off.

On Kubernetes, the kubelet does this. A process that ends is restarted at once; if it ends again and
again, the pause before each restart doubles up to a limit. A member without a disk is not started:
the plan decides whether it may return empty.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from qsync_local import processes
from qsync_local.store import ClusterFiles
from qsync_operator.api.reasons import EventReason

PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 5.0
STABLE_AFTER_S = 10.0
FAILURES_TOLD = 3
LAST_WORDS_MAX = 300
LAST_BYTES = 4096


@dataclass(slots=True)
class WatchedProcess:
    """Volatile state of a member's process; it is lost with the supervisor."""

    pid: int = 0
    child: subprocess.Popen[bytes] | None = None
    started_at_s: float = 0
    ended_pid: int = 0
    ended_at_ns: int = 0
    failures: int = 0
    not_before_s: float = 0


class ProcessRecord(Protocol):
    """The durable part of a process: its pid and the mark of its start."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Program:
    """The program that every process runs.

    Attributes:
        command: returns the arguments of a member's process.
        log: returns the file that a member's process writes its output to.
    """

    command: Callable[[str], list[str]]
    log: Callable[[str], Path]


class Supervision:
    """The processes of one kind in one cluster."""

    def __init__(
        self,
        store: ClusterFiles,
        records: Mapping[str, ProcessRecord],
        save: Callable[[], None],
        program: Program,
        wake: Callable[[], None],
    ) -> None:
        """Supervise processes.

        Args:
            store: files of the cluster, for events.
            records: the processes by member; the caller adds and removes entries.
            save: makes the records durable.
            program: the program that the processes run.
            wake: called when a process ends.
        """
        self._store = store
        self._records = records
        self._save = save
        self._program = program
        self._wake = wake
        self._watched: dict[str, WatchedProcess] = {}

    def watched(self, member: str) -> WatchedProcess:
        return self._watched.setdefault(member, WatchedProcess())

    def is_running(self, member: str) -> bool:
        record = self._records[member]
        child = self.watched(member).child
        if child is not None and child.pid == record.pid and child.poll() is not None:
            return False
        return bool(record.started) and processes.start_time(record.pid) == record.started

    def observe(self, member: str) -> bool:
        """Return whether a member runs; adopt a process that an earlier supervisor started."""
        record, watched = self._records[member], self.watched(member)
        if self.is_running(member):
            if watched.pid != record.pid:
                self._watch(member, record.pid)
            if watched.failures and time.monotonic() - watched.started_at_s > STABLE_AFTER_S:
                watched.failures = 0
            return True
        if record.pid:
            self._on_end(member, record, watched)
        return False

    def _watch(self, member: str, pid: int) -> None:
        watched = self.watched(member)
        watched.pid = pid
        watched.started_at_s = time.monotonic()

        def ended() -> None:
            if watched.pid == pid:
                watched.ended_pid, watched.ended_at_ns = pid, time.monotonic_ns()
            self._wake()

        processes.watch_end(pid, ended)

    def _on_end(self, member: str, record: ProcessRecord, watched: WatchedProcess) -> None:
        now_s = time.monotonic()
        code = watched.child.returncode if watched.child is not None else None
        watched.child = None
        if watched.ended_pid != record.pid:
            watched.ended_pid, watched.ended_at_ns = record.pid, time.monotonic_ns()
        pause_s = 0.0
        if watched.started_at_s and now_s - watched.started_at_s < STABLE_AFTER_S:
            watched.failures += 1
            if watched.failures > 1:
                pause_s = min(PAUSE_FIRST_S * 2 ** (watched.failures - 2), PAUSE_MAX_S)
        watched.not_before_s = now_s + pause_s
        how = f"process {record.pid} ended" + (f" with {_code(code)}" if code is not None else "")
        record.pid, record.started = 0, ""
        self._save()
        self._store.add_event(EventReason.PROCESS_ENDED, member, how)

    def may_start(self, member: str) -> bool:
        return time.monotonic() >= self.watched(member).not_before_s

    def start(self, member: str) -> None:
        """Start a member's process with its current configuration file."""
        record = self._records[member]
        child = processes.start(self._program.command(member), self._program.log(member))
        record.pid, record.started = child.pid, processes.start_time(child.pid)
        watched = self.watched(member)
        watched.child = child
        self._save()
        self._watch(member, child.pid)
        self._store.add_event(EventReason.PROCESS_STARTED, member, f"started process {child.pid}")

    def adopt(self, member: str, pid: int) -> None:
        """Adopt a process that answers as this member although its pid was not stored."""
        record = self._records[member]
        record.pid, record.started = pid, processes.start_time(pid)
        self._save()
        self._watch(member, pid)

    async def stop(self, member: str, patience_s: float) -> None:
        """Stop a member and wait for its end.

        Args:
            member: name of the member.
            patience_s: seconds after SIGTERM until SIGKILL.
        """
        record, watched = self._records[member], self.watched(member)
        if watched.child is not None and watched.child.pid != record.pid:
            watched.child = None
        await processes.stop(record.pid, record.started, patience_s)
        if watched.child is not None:
            watched.child.wait()
            watched.child = None
        watched.pid = 0
        record.pid, record.started = 0, ""
        self._save()

    def failure_of(self, member: str) -> str:
        """Return why a member cannot be kept running, or "" before `FAILURES_TOLD` failures."""
        watched = self.watched(member)
        if watched.failures < FAILURES_TOLD:
            return ""
        return (
            f"its process ended {watched.failures} times after its start: "
            f"{last_words_in(self._program.log(member))}"
        )

    def forget(self, member: str) -> None:
        self._watched.pop(member, None)


def _code(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def last_words_in(log: Path) -> str:
    """Return why the process with this log ended. Only the end of the log is read: it may be large.

    Args:
        log: the file, which may be missing.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            return last_words(file.read(LAST_BYTES).decode(errors="replace"))
    except OSError:
        return "it wrote no log"


def last_words(log: str) -> str:
    """Return why a node ended: the last line that is not an event, or the reason of an event.

    Events without a reason are skipped: a restarted node logs some before it ends again.
    """
    for line in reversed(log.strip().splitlines()):
        cause = line
        with contextlib.suppress(ValueError, AttributeError):
            cause = str(json.loads(line).get("reason", ""))
        if cause.strip():
            return cause[-LAST_WORDS_MAX:]
    return "it reported no cause"
