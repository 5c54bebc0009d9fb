"""The preStop hook of a member's pod: hands leadership over, and serves until clients have moved.

    python -m qsync_operator.pod_leave [--after PORT]

Services learn of a new leader or a leaving pod about a second later: the proxy of each machine
gathers changes before it rewrites its rules. Therefore the hook hands leadership over at once, and
the node forwards writes until no client uses it any more. A broker of journals in the same pod uses
the node to hand its journals over. The hook therefore waits until its PORT is closed. If the hook
fails, the stop signal follows, and with it the node's own handover.
"""

import argparse
import socket
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from qsync_node.adminport import own_admin_port

NODE_FILE = Path("/run/qsync/node.yaml")
LINGER_S = 2.5
DEMOTE_TIMEOUT_S = 6.0
READY_TIMEOUT_S = 1.0
BROKER_S = 55.0
"""Longest time for the broker, within the pod's grace period."""
POLL_S = 0.1


def leave(document: dict[str, Any], linger_s: float = LINGER_S) -> None:
    """Hand leadership over, then wait until `linger_s` seconds have passed since the call.

    Args:
        document: the node's configuration file.
        linger_s: time in which clients move to other members.

    Raises:
        OSError: a certificate cannot be read.
    """
    node = own_admin_port(document)
    started_s = time.monotonic()
    try:
        if node.get("/ready", READY_TIMEOUT_S)[0] != HTTPStatus.OK:
            return  # the node is not in service: no order is sent
    except OSError:
        return
    try:
        status, text = node.post("/verb/demote", b"{}", DEMOTE_TIMEOUT_S)
        failure = "" if status == HTTPStatus.OK else text
    except (OSError, ValueError) as error:
        failure = str(error)
    if failure:
        sys.stderr.write(f"qsync-pod: cannot hand over leadership: {failure}\n")
    # Clients that learned this address a moment ago still connect to it.
    time.sleep(max(0.0, started_s + linger_s - time.monotonic()))


def await_end_of(port: int, patience_s: float = BROKER_S) -> bool:
    """Return whether nothing listens at a port of this pod, after waiting for that."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port), READY_TIMEOUT_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass  # it is busy
        time.sleep(POLL_S)  # a closing port has no event
    return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_operator.pod_leave", description=__doc__)
    parser.add_argument("--after", type=int, metavar="PORT", help="port of the pod's broker")
    parsed = parser.parse_args(arguments)
    try:
        leave(yaml.safe_load(NODE_FILE.read_text()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"qsync-pod: {error}\n")
    if parsed.after is not None and not await_end_of(parsed.after):
        sys.stderr.write(f"qsync-pod: the broker still serves after {BROKER_S:g} s\n")
    return 0
