"""The report of an audit in a headless Chromium: on a screen, on a phone and in print."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_spark.report.page import write_report
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.damage import missing_row
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.browser import Browser, open_browser

WIDTHS = (1280, 390)
SMALLEST_PX = 12


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with open_browser(tmp_path / "profile") as browser:
        yield browser


def open_report(browser: Browser, folder: Path, place: Path) -> None:
    result = plain_audit(folder)
    result.cluster = "orders"
    browser.open(Path(write_report(result, str(place))).as_uri())
    browser.until("document.querySelectorAll('.chart').length === 5")


def check_layout(browser: Browser, width: int) -> None:
    browser.resize(width)
    browser.until(f"innerWidth === {width}")
    assert browser.evaluate(f"document.documentElement.scrollWidth <= {width}")
    shown = "[...document.querySelectorAll('body *')].filter((one) => one.innerText)"
    wide = f"{shown}.filter((one) => one.getBoundingClientRect().right > {width} + 1)"
    assert browser.evaluate(f"{wide}.map((one) => one.outerHTML.slice(0, 200))") == []
    sizes = f"{shown}.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    smallest = browser.evaluate(f"Math.min(...{sizes})")
    assert isinstance(smallest, int | float)
    assert smallest >= SMALLEST_PX, "text keeps its size on a phone"
    shown = "[...axis.children].map((one) => one.getBoundingClientRect()).filter((b) => b.width)"
    apart = "boxes.every((box, at) => at === 0 || box.left >= boxes[at - 1].right)"
    assert browser.evaluate(
        "[...document.querySelectorAll('.ticks')].every((axis) => {"
        f"const boxes = {shown}; return boxes.length > 0 && {apart}}})"
    ), "times of an axis do not overlap"


def test_report_is_readable_at_both_widths_and_leads_to_its_findings(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    missing_row(Copy(folder, tmp_path / "copy", 5))
    open_report(browser, tmp_path / "copy", tmp_path / "report")
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for width in WIDTHS:
            check_layout(browser, width)
            browser.screenshot(tmp_path / f"report-{width}-{scheme}.png")
    assert "Violated. The archive contradicts" in browser.text(".banner")
    assert "The first one:" in browser.text(".banner")
    assert "qsync replace CLUSTER MEMBER" in browser.text("ol")
    assert "archived rows" in browser.text("body")
    assert browser.evaluate("document.querySelectorAll('.ticks span').length") != 0
    target = browser.evaluate("document.querySelector('a.badge').getAttribute('href')")
    assert browser.evaluate(f"document.querySelector('{target}').innerText") == "Violations: 1"
    assert browser.errors == []


def test_values_beside_bars_stay_on_one_line(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    open_report(browser, folder, tmp_path / "report")
    browser.resize(1280)
    browser.until("innerWidth === 1280")
    value = "document.querySelector('.row>:last-child')"
    browser.evaluate(f"{value}.textContent = '34.0 s, at most 53.9 s'")
    assert browser.evaluate(f"{value}.getBoundingClientRect().height < 30")


def test_print_is_black_on_white_although_the_screen_is_dark(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    open_report(browser, folder, tmp_path / "report")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    for media, paper in (("screen", "rgb(18, 21, 26)"), ("print", "rgb(255, 255, 255)")):
        browser.ask("Emulation.setEmulatedMedia", media=media, features=dark)
        shown = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert shown == paper, media
    assert "Nothing has to be done." in browser.text("ol")
    assert browser.ask("Page.printToPDF")["data"]
