"""Audits, compactions and journals: custom objects that name their cluster in a field."""

from qsync_operator.api.jobs import TERMINAL
from qsync_operator.api.status import LastRun
from qsync_operator.kubernetes.api import name_of
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.resources.jobs import OBJECT_KINDS, RunKind
from qsync_operator.resources.labels import CLUSTER_LABEL, KubernetesObject


def run_of_cluster(document: KubernetesObject, kind: str) -> KubernetesObject:
    """Return the object with its cluster's label, which may be missing if a user created it."""
    metadata = document["metadata"]
    cluster = str((document.get("spec") or {}).get("cluster", ""))
    labels = {**(metadata.get("labels") or {}), CLUSTER_LABEL: cluster}
    return {**document, "kind": kind, "metadata": {**metadata, "labels": labels}}


def last_run(cache: Cache, key: ObjectKey, kind: RunKind) -> LastRun | None:
    """Return the audit or compaction that ended last, if any."""
    ended = [
        run
        for run in cache.all(key, OBJECT_KINDS[kind])
        if run.get("status", {}).get("phase") in TERMINAL
    ]
    if not ended:
        return None
    run = max(ended, key=lambda r: str(r["status"].get("finishedAt", "")))
    said = run["status"]
    violations = (said.get("counts") or {}).get("violations", len(said.get("violations", [])))
    return LastRun(
        name=name_of(run),
        verdict=said.get("verdict") or said["phase"],
        started_at=said.get("startedAt", ""),
        finished_at=said.get("finishedAt", ""),
        violations=int(violations),
        report=said.get("report", ""),
    )
