"""Documents of audits, their Jobs and drivers, and a reconciler of them over the fake API."""

import asyncio
import json
from typing import Any

from qsync_operator.jobs.reconciler import JobReconciler
from qsync_operator.jobs.results import PROGRESS
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.dependents import run_of_cluster
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.resources.jobs import RUN_LABEL
from qsync_operator.settings import SparkSupply
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import cluster_of

KEY = ("ns", "orders")
IMAGE = "qsync-spark:test"
SUPPLY = SparkSupply(IMAGE, "qsync-spark")
ARCHIVE = {"url": "s3://bucket/orders", "credentialsSecret": "archive"}
STARTED, ENDED = "2026-01-01T03:00:00Z", "2026-01-01T03:00:30Z"


class RunStage:
    """The runs of one cluster. The watch immediately reports each document that `put` stores."""

    def __init__(self, **spec: object) -> None:
        self.api, self.cache = FakeApi(), Cache()
        self.cluster = cluster_of(**{"archive": ARCHIVE, **spec})
        reporter = KubernetesReporter(self.api, self.cluster)
        self.keeper = JobReconciler(self.api, self.cache, KEY, reporter)

    def put(self, document: dict[str, Any]) -> dict[str, Any]:
        for owner in document["metadata"].get("ownerReferences") or []:
            place = owner["kind"], "ns", owner["name"]
            if place in self.api.objects:
                owner.setdefault("uid", self.api.objects[place]["metadata"]["uid"])
        stored = self.api.put(document)
        kind = stored["kind"]
        seen = run_of_cluster(stored, kind) if kind.startswith("Qsync") else stored
        self.cache.note(kind, seen)
        return stored

    def reconcile(self, image: str = IMAGE) -> None:
        asyncio.run(self.keeper.reconcile(self.cluster, image))

    def status(self, name: str = "by-hand") -> dict[str, Any]:
        return dict(self.api.named("QsyncAudit", name).get("status") or {})


def audit(name: str = "by-hand", **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncAudit",
        "metadata": {"name": name, "namespace": "ns", "generation": 1},
        "spec": {"cluster": "orders", "ttl": "40000d", **spec},
    }


def job(name: str, owner: str = "CronJob", **status: object) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": {"qsync.dev/cluster": "orders", RUN_LABEL: "audit"},
            "ownerReferences": [
                {"kind": owner, "name": "orders-audit" if owner == "CronJob" else name}
            ],
        },
        "status": status,
    }


def driver(
    run: str, phase: str = "Running", message: str = "", at: str = STARTED
) -> dict[str, Any]:
    state = {"terminated": {"message": message, "exitCode": 0}} if message else {"running": {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{run}-{at[-4:-1]}",
            "namespace": "ns",
            "creationTimestamp": at,
            "labels": {"qsync.dev/cluster": "orders", "batch.kubernetes.io/job-name": run},
            "annotations": {PROGRESS: json.dumps(FAR)},
        },
        "status": {"phase": phase, "containerStatuses": [{"name": "driver", "state": state}]},
    }


def ended(type_: str, **more: object) -> dict[str, Any]:
    condition = {"type": type_, "status": "True", "lastTransitionTime": ENDED, **more}
    return {"startTime": STARTED, "conditions": [condition]}


def said(**result: object) -> str:
    return json.dumps(result)


FAR = {"step": "replaying", "done": 3, "total": 6, "rows": 500, "rows_total": 2000}
