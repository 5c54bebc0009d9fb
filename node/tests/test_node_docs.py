"""User documentation agrees with the code."""

import os
import re
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from qsync_node.core import streams
from qsync_node.core.engine.operations import OPERATIONS_MAX
from qsync_node.core.engine.reads import ANSWER_BYTES_MAX
from qsync_node.core.engine.requests import BODY_KEYS_MAX
from qsync_node.core.engine.rows import PARTS_MAX
from qsync_node.core.engine.tuples import NESTING_MAX, TUPLE_BYTES_MAX
from qsync_node.core.keys import CLIENT_BYTES_MAX
from qsync_node.core.membership import REPLICAS_MAX
from qsync_node.core.settings import SECOND, Settings
from qsync_node.core.system import KEY_WINDOW_ROWS
from qsync_node.errors import ErrorCode
from qsync_node.format.proofs import admin_password
from qsync_node.server import admin, admission, orders, session
from qsync_node.server.config import NodeConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_every_error_code_has_its_sentence(code: ErrorCode) -> None:
    rows = (ROOT / "docs" / "errors.md").read_text().splitlines()
    found = [row for row in rows if row.startswith(f"| {int(code)} | {code.name} |")]
    assert len(found) == 1
    _, _, _, meaning, outcome, remedy, _ = (cell.strip() for cell in found[0].split("|"))
    assert meaning
    assert remedy
    assert outcome in ("refused", "unknown", "rolled back")


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_files_of_the_reading_order_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = re.findall(r"\| `((?:server|core|log)/[a-z_/]+\.py)` \|", text)
    assert len(names) > 8
    for name in names:
        assert (ROOT / "node" / "qsync_node" / name).exists(), name


def size(value: int) -> str:
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"


SETTINGS = Settings()
CONFIG = {name: field.default for name, field in NodeConfig.model_fields.items()}
LIMITS = {
    "connections": f"{CONFIG['max_connections']:,}",
    "connections before log-in": str(admission.UNAUTHENTICATED_MAX),
    "TLS handshakes under way": str(admission.HANDSHAKES_MAX),
    "connections of `admin` beyond that": str(admission.ADMIN_RESERVE),
    "time until log-in": f"{session.LOGIN_S:.0f} s",
    "packets before log-in, where `guest` is off": str(session.UNAUTHENTICATED_PACKETS_MAX),
    "failed log-ins on a connection": str(session.LOGIN_FAILURES_MAX),
    "requests in flight on a connection, bytes": size(session.REQUEST_BYTES_MAX),
    "requests in flight on all connections, bytes": size(admission.REQUESTS_TOTAL_BYTES_MAX),
    "answers that all clients do not read": size(admission.UNREAD_TOTAL_BYTES_MAX),
    "tuples in one answer": size(ANSWER_BYTES_MAX),
    "a request": size(CONFIG["max_request"]),
    "a request before log-in": size(session.UNAUTHENTICATED_BYTES_MAX),
    "requests in flight on a connection": f"{session.IN_FLIGHT_MAX:,}",
    "answers that a client does not read": size(session.UNREAD_BYTES_MAX),
    "watched keys of a connection": f"{session.WATCHED_KEYS_MAX:,}",
    "a tuple": size(TUPLE_BYTES_MAX),
    "operations of one update": f"{OPERATIONS_MAX:,}",
    "keys in the body of a request": f"{BODY_KEYS_MAX:,}",
    "parts of an index": str(PARTS_MAX),
    "open transactions of a leader": f"{streams.STREAMS_MAX:,}",
    "open transactions of a connection": f"{streams.SESSION_STREAMS_MAX:,}",
    "open transactions of all unauthenticated clients": f"{streams.STRANGERS_STREAMS_MAX:,}",
    "size of these": size(streams.STRANGERS_BYTES_MAX),
    "levels of arrays and maps in a request or a tuple": str(NESTING_MAX),
    "length of a watched key": str(session.WATCHED_KEY_MAX),
    "rows of a transaction": size(SETTINGS.transaction_bytes_max),
    "size of all open transactions": size(SETTINGS.transactions_bytes_max),
    "age of an open transaction": f"{SETTINGS.transaction_timeout_ns // SECOND} s",
    "unconfirmed transactions, bytes": size(SETTINGS.limbo_bytes_max),
    "unconfirmed transactions": f"{SETTINGS.limbo_entries_max:,}",
    "wait of the oldest unconfirmed transaction": (f"{SETTINGS.synchro_timeout_ns / 2 / SECOND} s"),
    "wait of a request for its answer": f"{SETTINGS.request_timeout_ns // SECOND} s",
    "memory of the tuples": "none" if not SETTINGS.memory_bytes_max else "",
    "free space of a disk": size(CONFIG["disk_reserve"]),
    "registered members": str(REPLICAS_MAX),
    "rows in which an idempotency key is remembered": f"{KEY_WINDOW_ROWS:,}",
    "length of an idempotency key's client": str(CLIENT_BYTES_MAX),
    "body of an HTTP request": size(admin.BODY_BYTES_MAX),
    "connections to the admin port": (
        f"{admin.SERVED_MAX}, each idle for {admin.IDLE_S:.0f} s at most"
    ),
    "age of the challenge that an order signs": f"{orders.CHALLENGE_S:.0f} s",
    "orders within that time": f"{orders.TAKEN_MAX:,}",
    "connections to the admin port that have not sent a byte, where `tls` is set": (
        f"{admin.UNDECIDED_MAX}, for {admin.FIRST_BYTE_S:.0f} s each"
    ),
}


def test_the_limits_are_those_of_the_code() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "limits.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    assert {name: limit for name, limit, *_ in rows[1:] if name != "---"} == LIMITS


def test_derived_admin_password_is_the_nodes_and_no_argument_holds_the_secret(
    tmp_path: Path,
) -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    block = text.split("derive the password:")[1].split("```console\n")[1].split("```")[0]
    script = block.replace("$ kubectl", "kubectl").replace("\n$ ", "\n")
    secret = "a secret of the cluster"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\necho {b64encode(secret.encode()).decode()}\n")
    kubectl.chmod(0o700)
    done = subprocess.run(
        ["bash", "-xc", script],  # -x prints each command with its arguments on standard error
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == admin_password(secret)
    assert secret not in done.stderr
