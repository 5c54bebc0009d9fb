"""All clusters that the operator reconciles: one independent task for each.

The first event of an object starts its task, and the deletion of the object ends it. A failure ends
only the current turn of this task: it is reported, and retried after a pause that doubles.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from qsync_operator import metrics
from qsync_operator.api.annotations import is_paused, paused
from qsync_operator.api.base import cut_text
from qsync_operator.api.cluster import VERSION, QsyncCluster
from qsync_operator.api.jobs import TERMINAL
from qsync_operator.api.mistakes import sentence_of
from qsync_operator.api.podsecurity import refuse_privileged
from qsync_operator.api.reasons import Reason
from qsync_operator.api.status import ClusterStatus
from qsync_operator.jobs.reconciler import JobReconciler, audit_overdue_s, refuse_run
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.kubernetes.journals import KIND as JOURNAL_KIND
from qsync_operator.kubernetes.journals import refuse_journal
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.plan.refusal import refusal_now, with_refusal
from qsync_operator.plan.status import is_calm
from qsync_operator.reconcile.controller import Controller
from qsync_operator.reconcile.platform import ActionRefused, NameTaken
from qsync_operator.resources.config import SPEC_KEY, SPEC_VERSION_KEY
from qsync_operator.resources.jobs import OBJECT_KINDS
from qsync_operator.resources.labels import config_name
from qsync_operator.settings import ANYWHERE, NO_SPARK, Site, SparkSupply

IDLE_S = 2.0
POLLS_PER_S = 10.0
"""Total rate of turns for idle clusters; watches and live links report urgent changes."""
BUSY_S = 0.25
LEADERLESS_S = 0.02
HURRY_NS = 5_000_000_000
NUMBERS_EVERY_S = 10.0
RUN_KINDS = (*OBJECT_KINDS.values(), JOURNAL_KIND)
"""Kinds of objects that name their cluster in their specification."""
WAITING = (ActionRefused.reason, NameTaken.reason)
"""Reasons why a cluster is not reconciled yet."""
FAILURE_FIRST_S = 0.5
FAILURE_MAX_S = 30.0

log = logging.getLogger(__name__)


class ClusterTask:
    """The task that reconciles one cluster with its specification."""

    def __init__(
        self, api: Api, cache: Cache, image: str, spark: SparkSupply, cluster: QsyncCluster,
        count: Callable[[], int], may_write: Callable[[], bool], site: Site,
    ) -> None:  # fmt: skip
        """`count` returns the number of all clusters."""
        self._count = count
        self._may_write = may_write
        self._site = site
        self._api = api
        self._cache = cache
        self._image = image
        self._spark = spark
        self._platform: KubernetesPlatform | None = None
        self._controller: Controller | None = None
        self._changed = asyncio.Event()
        self._wait = ""  # the reported reason why the cluster is not reconciled
        self.cluster = cluster
        self.reporter = KubernetesReporter(api, cluster)
        self._task = asyncio.create_task(self._run(), name=f"cluster {cluster.name}")

    def change(self, cluster: QsyncCluster) -> None:
        """Adopt a newer document; of its fields, only specification and annotations count."""
        old, self.cluster = self.cluster, cluster
        is_new = cluster.spec != old.spec or cluster.metadata.annotations != (
            old.metadata.annotations
        )
        if is_new:
            self._wait = ""
        refusal = self.reporter.refusal
        # Each status is an event, too: it ends no wait.
        if is_new or (refusal is not None and refusal.reason not in WAITING):
            self.reporter.refusal = None
            self._changed.set()
            if self._platform is not None:
                self._platform.wake()

    async def refuse(self, document: dict[str, Any], sentence: str) -> None:
        """Report an unusable specification, and continue with the last good one."""
        self.cluster = self.cluster.model_copy(update={"status": without_spec(document).status})
        generation, known = int(document["metadata"].get("generation", 0)), self.reporter.refusal
        if known is None or known.sentence != sentence:
            known = refusal_now(sentence, generation)
        elif known.generation == generation:
            return
        self.reporter.refusal = replace(known, generation=generation)
        if not is_reported(self.cluster, sentence):
            await self.reporter.report(Reason.INVALID_SPEC, self.cluster.name, sentence)
        controller, status = self._controller, self.cluster.status
        if controller is not None and controller.has_published:
            status = controller.status  # the document may be older
        await self.reporter.publish(self.cluster, status)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = FAILURE_FIRST_S
        while True:
            started_s = time.monotonic()
            self._changed.clear()  # a change from now on may be too late for this attempt
            try:
                await self._reconcile()
            except ActionRefused as error:
                await self._report_wait(str(error), error.reason)
            except ApiError as error:
                log.warning("cluster %s is waiting: %s", self.cluster.name, error)
            except Exception:
                # A bug that affects one cluster must not prevent the failover of others.
                log.exception("the task of cluster %s failed and restarts", self.cluster.name)
            if time.monotonic() - started_s > FAILURE_MAX_S:
                pause_s = FAILURE_FIRST_S
            await self._rest(pause_s)
            pause_s = min(pause_s * 2, FAILURE_MAX_S)

    async def _report_wait(self, sentence: str, reason: Reason) -> None:
        """Report once, as Degraded, why the cluster is not reconciled."""
        if sentence == self._wait:
            return
        self._wait = sentence
        refusal = self.reporter.refusal
        await self.reporter.report(reason, self.cluster.name, sentence)
        if refusal is None or refusal.reason in WAITING:
            generation = self.cluster.metadata.generation
            self.reporter.refusal = refusal_now(sentence, generation, reason)
        await self.reporter.publish(self.cluster, self.cluster.status)
        self._note(self.cluster.status, self.cluster.status)

    def _note(self, before: ClusterStatus, now: ClusterStatus) -> None:
        """Update the metrics from the status."""
        if self.reporter.refusal is not None:
            now = with_refusal(now, self.reporter.refusal)
        namespace = self.cluster.metadata.namespace or ""
        metrics.note_status(namespace, self.cluster.name, before, now)

    async def _rest(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    async def _reconcile(self) -> None:
        """Open the platform and take turns until a failure.

        Raises:
            ApiError: the API server did not perform a request.
            ActionRefused: the identity, a password or a Secret's name cannot be used.
        """
        platform = await KubernetesPlatform.open(
            self._api,
            self._cache,
            self.cluster,
            self._image,
            self._spark,
            self._may_write,
            self._site,
        )
        self._platform = platform
        self._wait = ""
        if self.reporter.refusal is not None and self.reporter.refusal.reason in WAITING:
            self.reporter.refusal = None
        try:
            controller = Controller(
                platform, self.reporter, self.cluster.status, NUMBERS_EVERY_S, self._may_write
            )
            self._controller = controller
            key = (self.cluster.metadata.namespace or "", self.cluster.name)
            runs = JobReconciler(self._api, self._cache, key, self.reporter)
            while True:
                rest_s = await self._turn(controller)
                if not is_paused(self.cluster) and self._may_write():
                    await self._reconcile_jobs(runs)
                overdue_s = audit_overdue_s(self._cache, key, self.cluster)
                metrics.note_audits(*key, controller.status.last_audit, overdue_s)
                await platform.wait(rest_s)
        finally:
            self._platform, self._controller = None, None
            await platform.close()

    async def _reconcile_jobs(self, runs: JobReconciler) -> None:
        """Reconcile audits and compactions; their failure does not end the cluster's turn."""
        try:
            await runs.reconcile(self.cluster, self._spark.image)
        except ApiError as error:
            log.warning("runs of %s are waiting: %s", self.cluster.name, error)
        except Exception:
            # Nor does a bug, which would delay the next failover.
            log.exception("cannot reconcile the runs of %s", self.cluster.name)

    async def _turn(self, controller: Controller) -> float:
        before = controller.status
        with metrics.TURN.time():
            observed = await controller.turn(self.cluster)
        self._note(before, controller.status)
        if observed.writable_leader() is None and controller.memory.lost_at_ns:
            lost_ns = time.monotonic_ns() - controller.memory.lost_at_ns
            return LEADERLESS_S if lost_ns < HURRY_NS else BUSY_S
        if controller.has_acted or not is_calm(controller.status):
            return BUSY_S
        return max(IDLE_S, self._count() / POLLS_PER_S)


def without_spec(document: dict[str, Any]) -> QsyncCluster:
    """Return the cluster of a document whose specification is unusable, with its status."""
    return QsyncCluster.model_validate({**document, "spec": {}})


def is_reported(cluster: QsyncCluster, sentence: str) -> bool:
    """Return whether a previous operator already reported this sentence."""
    found = cluster.status.condition("Degraded")
    return found is not None and found.message == cut_text(sentence)


WatchEvent = tuple[dict[str, Any], bool]  # a document, and whether its object was deleted


def _is_late(document: dict[str, Any], is_gone: bool, known: dict[str, Any]) -> bool:
    """Return whether an event is older than the known state of its object.

    It may concern an earlier object of the same name, or an older generation.
    """
    metadata = document["metadata"]
    if metadata.get("uid") == known.get("uid"):
        newest = int(known.get("generation") or 0)
        return not is_gone and int(metadata.get("generation") or 0) < newest
    if is_gone or metadata.get("deletionTimestamp"):
        return True
    made, known_made = (m.get("creationTimestamp") or "" for m in (metadata, known))
    return bool(made < known_made)


class Clusters:
    """All clusters by namespace and name; the watch feeds them, and they act after `begin`."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        image: str,
        spark: SparkSupply = NO_SPARK,
        may_write: Callable[[], bool] = lambda: True,
        site: Site = ANYWHERE,
    ) -> None:
        self._site = site
        self._api = api
        self._cache = cache
        self._image = image
        self._spark = spark
        self._may_write = may_write
        self._tasks: dict[ObjectKey, ClusterTask] = {}
        self._waiting: dict[ObjectKey, WatchEvent] | None = {}  # latest events before `begin`
        self._is_beginning = False
        self._locks: dict[
            ObjectKey, tuple[asyncio.Lock, int]
        ] = {}  # a lock, and the number of its users
        # Unusable documents whose last good specification could not be read, and the next attempts.
        self._unread: dict[ObjectKey, tuple[dict[str, Any], asyncio.Task[None]]] = {}

    async def begin(self) -> None:
        """Start to act. Events that arrive meanwhile are queued, because they are newer."""
        self._is_beginning = True
        while self._waiting:
            key = next(iter(self._waiting))
            await self._handle_safely(key, *self._waiting.pop(key))
        self._waiting = None
        await self.refuse_orphans()  # their events were ignored until now

    async def on_event(self, document: dict[str, Any], is_gone: bool) -> None:
        """Handle a watched QsyncCluster; before `begin`, queue its newest event."""
        metadata = document["metadata"]
        key = (str(metadata["namespace"]), str(metadata["name"]))
        if self._waiting is not None:
            before = self._waiting.get(key)
            if before is not None and _is_late(document, is_gone, before[0]["metadata"]):
                return
            self._waiting[key] = (document, is_gone)
            if is_gone and not self._is_beginning:
                del self._waiting[key]
            return
        await self._handle_safely(key, document, is_gone)

    async def _handle_safely(self, key: ObjectKey, document: dict[str, Any], is_gone: bool) -> None:
        """Handle the events of one cluster in sequence; a failure affects no other cluster."""
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                await self._handle(key, document, is_gone)
        except Exception:
            # A bug that affects one document must not prevent the failover of other clusters.
            log.exception("cannot reconcile QsyncCluster %s/%s", *key)
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)

    async def _handle(self, key: ObjectKey, document: dict[str, Any], is_gone: bool) -> None:
        metadata = document["metadata"]
        unread = self._unread.get(key)
        if unread is not None:
            if _is_late(document, is_gone, unread[0]["metadata"]):
                return
            self._unread.pop(key)[1].cancel()
        task = self._tasks.get(key)
        if task is not None:
            known = task.cluster.metadata.model_dump(mode="json", by_alias=True)
            if task.reporter.refusal is not None:
                known["generation"] = max(known["generation"], task.reporter.refusal.generation)
            if _is_late(document, is_gone, known):
                return
            if task.cluster.metadata.uid != metadata["uid"]:
                await self._stop(key)
                task = None
        if is_gone or metadata.get("deletionTimestamp"):
            await self._stop(key)
            return
        cluster: QsyncCluster | None
        try:
            cluster = self._read(document)
        except ValidationError as error:
            cluster, sentence = None, sentence_of(error, QsyncCluster)
        except ValueError as error:
            cluster, sentence = None, f"spec.{error}"
        if cluster is None:
            if task is None:
                await self._refuse_unknown(key, document, sentence)
            else:
                await task.refuse(document, sentence)
            return
        if task is None:
            self._start(key, cluster)
        else:
            task.change(cluster)

    def _read(self, document: dict[str, Any]) -> QsyncCluster:
        """Return the cluster of a document.

        Raises:
            ValidationError: the document is invalid.
            ValueError: its template gives privileges that are not allowed here.
        """
        cluster = QsyncCluster.model_validate(document)
        self._check(cluster)
        return cluster

    def _check(self, cluster: QsyncCluster) -> None:
        """Check the template of a cluster.

        Raises:
            ValueError: it gives privileges that are not allowed here.
        """
        if self._site.is_template_restricted:
            refuse_privileged(cluster.spec.pod_template)

    def _start(self, key: ObjectKey, cluster: QsyncCluster) -> ClusterTask:
        task = ClusterTask(
            self._api,
            self._cache,
            self._image,
            self._spark,
            cluster,
            self.count,
            self._may_write,
            self._site,
        )
        self._tasks[key] = task
        metrics.CLUSTERS.set(len(self._tasks))
        return task

    def known(self) -> dict[ObjectKey, str]:
        """Return the uid of every cluster that is reconciled or queued."""
        waiting = self._waiting or {}
        found = {
            key: str(doc["metadata"].get("uid")) for key, (doc, gone) in waiting.items() if not gone
        }
        return found | {k: str(task.cluster.metadata.uid) for k, task in self._tasks.items()}

    async def on_run(self, document: dict[str, Any]) -> None:
        """Refuse an audit, compaction or journal whose cluster does not exist; ignore others."""
        cluster = str((document.get("spec") or {}).get("cluster", ""))
        namespace = str(document["metadata"]["namespace"])
        if self._waiting is not None or (namespace, cluster) in self._tasks:
            return
        if (document.get("status") or {}).get("phase") in TERMINAL:
            return
        try:
            if await self._api.get("QsyncCluster", namespace, cluster) is None:
                refuse = refuse_journal if document["kind"] == JOURNAL_KIND else refuse_run
                await refuse(self._api, document)
        except ApiError as error:
            log.warning("run %s is waiting: %s", document["metadata"]["name"], error)

    async def refuse_orphans(self) -> None:
        """Refuse all known audits, compactions and journals whose cluster does not exist."""
        for document in [one for kind in RUN_KINDS for one in self._cache.of_kind(kind)]:
            try:
                await self.on_run(document)
            except Exception:
                # A bug that affects one document must not end the operator.
                log.exception("cannot refuse run %s", document["metadata"]["name"])

    async def _refuse_unknown(
        self, key: ObjectKey, document: dict[str, Any], sentence: str
    ) -> None:
        """Continue with the specification that another operator stored; this one saw no good one.

        If its template gives privileges that are not allowed here, the cluster counts as paused:
        its members keep running and failing over, and no object is applied. Without a stored one,
        only report the error: existing nodes keep running.
        """
        cluster = None
        try:
            cluster = await self._last_good(document)
        except ApiError as error:
            log.warning("cannot read the last specification of %s: %s", key[1], error)
            again = asyncio.create_task(self._read_again(key, document, sentence))
            self._unread[key] = (document, again)
        if cluster is not None:
            await self._start(key, cluster).refuse(document, sentence)
            return
        cluster = without_spec(document)
        generation = int(document["metadata"].get("generation", 0))
        if is_reported(cluster, sentence) and cluster.status.observed_generation >= generation:
            return
        reporter = KubernetesReporter(self._api, cluster)
        reporter.refusal = refusal_now(sentence, generation)
        if not is_reported(cluster, sentence):
            await reporter.report(Reason.INVALID_SPEC, cluster.name, sentence)
        await reporter.publish(cluster, cluster.status)

    async def _read_again(self, key: ObjectKey, document: dict[str, Any], sentence: str) -> None:
        """Read the last good specification until that succeeds, then continue with it."""
        pause_s = FAILURE_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, FAILURE_MAX_S)
            try:
                cluster = await self._last_good(document)
            except ApiError as error:
                log.warning("cannot read the last specification of %s: %s", key[1], error)
            else:
                break
        del self._unread[key]
        if cluster is not None:
            await self._start(key, cluster).refuse(document, sentence)

    async def _last_good(self, document: dict[str, Any]) -> QsyncCluster | None:
        """Return the cluster with the stored specification, or None without a usable one.

        Raises:
            ApiError: the API server did not perform the request.
        """
        metadata = document["metadata"]
        found = await self._api.get(
            "ConfigMap", str(metadata["namespace"]), config_name(str(metadata["name"]))
        )
        data = (found or {}).get("data", {})
        try:
            if data.get(SPEC_VERSION_KEY, VERSION) != VERSION:
                raise ValueError(f"it has version {data[SPEC_VERSION_KEY]}")
            spec = json.loads(data.get(SPEC_KEY, "null"))
            if not spec:
                return None
            cluster = QsyncCluster.model_validate({**document, "spec": spec})
        except ValueError as error:
            log.warning("cannot use the last specification of %s: %s", metadata["name"], error)
            return None
        try:
            # Users of the namespace may be able to change the ConfigMap.
            self._check(cluster)
        except ValueError:
            return paused(cluster)
        return cluster

    async def _stop(self, key: ObjectKey) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            await task.stop()
            metrics.forget(*key)
            metrics.CLUSTERS.set(len(self._tasks))

    def count(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        attempts = [attempt for _, attempt in self._unread.values()]
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for key in list(self._tasks):
            await self._stop(key)
