"""Queries the node of this pod from within; `kubectl qsync` runs this module by `pods/exec`.

    python -m qsync_operator.pod_ask ask METHOD PATH [JSON]
    python -m qsync_operator.pod_ask rollbacks
    python -m qsync_operator.pod_ask broker PORT tls|plain

The cluster's secret stays in the pod: permission to exec into it suffices, and no user needs to
read Secrets. The answer is one JSON object on standard output: `{"status": HTTP's, "answer": ...}`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from qsync_agent.rollbacks import rollback_rows
from qsync_node.adminport import AdminPort, own_admin_port, trusting

NODE_FILE = Path("/run/qsync/node.yaml")
TIMEOUT_S = 15.0


def ask(document: dict[str, Any], method: str, path: str, body: str) -> dict[str, Any]:
    """Send a request to the admin port of this pod's node.

    Args:
        document: the node's configuration file.
        method: GET or POST.
        path: path of the request.
        body: JSON body of a POST.

    Raises:
        OSError: the node does not answer.
    """
    node = own_admin_port(document)
    if method == "POST":
        status, text = node.post(path, body.encode(), TIMEOUT_S)
    else:
        status, text = node.get(path, TIMEOUT_S)
    try:
        return {"status": status, "answer": json.loads(text)}
    except ValueError:
        return {"status": status, "answer": text}


def broker_metrics(document: dict[str, Any], port: int, has_tls: bool) -> dict[str, Any]:
    """Return the metrics of the broker in this pod.

    Args:
        document: the node's configuration file.
        port: port of the broker's clients.
        has_tls: whether the broker uses TLS, with the certificates of the node.

    Raises:
        OSError: the broker does not answer.
    """
    context = trusting(Path(document["tls"]["ca"])) if has_tls else None
    broker = AdminPort(f"127.0.0.1:{port}", context=context)
    status, text = broker.get("/debug/metrics", TIMEOUT_S)
    return {"status": status, "answer": text}


def main(arguments: list[str] | None = None, node_file: Path = NODE_FILE) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        document = yaml.safe_load(node_file.read_text())
        match given:
            case ["ask", method, path, *body]:
                said = ask(document, method, path, body[0] if body else "{}")
            case ["rollbacks"]:
                said = {"status": 200, "answer": rollback_rows(Path(document["directory"]))}
            case ["broker", port, security]:
                said = broker_metrics(document, int(port), security == "tls")
            case _:
                sys.stderr.write(
                    "usage: pod_ask ask METHOD PATH [JSON], pod_ask rollbacks, or pod_ask broker"
                    " PORT tls|plain\n"
                )
                return 2
    except (OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"the node of this pod does not answer: {error}\n")
        return 1
    sys.stdout.write(json.dumps(said) + "\n")
    return 0
