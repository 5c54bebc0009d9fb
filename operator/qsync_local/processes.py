"""Processes of members: start, identify, watch and stop them.

A process is identified by its pid and its start time, because pids are reused. It outlives the
supervisor that started it, and the next supervisor adopts it.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

STOP_POLL_S = 0.01


def start_time(pid: int) -> str:
    """Return an opaque mark that no later process of this pid has; "" if the process ended."""
    if pid <= 0:
        return ""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ""
        fields = stat.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return "" if not shown or shown[0].startswith("Z") else " ".join(shown[1:])


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that it outlives its terminal and its parent."""
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )


def has_pid_descriptors() -> bool:
    return hasattr(os, "pidfd_open")


def watch_end(pid: int, on_end: Callable[[], None]) -> bool:
    """Call `on_end` in the running loop when the process ends.

    Return False if the system or the process does not allow that.
    """
    if not has_pid_descriptors():
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        on_end()

    loop.add_reader(descriptor, ended)
    return True


def send(pid: int, started: str, number: int) -> None:
    """Send signal `number` only if the pid still belongs to the process started at `started`."""
    if started and start_time(pid) == started:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


async def stop(pid: int, started: str, patience_s: float) -> None:
    """Send SIGTERM and wait for the end; send SIGKILL after each `patience_s` seconds."""
    send(pid, started, signal.SIGTERM)
    deadline = asyncio.get_running_loop().time() + patience_s
    while started and start_time(pid) == started:
        if asyncio.get_running_loop().time() > deadline:
            send(pid, started, signal.SIGKILL)
            deadline += patience_s
        await asyncio.sleep(STOP_POLL_S)
