"""`qsync restore` of a cluster with journals, with real brokers and a store of fragments."""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_testing.object_server import (  # found by the path above
    object_server,
    used_by_this_process,
)
from qsync_testing.operator.local_clusters import Home, archive_now, ask
from qsync_testing.paths import EXAMPLES

pytestmark = pytest.mark.timeout(400)
JOURNAL = "clicks/eu"


@pytest.fixture(params=["file", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of the folder of all stores: a folder, or a bucket with its files."""
    if request.param == "file":
        yield f"file://{tmp_path}"
        return
    with object_server(bucket=tmp_path) as server, used_by_this_process(server):
        yield "s3://bucket"


@pytest.fixture
def home(tmp_path: Path, root: str) -> Iterator[Home]:
    assert root  # its credentials are inherited
    running = Home(tmp_path / "home")
    yield running
    running.close()


@pytest.fixture
def clicks(home: Home, tmp_path: Path, root: str) -> Home:
    """Return a home with a cluster whose journal has a store."""
    text = (EXAMPLES / "journals-archive.yaml").read_text()
    text = text.replace("file:///tmp/qsync-clicks", root).replace("port: 8090", "port: 0")
    manifest = tmp_path / "clicks.yaml"
    manifest.write_text(text)
    home.do("local", "apply", "-f", manifest)
    return home


def url_of(home: Home, cluster: str) -> str:
    brokers = home.brokers(cluster)
    return f"http://127.0.0.1:{next(iter(brokers.values()))['http']}/{JOURNAL}"


def append(home: Home, cluster: str, content: bytes) -> int:
    deadline_s = time.monotonic() + 30
    while (status := ask("PUT", url_of(home, cluster), content)[0]) in (0, 503):
        assert time.monotonic() < deadline_s, home.logs()
        time.sleep(0.1)  # between two polls: each asks a process
    return status


def content(home: Home, cluster: str) -> bytes:
    with urllib.request.urlopen(url_of(home, cluster), timeout=10) as answer:
        return bytes(answer.read())


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.glob(f"{JOURNAL}/*")}


def test_restored_journals_have_their_own_store(clicks: Home, tmp_path: Path, root: str) -> None:
    lines = [b"%06d\n" % number * 200 for number in range(4)]
    for line in lines:
        assert append(clicks, "clicks", line) == 204
    old, new = tmp_path / "fragments", tmp_path / "fragments-2"
    deadline_s = time.monotonic() + 30
    while len(names(old)) < 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)  # between two polls: each asks a process
    archive_now(clicks, "clicks")
    manifest = tmp_path / "other.yaml"
    document = {
        "apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster", "metadata": {"name": "other"},
        "spec": {"replicas": 3, "journals": {"enabled": True, "port": 0}},
    }  # fmt: skip
    manifest.write_text(json.dumps(document))
    words = ("restore", "clicks-2", "--archive", f"{root}/log", "-f", manifest)
    assert "name a store of the new one" in clicks.refuse(*words)
    same = clicks.refuse(*words, "--journal-store", f"{root}/fragments")
    assert "is that of the former cluster" in same
    persisted = names(old)
    clicks.do(*words, "--journal-store", f"{root}/fragments-2")
    assert names(new) == persisted
    # The last line was in the memory and on the disks of the former brokers only.
    deadline_s = time.monotonic() + 60
    while append(clicks, "clicks-2", b"early\n") != 409:
        assert time.monotonic() < deadline_s, clicks.logs()
        time.sleep(0.2)
    head = len(b"".join(lines[: len(persisted)]))
    said = clicks.do("journals", "reset-head", JOURNAL, "--local", "clicks-2")
    assert said == f"{JOURNAL} continues at {head}\n"
    for number in range(2):
        assert append(clicks, "clicks-2", b"second %d\n" % number * 200) == 204
        # The former cluster is still running: both have other bytes at the same offsets.
        assert append(clicks, "clicks", b"first %d\n" % number * 200) == 204
    found = content(clicks, "clicks-2")
    assert found.startswith(b"".join(lines[: len(persisted)]) + b"second 0\n")
    assert b"first" not in found
    assert content(clicks, "clicks").startswith(b"".join(lines) + b"first 0\n")
    deadline_s = time.monotonic() + 30
    while len(names(new)) == len(persisted):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)  # between two polls: each asks a process
    assert (names(new) & names(old)) == persisted
