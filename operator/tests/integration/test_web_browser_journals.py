"""Brokers and journals on the web page of a local cluster, in a headless Chromium."""

import os
import signal
from pathlib import Path

import pytest

from qsync_testing.browser import Browser, check_width
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

pytestmark = pytest.mark.timeout(400)
WIDTHS = (1280, 390)
COUNT = 30
HOSTILE_PART = "<img src=x onerror=\"document.title='owned'\">"
LABELLED = (
    "[...document.querySelectorAll('input, table, section')].filter((one) => one.tagName ==="
    " 'INPUT' ? !one.labels.length : one.tagName === 'SECTION' &&"
    " !document.getElementById(one.getAttribute('aria-labelledby'))?.innerText)"
)


def manifest(folder: Path) -> Path:
    """Write the example's cluster with free ports, and many journals of its own."""
    journals = [
        f"---\napiVersion: qsync.dev/v1alpha1\nkind: QsyncJournal\nmetadata:\n  name: many-{n}\n"
        f"spec:\n  cluster: events\n  journal: many/{n:03}\n  replication: 1\n"
        for n in range(COUNT)
    ]
    path = folder / "journals.yaml"
    text = (EXAMPLES / "journals.yaml").read_text().replace("port: 8080", "port: 0")
    path.write_text("".join([text, *journals]))
    return path


def rows(table: str) -> str:
    return f"document.querySelectorAll('#{table} tbody tr').length"


def test_page_shows_brokers_and_journals_and_their_problems(
    home: Home, browser: Browser, tmp_path: Path
) -> None:
    home.do("apply", "-f", manifest(tmp_path))
    (tmp_path / "order").write_text("0123456789")
    home.do("journals", "append", "orders/eu", tmp_path / "order", "--local", "events")
    browser.resize(WIDTHS[0])
    browser.open(home.do("web", "events", "--no-browser").strip())
    browser.until(f"{rows('brokers')} === 3 && {rows('journals')} === 25")
    browser.until("document.querySelector('#brokers').innerText.match(/ready/g)?.length === 3")
    browser.until(
        f"document.querySelector('#journals-counts').innerText.startsWith('{COUNT + 1} j')"
    )
    assert browser.text("#journals-more").startswith(f"{COUNT - 24} more journals are not shown")

    browser.evaluate("document.querySelector('#journals-part').focus()")
    browser.ask("Input.insertText", text="orders/")
    browser.until(f"{rows('journals')} === 1")
    browser.until("document.querySelector('#journals').innerText.includes('Writable')")
    shown = browser.text("#journals tbody tr").split()
    assert shown[0] == "orders/eu"
    assert "3 of 3" in browser.text("#journals tbody tr")
    assert shown[6:9] == ["10", "10", "B"], "write head and size"
    assert "no store" in browser.text("#journals tbody tr")
    assert browser.text("#journals-more") == ""
    browser.until("document.querySelector('#journals-part').labels[0].innerText !== ''")
    assert browser.evaluate(f"{LABELLED}.length") == 0

    browser.evaluate("document.querySelector('#journals-part').select()")
    browser.ask("Input.insertText", text=HOSTILE_PART)
    browser.until(f"{rows('journals')} === 0")
    assert HOSTILE_PART in browser.text("section[aria-labelledby=h-journals] .empty")
    assert browser.evaluate("document.querySelectorAll('main img').length") == 0
    browser.evaluate("document.querySelector('#journals-part').select()")
    browser.press("Delete", 46)
    browser.until(f"{rows('journals')} === 25")

    name, record = next(iter(home.brokers("events").items()))
    os.kill(record["pid"], signal.SIGSTOP)
    try:
        browser.until("document.querySelector('#brokers').innerText.includes('does not answer')")
        browser.until(
            "[...document.querySelectorAll('#journals tbody tr')].findIndex((one) =>"
            " /orders.eu\\s.*2 of 3 brokers/.test(one.innerText)) >= 0"
        )
        browser.until(
            "document.querySelector('#journals-counts').innerText.includes('1 with too few')"
        )
        browser.screenshot(tmp_path / "journals-stopped.png")
    finally:
        os.kill(record["pid"], signal.SIGCONT)
    browser.until("document.querySelector('#brokers').innerText.match(/ready/g)?.length === 3")
    browser.until("document.querySelector('#journals .broken') === null")
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for width in WIDTHS:
            check_width(browser, width)
            browser.screenshot(tmp_path / f"journals-{width}-{scheme}.png")
    assert str(browser.evaluate("document.title")).endswith("· events")
    assert name in browser.text("#brokers")
    assert browser.errors == []


def test_cluster_without_brokers_has_no_such_sections(home: Home, browser: Browser) -> None:
    home.do("apply", "-f", EXAMPLES / "three-nodes.yaml")
    browser.open(home.do("web", "orders", "--no-browser").strip())
    browser.until("document.querySelectorAll('#members tbody tr').length === 3")
    assert browser.evaluate("document.querySelector('#brokers-journals').hidden") is True
    assert browser.evaluate("document.querySelector('#h-journals').offsetParent") is None
