"""The preStop hook of a member's pod: hands leadership over, and serves until clients have moved.

Services learn of a new leader or a leaving pod about a second later: the proxy of each machine
gathers changes before it rewrites its rules. Therefore the hook hands leadership over at once, and
the node forwards writes until no client uses it any more. If the hook fails, the stop signal
follows, and with it the node's own handover.
"""

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
    time.sleep(max(0.0, started_s + linger_s - time.monotonic()))


def main() -> int:
    try:
        leave(yaml.safe_load(NODE_FILE.read_text()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"qsync-pod: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
