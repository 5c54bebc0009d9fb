"""Pods of audits and compactions: drivers and executors, and the configuration of Spark."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.spec import SparkSpec
from qsync_operator.resources.jobs import RunKind, build_runs, run_labels
from qsync_testing.operator.platforms import cluster_of
from qsync_testing.operator.runs import ARCHIVE, IMAGE, SUPPLY


def containers(cluster: QsyncCluster) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (specification of the pod, container) of the driver, then of the executors."""
    cron = next(o for o in build_runs(cluster, SUPPLY) if o["kind"] == "CronJob")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    env = {entry["name"]: entry.get("value", "") for entry in pod["containers"][0]["env"]}
    executor = json.loads(env["EXECUTOR_TEMPLATE"])["spec"]
    return [(pod, pod["containers"][0]), (executor, executor["containers"][0])]


def test_drivers_and_executors_are_restricted_and_know_the_archive() -> None:
    cluster = cluster_of(archive=ARCHIVE, audit={"schedule": "@hourly"})
    for pod, container in containers(cluster):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["envFrom"] == [{"secretRef": {"name": "archive"}}]
        assert container["image"] == IMAGE
    executor = containers(cluster)[1][0]
    assert executor["automountServiceAccountToken"] is False


def test_an_audit_reads_with_credentials_of_its_own() -> None:
    archive = {
        "url": "s3://b/orders",
        "credentialsSecret": "writing",
        "auditCredentialsSecret": "reading",
    }
    jobs = {name: {"schedule": "0 3 * * *"} for name in ("audit", "compaction")}
    cluster = cluster_of(archive=archive, **jobs)
    for containers, name in (
        (containers_of(cluster, "audit"), "reading"),
        (containers_of(cluster, "compaction"), "writing"),
    ):
        for pod, container in containers:
            assert container["envFrom"] == [{"secretRef": {"name": name}}], pod


def test_only_a_compaction_deletes_data_beyond_the_retention() -> None:
    jobs = {name: {"schedule": "0 3 * * *"} for name in ("audit", "compaction")}
    cluster = cluster_of(archive={**ARCHIVE, "retention": "30d"}, **jobs)
    _, compaction = containers_of(cluster, "compaction")[0]
    at = compaction["args"].index("--delete-older-than")
    assert compaction["args"][at + 1] == "30d"
    _, reading = containers_of(cluster, "audit")[0]
    assert "--delete-older-than" not in reading["args"]


def containers_of(
    cluster: QsyncCluster, kind: RunKind
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (specification of the pod, container) of a schedule's driver, then its executors."""
    found = next(
        o for o in build_runs(cluster, SUPPLY)
        if (o["kind"], o["metadata"]["name"]) == ("CronJob", f"orders-{kind}")
    )  # fmt: skip
    pod = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    driver_container = pod["containers"][0]
    text = next(e["value"] for e in driver_container["env"] if e["name"] == "EXECUTOR_TEMPLATE")
    template = json.loads(text)
    return [(pod, driver_container), (template["spec"], template["spec"]["containers"][0])]


def test_only_sparks_pods_reach_sparks_pods() -> None:
    cluster = cluster_of(archive={"url": "s3://b/orders"}, audit={"schedule": "0 3 * * *"})
    (policy,) = (o for o in build_runs(cluster, SUPPLY) if o["kind"] == "NetworkPolicy")
    wanted = policy["spec"]["podSelector"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": wanted}]}]
    labels = run_labels(cluster, "audit")
    assert wanted["matchLabels"].items() <= labels.items()
    _, driver_container = containers_of(cluster, "audit")[0]
    text = next(e["value"] for e in driver_container["env"] if e["name"] == "EXECUTOR_TEMPLATE")
    assert json.loads(text)["metadata"]["labels"] == wanted["matchLabels"]
    assert "spark.ui.enabled=false" in driver_container["args"]


@pytest.mark.parametrize(
    ("key", "value", "is_allowed"),
    [
        ("spark.executor.memoryOverhead", "x", True),
        ("spark.kubernetes.executor.request.cores", "x", True),
        ("spark.sql.shuffle.partitions", "x", True),
        ("spark.sql.adaptive.coalescePartitions.enabled", "x", True),
        # Keys that choose code.
        ("spark.kubernetes.container.image", "x", False),
        ("spark.jars.packages", "x", False),
        ("spark.plugins", "x", False),
        ("spark.master", "x", False),
        ("spark.driver.extraJavaOptions", "x", False),
        ("spark.executor.extraClassPath", "x", False),
        ("spark.executorEnv.LD_PRELOAD", "x", False),
        ("spark.shuffle.manager", "x", False),
        ("spark.sql.extensions", "x", False),
        ("spark.sql.adaptive.customCostEvaluatorClass", "x", False),
        ("spark.authenticate", "x", False),
        ("spark.kubernetes.executor.podTemplateFile", "x", False),
        # Keys that continue an allowed one.
        ("spark.executor.memoryOverhead.plugins", "x", False),
        ("spark.task.cpusPlugins", "x", False),
        ("spark.speculation=true spark.plugins", "x", False),
        ("spark.rdd.compress\n", "x", False),
        # Values that name a variable.
        ("spark.task.cpus", "2g", True),
        ("spark.task.cpus", "0.4", True),
        ("spark.task.cpus", "true", True),
        ("spark.task.cpus", "${env:AWS_SECRET_ACCESS_KEY}", False),
        ("spark.task.cpus", "$(AWS_SECRET_ACCESS_KEY)", False),
        ("spark.task.cpus", "a b", False),
    ],
)
def test_conf_refuses_keys_that_choose_code_and_values_that_name_variables(
    key: str, value: str, is_allowed: bool
) -> None:
    try:
        SparkSpec(conf={key: value})
    except ValidationError:
        assert not is_allowed
    else:
        assert is_allowed
