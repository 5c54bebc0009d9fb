"""Alerts with their runbooks and tests, the dashboard, and the metrics that both use."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from qsync_broker.metrics import COUNTED, GAUGES
from qsync_cli.commands import COMMANDS
from qsync_operator import metrics
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.status import ClusterStatus, LastFailover, LastRun
from qsync_operator.members.links import NodeLinks
from qsync_operator.resources.monitoring import build_monitoring
from qsync_operator.settings import Site
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES, ROOT

RUNBOOKS = ROOT / "docs" / "runbooks"
TESTS = Path(__file__).with_name("alerts.yaml")
DASHBOARD = ROOT / "charts" / "qsync-operator" / "files" / "dashboard.json"
NAME = re.compile(r"qsync_[a-z_]+")


def cluster(monitoring: dict[str, bool], **given: object) -> QsyncCluster:
    return QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
            "spec": {"monitoring": monitoring, **given},
        }
    )


def rules(is_formed: bool = True, **given: object) -> dict[str, Any]:
    asked = cluster({"prometheusRule": True}, **given)
    spec: dict[str, Any] = build_monitoring(asked, ["PrometheusRule"], is_formed)[0]["spec"]
    return spec


def alerts() -> list[dict[str, Any]]:
    """Return the alerts of a cluster that has everything that alerts exist for."""
    found: list[dict[str, Any]] = rules(journals={})["groups"][0]["rules"]
    return found


def test_alerts_link_to_published_runbooks_if_their_url_is_known() -> None:
    asked = cluster({"prometheusRule": True}, journals={"enabled": True})
    site = Site(runbook_url="https://docs.example.com/runbooks/{alert}/")
    (found,) = build_monitoring(asked, ["PrometheusRule"], site=site)
    linked = found["spec"]["groups"][0]["rules"]
    assert len(linked) == len(alerts())
    for rule in linked:
        page = rule["annotations"]["runbook_url"].removeprefix("https://docs.example.com/runbooks/")
        assert (RUNBOOKS / f"{page.removesuffix('/')}.md").is_file()
    assert all("runbook_url" not in rule["annotations"] for rule in alerts())


def test_every_alert_fires_where_it_must_and_not_where_it_must_not(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules(journals={})))
    (tmp_path / "tests.yaml").write_text(TESTS.read_text())
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_both_ways() -> None:
    fired: set[str] = set()
    quiet: set[str] = set()
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            (fired if case.get("exp_alerts") else quiet).add(case["alertname"])
    assert {rule["alert"] for rule in alerts()} == fired == quiet


def names(document: dict[str, Any]) -> set[str]:
    return {rule["alert"] for rule in document["groups"][0]["rules"]}


def test_no_alert_fires_for_a_cluster_that_takes_no_writes_by_request() -> None:
    journals = {
        "QsyncBrokerMissing", "QsyncJournalsNotWritable", "QsyncJournalsUnderReplicated",
        "QsyncFragmentStoreFailing",
    }  # fmt: skip
    serving = {"QsyncNotWritable", "QsyncMemberMissing", *journals}
    given: dict[str, Any] = {"journals": {}}
    assert names(rules(**given)) - names(rules(**given, hibernate=True)) == serving
    assert names(rules(**given)) - names(rules(is_formed=False, **given)) == serving
    assert names(rules(**given)) - names(rules()) == journals
    assert names(rules()) == names(rules(journals={"enabled": False}))


def test_brokers_are_scraped_if_there_are_any() -> None:
    def ports(**given: object) -> list[str]:
        (monitor,) = build_monitoring(cluster({"podMonitor": True}, **given), ["PodMonitor"])
        return [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]

    assert ports() == ["admin"]
    assert ports(journals={}) == ["admin", "journals"]


def test_missing_members_are_counted_by_kind() -> None:
    given = rules(asyncReplicas=1, readReplicas=2)["groups"][0]["rules"]
    (rule,) = [rule for rule in given if rule["alert"] == "QsyncMemberMissing"]
    for limit in ('orders-[0-9]+"}) or vector(0)) < 3', 'orders-async-[0-9]+"}) or vector(0)) < 1',
                  'orders-reader-[0-9]+"}) or vector(0)) < 2'):  # fmt: skip
        assert limit in rule["expr"]


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("Qsync*.md")}
    assert {rule["alert"] for rule in alerts()} == pages
    index = (RUNBOOKS / "README.md").read_text()
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"
        assert f"]({rule['alert']}.md)" in index


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_runbook_has_all_sections_and_names_commands_that_exist(alert: dict[str, Any]) -> None:
    page = (RUNBOOKS / f"{alert['alert']}.md").read_text()
    assert re.findall(r"(?m)^## (.*)", page) == [
        "Impact", "Likely causes", "Verification", "Fix", "Escalation",
    ]  # fmt: skip
    assert f"Severity: {alert['labels']['severity']}." in page
    assert "```console\n$ kubectl " in page
    verbs = {command.name for command in COMMANDS}
    for verb in re.findall(r"kubectl qsync ([a-z-]+)", page):
        assert verb in verbs, verb


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.close()


def exported_by_nodes(home: Home) -> set[str]:
    """Return the metrics that three running members export; only a leader exports some of them."""
    archive = f"file://{home.directory.parent}/archive"
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml", "--archive", archive)
    secret = yaml.safe_load(next(home.directory.glob("*/nodes/*/node.yaml")).read_text())["secret"]
    found: set[str] = set()
    for member in home.members("orders").values():
        found |= asyncio.run(_names(member["adminAddress"], secret))
    return found


def exported_by_brokers() -> set[str]:
    """Return the gauges of brokers; test_broker_metrics.py compares them with real answers."""
    return {series.name for series in GAUGES}


async def _names(address: str, secret: str) -> set[str]:
    links = NodeLinks(secret)
    try:
        return names_in(await links.text(address, "/metrics"))
    finally:
        await links.close()


def names_in(text: str) -> set[str]:
    return {s.name for family in text_string_to_metric_families(text) for s in family.samples}


def exported_by_the_operator() -> set[str]:
    """Return the metrics that the operator exports after it has recorded each of them once."""
    failover = LastFailover(at="now", unavailable_milliseconds=80)
    metrics.note_status("ns", "orders", ClusterStatus(), ClusterStatus(last_failover=failover))
    metrics.note_audits("ns", "orders", LastRun(verdict="Passed"), 1.0)
    metrics.EXPIRY.labels("ns", "orders").set(1)
    metrics.ACTIONS.labels("Restart", "done").inc()
    metrics.REQUESTS.labels("GET", "200").inc()
    metrics.TURN.observe(0.01)
    found = names_in(generate_latest(metrics.REGISTRY).decode())
    metrics.forget("ns", "orders")
    left = generate_latest(metrics.REGISTRY).decode()
    assert 'cluster="orders"' not in left, "deleted clusters have no series"
    return found


def test_what_rules_and_dashboard_name_is_exported(home: Home) -> None:
    exported = exported_by_nodes(home) | exported_by_the_operator() | exported_by_brokers()
    exported |= {one.name + ("_total" if one.kind == "counter" else "_bucket") for one in COUNTED}
    named = {name for rule in alerts() for name in NAME.findall(rule["expr"])}
    assert named <= exported, named - exported
    document = json.loads(DASHBOARD.read_text())
    shown = {
        name
        for panel in document["panels"]
        for target in panel["targets"]
        for name in NAME.findall(target["expr"])
    }
    for annotation in document["annotations"]["list"]:
        shown |= set(NAME.findall(annotation["expr"]))
    assert shown <= exported, shown - exported
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))


def test_dashboard_begins_with_the_state_and_explains_every_panel() -> None:
    document = json.loads(DASHBOARD.read_text())
    panels = document["panels"]
    first = [panel["title"] for panel in panels if panel["gridPos"]["y"] == 0]
    assert first == [
        "Leader", "Ready members", "Write latency, p99", "Errors a second", "Free disk",
        "Archive lag", "Last audit",
    ]  # fmt: skip
    assert all(panel["description"].endswith(".") for panel in panels)
    assert [one["name"] for one in document["annotations"]["list"]] == ["Leader changes"]
    places = {
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    sizes = [panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels]
    assert len(places) == sum(sizes), "no panel covers another one"
    assert max(x for x, _ in places) == 23
