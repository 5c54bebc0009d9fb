"""`qsync top` in a terminal, beside a cluster whose leader is killed."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class LiveScreen:
    """A view in a pseudo-terminal. `frames` are the screens that were drawn."""

    def __init__(self, home: Home, columns: int = 80, lines: int = 24) -> None:
        environment = {**home.environment, "TERM": "xterm"}
        environment.pop("COLUMNS")  # the size is that of the terminal
        command = [sys.executable, "-m", "qsync_cli.main", "top", "orders", "--interval", "0.3"]
        self.seen = ""
        self.pid, self._mine = pty.fork()
        if not self.pid:
            os.execve(command[0], command, environment)
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._mine, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._mine, keys)

    def until(self, pattern: str) -> list[str]:
        """Return the lines of the first screen that matches, and that is drawn from now on."""
        self.seen = ""
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            if not select.select([self._mine], [], [], 0.2)[0]:
                continue
            self.seen += os.read(self._mine, 65536).decode(errors="replace")
            for frame in self.seen.split("\x1b[H")[1:-1]:
                text = SEQUENCE.sub("", frame)
                if re.search(pattern, text):
                    return text.splitlines()
        raise AssertionError(SEQUENCE.sub("", self.seen))

    def end(self) -> tuple[int, str]:
        """Wait for the end, and return the exit code and the last output."""
        self.seen = ""
        try:
            while data := os.read(self._mine, 65536):
                self.seen += data.decode(errors="replace")
        except OSError:
            pass  # the terminal is closed
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), self.seen

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._mine)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    yield home
    home.close()


def test_view_follows_a_failover_and_the_size_of_the_terminal(home: Home) -> None:
    leader = home.leader("orders")
    screen = LiveScreen(home)
    try:
        lines = screen.until(r"orders: Ready")
        assert max(map(len, lines)) <= 80
        assert len(lines) <= 24
        assert any(line.split()[:3] == ["MEMBER", "ROLE", "LAG"] for line in lines)
        home.do("put", "orders", "orders", '[1, "eve", 3]')
        screen.until(r"writes [0-9.]+/s · p50 [0-9.]+m?s")
        os.kill(leader["pid"], signal.SIGKILL)
        lines = screen.until(rf"leads after {leader['name']} \(ProcessEnded\)")
        assert any("LAST CHANGES" in line for line in lines)
        screen.resize(60, 12)
        screen.until(r"(?s)^(?!.*ARCHIVE).*MEMBER")
        screen.type(b"x")
        screen.until("orders: ")
        screen.type(b"q")
        code, last = screen.end()
        assert code == 0
        assert last.endswith("\x1b[?1049l"), "the former screen is back"
    finally:
        screen.close()


def test_interrupt_ends_the_view(home: Home) -> None:
    screen = LiveScreen(home)
    try:
        screen.until("orders: ")
        screen.type(b"\x03")
        assert screen.end()[0] == 0
    finally:
        screen.close()
