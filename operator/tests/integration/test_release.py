"""The files of a release: one version, the krew manifest and the bundle for OLM."""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_node import __version__
from qsync_testing.paths import ROOT

RELEASE = ROOT / "deploy" / "release"
NEEDS_HELM = pytest.mark.skipif(shutil.which("helm") is None, reason="helm renders the chart")


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RELEASE / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_charts_have_the_version_of_the_package() -> None:
    for chart in (ROOT / "charts").glob("*/Chart.yaml"):
        found = yaml.safe_load(chart.read_text())
        assert (found["version"], found["appVersion"]) == (__version__, __version__), chart


def test_other_files_read_the_version_from_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    done = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{__version__}\n"


@pytest.mark.parametrize("lock", sorted((ROOT / "locks").glob("*.txt")), ids=lambda path: path.stem)
def test_each_locked_package_has_hashes_and_the_version_of_all(lock: Path) -> None:
    found = _versions(lock)
    assert found
    assert found <= _versions(ROOT / "locks" / "all.txt")
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    assert all("--hash=sha256:" in entry for entry in entries if not entry.startswith("#"))


def _versions(lock: Path) -> set[str]:
    return set(re.findall(r"^[a-z0-9._-]+==[^ ;]+", lock.read_text(), re.MULTILINE))


def test_krew_manifest_lists_each_archive_with_its_hash(tmp_path: Path) -> None:
    for platform in ("linux-amd64", "darwin-arm64"):
        (tmp_path / f"kubectl-qsync-1.2.3-{platform}.tar.gz").write_bytes(platform.encode())
    done = run("krew.py", "1.2.3", "https://example.org/q/releases/download/v1.2.3/", str(tmp_path))
    assert done.returncode == 0, done.stderr
    spec = yaml.safe_load(done.stdout)["spec"]
    assert (spec["version"], spec["homepage"]) == ("v1.2.3", "https://example.org/q")
    found = [(one["selector"]["matchLabels"], one["sha256"]) for one in spec["platforms"]]
    assert found == [
        ({"os": system, "arch": arch}, hashlib.sha256(f"{system}-{arch}".encode()).hexdigest())
        for system, arch in (("darwin", "arm64"), ("linux", "amd64"))
    ]
    base = "https://example.org/q/releases/download/v1.2.3"
    assert spec["platforms"][1]["uri"] == f"{base}/kubectl-qsync-1.2.3-linux-amd64.tar.gz"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (None, "has no kubectl-qsync-*.tar.gz: run `make binary`"),
        ("kubectl-qsync-1.2.2-linux-amd64.tar.gz", "is no archive of version 1.2.3"),
        ("kubectl-qsync-1.2.3-plan9-amd64.tar.gz", "is no archive of version 1.2.3"),
    ],
)
def test_krew_manifest_of_wrong_archives_is_refused(
    tmp_path: Path, name: str | None, reason: str
) -> None:
    if name:
        (tmp_path / name).touch()
    done = run("krew.py", "1.2.3", "https://example.org", str(tmp_path))
    assert done.returncode == 1
    assert reason in done.stderr
    assert done.stdout == ""


@NEEDS_HELM
def test_bundle_installs_what_the_chart_installs(tmp_path: Path) -> None:
    done = run("olm.py", "1.2.3", "registry.example.org/qsync", str(tmp_path / "bundle"))
    assert done.returncode == 0, done.stderr
    manifests = {path.name: path for path in (tmp_path / "bundle" / "manifests").iterdir()}
    csv = yaml.safe_load(manifests.pop("qsync-operator.clusterserviceversion.yaml").read_text())
    install = csv["spec"]["install"]["spec"]
    (deployment,) = install["deployments"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/qsync/qsync-operator:1.2.3"
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["QSYNC_NODE_IMAGE"] == "registry.example.org/qsync/qsync-node:1.2.3"
    assert environment["QSYNC_SPARK_IMAGE"] == "registry.example.org/qsync/qsync-spark:1.2.3"

    chart = _rendered()
    for kind, permissions in (("ClusterRole", "clusterPermissions"), ("Role", "permissions")):
        expected = [
            rule
            for role in chart
            if role["kind"] == kind and role["metadata"]["name"] != environment["QSYNC_SPARK_ROLE"]
            for rule in role["rules"]
        ]
        (found,) = install[permissions]
        assert found["rules"] == expected
        assert found["serviceAccountName"] == "qsync-operator"
    crds = {path.name for path in (ROOT / "crds").glob("*.yaml")}
    assert set(manifests) == crds | {"qsync-operator-spark.clusterrole.yaml"}
    owned = {one["name"] for one in csv["spec"]["customresourcedefinitions"]["owned"]}
    assert owned == {
        one["metadata"]["name"] for one in chart if one["kind"].startswith("CustomRes")
    }


def _rendered() -> list[dict[str, Any]]:
    done = subprocess.run(
        [
            "helm",
            "template",
            "qsync-operator",
            str(ROOT / "charts" / "qsync-operator"),
            "--no-hooks",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return [one for one in yaml.safe_load_all(done.stdout) if one]


@NEEDS_HELM
def test_packaged_chart_names_the_images_of_the_registry(tmp_path: Path) -> None:
    program = ROOT / ".ci" / "package-chart"
    for chart in ("qsync-operator", "qsync-cluster"):
        command: list[str | Path] = [
            program,
            ROOT / "charts" / chart,
            "1.2.3",
            "reg.example.org/q",
            tmp_path,
        ]
        subprocess.run(command, check=True, capture_output=True)
    rendered = subprocess.run(
        ["helm", "template", "q", str(tmp_path / "qsync-operator-1.2.3.tgz"), "--no-hooks"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for image in ("operator", "node", "spark"):
        assert f"reg.example.org/q/qsync-{image}:1.2.3" in rendered
    values = subprocess.run(
        ["helm", "show", "values", str(tmp_path / "qsync-cluster-1.2.3.tgz")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert yaml.safe_load(values)["testImage"] == "reg.example.org/q/qsync-node:1.2.3"


def test_command_prints_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qsync_cli.main", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"qsync {__version__}\n"
