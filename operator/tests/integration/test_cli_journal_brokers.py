"""Brokers of a local cluster that are killed, paused, removed or without their disk."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml

from qsync_testing.operator.local_clusters import Home, ask
from qsync_testing.paths import EXAMPLES

pytestmark = pytest.mark.timeout(400)
EXAMPLE = EXAMPLES / "journals.yaml"


def test_killed_brokers_lose_nothing(events: Home) -> None:
    """Appends are retried while brokers are killed in turn; every acknowledged line is read."""
    acknowledged = []
    names = list(events.brokers("events"))
    failures = 0
    for number in range(60):
        if number % 15 == 5:
            os.kill(events.brokers("events")[names[number % 3]]["pid"], signal.SIGKILL)
        line = f"line {number}\n".encode()
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            http = events.brokers("events")[names[(number + failures) % 3]]["http"]
            status, _ = ask("PUT", f"http://127.0.0.1:{http}/orders/eu", line)
            if status == 204:
                acknowledged.append(line)
                break
            failures += 1
            time.sleep(0.1)  # between two attempts: a killed broker restarts
    assert len(acknowledged) == 60, events.logs()
    assert failures > 0
    time.sleep(0.5)  # peers learn of the last append with the next message of the primary
    for broker in events.brokers("events").values():
        status, content = ask("GET", f"http://127.0.0.1:{broker['http']}/orders/eu")
        assert status == 206
        found = content.splitlines(keepends=True)
        # A failed attempt may have been committed, too: each retry then appends the line again.
        assert set(found) == set(acknowledged)
        assert sorted(set(found), key=found.index) == acknowledged


def test_all_processes_killed_at_once_lose_nothing(events: Home, tmp_path: Path) -> None:
    http = [broker["http"] for broker in events.brokers("events").values()]
    assert ask("PUT", f"http://127.0.0.1:{http[0]}/orders/eu", b"before\n")[0] == 204
    for pid in events.all_pids():
        os.kill(pid, signal.SIGKILL)
    events.do("local", "apply", "-f", tmp_path / "journals.yaml", "--no-wait")
    deadline_s = time.monotonic() + 60
    status, content = 0, b""
    while time.monotonic() < deadline_s and not content.endswith(b"after\n"):
        http = [broker["http"] for broker in events.brokers("events").values()]
        ask("PUT", f"http://127.0.0.1:{http[1]}/orders/eu", b"after\n")
        status, content = ask("GET", f"http://127.0.0.1:{http[2]}/orders/eu")
        time.sleep(0.2)  # between two attempts: all processes restart
    assert status == 206, events.logs()
    assert content.startswith(b"before\nafter\n")


def test_loss_of_the_only_copy_is_accepted(home: Home, tmp_path: Path) -> None:
    def do(*arguments: str | Path) -> str:
        return home.do("journals", *arguments, "--local", "events")

    def refuse(*arguments: str) -> str:
        return home.refuse("journals", *arguments, "--local", "events")

    manifest = tmp_path / "journals.yaml"
    text = EXAMPLE.read_text().replace("replication: 3", "replication: 1")
    manifest.write_text(text.replace("port: 8080", "port: 0"))
    home.do("local", "apply", "-f", manifest)
    assert do("append", "orders/eu", EXAMPLE).endswith(" at 0\n")
    said = refuse("accept-loss", "orders/eu", "--yes")
    assert "orders/eu: its brokers have all acknowledged bytes; nothing was changed" in said
    (listed,) = json.loads(do("list", "-o", "json"))
    # The broker is restarted without the disk that has the only copy.
    shutil.rmtree(home.directory / "events" / "brokers" / listed["primary"] / "data")
    os.kill(home.brokers("events")[listed["primary"]]["pid"], signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while "INDEX_HAS_GREATER_OFFSET" not in (said := _append(home)):
        assert time.monotonic() < deadline_s, said
    assert refuse("reset-head", "orders/eu") == (
        "qsync: orders/eu cannot continue at its write head: it has no store, and no broker has all"
        " acknowledged bytes; start the missing brokers, or accept the loss with `qsync journals"
        " accept-loss orders/eu` (Refused)\n"
    )
    said = refuse("accept-loss", "orders/eu")
    assert "All bytes from offset 0 on are lost" in said
    assert "add --yes to accept the loss (Refused)" in said
    assert "INDEX_HAS_GREATER_OFFSET" in _append(home)
    head = 1 << 50
    said = do("accept-loss", "orders/eu", "--yes")
    assert f"orders/eu continues at {head}; its bytes from 0 on are lost\n" in said
    assert do("append", "orders/eu", EXAMPLE).endswith(f" at {head}\n")
    assert do("read", "orders/eu", "--offset", "5") == EXAMPLE.read_text()
    assert "nothing was changed" in refuse("accept-loss", "orders/eu", "--yes")


def _append(home: Home) -> str:
    """Append, and return everything that the command writes."""
    done = home.run("journals", "append", "orders/eu", os.devnull, "--local", "events")
    return done.stdout + done.stderr


def test_scaling_down_waits_until_the_fragments_are_persisted(home: Home, tmp_path: Path) -> None:
    cluster, journal = yaml.safe_load_all(EXAMPLE.read_text())
    cluster["spec"]["journals"]["port"] = 0
    cluster["spec"]["storage"] = {"retention": "Delete"}
    store, away = tmp_path / "store", tmp_path / "away"
    store.mkdir()
    names = [f"orders/{number}" for number in range(3)]
    declared = [
        journal
        | {"metadata": {"name": name.replace("/", "-")}}
        | {
            "spec": journal["spec"]
            | {"journal": name, "replication": 1, "fragment": {"stores": [f"file://{store}/"]}}
        }
        for name in names
    ]
    manifest = tmp_path / "journals.yaml"
    manifest.write_text(yaml.safe_dump_all([cluster, *declared]))
    home.do("local", "apply", "-f", manifest)

    def do(*arguments: str | Path) -> str:
        return home.do("journals", *arguments, "--local", "events")

    def primaries_of_journals() -> dict[str, str]:
        return {one["name"]: one["primary"] for one in json.loads(do("list", "-o", "json"))}

    # The first broker that runs gets all journals; the allocator then balances them.
    deadline_s = time.monotonic() + 30
    while sorted((primaries := primaries_of_journals()).values()) != sorted(home.members("events")):
        assert time.monotonic() < deadline_s, primaries
    (held,) = [name for name, primary in primaries.items() if primary == "events-2"]
    do("append", held, EXAMPLE)
    store.rename(away)
    store.write_text("this is no folder")
    said = home.refuse("local", "scale", "events", "--replicas", "2", "--timeout", "10")
    assert "the broker of events-2 has bytes that are nowhere else yet" in said
    assert len(home.members("events")) == 3
    store.unlink()
    away.rename(store)
    home.until("events", lambda status: len(status["members"]) == 2)
    assert not (home.directory / "events" / "brokers" / "events-2" / "data").exists()
    deadline_s = time.monotonic() + 30
    # The store may have been listed while it was replaced; a read has it listed again.
    while (done := home.run("journals", "read", held, "--local", "events")).returncode:
        assert time.monotonic() < deadline_s, done.stderr
    assert done.stdout == EXAMPLE.read_text()


def test_journal_without_all_its_brokers_has_no_good_state(events: Home) -> None:
    def shown() -> list[dict[str, str]]:
        done = events.run("local", "journals", "events", "-o", "json")
        found: list[dict[str, str]] = json.loads(done.stdout) if not done.returncode else []
        return found

    assert [one["state"] for one in shown()] == ["Writable"]
    os.kill(
        events.brokers("events")["events-2"]["pid"], signal.SIGSTOP
    )  # until its lease has expired
    deadline_s = time.monotonic() + 60
    while [one["state"] for one in shown()] != ["TooFewBrokers"]:
        assert time.monotonic() < deadline_s, events.logs()
        time.sleep(0.1)  # between two polls: each starts a process
    wide = events.do("local", "journals", "events", "-o", "wide")
    assert "the journal has 2 of 3 brokers" in wide


def test_brokers_of_an_older_version_change_their_user(events: Home) -> None:
    configured = sorted((events.directory / "events" / "brokers").glob("*/broker.yaml"))
    assert len(configured) == 3
    for path in configured:
        assert "user: qsync_broker\n" in path.read_text()
        path.write_text(path.read_text().replace("user: qsync_broker", "user: admin"))
    before = {broker["pid"] for broker in events.brokers("events").values()}
    deadline = time.monotonic() + 60
    while any("user: admin" in path.read_text() for path in configured):
        assert time.monotonic() < deadline, events.logs()
        time.sleep(0.1)  # the supervisor restarts one broker after the other
    append = ("journals", "append", "orders/eu", EXAMPLE, "--local", "events")
    while events.run(*append).returncode:  # the last one has its file before it serves again
        assert time.monotonic() < deadline, events.logs()
    assert before.isdisjoint(broker["pid"] for broker in events.brokers("events").values())
