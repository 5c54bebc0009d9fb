"""The charts as Helm renders them, and the plain manifests, which have the same content."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.cluster_test import targets
from qsync_testing.paths import ROOT

CLUSTER = ROOT / "charts" / "qsync-cluster"
pytestmark = pytest.mark.skipif(
    shutil.which("helm") is None, reason="helm renders charts, and is not installed"
)


def template(chart: Path, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["helm", "template", "orders", str(chart), "-n", "shop", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.mark.parametrize("values", [None, *sorted((CLUSTER / "examples").glob("*.yaml"))])
def test_a_cluster_of_the_chart_is_one(values: Path | None) -> None:
    found = template(CLUSTER, "--no-hooks", *(["-f", str(values)] if values else []))
    (cluster,) = (QsyncCluster.model_validate(document) for document in found)
    assert (cluster.name, cluster.metadata.namespace) == ("orders", "shop")


def test_a_misspelt_value_is_refused_by_helm() -> None:
    done = subprocess.run(
        ["helm", "template", "orders", str(CLUSTER), "--set", "spec.replicaz=3"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "replicaz" in done.stderr


def test_url_of_runbooks_reaches_the_operator() -> None:
    chart = ROOT / "charts" / "qsync-operator"
    url = "https://docs.example.com/runbooks/{alert}/"
    found = template(chart, "--no-hooks", "--set", f"monitoring.runbookUrl={url}")
    operator = next(one for one in found if one["kind"] == "Deployment")
    environment = operator["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "QSYNC_RUNBOOK_URL", "value": url} in environment
    done = subprocess.run(
        ["helm", "template", "orders", str(chart), "--set", "monitoring.runbookUrl=https://x/"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "runbookUrl" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "count"),
    [([], 1), (["--set", "crds.install=false"], 0)],
)
def test_policy_of_schemas_comes_with_the_definitions(arguments: list[str], count: int) -> None:
    found = template(ROOT / "charts" / "qsync-operator", "--no-hooks", *arguments)
    policies = [one for one in found if one["kind"] == "ValidatingAdmissionPolicy"]
    bindings = [one for one in found if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert len(policies) == len(bindings) == count
    for policy, binding in zip(policies, bindings, strict=True):
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_the_plain_manifests_are_those_of_the_chart() -> None:
    done = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "manifests", "MANIFESTS=/dev/stdout"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stored = (ROOT / "deploy" / "operator.yaml").read_text()
    assert done.stdout == stored, "the chart changed: run `make manifests`"


def test_the_test_of_a_cluster_encrypts_where_it_can() -> None:
    secret = {"host": "h", "port": "3301", "addresses": "a:3301,b:3301"}
    assert targets(secret) == (["h:3301", "a:3301", "b:3301"], None)


def test_web_page_is_off_by_default_and_only_reads() -> None:
    chart = ROOT / "charts" / "qsync-operator"
    names = [document["metadata"]["name"] for document in template(chart, "--no-hooks")]
    assert "orders-web" not in names
    for scope in ([], ["--set", "watchNamespaces={shop}"]):
        found = template(chart, "--no-hooks", "--set", "web.enabled=true", *scope)
        web = [document for document in found if document["metadata"]["name"] == "orders-web"]
        kinds = {document["kind"]: document for document in web}
        rules = (kinds.get("Role") or kinds["ClusterRole"])["rules"]
        assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
        resources = {one for rule in rules for one in rule["resources"]}
        assert resources == {"qsyncclusters", "qsyncaudits", "qsyncjournals", "pods", "events"}
        pod = kinds["Deployment"]["spec"]["template"]
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "web"
        assert pod["spec"]["serviceAccountName"] == "orders-web"
        operator = next(one for one in found if one["metadata"]["name"] == "orders"
                        and one["kind"] == "Deployment")  # fmt: skip
        environment = operator["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "QSYNC_WEB", "value": "enabled"} in environment
