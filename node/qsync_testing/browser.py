"""A headless Chromium for tests of pages, driven by its DevTools protocol."""

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
START_S = 60.0
ANSWER_S = 60.0


def find_chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((path for path in map(shutil.which, PROGRAMS) if path is not None), None)


class Browser:
    """One window. Its methods block until the browser has answered."""

    def __init__(self, process: subprocess.Popen[bytes], runner: asyncio.Runner) -> None:
        self.errors: list[str] = []
        self._process = process
        self._runner = runner
        self._number = 0
        self._session: aiohttp.ClientSession
        self._socket: aiohttp.ClientWebSocketResponse

    async def _connect(self, folder: Path) -> None:
        marker, end_s = folder / "DevToolsActivePort", time.monotonic() + START_S
        while not marker.exists() or not marker.read_text().count("\n"):
            assert self._process.poll() is None, "Chromium ended"
            assert time.monotonic() < end_s, "Chromium did not start"
            await asyncio.sleep(0.05)
        port = marker.read_text().splitlines()[0]
        self._session = aiohttp.ClientSession(trust_env=False)
        pages: list[dict[str, str]] = []
        while not pages:
            async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [one for one in await answer.json() if one["type"] == "page"]
        url = pages[0]["webSocketDebuggerUrl"]
        self._socket = await self._session.ws_connect(url, max_msg_size=0)

    async def _close(self) -> None:
        await self._socket.close()
        await self._session.close()

    async def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(ANSWER_S):
            while True:
                said = json.loads(await self._socket.receive_str())
                if said.get("id") == self._number:
                    assert "error" not in said, (method, said["error"])
                    found: dict[str, Any] = said["result"]
                    return found
                if said.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                    self.errors.append(json.dumps(said["params"]))

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        return self._runner.run(self._ask(method, parameters))

    def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=url)

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the window in pixels."""
        is_phone = width < 600
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def evaluate(self, expression: str) -> object:
        """Return the value of an expression of JavaScript."""
        said = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        found: object = said["result"].get("value")
        return found

    def text(self, selector: str) -> str:
        """Return the text of an element that is shown, "" if there is none."""
        return str(
            self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        )

    def until(self, expression: str, timeout_s: float = 60) -> None:
        """Wait until an expression is true."""
        end_s = time.monotonic() + timeout_s
        while not self.evaluate(expression):
            assert time.monotonic() < end_s, (expression, self.text("body"), self.errors)
            time.sleep(0.1)  # the page has no event for an arbitrary expression

    def screenshot(self, path: Path, **parameters: object) -> None:
        """Write the whole page as PNG, or as parameters of the protocol state."""
        said = self.ask("Page.captureScreenshot", captureBeyondViewport=True, **parameters)
        path.write_bytes(base64.b64decode(said["data"]))


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser whose profile is in an empty folder."""
    program = find_chromium()
    assert program is not None, "Chromium is missing: run `make debian`"
    command = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-extensions", "--disable-component-update", "--hide-scrollbars",
        "--disable-background-networking", "--remote-debugging-port=0", "--no-proxy-server",
        f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with asyncio.Runner() as runner:
            browser = Browser(process, runner)
            runner.run(browser._connect(folder))
            try:
                yield browser
            finally:
                runner.run(browser._close())
    finally:
        process.terminate()
        process.wait(20)


def check_width(browser: Browser, width: int) -> None:
    """Fail if the page of a cluster is wider than a window of `width` pixels, or a part of it."""
    browser.resize(width)
    browser.until(f"innerWidth === {width}")
    browser.until("document.querySelector('#chart-writes svg').getBoundingClientRect().width > 0")
    assert browser.evaluate(f"document.documentElement.scrollWidth <= {width}")
    wide = "[...document.querySelectorAll('body *:not(.skip, thead *, thead)')]"
    wide += f".filter((one) => one.getBoundingClientRect().right > {width} + 1)"
    assert browser.evaluate(f"{wide}.map((one) => one.outerHTML.slice(0, 200))") == []
