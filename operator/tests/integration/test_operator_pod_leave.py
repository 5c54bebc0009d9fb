"""preStop: leadership is transferred, and the node serves until no traffic arrives."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from qsync_agent import ask
from qsync_agent import leave as pod_leave
from qsync_node.format.proofs import CHALLENGE_PATH, sign_order


class FakeNode(http.server.BaseHTTPRequestHandler):
    """Admin port of a node that is ready if `is_ready` is set."""

    asked: list[tuple[str, str, str]]
    is_ready = True

    def do_GET(self) -> None:
        if self.path == CHALLENGE_PATH:
            self._answer(200, json.dumps({"challenge": "c", "instance": "i"}).encode())
        else:
            self._answer(200 if self.is_ready else 503)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(409)  # a follower has no leadership to transfer

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def node() -> Iterator[tuple[type[FakeNode], dict[str, str]]]:
    handler = type("Handler", (FakeNode,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler, {"admin_listen": f"0.0.0.0:{server.server_port}", "secret": "the-secret"}
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_hands_over_and_lingers(node: tuple[type[FakeNode], dict[str, str]]) -> None:
    handler, document = node
    started_s = time.monotonic()
    pod_leave.leave(document, linger_s=0.3)
    assert time.monotonic() - started_s >= 0.3
    assert handler.asked == [
        ("GET", "/ready", ""),
        ("GET", CHALLENGE_PATH, ""),
        ("POST", "/verb/demote", sign_order("the-secret", "c", "i", "POST", "/verb/demote", b"{}")),
    ]
    assert "the-secret" not in str(handler.asked)


def test_a_member_without_traffic_stops_immediately(
    node: tuple[type[FakeNode], dict[str, str]],
) -> None:
    handler, document = node
    handler.is_ready = False
    started_s = time.monotonic()
    pod_leave.leave(document, linger_s=30)
    assert time.monotonic() - started_s < 5
    assert [path for _, path, _ in handler.asked] == ["/ready"]


@pytest.mark.parametrize("code", [200, 409])
def test_node_that_ends_in_its_answer_is_one_that_does_not_answer(
    code: int,
    node: tuple[type[FakeNode], dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler, document = node

    def end(self: FakeNode) -> None:
        self.send_response(code)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"{")

    monkeypatch.setattr(handler, "do_POST", end)
    pod_leave.leave(document, linger_s=0)
    assert "cannot hand over leadership" in capsys.readouterr().err
    (tmp_path / "node.yaml").write_text(yaml.safe_dump(document))
    assert ask.main(["ask", "POST", "/verb/demote"], tmp_path / "node.yaml") == 1
    assert capsys.readouterr().err.startswith("the node of this pod does not answer: ")
