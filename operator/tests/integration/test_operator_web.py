"""The web page on Kubernetes: its reads of the API server and of members."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from qsync_operator.web.source import KubernetesSource
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.ports import free_port
from qsync_web.journals import journals_document
from qsync_web.page import PageHistory
from qsync_web.watching import PageError

pytestmark = pytest.mark.asyncio
LEADING = {
    "role": "leader", "term": 3, "confirmed_index": 43, "replica_id": 1, "is_writable": True,
    "uuid": "aaaaaaaa-0000-4000-8000-000000000001", "name": "orders-0",
}  # fmt: skip
SPACES = {
    "total": 1,
    "spaces": [{"id": 512, "name": "orders", "rows": 7, "bytes": 70, "is_sync": True}],
}
JOURNAL: dict[str, Any] = {
    "name": "orders/eu", "replication": 1, "brokers": ["orders-0"], "primary": "orders-0",
    "is_consistent": True, "suspend_level": 0, "is_ready": True, "write_head": 70, "fragments": 1,
    "bytes": 70, "persisted": 0, "stores": 1, "is_head_known": True,
}  # fmt: skip
BROKERS = [{"name": "orders-0", "zone": "east", "is_exiting": False}]
REFUSES = web.AppKey("refuses", bool)


@pytest_asyncio.fixture
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Serve the admin port of a member."""

    def answering(answer: dict[str, Any]) -> Callable[[web.Request], Any]:
        async def handle(_: web.Request) -> web.Response:
            return web.json_response(answer)

        return handle

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="qsync_broker_primaries 1.0\nqsync_broker_lease_seconds 2.0\n")

    async def journals(request: web.Request) -> web.Response:
        if request.app[REFUSES]:
            return web.Response(status=401, text="a token is needed")
        known = [JOURNAL] if request.query["part"] in JOURNAL["name"] else []
        return web.json_response(
            {"revision": 9, "total": 700, "journals": known, "brokers": BROKERS}
        )

    application = web.Application()
    application[REFUSES] = request.param if hasattr(request, "param") else False
    application.add_routes(
        [
            web.get("/status", answering(LEADING)),
            web.get("/spaces", answering(SPACES)),
            web.get("/debug/metrics", metrics),
            web.get("/debug/journals", journals),
        ]
    )
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


def pod(name: str, ip: str, is_running: bool = True) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {}} if is_running else {"waiting": {}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": {"qsync.dev/cluster": "orders", "qsync.dev/kind": "voter"},
        },
        "spec": {"nodeName": "worker-1"},
        "status": {
            "podIP": ip,
            "containerStatuses": [
                {"name": one, "ready": is_running, "state": state} for one in ("node", "broker")
            ],
        },
    }


def audit(name: str, cluster: str, finished_at: str = "") -> dict[str, Any]:
    return {
        "kind": "QsyncAudit",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"cluster": cluster},
        "status": {"verdict": "Passed", "finishedAt": finished_at, "report": "s3://b/report.html"},
    }


@pytest.fixture
def api(port: int) -> FakeApi:
    api = FakeApi()
    api.put(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders", "namespace": "shop", "generation": 1},
            "spec": {"ports": {"admin": port}, "journals": {"enabled": True, "port": port}},
            "status": {
                "phase": "Ready", "leader": "orders-1", "observedGeneration": 1, "quorum": 2,
                "members": [{"name": "orders-0"}, {"name": "orders-1", "role": "leader"}],
            },
        }
    )  # fmt: skip
    api.put(pod("orders-0", "127.0.0.1"))
    api.put(pod("orders-1", "", is_running=False))
    for cluster in ("orders", "catalogue"):
        api.put(
            {
                "apiVersion": "qsync.dev/v1alpha1",
                "kind": "QsyncJournal",
                "metadata": {"name": f"of-{cluster}", "namespace": "shop", "generation": 1},
                "spec": {"cluster": cluster, "journal": f"declared/{cluster}"},
                "status": {"primary": "orders-0", "brokers": ["orders-0"], "writeHead": 7},
            }
        )
    api.put(audit("one", "orders", "2026-01-31T12:00:00Z"))
    api.put(audit("unfinished", "orders"))
    api.put(audit("other", "catalogue", "2026-01-31T12:00:00Z"))
    api.put(
        {
            "kind": "Event",
            "metadata": {"name": "orders.1", "namespace": "shop"},
            "involvedObject": {"kind": "QsyncCluster", "name": "orders"},
            "reason": "Failover", "type": "Normal", "lastTimestamp": "2026-01-31T12:00:00Z",
            "message": "orders-0 leads after orders-1 (ProcessEnded): writes paused for 57 ms",
        }
    )  # fmt: skip
    return api


async def test_page_shows_live_answers_of_members_and_objects_of_the_cluster(api: FakeApi) -> None:
    source = KubernetesSource(api, (), None)
    listed = await source.clusters()
    assert [(one.key, one.phase) for one in listed] == [("shop/orders", "Ready")]
    history = PageHistory()
    history.add(await source.observe("shop/orders"))
    await source.close()
    found = history.document()
    assert (found["leader"], found["term"]) == ("orders-0", 3), "the operator reported orders-1"
    assert [(one["name"], one["role"]) for one in found["members"]] == [
        ("orders-0", "leader"), ("orders-1", "leader"),
    ]  # fmt: skip
    assert found["members"][0]["location"] == "worker-1"
    assert [one["rows"] for one in found["spaces"]["largest"]] == [7]
    assert [one["name"] for one in found["audits"]] == ["one"]
    assert found["audits"][0]["has_page"] is False
    assert found["failovers"][0]["paused_ms"] == 57.0
    assert api.writes == [], "the page only reads"


async def test_page_shows_brokers_and_journals_by_their_answers(api: FakeApi) -> None:
    source = KubernetesSource(api, (), None)
    assert (await source.observe("shop/orders")).has_brokers
    found = journals_document(await source.journals("shop/orders", "orders/"))
    assert [(one["name"], one["state"], one["zone"]) for one in found["brokers"]] == [
        ("orders-0", "ready", "east"),
        ("orders-1", "does not answer", ""),
    ]
    (journal,) = found["journals"]
    assert (journal["name"], journal["state"], journal["lag"]) == ("orders/eu", "Writable", 70)
    assert (found["total"], found["note"]) == (700, "")
    assert (await source.journals("shop/orders", "other")).journals == []
    await source.close()


@pytest.mark.parametrize("port", [True], indirect=True)
async def test_page_shows_declared_journals_if_brokers_want_a_token(api: FakeApi) -> None:
    source = KubernetesSource(api, (), None)
    found = await source.journals("shop/orders", "")
    assert [(one.name, one.head) for one in found.journals] == [("declared/orders", 7)]
    assert "only with a token" in found.note
    assert [(one.state, one.primaries) for one in found.brokers] == [
        ("ready", 1),
        ("does not answer", None),
    ]
    assert (await source.journals("shop/orders", "x")).journals == []
    assert api.writes == [], "the page only reads"
    await source.close()


@pytest.mark.parametrize(
    "key", ["", "orders", "shop/other", "hidden/orders", "shop/../../secrets", "shop/orders/status"]
)
async def test_unknown_clusters_and_other_paths_are_refused(api: FakeApi, key: str) -> None:
    source = KubernetesSource(api, ("shop",), None)
    with pytest.raises(PageError, match="not found"):
        await source.observe(key)
    with pytest.raises(PageError, match="not found"):
        await source.journals(key, "")
    await source.close()


async def test_failure_of_the_api_server_is_the_cause(api: FakeApi) -> None:
    api.failing.add("QsyncCluster")
    source = KubernetesSource(api, (), None)
    with pytest.raises(PageError, match="cannot list the clusters"):
        await source.clusters()
    with pytest.raises(PageError, match="cannot read cluster shop/orders"):
        await source.observe("shop/orders")
    await source.close()


async def test_program_serves_the_page_on_loopback_and_its_probe(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    page, health = free_port(), free_port()
    environment = {
        **os.environ, "KUBECONFIG": str(config), "QSYNC_WEB_PORT": str(page),
        "QSYNC_HEALTH_PORT": str(health),
    }  # fmt: skip
    command = [sys.executable, "-m", "qsync_operator.web"]
    with subprocess.Popen(command, env=environment) as process:
        try:
            async with aiohttp.ClientSession() as session:
                assert await _text(session, f"http://127.0.0.1:{page}/", process) == 200
                assert await _text(session, f"http://127.0.0.1:{health}/healthz", process) == 200
                async with session.get(f"http://127.0.0.1:{page}/api/clusters") as answer:
                    assert answer.status == 502
                    assert "cannot list the clusters" in (await answer.json())["error"]
        finally:
            process.terminate()
        assert process.wait(20) == 0


async def _text(session: aiohttp.ClientSession, url: str, process: subprocess.Popen[bytes]) -> int:
    """Return the status of an answer; wait until the program listens."""
    while True:
        assert process.poll() is None
        try:
            async with session.get(url) as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            pass
