"""The status of a cluster as its supervisor serves it to commands, over HTTP.

This module needs neither the models of manifests nor an HTTP client: their import would take longer
than the rest of a command. The request is one of HTTP/1.0, whose answer ends with the connection.
"""

import json
import socket
import time
from dataclasses import asdict
from typing import Any

from qsync_local.store import ClusterFiles, PageAddress
from qsync_node import __version__
from qsync_operator.views.statusview import ClusterHealth, StatusRow, View

VIEW_PATH = "/api/status"
ANSWER_S = 2.0
"""Patience with a supervisor, which waits `STATUS_TIMEOUT_S` for members that do not answer. Then
the command looks at the members itself."""
ANSWER_BYTES_MAX = 16 << 20


def document_of(view: View) -> dict[str, Any]:
    """Return a view as JSON, with the version that it is for."""
    return {
        "version": __version__,
        "document": view.document,
        "lines": view.lines,
        "rows": [asdict(row) for row in view.rows],
        "health": int(view.health),
    }


def served_view(store: ClusterFiles) -> View | None:
    """Return the current view of a cluster, or None if no supervisor of this version answers."""
    page = store.load_page()
    if page is None or not store.is_supervised():
        return None
    try:
        return _view_of(json.loads(_get(page)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _view_of(said: dict[str, Any]) -> View | None:
    if said["version"] != __version__:
        return None
    rows = [StatusRow(**row) for row in said["rows"]]
    return View(said["document"], said["lines"], rows, ClusterHealth(said["health"]))


def _get(page: PageAddress) -> bytes:
    """Return the body of the answer.

    Raises:
        OSError: there is no answer.
        ValueError: the answer is not a success, or too long.
    """
    request = (
        f"GET {VIEW_PATH} HTTP/1.0\r\nHost: 127.0.0.1:{page.port}\r\n"
        f"Cookie: qsync-{page.port}={page.token}\r\n\r\n"
    )
    answer, deadline_s = bytearray(), time.monotonic() + ANSWER_S
    with socket.create_connection(("127.0.0.1", page.port), timeout=ANSWER_S) as connection:
        connection.sendall(request.encode())
        while piece := connection.recv(65536):
            answer += piece
            if len(answer) > ANSWER_BYTES_MAX or time.monotonic() > deadline_s:
                raise ValueError("the answer is too long, or takes too long")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise ValueError("the request failed")
    return body
