"""The web page of a local cluster in a headless Chromium, while its leader is killed."""

import os
import signal
import stat
from pathlib import Path

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.browser import Browser, check_width
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

WIDTHS = (1280, 390)
HOSTILE = "<img src=x onerror=\"document.title='owned'\">&amp;"


@pytest.fixture
def home(home: Home) -> Home:
    home.do("apply", "-f", EXAMPLES / "three-nodes.yaml")
    return home


def create_hostile_space(home: Home) -> None:
    database = home.connect("orders")
    database.insert(SystemSpace.SPACE, (900, 1, HOSTILE, "memtx", 0, {}, []))
    database.insert(SystemSpace.INDEX, (900, 0, "pk", "tree", {"unique": True}, [(0, "unsigned")]))
    database.insert(900, (1,))
    database.close()


def test_page_shows_a_failover_and_hostile_names_at_both_widths(
    home: Home, browser: Browser, tmp_path: Path
) -> None:
    create_hostile_space(home)
    url = home.do("web", "orders", "--no-browser").strip()
    browser.resize(WIDTHS[0])
    browser.open(url)
    browser.until("document.querySelectorAll('#members tbody tr').length === 3")
    assert "token" not in str(browser.evaluate("location.href")), "it would stay in the history"
    assert "leads in term" in browser.text("#summary")
    assert "No failover" in browser.text("section[aria-labelledby=h-failovers] .empty")
    browser.until(f"document.querySelector('#spaces').innerText.includes({HOSTILE!r})")
    home.do("put", "orders", "orders", '[1, "eve", 3]')
    browser.until("document.querySelector('#spaces').innerText.includes('orders')")

    leader = home.leader("orders")
    os.kill(leader["pid"], signal.SIGKILL)
    browser.until("document.querySelectorAll('#failovers tbody tr').length === 1")
    change = browser.text("#failovers tbody tr")
    assert f"{leader['name']} →" in change
    assert "ProcessEnded" in change
    browser.until("document.querySelectorAll('#chart-failovers .dot').length === 1")
    browser.until("document.querySelector('#phase').innerText === 'Ready'")
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for width in WIDTHS:
            check_width(browser, width)
            browser.screenshot(tmp_path / f"page-{width}-{scheme}.png")
    assert browser.evaluate("document.querySelectorAll('main img').length") == 0
    assert browser.evaluate("document.title") == "Ready · orders"
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    assert browser.errors == []


def test_lost_connection_is_reported_and_the_page_recovers(home: Home, browser: Browser) -> None:
    url = home.do("web", "orders", "--no-browser").strip()
    browser.open(url)
    browser.until("document.querySelectorAll('#members tbody tr').length === 3")
    supervisor = int((home.directory / "orders" / "supervisor.lock").read_text())
    os.kill(supervisor, signal.SIGKILL)
    browser.until("document.querySelector('#trouble').innerText.includes('lost its connection')")
    assert "qsync web orders" in browser.text("#trouble")
    assert "Figures are those of" in browser.text("#trouble")
    assert home.do("web", "orders", "--no-browser").strip() == url, "port and token are kept"
    browser.until("document.querySelector('#trouble').hidden")
    assert browser.evaluate("document.body.className") == ""


def test_token_is_readable_for_its_user_only(home: Home) -> None:
    home.do("web", "orders", "--no-browser")
    mode = (home.directory / "orders" / "page.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_page_of_a_cluster_on_kubernetes_is_reached_by_a_forwarded_port(tmp_path: Path) -> None:
    said = Home(tmp_path).refuse("web", "orders", "-n", "shop")
    assert "kubectl port-forward" in said
    assert "web.enabled" in said
