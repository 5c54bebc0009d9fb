"""An S3 server in a namespace, and the Secret with which members and Spark access it."""

import json
from typing import Any

from e2e.kube import IMAGES, SPARK_IMAGE, Namespace, load_images, run
from e2e.timeouts import IMAGE_BUILD_S, READY_S
from qsync_testing.paths import ROOT

IMAGE = "qsync-e2e-archive:0.1.0"
BUCKET = "archive"
URL = f"s3://{BUCKET}/orders"
SECRET = "archive"
PORT = 5000


def build() -> None:
    """Load the images of the server and of Spark on every machine; only the first time is slow."""
    build_server()
    run(
        "docker", "build", "--target", "spark", "-t", SPARK_IMAGE, str(ROOT),
        timeout_s=IMAGE_BUILD_S,
    )  # fmt: skip
    load_images(SPARK_IMAGE)


def build_server() -> None:
    """Load the image of the server on every machine."""
    dockerfile = ROOT / "e2e" / "pods" / "archive.Dockerfile"
    run(
        "docker", "build", "-t", IMAGE, "-f", str(dockerfile), str(dockerfile.parent),
        timeout_s=IMAGE_BUILD_S,
    )  # fmt: skip
    load_images(IMAGE)


def start(namespace: Namespace) -> dict[str, Any]:
    """Start the server and return the `spec.archive` of a cluster that uses it."""
    for document in (_server(), _service(), _secret()):
        namespace.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    namespace.kubectl("wait", "pod/s3", "--for=condition=Ready", f"--timeout={READY_S:g}s",
                  timeout_s=READY_S + 5)  # fmt: skip
    ask(namespace, "PUT", f"/{BUCKET}")
    return {"url": URL, "interval": "1s", "credentialsSecret": SECRET}


def ask(namespace: Namespace, method: str, path: str) -> str:
    script = (
        "import sys, urllib.request as u\n"
        f"r = u.Request('http://127.0.0.1:{PORT}' + sys.argv[2], method=sys.argv[1])\n"
        "print(u.urlopen(r, timeout=10).read().decode())\n"
    )
    return namespace.kubectl("exec", "s3", "--", "python", "-c", script, method, path)


def damage(namespace: Namespace) -> tuple[str, str]:
    """One byte of one row of one member changes, under right checksums: the file's name, and what
    an audit calls the row."""
    script = (ROOT / "e2e" / "pods" / "damage.py").read_text()
    container = {
        "image": IMAGES["node"],
        "command": ["python", "-c", script, URL],
        "envFrom": [{"secretRef": {"name": SECRET}}],
    }
    namespace.kubectl("apply", "-f", "-", stdin=json.dumps(_pod("damage", container)))
    namespace.kubectl("wait", "pod/damage", "--for=jsonpath={.status.phase}=Succeeded",
                      f"--timeout={READY_S:g}s", timeout_s=READY_S + 5)  # fmt: skip
    name, replica_id, lsn = namespace.kubectl("logs", "damage").split()
    return name, f"row {lsn} of replica {replica_id} "


def _server() -> dict[str, Any]:
    container = {
        "image": IMAGE,
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return _pod("s3", container)


def _pod(name: str, container: dict[str, Any]) -> dict[str, Any]:
    """Return a pod that Pod Security `restricted` accepts."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": name,
                    "imagePullPolicy": "IfNotPresent",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s3"},
        "spec": {"selector": {"app": "s3"}, "ports": [{"port": PORT}]},
    }


def _secret() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "stringData": {
            "AWS_ACCESS_KEY_ID": "scenario",
            "AWS_SECRET_ACCESS_KEY": "scenario's secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://s3:{PORT}",
            "AWS_ALLOW_HTTP": "true",
        },
    }
