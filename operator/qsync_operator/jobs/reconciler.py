"""Manages the audits and compactions of one cluster: each is a Job and a custom object for users.

A schedule creates the Job, and the operator creates the object with the same name. If a user
creates the object, the operator creates the Job. The driver returns its result in the termination
message, so Spark's pods need no access to the custom objects, and no logs are parsed.
"""

import logging
from datetime import UTC, datetime

from pydantic import ValidationError

from qsync_operator.api.base import cut_text, duration_ns
from qsync_operator.api.cluster import API_VERSION, QsyncCluster
from qsync_operator.api.jobs import (
    TERMINAL,
    AuditStatus,
    QsyncAudit,
    QsyncCompaction,
    RunSpec,
    RunStatus,
)
from qsync_operator.api.mistakes import sentence_of
from qsync_operator.api.reasons import RunReason
from qsync_operator.jobs.results import judge, last_word, refused
from qsync_operator.jobs.schedule import overdue_at, time_of
from qsync_operator.kubernetes.api import Api, ApiError, name_of
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.kubernetes.dependents import run_of_cluster
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.resources.jobs import (
    JOB_NAME,
    OBJECT_KINDS,
    RECORDED,
    RUN_KINDS,
    RUN_LABEL,
    RunKind,
    build_job,
    build_run,
)
from qsync_operator.resources.labels import KubernetesObject

log = logging.getLogger(__name__)

REFUSALS = (400, 403, 422)
MODELS: dict[RunKind, type[QsyncAudit] | type[QsyncCompaction]] = {
    "audit": QsyncAudit,
    "compaction": QsyncCompaction,
}


class JobReconciler:
    """The audits and compactions of one cluster. All state is in the objects."""

    def __init__(
        self, api: Api, cache: Cache, key: ObjectKey, reporter: KubernetesReporter
    ) -> None:
        self._api = api
        self._cache = cache
        self._key = key
        self._reporter = reporter

    async def reconcile(self, cluster: QsyncCluster, image: str) -> None:
        """Create missing Jobs and objects, publish changed statuses, and delete expired objects.

        Args:
            cluster: the manifest.
            image: image of drivers and executors; "" if Spark is not installed.

        Raises:
            ApiError: the API server cannot be reached.
        """
        for kind in RUN_KINDS:
            runs = self._cache.all(self._key, OBJECT_KINDS[kind])
            for run in runs:
                try:
                    await self._reconcile_run(cluster, kind, run, image)
                except ApiError as error:
                    if not error.status:
                        raise
                    # The error concerns this object only: the others continue.
                    log.warning("run %s is waiting: %s", name_of(run), error)
                    if error.status == 404:
                        self._cache.note(OBJECT_KINDS[kind], run, is_gone=True)
            await self._record_scheduled(cluster, kind, {name_of(run) for run in runs})

    async def _reconcile_run(
        self, cluster: QsyncCluster, kind: RunKind, run: KubernetesObject, image: str
    ) -> None:
        generation = int(run["metadata"].get("generation", 0))
        try:
            model = MODELS[kind].model_validate(run)
        except ValidationError as error:
            status = refused(
                RunStatus(),
                generation,
                RunReason.INVALID_SPEC,
                sentence_of(error, MODELS[kind]),
                now(),
            )
            if run.get("status", {}).get("phase") != "Failed":
                await self._publish(kind, run, status)
            return
        before: RunStatus = model.status
        if before.phase in TERMINAL:
            if not _is_leaving(run) and is_expired(run, model.spec, datetime.now(UTC)):
                await self._api.delete(
                    OBJECT_KINDS[kind], self._key[0], name_of(run), run["metadata"]["uid"]
                )
                self._cache.note(OBJECT_KINDS[kind], run, is_gone=True)
            return
        job = self._cache.get(self._key, "Job", name_of(run))
        if job is None:
            status = await self._begin(cluster, kind, run, model.spec, before, image)
        elif not _is_of_run(job, run):
            status = _taken(kind, before, generation, job)
        else:
            status = await self._judge(kind, before, generation, job)
        if status.stored() == before.stored() and "status" in run:
            return
        await self._publish(kind, run, status)
        if status.phase in TERMINAL:
            await self._report(kind, name_of(run), status)

    async def _begin(
        self,
        cluster: QsyncCluster,
        kind: RunKind,
        run: KubernetesObject,
        spec: RunSpec,
        before: RunStatus,
        image: str,
    ) -> RunStatus:
        generation = int(run["metadata"].get("generation", 0))
        if before.phase == "Running":
            if await self._api.get("Job", self._key[0], name_of(run)) is not None:
                return before  # the watch is late
            sentence = "its Job was deleted: create the run again"
            return refused(before, generation, RunReason.JOB_DELETED, sentence, now())
        if _is_leaving(run):
            return before  # its Job may have been deleted before it: a new one would run in vain
        sentence = why_not(cluster, image)
        if sentence:
            return refused(before, generation, RunReason.REFUSED, sentence, now())
        document = build_job(cluster, kind, run, spec, image)
        try:
            self._cache.note("Job", await self._api.create(document))
        except ApiError as error:
            if error.status in REFUSALS:  # a quota or a webhook, for example: retried
                sentence = f"cannot create Job {name_of(run)}: {error}"
                return before.model_copy(update={"message": cut_text(sentence)})
            if error.status != 409:
                raise
            # Either no watch has shown the operator's own Job yet, or another Job has the name.
            live = await self._api.get("Job", self._key[0], name_of(run))
            if live is not None and not _is_of_run(live, run):
                return _taken(kind, before, generation, live)
        return before

    async def _judge(
        self, kind: RunKind, before: RunStatus, generation: int, job: KubernetesObject
    ) -> RunStatus:
        """Return the status of a run whose Job exists.

        Raises:
            ApiError: the driver's pod cannot be read.
        """
        run = name_of(job)
        drivers = [
            pod
            for pod in self._cache.all(self._key, "Pod")
            if (pod["metadata"].get("labels") or {}).get(JOB_NAME) == run
        ]
        status = judge(kind, before, generation, job, _newest(drivers))
        if status.phase in TERMINAL and not last_word(_newest(drivers)):
            # The watch of pods may be later than that of Jobs.
            drivers = await self._api.find("Pod", self._key[0], f"{JOB_NAME}={run}")
            status = judge(kind, before, generation, job, _newest(drivers))
        return status

    async def _record_scheduled(
        self, cluster: QsyncCluster, kind: RunKind, known: set[str]
    ) -> None:
        for job in self._cache.all(self._key, "Job"):
            metadata = job["metadata"]
            owners = metadata.get("ownerReferences") or []
            if (
                (metadata.get("labels") or {}).get(RUN_LABEL) != kind
                or not any(owner["kind"] == "CronJob" for owner in owners)
                or "deletionTimestamp" in metadata
            ):
                continue
            is_recorded = RECORDED in (metadata.get("annotations") or {})
            if name_of(job) in known or is_recorded:
                continue  # recorded already; a user deleted its missing object
            try:
                await self._record(cluster, kind, job)
            except ApiError as error:
                if not error.status:
                    raise
                log.warning("scheduled Job %s is not recorded yet: %s", name_of(job), error)

    async def _record(self, cluster: QsyncCluster, kind: RunKind, job: KubernetesObject) -> None:
        """Create the object of a scheduled Job, then mark the Job.

        Raises:
            ApiError: a request failed.
        """
        try:
            run = await self._api.create(build_run(cluster, kind, job))
            self._cache.note(OBJECT_KINDS[kind], run)
        except ApiError as error:
            if error.status != 409:
                raise
        self._cache.note("Job", await self._api.apply(_recorded(cluster, job)))

    async def _publish(self, kind: RunKind, run: KubernetesObject, status: RunStatus) -> None:
        document = {
            "apiVersion": API_VERSION,
            "kind": OBJECT_KINDS[kind],
            "metadata": _place_of(run),
            "status": status.stored(),
        }
        found = await self._api.apply(document, "status")
        self._cache.note(OBJECT_KINDS[kind], run_of_cluster(found, OBJECT_KINDS[kind]))

    async def _report(self, kind: RunKind, name: str, status: RunStatus) -> None:
        what = kind.capitalize()
        verdict = status.verdict if isinstance(status, AuditStatus) else ""
        reason = f"{what}{verdict or status.phase}"
        await self._reporter.report(reason, name, status.message)


def _place_of(run: KubernetesObject) -> KubernetesObject:
    """Return the metadata for a status: a new run of the same name must not get it.

    The API server ignores the uid of a status that is applied, but not the version.
    """
    return {key: run["metadata"][key] for key in ("name", "namespace", "resourceVersion")}


def is_expired(run: KubernetesObject, spec: RunSpec, at: datetime) -> bool:
    """Return whether an object created by a user has ended and outlived its `ttl`.

    Scheduled ones are deleted with their Jobs, some of which the CronJob keeps.
    """
    owners = run["metadata"].get("ownerReferences") or []
    finished_at = time_of((run.get("status") or {}).get("finishedAt"))
    if finished_at is None or any(owner.get("kind") == "Job" for owner in owners):
        return False
    age = at - finished_at
    return age.total_seconds() * 1e9 > duration_ns(spec.ttl)


def _is_leaving(run: KubernetesObject) -> bool:
    return "deletionTimestamp" in run["metadata"]


def _newest(pods: list[KubernetesObject]) -> KubernetesObject | None:
    """Return the newest driver of a Job, because an earlier one may have been lost."""
    return max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)


def _is_of_run(job: KubernetesObject, run: KubernetesObject) -> bool:
    """Return whether one owns the other: a schedule creates the Job before its object."""
    return _owns(run, job) or _owns(job, run)


def _owns(owner: KubernetesObject, document: KubernetesObject) -> bool:
    owners = document["metadata"].get("ownerReferences") or []
    return any(one.get("uid") == owner["metadata"].get("uid") for one in owners)


def _taken(kind: RunKind, before: RunStatus, generation: int, job: KubernetesObject) -> RunStatus:
    """Return the status of a run that cannot have its Job, because another one has the name."""
    name = name_of(job)
    owners = job["metadata"].get("ownerReferences") or []
    if any((one.get("kind"), one.get("name")) == (OBJECT_KINDS[kind], name) for one in owners):
        # An object of the same name was deleted, and its Job and result follow.
        sentence = f"waiting for the deletion of Job {name} of an earlier run with this name"
        return before.model_copy(update={"phase": "Pending", "message": sentence})
    sentence = (
        f"cannot create Job {name}: another Job has this name; delete it, or create the run under "
        "another name"
    )
    return refused(before, generation, RunReason.NAME_TAKEN, sentence, now())


def audit_overdue_s(cache: Cache, key: ObjectKey, cluster: QsyncCluster) -> float | None:
    """Return the time from which an audit is overdue, in seconds since 1970.

    An audit with the result *Incomplete* does not postpone this time. The result is None if no
    audit is scheduled.
    """
    job = cluster.spec.audit
    made = cache.get(key, "CronJob", f"{cluster.name}-audit")
    if job is None or job.suspend or cluster.spec.hibernate or made is None:
        return None
    since = [time_of(made["metadata"].get("creationTimestamp"))]
    for run in cache.all(key, OBJECT_KINDS["audit"]):
        said = run.get("status") or {}
        if said.get("verdict") in ("Passed", "Violated"):
            since.append(time_of(said.get("finishedAt")))
    times = [at for at in since if at is not None]
    due = overdue_at(job.schedule, job.time_zone, max(times)) if times else None
    return due.timestamp() if due is not None else None


async def refuse_run(api: Api, run: KubernetesObject) -> None:
    """Mark an audit or compaction as failed because its cluster does not exist.

    Raises:
        ApiError: the status cannot be written.
    """
    if (run.get("status") or {}).get("phase") in TERMINAL:
        return
    metadata = run["metadata"]
    sentence = (
        f"QsyncCluster {run['spec'].get('cluster')} not found in this namespace: create the "
        "run again with an existing cluster"
    )
    generation = int(metadata.get("generation", 0))
    status = refused(RunStatus(), generation, RunReason.NO_CLUSTER, sentence, now())
    await api.apply(
        {
            "apiVersion": API_VERSION,
            "kind": run["kind"],
            "metadata": _place_of(run),
            "status": status.stored(),
        },
        "status",
    )


def why_not(cluster: QsyncCluster, image: str) -> str:
    """Return why no Job can be created, as one sentence, or "" if it can.

    Jobs need only the archive, so a hibernated cluster does not prevent them.
    """
    if cluster.spec.archive is None:
        return (
            f"cluster {cluster.name} has no archive: set spec.archive.url, then create the "
            "run again"
        )
    if not image:
        return "the operator has no image with Spark: set sparkImage in the values of its chart"
    return ""


def _recorded(cluster: QsyncCluster, job: KubernetesObject) -> KubernetesObject:
    """Return the change that marks a scheduled Job as recorded.

    It also makes the cluster an owner of the Job, so that results outlive a deleted schedule.
    """
    metadata = job["metadata"]
    owner = {
        "apiVersion": API_VERSION,
        "kind": "QsyncCluster",
        "name": cluster.name,
        "uid": cluster.metadata.uid,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "annotations": {RECORDED: "true"},
            "ownerReferences": [owner],
        },
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
