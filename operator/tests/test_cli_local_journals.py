"""`qsync local journals`, and ports of brokers at which something else answers."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_cli.brokers import BrokerAccess
from qsync_cli.local import journals


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
    monkeypatch.setattr("qsync_cli.brokers.local_access", lambda _: [BrokerAccess(echo, "", None)])
    assert journals._described(tmp_path) == []  # type: ignore[arg-type]  # no store is read
