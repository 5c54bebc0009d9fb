"""`qsync local journals`, and ports of brokers at which something else answers."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_cli.brokers import BrokerAccess
from qsync_cli.failure import Failure
from qsync_cli.local import journals
from qsync_cli.local.apply import _with_journals
from qsync_operator.models.journals import QsyncJournal


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
    existing = [declared("one", "orders/eu")]
    with pytest.raises(Failure, match="would share a folder"):
        _with_journals(existing, [declared("two", "orders/eu/late")])
    changed = _with_journals(existing, [declared("one", "orders/eu/late")])
    assert [one.spec.journal for one in changed] == ["orders/eu/late"]
