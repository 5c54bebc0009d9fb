"""The status of a local cluster that its supervisor serves."""

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from qsync_local.store import ClusterFiles, PageAddress
from qsync_local.views import document_of, served_view
from qsync_operator.members.links import STATUS_TIMEOUT_S
from qsync_operator.views.statusview import ClusterHealth, View

SLOWNESS_S = 0.3
VIEW = View({"kind": "QsyncCluster"}, ["orders: Degraded"], [], ClusterHealth(0))


def answer_late(listener: socket.socket) -> None:
    """Answer one request as a supervisor does if a member is silent."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        time.sleep(STATUS_TIMEOUT_S + SLOWNESS_S)  # a supervisor whose member does not answer
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(document_of(VIEW)).encode())


def test_a_command_waits_for_a_supervisor_that_waits_for_a_silent_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterFiles, "is_supervised", lambda _: True)
    store = ClusterFiles(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store.save_page(PageAddress(listener.getsockname()[1], "token"))
        thread = threading.Thread(target=answer_late, args=[listener])
        thread.start()
        assert served_view(store) == VIEW
        thread.join()
