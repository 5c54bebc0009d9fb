"""The CronJobs, Jobs and permissions of audits and compactions on Spark.

The driver is the Job's own pod (client mode), so it ends together with the Job. It creates the
executors as pods through the API server; they belong to the driver and are deleted with it.
"""

import json
from typing import Any, Literal

from qsync_operator.api.base import duration_ns, quantity
from qsync_operator.api.cluster import API_VERSION, QsyncCluster
from qsync_operator.api.jobs import AuditSpec, CompactionSpec, RunSpec
from qsync_operator.api.reasons import Reason
from qsync_operator.api.spec import JobSpec, SparkSpec
from qsync_operator.resources.labels import CLUSTER_LABEL, MANAGER, KubernetesObject, build
from qsync_operator.resources.pods import archive_credentials
from qsync_operator.resources.security import container_security, pod_security
from qsync_operator.settings import SparkSupply

RunKind = Literal["audit", "compaction"]
RUN_KINDS: tuple[RunKind, ...] = ("audit", "compaction")
OBJECT_KINDS: dict[RunKind, str] = {"audit": "QsyncAudit", "compaction": "QsyncCompaction"}
RUN_LABEL = "qsync.dev/run"  # audit or compaction
RECORDED = "qsync.dev/recorded"  # on a scheduled Job: the operator has created its object
DRIVER = "driver"
JOB_NAME = "batch.kubernetes.io/job-name"
DEADLINE = "6h"
DRIVER_OVERHEAD = 1.5  # memory of Python and of the JVM besides the heap
STARTING_DEADLINE_S = 600
"""Deadline after which a missed schedule waits for its next time.

Without it, Kubernetes disables a schedule permanently after a hundred missed times.
"""


def account_name(cluster: str) -> str:
    return f"{cluster}-spark"


def build_runs(cluster: QsyncCluster, supply: SparkSupply) -> list[KubernetesObject]:
    """Return the objects that audits and compactions need; nothing without an archive."""
    if cluster.spec.archive is None or not supply.image:
        return []
    schedules = ((kind, _schedule(cluster, kind)) for kind in RUN_KINDS)
    return [
        *_access(cluster, supply.role),
        *_network_policy(cluster),
        *(
            _cron_job(cluster, kind, job, supply.image)
            for kind, job in schedules
            if job is not None
        ),
    ]


def _schedule(cluster: QsyncCluster, kind: RunKind) -> JobSpec | None:
    return cluster.spec.audit if kind == "audit" else cluster.spec.compaction


def _access(cluster: QsyncCluster, role_name: str) -> list[KubernetesObject]:
    """Return the driver's ServiceAccount, and its RoleBinding to the role of the chart.

    The operator only binds the role, so it needs none of these permissions itself.
    """
    name = account_name(cluster.name)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.metadata.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role_name}
    group = "rbac.authorization.k8s.io/v1"
    return [
        _labelled(build(cluster, "v1", "ServiceAccount", name)),
        _labelled(build(cluster, group, "RoleBinding", name, roleRef=role, subjects=[subject])),
    ]


def _network_policy(cluster: QsyncCluster) -> list[KubernetesObject]:
    """Return the policy by which driver and executors accept connections only from each other."""
    if not cluster.spec.network_policy.enabled:
        return []
    pods = {"matchLabels": spark_selector(cluster)}
    spec = {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
    }
    name = account_name(cluster.name)
    return [_labelled(build(cluster, "networking.k8s.io/v1", "NetworkPolicy", name, spec=spec))]


def spark_selector(cluster: QsyncCluster) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "qsync",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": "spark",
    }


def _credentials(cluster: QsyncCluster, kind: RunKind) -> KubernetesObject:
    """Return the credentials of the archive; an audit needs no permission to change it."""
    archive = cluster.spec.archive
    if kind == "audit" and archive is not None and archive.audit_credentials_secret is not None:
        return {"envFrom": [{"secretRef": {"name": archive.audit_credentials_secret}}]}
    return archive_credentials(cluster)


def _labelled(document: KubernetesObject) -> KubernetesObject:
    document["metadata"]["labels"]["app.kubernetes.io/component"] = "spark"
    return document


def _cron_job(cluster: QsyncCluster, kind: RunKind, job: JobSpec, image: str) -> KubernetesObject:
    document = build(
        cluster,
        "batch/v1",
        "CronJob",
        f"{cluster.name}-{kind}",
        spec={
            "schedule": job.schedule,
            "timeZone": job.time_zone,
            # A hibernated cluster archives nothing new.
            "suspend": job.suspend or cluster.spec.hibernate,
            "concurrencyPolicy": job.concurrency_policy,
            "startingDeadlineSeconds": STARTING_DEADLINE_S,
            "successfulJobsHistoryLimit": job.successful_history_limit,
            "failedJobsHistoryLimit": job.failed_history_limit,
            "jobTemplate": {
                "metadata": {"labels": run_labels(cluster, kind)},
                "spec": _job_spec(cluster, kind, job.spark, DEADLINE, (), image),
            },
        },
    )
    return _labelled(document)


def build_run(cluster: QsyncCluster, kind: RunKind, job: KubernetesObject) -> KubernetesObject:
    """Return the object of a scheduled Job; it is deleted with its Job."""
    metadata = job["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": OBJECT_KINDS[kind],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": run_labels(cluster, kind),
            "ownerReferences": [_owner("batch/v1", "Job", metadata)],
        },
        "spec": {"cluster": cluster.name},
    }


def build_job(
    cluster: QsyncCluster, kind: RunKind, run: KubernetesObject, spec: RunSpec, image: str
) -> KubernetesObject:
    """Return the Job of an object that a user created; it is deleted with that object."""
    schedule = _schedule(cluster, kind)
    spark = spec.spark or (schedule.spark if schedule is not None else SparkSpec())
    metadata = run["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": run_labels(cluster, kind),
            "ownerReferences": [_owner(API_VERSION, OBJECT_KINDS[kind], metadata)],
        },
        "spec": _job_spec(cluster, kind, spark, spec.deadline, _arguments(spec), image),
    }


def _arguments(spec: RunSpec) -> tuple[str, ...]:
    """Return the arguments of the driver that only this audit or compaction has."""
    if isinstance(spec, AuditSpec):
        return tuple(word for url in spec.append_ledgers for word in ("--appends", url))
    if not isinstance(spec, CompactionSpec):
        return ()
    chosen = {"--merge-fragments": spec.merge_fragments, "--dry-run": spec.dry_run}
    return tuple(word for word, is_chosen in chosen.items() if is_chosen)


def _owner(api_version: str, kind: str, metadata: KubernetesObject) -> KubernetesObject:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def run_labels(cluster: QsyncCluster, kind: RunKind) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "qsync",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": "spark",
        "app.kubernetes.io/part-of": "qsync",
        "app.kubernetes.io/managed-by": MANAGER,
        CLUSTER_LABEL: cluster.name,
        RUN_LABEL: kind,
    }


def _job_spec(
    cluster: QsyncCluster,
    kind: RunKind,
    spark: SparkSpec,
    deadline: str,
    arguments: tuple[str, ...],
    image: str,
) -> KubernetesObject:
    return {
        "backoffLimit": 1,  # a lost driver is retried once
        "activeDeadlineSeconds": max(duration_ns(deadline) // 10**9, 1),
        "template": {
            "metadata": {"labels": run_labels(cluster, kind)},
            "spec": _driver(cluster, kind, spark, arguments, image),
        },
    }


def _driver(
    cluster: QsyncCluster, kind: RunKind, spark: SparkSpec, arguments: tuple[str, ...], image: str
) -> KubernetesObject:
    archive = cluster.spec.archive
    assert archive is not None, "a run requires an archive"
    verb = "audit" if kind == "audit" else "compact"
    memory = int(quantity(spark.driver.memory) * DRIVER_OVERHEAD)
    words = [
        verb, "--cluster", cluster.name, "--archive", archive.url, *arguments,
        *_unarchived(cluster, kind), *_retention(cluster, kind), *_spark_arguments(spark),
    ]  # fmt: skip
    return {
        "restartPolicy": "Never",
        "serviceAccountName": account_name(cluster.name),
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": DRIVER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": [_literal(word) for word in words],
                "env": _environment(cluster, kind, image),
                **_credentials(cluster, kind),
                "resources": {
                    "requests": {"cpu": str(spark.driver.cores), "memory": str(memory)},
                    "limits": {"memory": str(memory)},
                },
                "securityContext": container_security(),
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }  # fmt: skip


def _literal(word: str) -> str:
    """Return an argument that Kubernetes does not change.

    It expands `$(NAME)` to a variable of the container, whose value may be secret and would appear
    in messages of the driver.
    """
    return word.replace("$", "$$")


def _unarchived(cluster: QsyncCluster, kind: RunKind) -> list[str]:
    """Return why an audit cannot pass: after the loss of all data, only the archive remains."""
    degraded = cluster.status.condition("Degraded")
    if kind != "audit" or degraded is None or degraded.reason != Reason.DATA_LOST:
        return []
    return ["--unarchived", degraded.message]


def _retention(cluster: QsyncCluster, kind: RunKind) -> list[str]:
    """Return the minimum age of data that a compaction deletes; without one it deletes nothing."""
    archive = cluster.spec.archive
    if kind != "compaction" or archive is None or archive.retention is None:
        return []
    return ["--delete-older-than", archive.retention]


def _spark_arguments(spark: SparkSpec) -> list[str]:
    conf = {
        "spark.executor.instances": str(spark.instances),
        "spark.executor.cores": str(spark.executor.cores),
        "spark.executor.memory": f"{int(quantity(spark.executor.memory)) >> 20}m",
        "spark.driver.memory": f"{int(quantity(spark.driver.memory)) >> 20}m",
        "spark.ui.enabled": str(spark.ui).lower(),
        **spark.conf,
    }
    return [word for key in sorted(conf) for word in ("--conf", f"{key}={conf[key]}")]


def _environment(cluster: QsyncCluster, kind: RunKind, image: str) -> list[dict[str, Any]]:
    fields = {
        "POD_NAME": "metadata.name",
        "POD_IP": "status.podIP",
        "POD_NAMESPACE": "metadata.namespace",
        "RUN_NAME": f"metadata.labels['{JOB_NAME}']",
    }
    return [
        *(
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in fields.items()
        ),
        {
            "name": "EXECUTOR_TEMPLATE",
            "value": json.dumps(_executor_template(cluster, kind, image)),
        },
    ]


def _executor_template(cluster: QsyncCluster, kind: RunKind, image: str) -> KubernetesObject:
    """Return the pod template that Spark completes.

    It contains all fields that Pod Security `restricted` requires.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": spark_selector(cluster)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "containers": [
                {
                    "name": "executor",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    **_credentials(cluster, kind),
                    "securityContext": container_security(),
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
