"""Spark audits: scheduled, manual, and of a damaged archive."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from datetime import UTC, datetime
from functools import partial
from typing import Any

from e2e import archive_server
from e2e.clients import rows_of
from e2e.kube import run
from e2e.scenario import QSYNC, Scene, Wrong, scenario
from e2e.timeouts import CONVERGE_S, LATE_S, READY_S, ROLL_S, SETTLE_S, SPARK_S

RESTORED = "orders-again"
FOLDED = "orders-folded"

SMALL = {
    "driver": {"memory": "512Mi"},
    "executor": {"memory": "512Mi"},
    "instances": 2,
    # Two cores are all that a small machine has, for all processes.
    "conf": {"spark.kubernetes.executor.request.cores": "100m"},
    "ui": True,
}


def _audits(scene: Scene) -> dict[str, dict[str, Any]]:
    found = json.loads(scene.kubectl("get", "qsyncaudits", "-o", "json"))["items"]
    return {one["metadata"]["name"]: one.get("status") or {} for one in found}


def _ended(scene: Scene) -> list[dict[str, Any]]:
    return [s for s in _audits(scene).values() if s.get("phase") in ("Succeeded", "Failed")]


def _create(scene: Scene, name: str) -> None:
    """Create a manual audit."""
    _put(scene, _run("QsyncAudit", scene.cluster), name)


def _ended_as(scene: Scene, name: str) -> dict[str, Any]:
    scene.wait(f"audit {name}", lambda: bool(_audits(scene)[name].get("finishedAt")), SPARK_S)
    return _audits(scene)[name]


def _compact(scene: Scene) -> str:
    """Wait for a scheduled compaction, then remove the schedule and its object."""
    scene.patch(compaction={"schedule": "* * * * *", "spark": SMALL})

    def runs() -> list[dict[str, Any]]:
        found = json.loads(scene.kubectl("get", "qsynccompactions", "-o", "json"))["items"]
        return [one.get("status") or {} for one in found]

    scene.wait("a compaction of the schedule", lambda: bool(runs()), SPARK_S)
    scene.patch(compaction=None, audit=None)
    scene.wait("its end", lambda: any(s.get("finishedAt") for s in runs()), SPARK_S)
    status = next(s for s in runs() if s.get("finishedAt"))
    if status["phase"] != "Succeeded" or not status["snapshot"]:
        raise Wrong(f"the compaction did not succeed: {json.dumps(status)}")
    assert scene.status()["lastCompaction"]["verdict"] == "Succeeded"
    left = json.loads(scene.kubectl("get", "cronjobs", "-o", "json"))["items"]
    assert not left, "the CronJob still exists after the schedule was removed"
    return f"compacted into {status['snapshot'].rpartition('/')[2]}"


def _expect(status: dict[str, Any], verdict: str) -> None:
    if status.get("verdict") != verdict:
        raise Wrong(f"expected verdict {verdict}: {json.dumps(status)}")


@scenario(not_local="archive")
def audits(scene: Scene) -> str:
    """A scheduled audit passes with tasks in two executors, and locates damage in an archive."""
    archive_server.build()
    archive = archive_server.start(scene)
    scene.start_with_load(archive=archive, audit={"schedule": "* * * * *", "spark": SMALL})
    scene.wait("an audit of the schedule", lambda: bool(_audits(scene)), SPARK_S)
    scene.patch(audit={"schedule": "0 0 1 1 *", "spark": SMALL})  # one at a time is enough
    stages = _stages_shown(scene, next(iter(_audits(scene))))
    scene.wait("its end", lambda: bool(_ended(scene)), SPARK_S)
    status = _ended(scene)[0]
    _expect(status, "Passed")
    if len(status["taskHosts"]) < 2:
        raise Wrong(f"tasks ran on {status['taskHosts']} instead of two executors")
    last = scene.status()["lastAudit"]
    assert last["verdict"] == "Passed", last
    assert scene.writer is not None
    point_s = time.time()
    time.sleep(LATE_S)  # rows follow the point
    scene.writer.stop()
    time.sleep(SETTLE_S)  # several intervals of the archive
    restored = _restore(scene, archive, point_s)
    compacted = _compact(scene)
    _create(scene, "before")
    joined = _join(scene, archive)
    _expect(_ended_as(scene, "before"), "Passed")
    # Members repair their own archive, so it is damaged while they hibernate.
    scene.patch(hibernate=True)
    scene.wait("no process", lambda: not scene.processes(), ROLL_S)
    damaged, row = archive_server.damage(scene)
    try:
        run(QSYNC, "audit", "-n", scene.name, timeout_s=SPARK_S)
        raise Wrong("kubectl qsync audit passed a damaged archive")
    except RuntimeError as error:
        said = str(error)
    status = max(_audits(scene).values(), key=lambda status: str(status.get("finishedAt")))
    _expect(status, "Violated")
    if damaged not in said and "Violated" not in said:
        raise Wrong(f"kubectl qsync audit printed {said!r}")
    places = [one["location"] for one in status["violations"] if row in one["message"]]
    if len(places) != 1 or damaged not in places[0] or places[0].endswith(":0"):
        raise Wrong(
            f"{row} was damaged in {damaged}, but the audit reported {status['violations']}"
        )
    events = scene.kubectl("get", "events", "--field-selector=reason=AuditViolated")
    assert "AuditViolated" in events
    metric = (
        f'qsync_operator_audit_violated{{cluster="{scene.cluster}",namespace="{scene.name}"}} 1.0'
    )
    assert metric in _metrics(), metric
    return (
        f"{status['counts']['memberRows']} rows audited, {stages} stages seen on the "
        f"pages of Spark; {restored}; {compacted}; {joined}; the audit found the damage "
        f"in {places[0]}"
    )


@scenario(modest=True, not_local="archive")
def refused_runs(scene: Scene) -> str:
    """Runs that cannot start end with a reason, and are deleted after their TTL."""
    archive_server.build()
    scene.start(archive=archive_server.start(scene), replicas=1)
    _put(scene, {"apiVersion": "batch/v1", "kind": "Job", "spec": SUSPENDED}, "taken")
    kinds = ("QsyncAudit", "QsyncCompaction")
    for kind in kinds:
        _put(scene, _run(kind, scene.cluster, ttl="20s"), "taken")
    _put(scene, _run("QsyncAudit", "no-such-cluster"), "lost")
    for kind, name, reason in (
        *((kind, "taken", "NameTaken") for kind in kinds),
        ("QsyncAudit", "lost", "NoCluster"),
    ):
        scene.wait(f"{kind} {name}", partial(_has_reasons, scene, kind, name), CONVERGE_S)
        if _reasons(scene, kind, name) != [reason]:
            raise Wrong(f"{kind} {name} has the reasons {_reasons(scene, kind, name)}")
    for kind in kinds:
        scene.wait("deletion", partial(_is_deleted, scene, kind, "taken"), READY_S)
    assert scene.get("job", "taken"), "the other Job stays"
    return "NameTaken and NoCluster were reported, and both kinds were deleted"


SUSPENDED = {
    "suspend": True,
    "template": {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "other", "image": "other:1"}]}
    },
}


def _run(kind: str, cluster: str, **spec: str) -> dict[str, Any]:
    return {"apiVersion": "qsync.dev/v1alpha1", "kind": kind, "spec": {"cluster": cluster, **spec}}


def _put(scene: Scene, document: dict[str, Any], name: str) -> None:
    scene.kubectl("create", "-f", "-", stdin=json.dumps({**document, "metadata": {"name": name}}))


def _reasons(scene: Scene, kind: str, name: str) -> list[str]:
    """Return the reasons of the condition `Failed` of a run."""
    conditions = scene.get(kind.lower(), name).get("status", {}).get("conditions", [])
    return [one["reason"] for one in conditions if one["type"] == "Failed"]


def _has_reasons(scene: Scene, kind: str, name: str) -> bool:
    return bool(_reasons(scene, kind, name))


def _is_deleted(scene: Scene, kind: str, name: str) -> bool:
    return not scene.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").strip()


def _stages_shown(scene: Scene, name: str) -> int:
    """Return the stages on Spark's pages during a run (`kubectl port-forward job/RUN 4040`)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["kubectl", "-n", scene.name, "port-forward", f"job/{name}", f"{port}:4040"]
    address = f"http://127.0.0.1:{port}/api/v1/applications"
    seen: list[int] = []

    def looks() -> bool:
        if _ended(scene):
            raise Wrong("the run ended before the pages of Spark answered")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
            try:
                for _ in range(10):
                    time.sleep(0.5)  # a forward takes a moment, and ends where there is no pod yet
                    with contextlib.suppress(OSError, ValueError, IndexError):
                        told = json.load(urllib.request.urlopen(address, timeout=5))
                        page = f"{address}/{told[0]['id']}/stages"
                        seen.append(len(json.load(urllib.request.urlopen(page, timeout=5))))
                        if seen[-1]:
                            return True
            finally:
                one.kill()
        return False

    scene.wait("Spark's pages", looks, SPARK_S)
    return seen[-1]


def _metrics() -> str:
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8082').read().decode())"
    return run("kubectl", "-n", "qsync-system", "exec", "deploy/qsync-operator", "--",
               "python", "-c", script)  # fmt: skip


def _begin(
    scene: Scene, name: str, replicas: int, archive: dict[str, Any], **point: object
) -> list[dict[int, str]]:
    """Start a cluster from a point of the archive and return the content of each member."""
    begin = {key: archive[key] for key in ("url", "credentialsSecret")}
    document = json.loads(scene.manifest(replicas=replicas))
    document["metadata"]["name"] = name
    document["spec"]["bootstrap"] = {"fromArchive": {**begin, **point}}
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    scene.kubectl("wait", f"qc/{name}", "--for=condition=Ready", f"--timeout={READY_S:g}s",
                  timeout_s=READY_S + 5)  # fmt: skip
    return [rows_of(scene, name, f"{name}-{number}") for number in range(replicas)]


def _restore(scene: Scene, archive: dict[str, Any], point_s: float) -> str:
    """Restore the archive at a point in time and compare with the client's ledger."""
    assert scene.writer is not None
    moment = datetime.fromtimestamp(point_s, UTC).isoformat()
    found = _begin(scene, RESTORED, 1, archive, toTime=moment)[0]
    committed = [o for o in scene.writer.ledger() if o["outcome"] == "committed"]
    missing = [o["id"] for o in committed if o["ended"] <= point_s and o["id"] not in found]
    early = [o["id"] for o in committed if o["started"] > point_s and o["id"] in found]
    if missing or early:
        raise Wrong(
            f"restored to {moment}: rows {missing[:20]} are missing, rows {early[:20]} are too new"
        )
    scene.kubectl("delete", f"qc/{RESTORED}")
    return f"{len(found)} of {len(committed)} rows restored to a point in time"


def _join(scene: Scene, archive: dict[str, Any]) -> str:
    """Start a cluster from the compacted snapshot, from which its second member joins."""
    assert scene.writer is not None
    members = _begin(scene, FOLDED, 2, archive)
    said = scene.kubectl("logs", f"{FOLDED}-0", "-c", "node")
    if "by compactions/" not in said:
        raise Wrong(f"{FOLDED}-0 does not begin with a compaction: {said[:2000]}")
    committed = {o["id"] for o in scene.writer.ledger() if o["outcome"] == "committed"}
    for number, found in enumerate(members):
        if committed - found.keys():
            raise Wrong(f"{FOLDED}-{number} lacks {sorted(committed - found.keys())[:20]}")
    scene.kubectl("delete", f"qc/{FOLDED}")
    return f"{len(members)} members joined from the compaction"
