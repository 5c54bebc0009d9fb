"""CRDs: the files match the models, and API servers accept them."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_operator.api.base import DURATION_PATTERN, SCHEDULE_PATTERN
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.crds.__main__ import main, rendered
from qsync_operator.api.crds.kinds import KINDS, definition
from qsync_operator.api.crds.reference import reference
from qsync_operator.api.crds.structural import StructuralError, structural_schema
from qsync_operator.api.crds.values import values_schema
from qsync_operator.api.jobs import RunStatus
from qsync_operator.api.manifest import parse_manifest
from qsync_operator.api.reasons import RunReason
from qsync_operator.jobs.results import refused
from qsync_operator.plan.planner import plan
from qsync_testing.operator.plan_worlds import cluster_of as world_cluster
from qsync_testing.operator.plan_worlds import formed
from qsync_testing.paths import ROOT

BYTES_MAX = 200_000
"""Limit of the size of one file.

`kubectl apply` without `--server-side` keeps a copy in an annotation, which has at most 256 KiB.
"""


def nodes(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(path, schema)]
    for name, child in schema.get("properties", {}).items():
        found += nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            found += nodes(schema[key], f"{path}[]")
    return found


def all_nodes() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for kind in KINDS:
        version = definition(kind)["spec"]["versions"][0]
        found += nodes(version["schema"]["openAPIV3Schema"], kind.name)
    return found


@pytest.mark.parametrize("directory", ["crds", "charts/qsync-operator/files/crds"])
def test_the_files_are_those_of_the_models(directory: str) -> None:
    found = {path.name: path.read_text() for path in (ROOT / directory).glob("*.yaml")}
    assert found == rendered(), "the models changed: run `make crds`"


def test_the_command_prints_the_differences_and_writes_them(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
    assert main(["--write", str(tmp_path)]) == 0
    assert main([str(tmp_path)]) == 0


def test_every_place_has_a_type_and_a_limit() -> None:
    for path, node in all_nodes():
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string" and "enum" not in node:
            is_servers_own = path.endswith((".apiVersion", ".kind"))
            assert is_servers_own or "maxLength" in node, path
        assert not node.keys() & {"$ref", "anyOf", "title", "const", "exclusiveMinimum"}, path
        assert not ({"properties", "additionalProperties"} <= node.keys()), path


def test_every_rule_has_a_sentence_of_its_own() -> None:
    sentences = [
        rule["message"]
        for _, node in all_nodes()
        for rule in node.get("x-kubernetes-validations", [])
    ]
    assert len(sentences) > 20
    assert all(len(sentence) > 20 and "\n" not in sentence for sentence in sentences)


def test_a_default_is_whole_so_that_rules_can_look_at_it() -> None:
    for path, node in all_nodes():
        for name, child in node.get("properties", {}).items():
            if "default" in child and "properties" in child:
                inner = {k: c["default"] for k, c in child["properties"].items() if "default" in c}
                assert child["default"] == inner, f"{path}.{name}"


def test_defaults_of_the_schema_are_those_of_the_model() -> None:
    cluster = definition(KINDS[0])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    text = "apiVersion: qsync.dev/v1alpha1\nkind: QsyncCluster\nmetadata: {name: c}\nspec: "
    default = cluster["properties"]["spec"]["default"]
    filled = parse_manifest(text + yaml.safe_dump(default, default_flow_style=True)).cluster
    assert filled.spec == parse_manifest(text + "{}").cluster.spec


def test_items_of_lists_have_no_defaults() -> None:
    """With them, `kubectl apply` of an unchanged manifest would never report `unchanged`."""
    assert not [path for path, node in all_nodes() if "[]" in path and "default" in node]


def excesses(kind: str, status: dict[str, Any]) -> list[str]:
    """Return the places of a status that exceed a limit of its CRD."""
    (found,) = (crd for crd in map(definition, KINDS) if crd["spec"]["names"]["kind"] == kind)
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def check(node: dict[str, Any], value: object, path: str) -> Iterator[str]:
        if isinstance(value, str) and len(value) > node.get("maxLength", len(value)):
            yield path
        elif isinstance(value, list):
            if len(value) > node.get("maxItems", len(value)):
                yield path
            for item in value:
                yield from check(node.get("items", {}), item, f"{path}[]")
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from check(node.get("properties", {}).get(key, {}), item, f"{path}.{key}")

    return list(check(schema["properties"]["status"], status, "status"))


def test_status_of_all_members_is_within_the_limits() -> None:
    world = formed(world_cluster(7, 0, 1000))
    seen = world.observe()
    why = "Unschedulable: 0/6 nodes are available, 3 of them have too little memory. " * 4
    members = tuple(
        replace(m, status=None, is_running=False, failure=why)
        if m.kind == "voter"
        else replace(m, status=m.status and replace(m.status, is_fenced=True))
        for m in seen.members
    )
    status = plan(world.cluster, replace(seen, members=members), 0, 0).status
    assert excesses("QsyncCluster", status.stored()) == []
    assert (len(status.members), len(status.warnings)) == (1007, 64)
    degraded = status.condition("Degraded")
    assert degraded is not None
    assert degraded.message.count("Unschedulable") > 7


def test_status_of_a_run_is_within_the_limits() -> None:
    status = refused(RunStatus(), 1, RunReason.REFUSED, "x" * 3000, "2026-01-01T00:00:00Z")
    assert excesses("QsyncAudit", status.stored()) == []


def test_statuses_have_no_defaults() -> None:
    assert not [path for path, node in all_nodes() if ".status" in path and "default" in node]


def test_names_and_sub_resources() -> None:
    found = {kind.name: definition(kind)["spec"] for kind in KINDS}
    assert {name: spec["names"]["shortNames"] for name, spec in found.items()} == {
        "QsyncCluster": ["qc"],
        "QsyncAudit": ["qa"],
        "QsyncCompaction": ["qcomp"],
        "QsyncJournal": ["qj"],
    }
    assert all(spec["names"]["categories"] == ["qsync"] for spec in found.values())
    scale = found["QsyncCluster"]["versions"][0]["subresources"]["scale"]
    assert scale["labelSelectorPath"] == ".status.selector"
    assert all(len(text) < BYTES_MAX for text in rendered().values())


def test_what_no_crd_can_say_is_refused_when_the_crds_are_made() -> None:
    class WrongModel(QsyncCluster):
        pair: int | list[str] = 1

    with pytest.raises(StructuralError, match=r"WrongModel\.pair"):
        structural_schema(WrongModel)


@pytest.mark.parametrize("text", ["500ms", "5s", "1m30s", "1.5h", "2d"])
def test_durations_that_the_api_server_takes(text: str) -> None:
    assert re.search(DURATION_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("15 * * * *", True),
        ("*/5 0-6,18-23 1,15 jan-mar MON", True),
        ("@daily", True),
        ("@sometimes", False),
        ("a * * * *", False),
        ("* * * *", False),
        ("* * * * * *", False),
        ("100 * * * *", False),
    ],
)
def test_schedules_that_the_api_server_takes(text: str, is_taken: bool) -> None:
    # RE2 accepts the flag in the middle of a pattern; Python requires it at the start.
    pattern = "(?i)" + SCHEDULE_PATTERN.replace("(?i)", "")
    assert bool(re.search(pattern, text)) == is_taken


def test_the_page_of_fields_and_the_charts_schema_are_those_of_the_models() -> None:
    assert (ROOT / "docs" / "reference.md").read_text() == reference(), "run `make crds`"
    schema = ROOT / "charts" / "qsync-cluster" / "values.schema.json"
    assert schema.read_text() == values_schema(), "run `make crds`"


def test_every_field_has_a_description() -> None:
    for path, node in all_nodes():
        inner = path.partition(".spec.")[2] or path.partition(".status.")[2]
        if inner and not inner.endswith("[]") and ".metadata" not in path:
            assert node.get("description"), path


def at(path: str) -> dict[str, Any]:
    return dict(all_nodes())[path]


def test_named_lists_are_maps_so_that_a_name_is_given_once() -> None:
    spec = "QsyncCluster.spec"
    for path in ("spaces", "spaces[].format", "spaces[].indexes", "users", "roles"):
        assert at(f"{spec}.{path}")["x-kubernetes-list-type"] == "map", path
        assert at(f"{spec}.{path}")["x-kubernetes-list-map-keys"] == ["name"], path
        assert "name" in at(f"{spec}.{path}[]")["required"], path


@pytest.mark.parametrize(
    "path", ["audit.timeZone", "image", "tls.secretName", "storage.storageClass", "resources",
             "users[].passwordSecret", "archive.credentialsSecret"]
)  # fmt: skip
def test_api_server_refuses_what_no_object_could_have(path: str) -> None:
    assert at(f"QsyncCluster.spec.{path}")["x-kubernetes-validations"]


@pytest.mark.parametrize(
    ("name", "is_reserved"),
    [("orders-async", True), ("orders-reader", True), ("orders-leader", True),
     ("orders-replicas", True), ("orders-spark", True), ("orders-app", False),
     ("orders", False), ("orders-1", False), ("asyncs", False)],
)  # fmt: skip
def test_names_of_another_clusters_objects_are_reserved(name: str, is_reserved: bool) -> None:
    rules = at("QsyncCluster")["x-kubernetes-validations"]
    (rule,) = [one for one in rules if one.get("optionalOldSelf")]
    pattern = re.search(r"matches\('([^']+)'\)", rule["rule"])
    assert pattern is not None
    assert bool(re.search(pattern[1], name)) == is_reserved
