"""Files of a local cluster that a full disk or a power failure has damaged."""

import asyncio
import errno
from pathlib import Path

import pytest

from qsync_local import page, supervisor
from qsync_local import store as local_store
from qsync_local.page import RecentEvents, serve_page
from qsync_local.platform import LocalPlatform
from qsync_local.store import ClusterFiles, Secrets
from qsync_local.supervisor import StoreReporter, Supervisor
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.status import ClusterStatus
from qsync_operator.plan.actions import Action, RecordBootstrap, RecordFenced, RecordFormed
from qsync_operator.plan.observed import Memory, Observed, RecordedMember, SchemaView
from qsync_operator.reconcile.platform import ActionRefused
from qsync_web.server import PageServer

STATUS = ClusterStatus()
CLUSTER = QsyncCluster.model_validate(
    {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders"},
    }
)


@pytest.fixture
def files(tmp_path: Path) -> ClusterFiles:
    found = ClusterFiles(tmp_path / "orders")
    found.directory.mkdir()
    return found


@pytest.mark.parametrize("text", ["", '{"phase": "Re', "\0\0\0", "[]", '{"phase": 7}'])
def test_status_that_a_power_failure_damaged_is_written_again(
    files: ClusterFiles, text: str
) -> None:
    (files.directory / "status.json").write_text(text)
    assert files.load_status() == STATUS


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_delays_statuses_and_prevents_no_action(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "write_whole", fail)
    monkeypatch.setattr(Path, "open", fail)
    reporter = StoreReporter(files)
    assert not asyncio.run(reporter.publish(CLUSTER, STATUS))
    asyncio.run(reporter.report("Failover", "orders", "a new leader"))


def test_supervisor_continues_after_a_full_disk(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save_cluster(CLUSTER)
    supervised = Supervisor(files, LocalPlatform(files, Secrets("s", "app", "p")))
    stopping = asyncio.Event()
    turns = 0

    async def turn(_: QsyncCluster) -> Observed:
        nonlocal turns
        turns += 1
        if turns == 1:
            fail()
        stopping.set()
        return Observed((), RecordedMember(""), SchemaView(), Memory(), STATUS)

    monkeypatch.setattr(supervised.controller, "turn", turn)
    monkeypatch.setattr(supervisor, "FAILED_S", 0.01)
    asyncio.run(supervised.run(stopping))
    assert turns == 2


@pytest.mark.parametrize("torn", ['{"time": "2026', "\0\0\0", '{"a": 1}}', "7}"])
def test_torn_event_hides_no_other(files: ClusterFiles, torn: str) -> None:
    files.add_event("First", "orders", "before the disk was full")
    path = files.directory / "events.jsonl"
    with path.open("a") as file:
        file.write(torn)
    files.add_event("Second", "orders", "after it")
    for found in (files.load_events(), RecentEvents(path).read()):
        assert [event["reason"] for event in found] == ["First", "Second"]


def test_events_are_shown_after_their_file_was_full(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.add_event("First", "orders", "in a full file")
    monkeypatch.setattr(local_store, "EVENTS_BYTES_MAX", 10)
    files.add_event("Second", "orders", "in the next file")
    assert [event["reason"] for event in files.load_events()] == ["First", "Second"]


def test_damaged_address_of_the_web_page_is_replaced(files: ClusterFiles) -> None:
    (files.directory / "page.json").write_text("")
    assert files.load_page() is None

    async def serve() -> int:
        server = await serve_page(files, lambda: STATUS)
        assert server is not None
        await server.close()
        return server.port

    port = asyncio.run(serve())
    address = files.load_page()
    assert address is not None
    assert address.port == port


def test_supervisor_starts_without_a_web_page_on_a_full_disk(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class FullDiskServer(PageServer):
        async def close(self) -> None:
            closed.append(self.port)
            await super().close()

    monkeypatch.setattr(page, "PageServer", FullDiskServer)
    monkeypatch.setattr(local_store, "write_whole", fail)
    assert asyncio.run(serve_page(files, lambda: STATUS)) is None
    assert closed


@pytest.mark.parametrize(
    "action", [RecordBootstrap("orders-0", "uuid"), RecordFormed(), RecordFenced(("orders-0",))]
)
def test_state_that_a_full_disk_did_not_take_is_not_used(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    platform = LocalPlatform(files, Secrets("s", "app", "p"))
    before = asyncio.run(platform.observe(CLUSTER, Memory(), STATUS)).record
    with monkeypatch.context() as patch:
        patch.setattr(files, "save_state", fail)
        with pytest.raises(ActionRefused, match="No space left"):
            asyncio.run(platform.act(CLUSTER, action))
    assert asyncio.run(platform.observe(CLUSTER, Memory(), STATUS)).record == before
    asyncio.run(platform.act(CLUSTER, action))
    after = asyncio.run(platform.observe(CLUSTER, Memory(), STATUS)).record
    assert after != before
    again = LocalPlatform(files, Secrets("s", "app", "p"))
    assert asyncio.run(again.observe(CLUSTER, Memory(), STATUS)).record == after
