"""The command line itself: help, exit codes, and commands that need no cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from qsync_cli import runs
from qsync_cli.clusters import store_of
from qsync_cli.commands import COMMANDS, LOCAL
from qsync_cli.failure import FAILURES, FailureReason, failure_of
from qsync_cli.journals.commands import JOURNALS
from qsync_cli.lazy import LazyCommand
from qsync_cli.local import apply as local_apply
from qsync_cli.main import app
from qsync_cli.output import plain_table
from qsync_local.store import Secrets
from qsync_operator.api.jobs import QsyncAudit
from qsync_operator.api.manifest import parse_cluster
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.members.links import LinkError
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES, ROOT, VECTORS


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def commands() -> list[list[str]]:
    found: list[list[str]] = []
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found += [[name, verb] for verb in inner] if inner else [[name]]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_help_has_an_example(home: Home, command: list[str]) -> None:
    text = home.do(*command, "--help")
    _, _, examples = text.partition("\n  Examples:\n")
    assert f"    qsync {' '.join(command)}" in examples


@pytest.mark.parametrize("command", [*COMMANDS, *LOCAL, *JOURNALS], ids=lambda c: c.function)
def test_listed_help_is_the_first_line_of_the_docstring(command: LazyCommand) -> None:
    loaded = command.load()
    assert loaded.help.partition("\n\n")[0].replace("\n", " ").strip() == command.help


@pytest.mark.parametrize("namespace", [["orders"], ["-n", "shop"]])
def test_missing_client_of_kubernetes_is_a_failure_with_its_remedy(namespace: list[str]) -> None:
    script = (
        "import sys\n"
        "sys.modules['kubernetes'] = None\n"
        "from qsync_cli.main import main\n"
        f"sys.argv[1:] = {['events', *namespace]!r}\n"
        "main()"
    )
    failed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KUBECONFIG": "/nonexistent"},
    )
    assert failed.returncode == 1
    assert "`pip install '.[operator]'` in a checkout" in failed.stderr
    assert failed.stderr.endswith("(NotInstalled)\n")


@pytest.mark.parametrize("words", [["demo"], ["apply", "-f", str(EXAMPLES / "one-node.yaml")]])
def test_missing_packages_of_the_extra_are_a_failure_with_its_remedy(
    words: list[str], tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "sys.modules['aiohttp'] = None\n"
        "from qsync_cli.main import main\n"
        f"sys.argv[1:] = {words!r}\n"
        "main()"
    )
    home = Home(tmp_path / "home")
    try:
        failed = subprocess.run(
            [sys.executable, "-c", script],
            env=home.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        home.close()  # the supervisor has the package
    assert failed.returncode == 1
    assert failed.stderr == (
        "qsync: the package aiohttp is missing: run `pip install '.[operator]'` in a checkout of "
        "Qsync (NotInstalled)\n"
    )


def test_deferred_modules_are_the_real_ones() -> None:
    script = (
        "from qsync_cli import lazy\n"
        "lazy.install()\n"
        "lazy.install()\n"
        "import sys, types\n"
        "from qsync_operator.api import spec\n"
        "print(type(spec) is types.ModuleType, 'pydantic_core' in sys.modules)\n"
        "print(spec.ClusterSpec().replicas)\n"
        "print(type(spec) is types.ModuleType, 'pydantic_core' in sys.modules)\n"
        "print(len([f for f in sys.meta_path if type(f).__module__ == 'qsync_cli.lazy']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "3", "True", "True", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["local", "apply"],
        ["local", "status", "-o", "xml"],
        ["local", "scale", "orders"],
        ["promote"],
        ["promote", "orders-1", "--local", "a", "--namespace", "b"],
        ["logs", "--address", "b:1"],
        ["promote", "--local", "a", "--address", "b:1"],
        ["cat"],
    ],
)
def test_wrong_usage_is_exit_code_two(home: Home, arguments: list[str]) -> None:
    done = home.run(*arguments)
    assert done.returncode == 2, done
    assert not home.directory.exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["local", "apply", "-f", "/nonexistent.yaml"], FailureReason.INVALID),
        (["local", "status", "orders"], FailureReason.NOT_FOUND),
        (["local", "status", "../etc"], FailureReason.INVALID),
        (["local", "delete", "orders"], FailureReason.NOT_FOUND),
        (["destroy", "orders"], FailureReason.NOT_FOUND),
        (["diff", "-f", "/nonexistent.yaml"], FailureReason.INVALID),
        (["status", "--address", "127.0.0.1:1"], FailureReason.UNREACHABLE),
        (["cat", "/nonexistent.xlog"], FailureReason.NOT_FOUND),
        (["explain", "NoSuchReason"], FailureReason.NOT_FOUND),
    ],
)
def test_failure_is_exit_code_one_and_one_sentence_with_its_reason(
    home: Home, arguments: list[str], reason: str
) -> None:
    assert home.refuse(*arguments).endswith(f" ({reason})\n")


def test_every_failure_reason_is_explained() -> None:
    assert [entry.name for entry in FAILURES] == list(FailureReason)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LinkError("no answer"), FailureReason.UNREACHABLE),
        (LinkError("not the leader", is_refusal=True), FailureReason.REFUSED),
        (ApiError("no connection"), FailureReason.UNREACHABLE),
        (ApiError("forbidden", 403), FailureReason.REFUSED),
        (ApiError("missing", 404), FailureReason.NOT_FOUND),
    ],
)
def test_errors_of_members_and_of_the_api_server_have_a_reason(
    error: LinkError | ApiError, reason: str
) -> None:
    assert failure_of(error).reason == reason


def test_cat_prints_what_tarantool_wrote(home: Home) -> None:
    path = VECTORS / "00000000000000000000.xlog"
    lines = home.do("cat", path, "-o", "json").splitlines()
    assert lines
    assert all(line.startswith('{"HEADER":') for line in lines)
    assert len(home.do("cat", path).splitlines()) == len(lines)
    assert home.do("cat", path, "-o", "yaml").count("---") == len(lines)


def test_cat_prints_what_can_be_read_and_names_the_damage(home: Home, tmp_path: Path) -> None:
    data = bytearray((VECTORS / "00000000000000000000.xlog").read_bytes())
    good = len(home.do("cat", VECTORS / "00000000000000000000.xlog", "-o", "json").splitlines())
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "damaged.xlog"
    path.write_bytes(data)
    done = home.run("cat", path, "-o", "json")
    assert done.returncode == 1
    assert re.search(r"damaged\.xlog is damaged at offset \d+: ", done.stderr)
    assert 0 < len(done.stdout.splitlines()) < good


def test_plain_tables_have_aligned_columns() -> None:
    text = plain_table(["A", "LONG"], [["wide cell", "1"], ["b", "2"]])
    assert text == "A           LONG\nwide cell   1\nb           2"


def test_two_names_are_one_program() -> None:
    assert isinstance(app, typer.Typer)
    names = (ROOT / "pyproject.toml").read_text()
    assert 'kubectl-qsync = "qsync_cli.main:main"' in names


def test_a_command_without_a_cluster_names_the_local_ones(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.environment = {**home.environment, "HOME": str(tmp_path)}
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        home.environment.pop(name, None)
    assert "there is no local cluster and no kubeconfig" in home.refuse("status")
    assert f"nope not found in {home.directory}: it has no clusters" in home.refuse("stop", "nope")
    monkeypatch.setenv("QSYNC_HOME", str(home.directory))
    document = yaml.safe_load((EXAMPLES / "three-nodes.yaml").read_text())
    for name in ("bills", "orders"):
        document["metadata"]["name"] = name
        store_of(name).directory.mkdir(parents=True)
        store_of(name).save_cluster(parse_cluster(document, "here"))
    assert "it has bills, orders (NotFound)" in home.refuse("fence", "nope", "nope-0")
    assert "several local clusters, bills, orders: name one" in home.refuse("events")
    assert home.run("fence", "orders").returncode == 2
    assert home.run("events", "orders", "--local", "bills").returncode == 2


@pytest.fixture
def applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Store the cluster `orders` with an archive; return the manifests that `apply` starts."""
    monkeypatch.setenv("QSYNC_HOME", str(tmp_path))
    document = yaml.safe_load((EXAMPLES / "three-nodes.yaml").read_text())
    document["spec"]["archive"] = {"url": "file:///archive"}
    (tmp_path / "orders").mkdir()
    store_of("orders").save_cluster(parse_cluster(document, "here"))
    brought_up: list[Any] = []
    monkeypatch.setattr(local_apply, "bring_up", lambda manifest, *_: brought_up.append(manifest))
    return brought_up


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ([], "file:///archive"),
        (["--archive", "file:///other"], "file:///other"),
        (["--archive", "none"], None),
    ],
)
def test_apply_keeps_the_archive_unless_another_is_named(
    applied: list[Any], options: list[str], url: str | None
) -> None:
    manifest = str(EXAMPLES / "three-nodes.yaml")
    result = CliRunner().invoke(app, ["local", "apply", "-f", manifest, *options])
    assert result.exit_code == 0, result.output
    archive = applied[0].cluster.spec.archive
    assert (archive.url if archive is not None else None) == url


def test_audit_asks_for_nothing_that_a_qsyncaudit_lacks() -> None:
    cluster = {"apiVersion": "qsync.dev/v1alpha1", "metadata": {"name": "orders", "namespace": "n"}}
    asked: list[dict[str, Any]] = []

    def order(where: object, kind: str, spec: dict[str, Any], *_: object) -> dict[str, Any]:
        asked.append(runs._document(cluster, kind, spec))
        return {"status": {"verdict": "Passed"}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_run", order)
        assert CliRunner().invoke(app, ["audit", "-n", "n"]).exit_code == 0
        assert CliRunner().invoke(app, ["audit", "--full"]).exit_code == 2
        ledgers = ["s3://bucket/a.jsonl", "s3://bucket/b.jsonl"]
        words = [word for url in ledgers for word in ("--appends", url)]
        assert CliRunner().invoke(app, ["audit", "-n", "n", *words]).exit_code == 0
        refused = CliRunner().invoke(app, ["audit", "-n", "n", "--appends", "ledger.jsonl"])
        assert refused.exit_code == 2
        assert "is no URL" in refused.output
    document = {**asked[0], "metadata": {"name": "orders-audit-x", "namespace": "n"}}
    assert QsyncAudit.model_validate(document).spec.cluster == "orders"
    assert asked[1]["spec"]["appendLedgers"] == ledgers


def test_compaction_that_left_fragments_fails() -> None:
    asked: list[dict[str, Any]] = []
    counts: dict[str, int] = {}

    def order(where: object, kind: str, spec: dict[str, Any], *_: object) -> dict[str, Any]:
        asked.append(spec)
        return {"status": {"phase": "Succeeded", "counts": counts}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_run", order)
        assert CliRunner().invoke(app, ["compact", "-n", "n"]).exit_code == 0
        assert CliRunner().invoke(app, ["compact", "-n", "n", "--merge-fragments"]).exit_code == 0
        counts["fragmentProblems"] = 1
        assert CliRunner().invoke(app, ["compact", "-n", "n", "--merge-fragments"]).exit_code == 1
    assert [one["mergeFragments"] for one in asked] == [False, True, True]


@pytest.mark.parametrize("apt", ["true", "false"])
@pytest.mark.parametrize("has_policy", [True, False])
def test_installing_packages_restores_the_service_policy(
    tmp_path: Path, apt: str, has_policy: bool
) -> None:
    policy = tmp_path / "policy-rc.d"
    if has_policy:
        policy.write_text("the machine's own")
    commands_folder = tmp_path / "bin"
    commands_folder.mkdir()
    seen = tmp_path / "seen"
    for name, script in (
        ("dpkg-query", "exit 1"),
        ("sudo", 'exec "$@"'),
        ("apt-get", f"cat {policy} > {seen}\n{apt}"),
    ):
        (commands_folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands_folder / name).chmod(0o755)
    environment = {"PATH": f"{commands_folder}:{os.environ['PATH']}", "POLICY_FILE": str(policy)}
    program = ROOT / ".ci" / "debian"
    done = subprocess.run([program], env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) == (apt == "true"), done.stderr
    assert "exit 101" in seen.read_text()
    assert policy.exists() == has_policy
    if has_policy:
        assert policy.read_text() == "the machine's own"


def test_list_shows_local_clusters_if_kubernetes_does_not_answer(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QSYNC_HOME", str(home.directory))
    document = yaml.safe_load((EXAMPLES / "three-nodes.yaml").read_text())
    store_of("orders").directory.mkdir(parents=True)
    store_of("orders").save_secrets(Secrets("secret", "app", "password"))
    store_of("orders").save_cluster(parse_cluster(document, "here"))
    kube = Path(home.environment["HOME"]) / ".kube"
    kube.mkdir(parents=True)
    (kube / "config").write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "gone",
        "clusters": [{"name": "gone", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "gone", "user": {"token": "none"}}],
        "contexts": [{"name": "gone", "context": {"cluster": "gone", "user": "gone"}}],
    }))  # fmt: skip
    done = home.run("list")
    assert done.returncode == 0
    assert "orders" in done.stdout
    assert done.stderr.startswith("warning: clusters on Kubernetes are missing: cannot connect")
    assert "cannot connect" in home.refuse("list", "--context", "gone")
