"""What a member's pod does before it is told to stop (preStop): hand over, and serve a while yet.

Services learn of a new leader, and of a pod that goes, a second or so later: each machine's proxy
gathers changes before it rewrites its rules. So leadership is given away at once, and the node goes
on passing writes on until nobody is sent to it any more. Whatever fails here, the signal follows,
and with it the node's own handover.
"""

import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

NODE_FILE = Path("/run/qsync/node.yaml")
LINGER_S = 2.5
DEMOTE_TIMEOUT_S = 6.0
READY_TIMEOUT_S = 1.0


def _ask(address: str, path: str, secret: str, timeout_s: float, body: bytes | None) -> None:
    """Raises OSError, of which every refusal is a kind."""
    request = urllib.request.Request(
        f"http://{address}{path}",
        data=body,
        headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
    )
    # No proxy of the environment stands between a pod and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout_s):
        return


def leave(document: dict[str, Any], linger_s: float = LINGER_S) -> None:
    port = str(document["admin_listen"]).rpartition(":")[2]
    address, secret = f"127.0.0.1:{port}", str(document["secret"])
    started_s = time.monotonic()
    try:
        _ask(address, "/ready", secret, READY_TIMEOUT_S, None)
    except OSError:
        return  # nobody was sent here
    try:
        _ask(address, "/verb/demote", secret, DEMOTE_TIMEOUT_S, b"{}")
    except OSError as error:
        sys.stderr.write(f"qsync-pod: leadership was not handed over: {error}\n")
    time.sleep(max(0.0, started_s + linger_s - time.monotonic()))


def main() -> int:
    try:
        leave(yaml.safe_load(NODE_FILE.read_text()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"qsync-pod: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
