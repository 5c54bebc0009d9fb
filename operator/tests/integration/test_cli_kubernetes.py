"""`kubectl qsync`: selection of the cluster, access to nodes through their pods, output."""

import base64
import http.server
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from qsync_agent import ask as pod_ask
from qsync_agent.rollbacks import rollback_rows
from qsync_cli.bundle import _pack
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals import publish as journal_publish
from qsync_cli.kubernetes import status
from qsync_cli.kubernetes.session import KubernetesSession, choose
from qsync_cli.runs import _document, _follow
from qsync_cli.runs import lines as run_lines
from qsync_cli.targets import CommandTarget
from qsync_cli.where import Where
from qsync_node.format.proofs import sign_order
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.client import exit_code
from qsync_operator.kubernetes.podlinks import PodLinks
from qsync_operator.members.links import LinkError
from qsync_operator.views.events import is_event_of
from qsync_operator.views.podview import Observation, view_of
from qsync_operator.views.statusview import table
from qsync_testing.paths import ROOT

if TYPE_CHECKING:
    from qsync_operator.kubernetes.client import KubernetesApi

XLOG = ROOT / "node" / "tests" / "vectors" / "00000000000000000000.xlog"


def document(name: str = "orders", **status: object) -> dict[str, Any]:
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": name, "namespace": "ns", "generation": 1},
        "status": status,
    }


# --- selection of the cluster ---------------------------------------------------------------------


def test_the_cluster_is_named_or_found_by_its_member_or_the_only_one() -> None:
    both = [document("orders"), document("orders-eu")]
    assert choose(both[:1], Where(), "ns", None)["metadata"]["name"] == "orders"
    assert choose(both, Where(cluster="orders"), "ns", None)["metadata"]["name"] == "orders"
    assert choose(both, Where(), "ns", "orders-eu-1")["metadata"]["name"] == "orders-eu"
    for where, member, reason in (
        (Where(), None, FailureReason.INVALID),
        (Where(cluster="x"), None, FailureReason.NOT_FOUND),
        (Where(), "bills-0", FailureReason.INVALID),
    ):
        with pytest.raises(Failure, match="orders, orders-eu") as failed:
            choose(both, where, "ns", member)
        assert failed.value.reason == reason
    with pytest.raises(Failure) as failed:
        choose([], Where(), "ns", None)
    assert failed.value.reason == FailureReason.NOT_FOUND


@pytest.mark.parametrize(
    ("subject", "is_ours"),
    [
        ("orders", True),
        ("orders-0", True),
        ("orders-async-1", True),
        ("data-orders-0", True),
        ("orders-leader", True),
        ("orders-eu", False),
        ("orders-eu-0", False),
        ("bills-0", False),
    ],
)
def test_events_are_of_one_cluster(subject: str, is_ours: bool) -> None:
    assert is_event_of({"involvedObject": {"name": subject}}, "orders") == is_ours


# --- access through pods --------------------------------------------------------------------------


class Pods:
    """Pods with fixed answers to every command; commands in other pods are forbidden."""

    def __init__(self, answers: dict[str, tuple[int, str, str]]) -> None:
        self.answers = answers
        self.commands: list[tuple[str, tuple[str, ...]]] = []

    async def execute(
        self, namespace: str, pod: str, command: tuple[str, ...]
    ) -> tuple[int, str, str]:
        assert namespace == "ns"
        self.commands.append((pod, command))
        if pod not in self.answers:
            raise ApiError("pods is forbidden", 403)
        return self.answers[pod]

    async def close(self) -> None: ...


def said(status: int, answer: object) -> tuple[int, str, str]:
    return 0, json.dumps({"status": status, "answer": answer}), ""


@pytest.mark.asyncio
async def test_a_node_is_asked_by_a_command_in_its_pod() -> None:
    pods = Pods(
        {
            "orders-0": said(200, {"role": "leader", "result": "done"}),
            "orders-1": said(409, {"error": "it is fenced"}),
            "orders-2": (1, "", "Traceback\nModuleNotFoundError: no qsync_operator.pod_ask"),
        }
    )

    async def connect() -> Pods:
        return pods

    links = PodLinks(connect, "ns")
    names = ("orders-0", "orders-1", "orders-2", "orders-3")
    answers = await links.statuses({name: name for name in names})
    assert answers["orders-0"] == {"role": "leader", "result": "done"}
    for name, sentence in (
        ("orders-1", "it is fenced"),
        ("orders-2", "cannot query orders-2: ModuleNotFoundError"),
        ("orders-3", "cannot query orders-3: pods is forbidden"),
    ):
        assert isinstance(answers[name], LinkError)
        assert sentence in str(answers[name])
    assert await links.post("orders-0", "/verb/fence", {"a": 1}) == "done"
    python = ("python", "-m", "qsync_operator.pod_ask")
    assert pods.commands[-1] == ("orders-0", (*python, "ask", "POST", "/verb/fence", '{"a": 1}'))


@pytest.mark.asyncio
async def test_metrics_of_brokers_are_read_by_a_command_in_the_pods_of_voters() -> None:
    pods = Pods({"orders-0": said(200, "metric 1\n"), "orders-1": (2, "", "usage: pod_ask ...")})
    documents = [
        {"metadata": {"name": name, "labels": {"qsync.dev/kind": kind}}}
        for name, kind in (
            ("orders-0", "voter"),
            ("orders-1", "voter"),
            ("orders-async-0", "async"),
        )
    ]
    session = KubernetesSession(cast("KubernetesApi", pods), "ns")
    spec = {"journals": {"enabled": True, "tls": True}}
    found = await status.broker_metrics(session, Observation({"spec": spec}, documents, {}, {}))
    assert found["orders-0"] == "metric 1\n"
    assert "usage: pod_ask" in str(found["orders-1"])
    assert set(found) == {"orders-0", "orders-1"}
    assert {command[-3:] for _, command in pods.commands} == {("broker", "8080", "tls")}
    assert await status.broker_metrics(session, Observation({"spec": {}}, documents, {}, {})) == {}


@pytest.mark.asyncio
async def test_content_is_published_by_a_command_in_the_leaders_pod() -> None:
    asked: list[tuple[str, str, Any]] = []
    places = [{"state": "pending"}, {"state": "published", "begin": 3, "end": 10}]

    class Publishing(Pods):
        async def execute(
            self, namespace: str, pod: str, command: tuple[str, ...]
        ) -> tuple[int, str, str]:
            *_, path, fields = (*command, "{}") if command[-1].startswith("/") else command
            asked.append((pod, path, json.loads(fields)))
            if path == "/status":
                return said(200, {"role": "leader" if pod == "orders-1" else "", "term": 2})
            if path == "/publish":
                return said(200, {"result": {"sequence": 7}})
            return said(200, {"result": {"publication": places.pop(0)}})

    async def connect() -> Pods:
        return Publishing({})

    links = PodLinks(connect, "ns")
    target = CommandTarget({name: name for name in ("orders-0", "orders-1")}, lambda: links)
    content = bytes(range(256)) * 256
    assert len(content) == journal_publish.POD_BYTES_MAX
    found = await journal_publish._publish(links, target, "orders/eu", content, 60)
    assert found == (7, {"state": "published", "begin": 3, "end": 10})
    pod, path, fields = asked[2]
    assert (pod, path, fields["journal"]) == ("orders-1", "/publish", "orders/eu")
    assert base64.b64decode(fields["content"]) == content
    assert len(json.dumps(fields)) < 128 << 10, "Linux accepts no longer argument"
    assert [fields["sequence"] for _, path, fields in asked[3:]] == [7, 7]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (b'{"status": "Success"}', 0),
        (b'{"status": "Failure", "details": {"causes": [{"message": "7"}]}}', 7),
        (b'{"status": "Failure", "message": "no such container"}', 1),
        (b"", 1),
    ],
)
def test_how_a_command_in_a_pod_ended(outcome: bytes, code: int) -> None:
    assert exit_code(outcome) == code


class _Node(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/debug/metrics":
            self.wfile.write(b"metric 1\n")
            return
        self.wfile.write(json.dumps({"challenge": "c", "instance": "i"}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed = sign_order("secret", "c", "i", "POST", self.path, body)
        is_allowed = self.headers["Authorization"] == signed
        self.send_response(200 if is_allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"path": self.path, "got": json.loads(body)}).encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def node_file(tmp_path: Path) -> Iterator[Path]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Node)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = tmp_path / "node.yaml"
    address = f"0.0.0.0:{server.server_port}"
    fields = {"admin_listen": address, "secret": "secret", "directory": str(tmp_path)}
    path.write_text(json.dumps(fields))
    yield path
    server.shutdown()
    server.server_close()


def test_the_secret_stays_in_the_pod(node_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pod_ask.main(["ask", "POST", "/verb/fence", '{"x": 1}'], node_file) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"status": 200, "answer": {"path": "/verb/fence", "got": {"x": 1}}}
    node_file.write_text(node_file.read_text().replace('"secret"}', '"other"}'))
    assert pod_ask.main(["rollbacks"], node_file) == 0
    assert json.loads(capsys.readouterr().out) == {"status": 200, "answer": []}
    port = json.loads(node_file.read_text())["admin_listen"].rpartition(":")[2]
    assert pod_ask.main(["broker", port, "plain"], node_file) == 0
    assert json.loads(capsys.readouterr().out) == {"status": 200, "answer": "metric 1\n"}
    assert pod_ask.main(["nonsense"], node_file) == 2
    assert pod_ask.main(["rollbacks"], node_file.with_name("nothing")) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_damaged_rollback_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "rollback").mkdir()
    (tmp_path / "rollback" / "1.2.xlog").write_bytes(b"nonsense")
    (tmp_path / "rollback" / "2.2.xlog").write_bytes(XLOG.read_bytes())
    found = rollback_rows(tmp_path)
    assert [file["file"] for file in found] == ["1.2.xlog", "2.2.xlog"]
    assert found[0]["damage"]
    assert found[0]["rows"] == []
    assert found[1]["damage"] == ""
    assert "HEADER" in found[1]["rows"][0]
    assert json.dumps(found), "it has to pass through a pod's standard output"


# --- output ---------------------------------------------------------------------------------------


def pod(name: str, restarts: int = 0) -> dict[str, Any]:
    container = {"name": "node", "ready": True, "restartCount": restarts, "image": "i"}
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": "worker"},
        "status": {"containerStatuses": [container]},
    }


def test_what_members_say_now_wins_over_what_was_written_down() -> None:
    written = document(
        leader="orders-0",
        observedGeneration=1,
        members=[{"name": "orders-0", "role": "leader"}, {"name": "orders-1", "role": "follower"}],
        conditions=[
            {"type": "Degraded", "status": "True", "reason": "InvalidSpec", "message": "no"}
        ],
    )
    now = {
        "role": "leader", "term": 3, "confirmed_index": 7, "replica_id": 2, "uuid": "u",
        "is_fenced": True,
    }  # fmt: skip
    seen = Observation(written, [pod("orders-1", 2)], {"orders-1": now}, {})
    view = view_of(seen)
    titles, rows = table(view.rows, False)
    shown = [dict(zip(titles, row, strict=True)) for row in rows]
    assert shown[1] == {
        "MEMBER": "orders-1", "ROLE": "leader", "READY": "yes", "TERM": "3", "CONFIRMED": "7",
        "LAG": "0", "FENCED": "yes", "LOCATION": "worker",
    }  # fmt: skip
    assert view.rows[1].restarts == "2"
    assert (shown[0]["READY"], shown[0]["TERM"]) == ("no", "-")
    assert any("orders-1 leads, but the operator has not reported it" in one for one in view.lines)
    assert "no" in view.lines


def test_a_bundle_is_one_archive(tmp_path: Path) -> None:
    _pack(tmp_path / "b.tar.gz", "orders", {"logs/a.log": "text", "events.json": "[]"})
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        names = ["orders-bundle/events.json", "orders-bundle/logs/a.log"]
        assert archive.getnames() == names
    with pytest.raises(Failure, match="cannot write"):
        _pack(tmp_path / "no" / "b.tar.gz", "orders", {})


# --- progress of audits ---------------------------------------------------------------------------


class Runs:
    """API server that returns the next status of a run on each request."""

    namespace = "ns"

    def __init__(self, *statuses: dict[str, Any] | None) -> None:
        self.api = self
        self.statuses = list(statuses)

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        status = self.statuses.pop(0)
        found = {"kind": kind, "metadata": {"name": name, "namespace": namespace}}
        return None if status is None else {**found, "status": status}


def ordered_run() -> dict[str, Any]:
    run = _document(document("orders"), "QsyncAudit", {})
    assert run["spec"] == {"cluster": "orders"}
    run["metadata"]["name"] = run["metadata"]["generateName"] + "x"
    return run


@pytest.mark.asyncio
async def test_a_run_is_followed_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qsync_cli.runs.POLL_S", 0)
    violation = {"proof": "1", "message": "row 7 is missing", "location": "n1/7.xlog at 40"}
    ended = {
        "phase": "Succeeded", "verdict": "Violated", "message": "1 violations", "report": "s3://a/b",
        "durationMilliseconds": 31_000, "violations": [violation],
    }  # fmt: skip
    running = {"phase": "Running", "step": "reading", "stepsDone": 1, "stepsTotal": 4}
    counting = {**running, "rowsDone": 1000, "rowsTotal": 2000}
    api: Any = Runs({}, running, counting, ended)
    steps: list[tuple[float, str]] = []

    def advance(done: float, said: str) -> None:
        steps.append((done, said))

    run = ordered_run()
    assert run_lines(run) == [
        "orders-audit-x was created; `kubectl get qsyncaudit orders-audit-x` shows its progress"
    ]
    assert run_lines(await _follow(api, run, advance)) == [
        "orders-audit-x: Violated · 1 violations · 31 s",
        "  row 7 is missing (n1/7.xlog at 40)",
        "report: s3://a/b",
    ]
    assert steps == [(0.25, "reading"), (0.375, "reading, 1,000 of 2,000 rows")]
    gone: Any = Runs({}, None)
    with pytest.raises(Failure, match="was deleted"):
        await _follow(gone, run, advance)
