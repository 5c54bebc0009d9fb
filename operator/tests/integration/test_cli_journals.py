"""The commands of docs/journals.md, and the verbs of `qsync journals`."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from qsync_broker.client import JournalClient
from qsync_broker.rpc import journal_pb2 as pb
from qsync_cli.journals.read import read
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES, ROOT

pytestmark = pytest.mark.timeout(400)
EXAMPLE = EXAMPLES / "journals.yaml"
SHARED = "/tmp/qsync-clicks"  # folder of docs/examples/journals-archive.yaml
MISSING = "no/journal: JOURNAL_NOT_FOUND; create the journal, or correct its name (Refused)"


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
        time.sleep(0.1)  # between two polls: the broker stores the fragment
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    done = home.run("local", "audit", "clicks", "--appends", ledger, "-o", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["proofs"]["5"]["verdict"] == "Violated"
    assert [one["problem"] for one in found["violations"]] == ["fragment damaged"]
    assert paths[0].name in found["violations"][0]["file"]
    home.do("local", "delete", "clicks", "--yes")


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
    url = f"http://127.0.0.1:{next(iter(events.brokers('events').values()))['http']}"
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
    for broker in events.brokers("events").values():
        os.kill(broker["pid"], signal.SIGSTOP)
    try:
        done = publish("orders/eu", EXAMPLE, "--wait", "--timeout", "1")
        assert b"publication 4 is not in orders/eu after 1 s" in done.stderr
    finally:
        for broker in events.brokers("events").values():
            os.kill(broker["pid"], signal.SIGCONT)


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
