"""Journals of a local cluster: the commands of docs/journals.md, and brokers that are killed."""

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_broker.auth import Authorizer, Capability
from qsync_broker.client import JournalClient
from qsync_broker.rpc import journal_pb2 as pb
from qsync_cli.journals.read import read
from qsync_testing.operator.local_clusters import Home, ask
from qsync_testing.paths import EXAMPLES, ROOT
from qsync_testing.ports import free_port

pytestmark = pytest.mark.timeout(400)
EXAMPLE = EXAMPLES / "journals.yaml"
SHARED = "/tmp/qsync-clicks"  # folder of docs/examples/journals-archive.yaml


@pytest.fixture
def events(home: Home, tmp_path: Path) -> Home:
    """Return a home with the example's cluster at ports that the system chooses."""
    manifest = tmp_path / "journals.yaml"
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", "port: 0"))
    home.do("local", "apply", "-f", manifest)
    return home


@pytest.fixture(scope="module")
def shared_events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Return a cluster for tests that change nothing."""
    folder = tmp_path_factory.mktemp("shared")
    home = Home(folder / "home")
    manifest = folder / "journals.yaml"
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", "port: 0"))
    home.do("local", "apply", "-f", manifest)
    yield home
    home.close()


def brokers(home: Home) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = json.loads(
        (home.directory / "events" / "brokers.json").read_text()
    )
    return document


def test_commands_of_the_page_work_as_printed(home: Home, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "journals.md").read_text()
    assert EXAMPLE.read_text() in page
    archive = EXAMPLES / "journals-archive.yaml"
    (tmp_path / archive.name).write_text(archive.read_text().replace(SHARED, str(tmp_path)))
    page = page.replace(f"docs/examples/{archive.name}", str(tmp_path / archive.name))
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
                timeout=200,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr, home.logs())
            printed += done.stdout
    assert "one\ntwo\n" in printed
    assert "X-Suspended: FULL\n" in printed
    assert re.search(r"orders/eu +events-\d +events-0,events-1,events-2 +8 +Writable", printed)
    assert re.search(r"clicks: Passed", printed)
    assert re.search(r"5 +Passed +every fragment", printed)
    assert home.all_pids() == []


def test_audit_names_a_fragment_that_was_changed(home: Home, tmp_path: Path) -> None:
    text = (EXAMPLES / "journals-archive.yaml").read_text()
    text = text.replace(SHARED, str(tmp_path)).replace("port: 8090", "port: 0")
    manifest = tmp_path / "clicks.yaml"
    manifest.write_text(text)
    home.do("local", "apply", "-f", manifest)
    ledger = tmp_path / "ledger.jsonl"
    said = home.refuse("local", "audit", "clicks", "--appends", ledger)
    assert "(NotFound)" in said
    append = ("journals", "append", "clicks/eu", "--local", "clicks", "--ledger", ledger)
    home.do(*append, ROOT / "README.md")
    home.do(*append, "/dev/null")  # completes the fragment
    deadline_s = time.monotonic() + 20
    while not (paths := list(tmp_path.glob("fragments/clicks/eu/*"))):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    done = home.run("local", "audit", "clicks", "--appends", ledger, "-o", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["proofs"]["5"]["verdict"] == "Violated"
    assert [one["problem"] for one in found["violations"]] == ["fragment damaged"]
    assert paths[0].name in found["violations"][0]["file"]
    home.do("local", "delete", "clicks", "--yes")


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


def test_all_processes_killed_at_once_lose_nothing(events: Home, tmp_path: Path) -> None:
    http = [broker["http"] for broker in brokers(events).values()]
    assert ask("PUT", f"http://127.0.0.1:{http[0]}/orders/eu", b"before\n")[0] == 204
    for pid in events.all_pids():
        os.kill(pid, signal.SIGKILL)
    events.do("local", "apply", "-f", tmp_path / "journals.yaml", "--no-wait")
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
        ("replication: 3", "replication: 5", "spec.replication 5 needs as many voters, but"),
        ("journal: orders/eu", "journal: abc", "spec.journal 'abc'"),
    ],
)
def test_invalid_manifest_is_refused(
    home: Home, tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    manifest = tmp_path / "journals.yaml"
    manifest.write_text(EXAMPLE.read_text().replace(old, new))
    assert sentence in home.refuse("local", "apply", "-f", manifest)


def test_verbs_read_and_write_journals(events: Home, tmp_path: Path) -> None:
    def do(*arguments: str | Path) -> str:
        return events.do("journals", *arguments, "--local", "events")

    content = tmp_path / "content"
    content.write_bytes(bytes(range(256)) * 8192)
    assert do("append", "orders/eu", content) == "appended 2097152 bytes at 0\n"
    ledger = tmp_path / "ledger.jsonl"
    commit = json.loads(do("append", "orders/eu", content, "-o", "json", "--ledger", ledger))
    line = json.loads(ledger.read_text())
    assert [line[name] for name in ("begin", "end", "sha1")] == [2097152, 4194304, commit["sha1"]]
    assert (commit["begin"], commit["end"]) == (2097152, 4194304)
    assert commit["sha1"] == hashlib.sha1(content.read_bytes()).hexdigest()
    (listed,) = json.loads(do("list", "-l", "name=orders/eu", "-o", "json"))
    assert listed["spec"]["replication"] == 3
    assert len(listed["brokers"]) == 3
    assert do("list", "-l", "name=orders/us").splitlines()[1:] == []
    command = [sys.executable, "-m", "qsync_cli.main", "journals", "read", "orders/eu"]
    url = f"http://127.0.0.1:{next(iter(brokers(events).values()))['http']}"
    read = subprocess.run(
        [*command, "--offset", "2097153"],
        env={**os.environ, "BROKER_ADDRESS": url},
        capture_output=True,
        check=True,
    )
    assert read.stdout == content.read_bytes()[1:]
    (fragment,) = json.loads(do("fragments", "orders/eu", "-o", "json"))
    assert (fragment["begin"], fragment["length"], fragment["persisted"]) == (0, 4194304, "")
    assert do("reset-head", "orders/eu") == (
        "orders/eu: its brokers have all acknowledged bytes, up to 4194304; nothing was changed\n"
    )
    assert do("prune") == "0 fragments with 0 bytes deleted\n"


def test_content_is_published_and_its_offsets_are_printed(events: Home, tmp_path: Path) -> None:
    def publish(*words: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "qsync_cli.main", "journals", "publish", *map(str, words)]
        return subprocess.run(
            [*command, "--local", "events"],
            input=stdin, env=events.environment, capture_output=True, check=False,
        )  # fmt: skip

    done = publish("orders/eu", stdin=b"first\n")
    assert (done.stdout, done.stderr) == (b"orders/eu has the publication 1\n", b"")
    done = publish("orders/eu", EXAMPLE, "--wait")
    size = EXAMPLE.stat().st_size
    assert done.stdout == f"orders/eu has the publication 2 at 6 to {size + 6}\n".encode()
    done = publish("orders/eu", EXAMPLE, "--wait", "-o", "json")
    answer = json.loads(done.stdout)
    assert [answer[name] for name in ("sequence", "begin", "end")] == [3, size + 6, 2 * size + 6]
    found = events.do("journals", "read", "orders/eu", "--local", "events")
    assert found == "first\n" + 2 * EXAMPLE.read_text()
    large = tmp_path / "large"
    large.write_bytes(bytes(800 << 10))
    for words, cause in (
        (("no/journal", EXAMPLE), "journal 'no/journal' does not exist; create it first"),
        (("orders/eu", "/no/file"), "/no/file cannot be read"),
        (("orders/eu",), "the content is empty"),
        (("orders/eu", large), "the content has more than 700 KiB"),
    ):
        done = publish(*words)
        assert done.returncode == 1
        assert cause in done.stderr.decode(), words
    for broker in brokers(events).values():
        os.kill(broker["pid"], signal.SIGSTOP)
    try:
        done = publish("orders/eu", EXAMPLE, "--wait", "--timeout", "1")
        assert b"publication 4 is not in orders/eu after 1 s" in done.stderr
    finally:
        for broker in brokers(events).values():
            os.kill(broker["pid"], signal.SIGCONT)


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
    os.kill(brokers(home)[listed["primary"]]["pid"], signal.SIGKILL)
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


def _append(home: Home) -> str:
    """Append, and return everything that the command writes."""
    done = home.run("journals", "append", "orders/eu", os.devnull, "--local", "events")
    return done.stdout + done.stderr


def test_specifications_are_edited(events: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(editor: str, *, is_refused: bool = False) -> str:
        monkeypatch.setitem(events.environment, "EDITOR", editor)
        run = events.refuse if is_refused else events.do
        return run("journals", "edit", "-l", "name=orders/eu", "--local", "events")

    assert edit("true") == "nothing was changed\n"
    assert edit("sed -i s/67108864/1048576/") == "1 changed\n"
    listed = json.loads(events.do("journals", "list", "--local", "events", "-o", "json"))
    assert listed[0]["spec"]["fragment"]["length"] == 1048576
    assert edit("sed -i 's/retention: .*/retention: 1d/'") == "1 changed\n"
    listed = json.loads(events.do("journals", "list", "--local", "events", "-o", "json"))
    assert listed[0]["spec"]["fragment"]["retention"] == "24h0m0s"
    for editor, sentence in {
        "sed -i 's/length: 1048576/length: 7/'": "fragment.length: 7 is invalid",
        "sed -i s/SNAPPY/LZ4/": "fragment.compression_codec: 'LZ4' is invalid",
        "sed -i 's/retention: .*/retention: 1 day/'": "fragment.retention: '1 day' is invalid",
        "sed -i s/flags/flaks/": "orders/eu: flaks: is unknown; did you mean flags? (Invalid)",
        "sed -i s/length/lenght/": "fragment.lenght: is unknown; did you mean length? (Invalid)",
        "sed -i s/revision/revison/": "revison: is unknown; did you mean revision?",
        "sed -i 's/replication: 3/x: 3/'": "x: is unknown; use one of name, revision, replicat",
        "sed -i '/flags/d'": "flags: is missing",
        "sed -i '1s/name/nam/'": "a journal has no key `name`; restore it",
        "sed -i 's/replication: 3/replication: 9/'": "replication: must be 1 to 5, not 9",
        "sed -i '1s/^/{/'": "the edited text is invalid",
        "sed -i 's/revision: .*/revision: 1/;s/replication: 3/replication: 2/'": "list it again",
        "false": "false ended with 1: nothing was changed",
        "/no/editor": "/no/editor cannot be run",
    }.items():
        assert sentence in edit(editor, is_refused=True)


def test_journal_is_deleted_with_its_bytes(events: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def create() -> None:
        editor = "sed -i 's#orders/eu#orders/us#;s/revision: .*/revision: 0/'"
        monkeypatch.setitem(events.environment, "EDITOR", editor)
        assert events.do("journals", "edit", "-l", "name=orders/eu", *local) == "1 changed\n"
        assert events.do("journals", "append", "orders/us", EXAMPLE, *local).endswith(" at 0\n")

    def names() -> list[str]:
        return [
            one["name"] for one in json.loads(events.do("journals", "list", *local, "-o", "json"))
        ]

    local = ("--local", "events")
    create()
    said = events.refuse("journals", "delete", "orders/us", *local)
    assert "add --yes to delete the journal (Refused)" in said
    assert names() == ["orders/eu", "orders/us"]
    assert "orders/us deleted\n" in events.do("journals", "delete", "orders/us", "--yes", *local)
    assert names() == ["orders/eu"]
    said = events.refuse("journals", "delete", "orders/us", "--yes", *local)
    assert "orders/us: JOURNAL_NOT_FOUND; create the journal, or correct its name" in said
    create()  # the new journal begins at 0: it has none of the bytes


def test_declared_journal_that_was_deleted_is_applied_again(events: Home, tmp_path: Path) -> None:
    local = ("--local", "events")
    assert "at 0" in events.do("journals", "append", "orders/eu", EXAMPLE, *local)
    events.do("journals", "delete", "orders/eu", "--yes", *local)
    apply = ("local", "apply", "-f", tmp_path / "journals.yaml", "--timeout", "30")
    said = events.do(*apply)
    assert "qsynccluster.qsync.dev/events unchanged\n" in said
    assert "qsyncjournal.qsync.dev/orders-eu created\n" in said
    assert "at 0" in events.do("journals", "append", "orders/eu", EXAMPLE, *local)
    assert "qsyncjournal.qsync.dev/orders-eu unchanged\n" in events.do(*apply)


def test_journal_alone_is_applied_and_stays_deleted(events: Home, tmp_path: Path) -> None:
    local = ("--local", "events")
    cluster, _, journal = (tmp_path / "journals.yaml").read_text().partition("---\n")
    alone, later = tmp_path / "journal.yaml", tmp_path / "cluster.yaml"
    alone.write_text(journal.replace("orders/eu", "orders/us").replace("orders-eu", "orders-us"))
    later.write_text(cluster)
    said = events.do("local", "apply", "-f", alone)
    assert "qsynccluster.qsync.dev/events unchanged\n" in said
    assert "qsyncjournal.qsync.dev/orders-us created\n" in said
    alone.write_text(alone.read_text().replace("replication: 3", "replication: 2"))
    assert "qsyncjournal.qsync.dev/orders-us configured\n" in events.do(
        "local", "apply", "-f", alone
    )
    alone.write_text(alone.read_text().replace("orders/us", "orders/uk"))
    said = events.refuse("local", "apply", "-f", alone)
    assert "spec.journal of QsyncJournal orders-us cannot change from orders/us" in said
    alone.write_text(alone.read_text().replace("cluster: events", "cluster: other"))
    assert "QsyncCluster other not found: apply it first" in events.refuse(
        "local", "apply", "-f", alone
    )
    events.do("journals", "delete", "orders/us", "--yes", *local)
    events.do("local", "apply", "-f", later)
    events.do("local", "apply", "-f", tmp_path / "journals.yaml")
    listed = json.loads(events.do("journals", "list", *local, "-o", "json"))
    assert [one["name"] for one in listed] == ["orders/eu"]


def test_port_in_use_is_reported_and_taken_once_it_is_free(home: Home, tmp_path: Path) -> None:
    manifest = tmp_path / "journals.yaml"
    port = free_port(3)
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", f"port: {port}"))
    with socket.create_server(("127.0.0.1", port + 1)):
        said = home.refuse("local", "apply", "-f", manifest)
        assert f"the broker of events-1 cannot listen: port {port + 1} is in use; stop" in said
        assert "change spec.journals.port" in home.do("local", "status", "events")
        assert "PortInUse" in home.events("events")
    home.do("local", "apply", "-f", manifest)
    assert sorted(one["http"] for one in brokers(home).values()) == [port, port + 1, port + 2]
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", f"port: {port + 3}"))
    home.do("local", "apply", "-f", manifest)  # the brokers move, one after the other
    assert min(one["http"] for one in brokers(home).values()) == port + 3


def test_journal_without_all_its_brokers_has_no_good_state(events: Home) -> None:
    def shown() -> list[dict[str, str]]:
        done = events.run("local", "journals", "events", "-o", "json")
        found: list[dict[str, str]] = json.loads(done.stdout) if not done.returncode else []
        return found

    assert [one["state"] for one in shown()] == ["Writable"]
    os.kill(brokers(events)["events-2"]["pid"], signal.SIGSTOP)  # until its lease has expired
    deadline_s = time.monotonic() + 60
    while [one["state"] for one in shown()] != ["TooFewBrokers"]:
        assert time.monotonic() < deadline_s, events.logs()
        time.sleep(0.1)  # between two polls: each starts a process
    wide = events.do("local", "journals", "events", "-o", "wide")
    assert "the journal has 2 of 3 brokers" in wide


MISSING = "no/journal: JOURNAL_NOT_FOUND; create the journal, or correct its name (Refused)"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("append", "no/journal", os.devnull), MISSING),
        (("append", "abc", os.devnull), "name: must have 4 to 512 bytes, not 3 (Refused)"),
        (("append", "orders/eu", "/no/file"), "/no/file cannot be read"),
        (
            ("append", "orders/eu", os.devnull, "--offset", "9"),
            "WRONG_APPEND_OFFSET; read the write head again (Refused)",
        ),
        (("read", "no/journal"), MISSING),
        (
            ("read", "orders/eu", "--offset", "9"),
            "OFFSET_NOT_YET_AVAILABLE: the offset is 9, and the write head is 0; read from the"
            " write head or less, or wait with a blocking read (Refused)",
        ),
        (("fragments", "no/journal"), MISSING),
        (("list", "-l", "a b"), "invalid selector at 'a b'"),
        (
            ("edit", "-l", "name=no/journal"),
            "no journal matches 'name=no/journal': nothing was changed; `qsync journals list` shows"
            " all journals (NotFound)",
        ),
    ],
)
def test_refused_verb_names_the_cause(
    shared_events: Home, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in shared_events.refuse("journals", *arguments, "--local", "events")


def test_read_warns_of_lost_bytes(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def answers(*_: object, **__: object) -> AsyncIterator[Any]:
        yield pb.ReadResponse(offset=1500, write_head=1507, fragment={"begin": 1500, "end": 1507})
        yield pb.ReadResponse(offset=1500, content=b"content")
        yield pb.ReadResponse(status=pb.OFFSET_NOT_YET_AVAILABLE, offset=1507, write_head=1507)

    monkeypatch.setattr(JournalClient, "_read", answers)
    read("orders/eu", offset=100, broker="http://127.0.0.1:1")
    said = capfdbinary.readouterr()
    assert said.out == b"content"
    assert said.err == (
        b"warning: orders/eu: no fragment has the bytes from 100 to 1500; the output lacks them\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no broker is given: use --local NAME or --broker URL (Invalid)"),
        (("--broker", "127.0.0.1:80"), "invalid address '127.0.0.1:80' of a broker"),
        (("--broker", "http://127.0.0.1:1"), "the broker cannot be reached"),
        (("--local", "nothing"), "cluster nothing not found"),
    ],
)
def test_missing_broker_is_reported(home: Home, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in home.refuse("journals", "read", "orders/eu", *arguments)


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


KEY = "cGVyaGFwcyBhIHNlY3JldCBvZiAzMiBieXRlcyEhISE="


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (None, "No such file or directory"),
        ("", "has no key: write keys in Base64, separated by spaces"),
    ],
)
def test_unusable_keys_are_refused_before_anything_is_stored(
    home: Home, tmp_path: Path, text: str | None, cause: str
) -> None:
    keys, manifest = tmp_path / "keys", tmp_path / "journals.yaml"
    if text is not None:
        keys.write_text(text)
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", f"authKeysFile: {keys}"))
    said = home.refuse("local", "apply", "-f", manifest)
    assert f"spec.journals.authKeysFile {keys} cannot be used: " in said
    assert f"{cause}; write keys in Base64 to this file, or correct the path (Invalid)" in said
    assert not (home.directory / "events").exists()


def test_running_cluster_changes_to_tls_and_tokens(events: Home, tmp_path: Path) -> None:
    events.do("journals", "append", "orders/eu", EXAMPLE, "--local", "events")
    keys, manifest = tmp_path / "keys", tmp_path / "journals.yaml"
    keys.write_text(KEY)
    text = manifest.read_text().replace("port: 0", f"tls: true\n    authKeysFile: {keys}")
    manifest.write_text(text)
    events.do("local", "apply", "-f", manifest)
    folder = events.directory / "events"
    address = f"https://127.0.0.1:{next(iter(brokers(events).values()))['http']}"
    trusted = ("--ca", folder / "brokers-tls" / "ca.crt")
    assert "a token is missing" in events.refuse("journals", "list", "--broker", address, *trusted)
    assert events.run("journals", "list", "--broker", address).returncode == 1
    token = Authorizer.of_text(KEY).sign(Capability.LIST | Capability.READ, {}, 60)
    shown = events.do("journals", "list", "--broker", address, *trusted, "--token", token)
    assert "orders/eu" in shown
    commit = events.do("journals", "append", "orders/eu", EXAMPLE, "--local", "events")
    assert f"at {EXAMPLE.stat().st_size}" in commit
    assert "orders/eu" in events.do("local", "journals", "events")
    context = ssl.create_default_context(cafile=folder / "brokers-tls" / "ca.crt")
    for code, headers in ((401, {}), (404, {"Authorization": f"Bearer {token}"})):
        request = urllib.request.Request(f"{address}/no/journal", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=5, context=context)
        assert refused.value.code == code
    for path in (folder / "brokers-tls").iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_brokers_of_an_older_version_change_their_user(events: Home) -> None:
    configured = sorted((events.directory / "events" / "brokers").glob("*/broker.yaml"))
    assert len(configured) == 3
    for path in configured:
        assert "user: qsync_broker\n" in path.read_text()
        path.write_text(path.read_text().replace("user: qsync_broker", "user: admin"))
    before = {broker["pid"] for broker in brokers(events).values()}
    deadline = time.monotonic() + 60
    while any("user: admin" in path.read_text() for path in configured):
        assert time.monotonic() < deadline, events.logs()
        time.sleep(0.1)  # the supervisor restarts one broker after the other
    append = ("journals", "append", "orders/eu", EXAMPLE, "--local", "events")
    while events.run(*append).returncode:  # the last one has its file before it serves again
        assert time.monotonic() < deadline, events.logs()
    assert before.isdisjoint(broker["pid"] for broker in brokers(events).values())
