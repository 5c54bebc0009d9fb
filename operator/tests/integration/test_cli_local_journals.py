"""`qsync local journals`: declarations, and ports of brokers at which something else answers."""

import asyncio
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qsync_broker.index import RemoteFragment
from qsync_cli.brokers import BrokerAccess, OtherCluster, _token, answering_broker
from qsync_cli.clusters import open_store
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals.prune import expired
from qsync_cli.local import journals
from qsync_cli.local.apply import with_journals
from qsync_local.journals import JournalPlatform
from qsync_local.store import (
    BrokerRecord,
    ClusterFiles,
    Declaration,
    Secrets,
    SupervisorState,
)
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.journals import QsyncJournal
from qsync_operator.api.reasons import Reason
from qsync_operator.api.status import ClusterStatus, Condition
from qsync_testing.ports import free_port


@pytest.fixture
def echo() -> Iterator[str]:
    """Yield the URL of a server that returns the request, as a self-connected socket does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(4096))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_answer_that_is_no_http_counts_as_none(
    echo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("qsync_cli.brokers.local_access", lambda _: [BrokerAccess(echo)])
    assert journals._described(tmp_path) == {}  # type: ignore[arg-type]  # no store is read


@contextmanager
def answering(cluster: str, status: int = 200) -> Iterator[int]:
    """Yield the port of a server that answers as a broker of a cluster."""

    class BrokerHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"revision": 1, "journals": []}).encode()
            self.send_response(status)
            self.send_header("X-Qsync-Cluster", cluster)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep standard error free."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BrokerHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def store_with(directory: Path, ports: dict[str, int], cluster: str = "mine") -> ClusterFiles:
    store = ClusterFiles(directory / "orders")
    store.save_state(SupervisorState(replicaset_uuid=cluster))
    store.save_brokers({name: BrokerRecord(port, 1) for name, port in ports.items()})
    return store


def test_broker_of_another_cluster_at_the_port_is_not_used(tmp_path: Path) -> None:
    with answering("theirs") as other, answering("mine") as own:
        store = store_with(tmp_path, {"orders-0": other, "orders-1": own})
        assert answering_broker(store).name == "orders-1"
        assert list(journals._described(store)) == ["orders-1"]


@pytest.mark.parametrize("status", [200, 404])
def test_port_with_another_program_alone_is_reported(tmp_path: Path, status: int) -> None:
    with answering("theirs", status) as other:
        store = store_with(tmp_path, {"orders-0": other})
        with pytest.raises(Failure, match="another program answers at") as found:
            answering_broker(store)
    assert "the address of broker orders-0: stop it, or change spec.journals.port" in str(
        found.value
    )


def test_program_that_does_not_use_http_is_another_one(echo: str) -> None:
    with pytest.raises(OtherCluster):
        BrokerAccess(echo, name="orders-0", cluster="mine").get("/debug/ready")


def test_broker_without_a_lease_is_passed_over(tmp_path: Path) -> None:
    with answering("mine", 503) as fenced, answering("mine") as serving:
        store = store_with(tmp_path, {"orders-0": fenced, "orders-1": serving})
        assert answering_broker(store).name == "orders-1"
        store = store_with(tmp_path, {"orders-0": fenced})
        with pytest.raises(Failure, match="no broker of orders is ready: HTTP Error 503"):
            answering_broker(store)


def test_cluster_without_brokers_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no broker of orders has started"):
        answering_broker(store_with(tmp_path, {}))


CAUSE = "the broker of orders-1 cannot listen: port 8081 is in use; stop the program that uses it"


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({}, "spec.journals.enabled is not set"),
        ({"journals": {"enabled": False}}, "spec.journals.enabled is not set"),
        ({"journals": {"enabled": True}, "hibernate": True}, "the cluster hibernates; set"),
        ({"journals": {"enabled": True}}, CAUSE),
    ],
)
def test_cause_that_the_cluster_knows_is_reported(
    tmp_path: Path, spec: dict[str, Any], cause: str
) -> None:
    manifest = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders"},
        "spec": spec,
    }
    for ports in ({}, {"orders-0": 1}):
        store = store_with(tmp_path, ports)
        store.save_cluster(QsyncCluster.model_validate(manifest))
        degraded = Condition(type="Degraded", status="True", reason="NotReady", message=CAUSE)
        store.save_status(ClusterStatus(conditions=[degraded]))
        with pytest.raises(Failure, match=f"no broker of orders .*: {cause}"):
            answering_broker(store)


class DeclaredJournals(JournalPlatform):
    """Brokers whose leader accepts each declaration, and which start no processes."""

    def _declare_pending(self, leader: str) -> list[Declaration]:
        return [Declaration(declared("one", "orders/eu"), "created")]


def test_port_in_use_stays_reported_between_two_declarations(tmp_path: Path) -> None:
    """The declarations are read again after they were made, up to a second later."""
    port = free_port(3)
    manifest = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders", "generation": 1},
        "spec": {"replicas": 1, "journals": {"enabled": True, "port": port}},
    }
    cluster = QsyncCluster.model_validate(manifest)
    platform = DeclaredJournals(
        store_with(tmp_path, {}), Secrets("secret", "app", "password"), lambda: None
    )
    with socket.create_server(("127.0.0.1", port)):
        for _ in range(3):
            found = asyncio.run(
                platform.reconcile(cluster, {"orders-0": "127.0.0.1:1"}, "127.0.0.1:1")
            )
            assert [one.reason for one in found] == [Reason.PORT_IN_USE]


def test_keys_that_vanished_are_reported_with_an_action(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file or directory; write keys in Base64") as found:
        _token(str(tmp_path / "keys"))
    assert found.value.reason == FailureReason.INVALID


def test_deleted_cluster_with_retained_data_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QSYNC_HOME", str(tmp_path))
    with pytest.raises(Failure, match="cluster orders not found in"):
        open_store("orders")
    store_with(tmp_path, {})
    with pytest.raises(Failure, match="orders is deleted and its data is retained: apply its"):
        open_store("orders")


def declared(name: str, journal: str) -> QsyncJournal:
    return QsyncJournal.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncJournal",
            "metadata": {"name": name},
            "spec": {"cluster": "orders", "journal": journal},
        }
    )


def test_journal_in_the_folder_of_one_that_was_applied_before_is_refused() -> None:
    existing = [Declaration(declared("one", "orders/eu"))]
    with pytest.raises(Failure, match="would share a folder"):
        with_journals(existing, [declared("two", "orders/eu/late")])


def test_declaration_keeps_its_journal() -> None:
    existing = [Declaration(declared("one", "orders/eu"), "created")]
    with pytest.raises(Failure, match="QsyncJournal one cannot change from"):
        with_journals(existing, [declared("one", "orders/us")])


def test_journal_of_an_earlier_apply_is_not_declared_again() -> None:
    """It may have been deleted since then."""
    one = Declaration(declared("one", "orders/eu"), "created")
    found = with_journals([one], [declared("two", "orders/us")])
    assert [(each.journal.name, each.is_pending) for each in found] == [
        ("one", False),
        ("two", True),
    ]
    again = with_journals(found, [declared("one", "orders/eu")])
    assert {each.journal.name: each.is_pending for each in again} == {"one": True, "two": True}


def test_declarations_survive_in_the_store(tmp_path: Path) -> None:
    store = ClusterFiles(tmp_path / "orders")
    assert (store.load_journals(), store.journals_changed_at_ns()) == ([], 0)
    kept = [
        Declaration(declared("one", "orders/eu")),
        Declaration(declared("two", "orders/us"), "refused", "the journal orders/us exists"),
    ]
    store.save_journals(kept)
    assert store.load_journals() == kept
    assert store.journals_changed_at_ns() > 0


def test_declarations_of_an_earlier_version_count_as_declared(tmp_path: Path) -> None:
    store = ClusterFiles(tmp_path / "orders")
    store.directory.mkdir()
    one = declared("one", "orders/eu")
    (store.directory / "journals.json").write_text(json.dumps([one.document()]))
    assert store.load_journals() == [Declaration(one, "unchanged")]


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([1, 2, 3, 9, 9], 3),
        ([1, 9, 3, 4, 9], 1),  # the second was merged later than the third was persisted
        ([9, 1, 1], 0),
        ([1, 1], 1),  # the last one states the write head
        ([], 0),
    ],
)
def test_prune_leaves_no_gap(times: list[int], count: int) -> None:
    listed = [
        RemoteFragment(10 * number, 10 * number + 10, bytes(20), 1, "file:///s/", "", time)
        for number, time in enumerate(times)
    ]
    local = RemoteFragment(1000, 1010, bytes(20), 1, "", "", 0)
    assert expired([*listed, local], 5) == listed[:count]
