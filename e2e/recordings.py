"""`make recordings`: pictures of the console, the live view, the web page and an audit's report.

    python -m e2e.recordings [FOLDER]

All of them are of one local cluster of real processes, whose leader is killed. The lines of the
console are those of docs/data.md. Beside the pictures is `shapes.json`: the texts of each of them
without numbers. A test records again, and compares (operator/tests/integration/test_recordings.py).
"""

import contextlib
import fcntl
import html
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from qsync_testing.browser import Browser, open_browser
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import ROOT

FOLDER = ROOT / "docs" / "recordings"
COLUMNS, LINES = 80, 24
WIDTHS = (1280, 390)
PATIENCE_S = 60.0
WATCH_S = 8.0
SETTLE_S = 2.0
QUALITY = 80
MARGIN, HEIGHT_MAX = 4, 1500
MANIFEST = """\
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {name: orders}
spec:
  replicas: 3
  archive: {url: "file://%s"}
  journals: {enabled: true}
  spaces:
    - name: orders
      isSync: true
      format:
        - {name: id, type: unsigned}
        - {name: customer, type: string}
        - {name: total, type: number, isNullable: true}
      indexes:
        - {name: primary, parts: [{field: id}]}
---
apiVersion: qsync.dev/v1alpha1
kind: QsyncJournal
metadata: {name: orders-eu}
spec: {cluster: orders, journal: orders/eu}
"""
_PROMPT = re.compile(r"^(orders\*?> )(.*)$")
_NUMBER = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:]+|(?<![\w-])[\d.,:]*\d\w*(/s)?|(?<= )-(?= |$)")
TITLES = "[...document.querySelectorAll('h1, h2, th, dt, label')].map((one) => one.textContent)"


def console_lines(page: Path = ROOT / "docs" / "data.md") -> list[str]:
    """Return the session with the console as a page of the documentation prints it."""
    text = page.read_text().partition("$ qsync sh orders\n")[2].partition("```")[0]
    return text.rstrip().splitlines()


def shape_of(lines: list[str]) -> list[str]:
    """Return lines with each number and each member's name replaced, and with single spaces."""
    plain = (re.sub(r"\borders-\d\b", "MEMBER", line) for line in lines)
    return [" ".join(_NUMBER.sub("N", line).split()) for line in plain]


def lines_of_svg(path: Path) -> list[str]:
    """Return the lines of a terminal that `write_svg` has drawn, without indents."""
    lines: dict[int, str] = {}
    pattern = r"<text [^>]*clip-path=\"url\(#[\w-]*line-(\d+)\)\"[^>]*>(.*?)</text>"
    for number, text in re.findall(pattern, path.read_text()):
        # Drawn texts lack the spaces between them.
        shown = html.unescape(text).replace("\xa0", " ")
        lines[int(number)] = f"{lines.get(int(number), '')} {shown}"
    return [lines[number].strip() for number in sorted(lines)]


# --- terminals ----------------------------------------------------------------------------------


class RecordedTerminal:
    """A command in a pseudo-terminal of 80 columns."""

    def __init__(self, home: Home, kind: str, *arguments: str) -> None:
        environment = {
            **home.environment, "TERM": kind, "XDG_STATE_HOME": str(home.directory / "state"),
            "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": str(COLUMNS), "LINES": str(LINES),
        }  # fmt: skip
        command = [sys.executable, "-m", "qsync_cli.main", *arguments]
        self.pid, self._file = pty.fork()
        if not self.pid:
            os.execve(command[0], command, environment)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.seen = ""

    def type(self, keys: str) -> None:
        """Write keys to the command as soon as it reads them without the terminal's echo."""
        # A prompt of a dumb terminal is printed shortly before its echo is off: keys of that
        # moment would be shown twice.
        end_s = time.monotonic() + PATIENCE_S
        while termios.tcgetattr(self._file)[tty.LFLAG] & termios.ECHO:
            assert time.monotonic() < end_s, ("the terminal echoes", self.seen)
            self.read(0.01)
        os.write(self._file, keys.encode())

    def read(self, seconds: float) -> None:
        """Take the output of some time."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            if select.select([self._file], [], [], left_s)[0]:
                self.seen += os.read(self._file, 65536).decode(errors="replace")

    def until(self, pattern: str) -> str:
        """Return the output that ends with a pattern, without control sequences."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.seen)
            if re.search(f"{pattern}$", plain):
                self.seen = ""
                return plain
            assert time.monotonic() < end_s, (pattern, self.seen)
            self.read(0.2)

    def frame(self) -> Text:
        """Return the last complete frame of a view that fills the screen."""
        frames = self.seen.split("\x1b[H")
        text = Text.from_ansi(frames[-2].partition("\x1b[?")[0].replace("\r", ""))
        text.rstrip()
        return text

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self._file)


def record_console(home: Home) -> list[str]:
    """Type the lines of the documentation, and return the session."""
    lines = [found[2] for found in map(_PROMPT.match, console_lines()) if found is not None]
    terminal = RecordedTerminal(home, "dumb", "sh", "orders")
    try:
        text = terminal.until(r"orders\*?> ")
        for line in lines:
            terminal.type(f"{line}\r")
            text += re.sub(r"\n\n", "\n", terminal.until(r"\norders\*?> "), count=1)
    finally:
        terminal.close()
    return text.splitlines()[:-1]  # without the last prompt


def record_view(home: Home) -> Text:
    """Return the last frame of `qsync top`, while the leader is killed."""
    terminal = RecordedTerminal(home, "xterm-256color", "top", "orders")
    try:
        terminal.read(WATCH_S / 2)
        os.kill(home.leader("orders")["pid"], signal.SIGKILL)
        terminal.read(WATCH_S)
        end_s = time.monotonic() + PATIENCE_S
        while not _is_well((frame := terminal.frame()).plain):
            assert time.monotonic() < end_s, frame.plain
            terminal.read(1)
        terminal.type("q")
    finally:
        terminal.close()
    return frame


def _is_well(frame: str) -> bool:
    # Not "answers again": a member that starts between two questions was never missed.
    return ": Ready" in frame and " leads after " in frame and " p99 -" not in frame


def write_svg(path: Path, title: str, lines: list[Text]) -> None:
    """Draw lines as a terminal, without a font from another host."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), highlight=False)
    for line in lines:
        console.print(line, overflow="fold")
    format_ = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title=title, code_format=format_, unique_id=path.stem)
    path.write_text(svg.replace("<!-- Generated with Rich https://www.textualize.io -->\n", ""))


def console_texts(session: list[str]) -> list[Text]:
    """Return the lines of a session with bold prompts."""
    found = []
    for line in ["$ qsync sh orders", *session]:
        prompt = re.match(r"orders\*?> |\$ ", line)
        text = Text(line)
        if prompt is not None:
            text.stylize("bold green", 0, prompt.end())
            text.stylize("bold", prompt.end())
        found.append(text)
    return found


# --- pages --------------------------------------------------------------------------------------


def _picture(browser: Browser, path: Path, width: int, below: str = "") -> None:
    """Write a picture of a page, down to the end of an element."""
    browser.resize(width)
    browser.until(f"innerWidth === {width}")
    time.sleep(1)  # charts are drawn again
    script = f"document.querySelector('{below or 'body'}').getBoundingClientRect().bottom + scrollY"
    height = min(float(str(browser.evaluate(script))) + MARGIN, HEIGHT_MAX)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    browser.screenshot(path, format="webp", quality=QUALITY, clip=clip)


def record_pages(home: Home, folder: Path) -> dict[str, Any]:
    """Take pictures of the web page and of the report, and return their titles."""
    shapes: dict[str, Any] = {}
    report = home.do("report", "orders").strip()
    with open_browser(home.directory.parent / "profile") as browser:
        browser.prefer("light")
        browser.resize(WIDTHS[0])
        browser.open(home.do("web", "orders", "--no-browser").strip())
        for table, rows in (("members", 3), ("brokers", 3), ("audits", 1), ("failovers", 1)):
            browser.until(f"document.querySelectorAll('#{table} tbody tr').length >= {rows}")
        browser.until("document.querySelector('#journals').innerText.includes('Writable')")
        browser.until("document.querySelector('#phase').innerText === 'Ready'")
        time.sleep(WATCH_S)  # so that the charts have curves
        shapes["page"] = browser.evaluate(TITLES)
        for width in WIDTHS:
            _picture(browser, folder / f"page-{width}.webp", width, "#brokers-journals")
        browser.resize(WIDTHS[0])
        browser.open(Path(report).as_uri())
        browser.until("document.querySelectorAll('h1, h2').length > 1")
        shapes["report"] = browser.evaluate(TITLES)
        _picture(browser, folder / "report.webp", WIDTHS[0])
    return shapes


# --- the whole ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _writing(home: Home) -> Iterator[None]:
    """Write rows meanwhile, one at a time."""
    arguments = ["bench", "orders", "--in-flight", "1", "--seconds", "600", "--keep"]
    command = [sys.executable, "-m", "qsync_cli.main", *arguments]
    with subprocess.Popen(command, env=home.environment, stdout=subprocess.DEVNULL) as process:
        time.sleep(SETTLE_S)  # the load begins: no event reports its first figures
        try:
            yield
        finally:
            process.kill()


def record(folder: Path) -> None:
    """Record everything into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="qsync-recordings-") as name:
        home = Home(Path(name) / "home")
        home.directory.mkdir()
        manifest = Path(name) / "orders.yaml"
        manifest.write_text(MANIFEST % (Path(name) / "archive"))
        try:
            home.do("local", "apply", "-f", manifest)
            session = record_console(home)
            (Path(name) / "order").write_text("an order\n" * 100)
            home.do("journals", "append", "orders/eu", Path(name) / "order", "--local", "orders")
            home.do("audit", "orders")
            with _writing(home):
                frame = record_view(home)
                shapes = record_pages(home, folder)
        finally:
            home.close()
    write_svg(folder / "sh.svg", "qsync sh orders", console_texts(session))
    write_svg(folder / "top.svg", "qsync top orders", list(frame.split("\n")))
    shapes = {"sh": shape_of(session), "top": shape_of(frame.plain.split("\n")[:6]), **shapes}
    text = json.dumps(shapes, indent=2, ensure_ascii=False)
    (folder / "shapes.json").write_text(f"{text}\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
