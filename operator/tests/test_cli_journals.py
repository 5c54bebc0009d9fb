"""Journals of a local cluster: the commands of docs/journals.md, and brokers that are killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_clusters import EXAMPLES, Home

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[2]
EXAMPLE = EXAMPLES / "journals.yaml"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    home.close()


@pytest.fixture
def events(home: Home, tmp_path: Path) -> Home:
    """Return a home with the example's cluster at ports that the system chooses."""
    manifest = tmp_path / "journals.yaml"
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", "port: 0"))
    home.do("local", "apply", "-f", manifest)
    return home


def brokers(home: Home) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = json.loads(
        (home.directory / "events" / "brokers.json").read_text()
    )
    return document


def ask(method: str, url: str, data: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def test_commands_of_the_page_work_as_printed(home: Home) -> None:
    page = (ROOT / "docs" / "journals.md").read_text()
    assert EXAMPLE.read_text() in page
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "QSYNC_HOME": str(home.directory), "PATH": path}
    printed = ""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            done = subprocess.run(
                ["bash", "-e", "-c", line.removeprefix("$ ")],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr, home.logs())
            printed += done.stdout
    assert "one\ntwo\n" in printed
    assert re.search(r"orders/eu +events-\d +events-0,events-1,events-2 +8 +yes", printed)
    assert home.all_pids() == []


def test_killed_brokers_lose_nothing(events: Home) -> None:
    """Appends are retried while brokers are killed in turn; every acknowledged line is read."""
    acknowledged = []
    names = list(brokers(events))
    failures = 0
    for number in range(60):
        if number % 15 == 5:
            os.kill(brokers(events)[names[number % 3]]["pid"], signal.SIGKILL)
        line = f"line {number}\n".encode()
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            http = brokers(events)[names[(number + failures) % 3]]["http"]
            status, _ = ask("PUT", f"http://127.0.0.1:{http}/orders/eu", line)
            if status == 204:
                acknowledged.append(line)
                break
            failures += 1
            time.sleep(0.1)
    assert len(acknowledged) == 60, events.logs()
    assert failures > 0
    time.sleep(0.5)
    for broker in brokers(events).values():
        status, content = ask("GET", f"http://127.0.0.1:{broker['http']}/orders/eu")
        assert status == 206
        found = content.splitlines(keepends=True)
        # A failed attempt may have been committed, too: each retry then appends the line again.
        assert set(found) == set(acknowledged)
        assert sorted(set(found), key=found.index) == acknowledged


def test_all_processes_killed_at_once_lose_nothing(events: Home) -> None:
    http = [broker["http"] for broker in brokers(events).values()]
    assert ask("PUT", f"http://127.0.0.1:{http[0]}/orders/eu", b"before\n")[0] == 204
    for pid in events.all_pids():
        os.kill(pid, signal.SIGKILL)
    events.do("local", "apply", "-f", EXAMPLE.parents[0] / "journals.yaml", "--no-wait")
    deadline_s = time.monotonic() + 60
    status, content = 0, b""
    while time.monotonic() < deadline_s and not content.endswith(b"after\n"):
        http = [broker["http"] for broker in brokers(events).values()]
        ask("PUT", f"http://127.0.0.1:{http[1]}/orders/eu", b"after\n")
        status, content = ask("GET", f"http://127.0.0.1:{http[2]}/orders/eu")
        time.sleep(0.2)
    assert status == 206, events.logs()
    assert content.startswith(b"before\nafter\n")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("enabled: true", "enabled: false", "needs spec.journals.enabled: true"),
        ("cluster: events", "cluster: other", "but the manifest's cluster is events"),
        ("replication: 3", "replication: 9", "spec.replication 9"),
        ("journal: orders/eu", "journal: abc", "spec.journal 'abc'"),
    ],
)
def test_invalid_manifest_is_refused(
    home: Home, tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    manifest = tmp_path / "journals.yaml"
    manifest.write_text(EXAMPLE.read_text().replace(old, new))
    assert sentence in home.refuse("local", "apply", "-f", manifest)


def test_second_declaration_of_a_journal_is_refused(home: Home, tmp_path: Path) -> None:
    manifest = tmp_path / "journals.yaml"
    text = EXAMPLE.read_text()
    manifest.write_text(text + "---\n" + text.partition("---\n")[2])
    assert "two QsyncJournals declare the journal orders/eu" in home.refuse(
        "local", "apply", "-f", manifest
    )


def test_disabled_journals_keep_their_bytes(events: Home, tmp_path: Path) -> None:
    http = [broker["http"] for broker in brokers(events).values()]
    assert ask("PUT", f"http://127.0.0.1:{http[0]}/orders/eu", b"kept\n")[0] == 204
    cluster = (tmp_path / "journals.yaml").read_text().partition("---\n")[0]
    manifest = tmp_path / "disabled.yaml"
    manifest.write_text(cluster.replace("enabled: true", "enabled: false"))
    events.do("local", "apply", "-f", manifest)
    deadline_s = time.monotonic() + 60
    while brokers(events) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert brokers(events) == {}
    events.do("local", "apply", "-f", tmp_path / "journals.yaml")
    http = [broker["http"] for broker in brokers(events).values()]
    assert ask("GET", f"http://127.0.0.1:{http[1]}/orders/eu") == (206, b"kept\n")
