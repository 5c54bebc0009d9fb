"""Failures of commands state their cause in words, and a remedy that the cluster has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qsync_cli.data.query import statement_failure
from qsync_cli.data.values import code_name
from qsync_cli.failure import FailureReason, cause_of
from qsync_cli.main import with_reason
from qsync_client.errors import text_of
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

THREE = EXAMPLES / "three-nodes.yaml"


def with_input(home: Home, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qsync_cli.main", *arguments],
        env=home.environment, input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_errors_of_the_operating_system_are_words() -> None:
    refused = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")
    assert text_of(refused) == "connection refused"
    assert text_of(OSError("no errno")) == "no errno"
    assert text_of(TimeoutError()) == "TimeoutError"
    assert cause_of(FileNotFoundError(2, "gone", "/a")) == "No such file or directory"
    assert cause_of(ValueError("no file")) == "no file"


@pytest.mark.parametrize(
    ("code", "name"), [(3, "TUPLE_FOUND"), (201, "NO_SUCH_FIELD_NAME"), (9999, "9999")]
)
def test_codes_of_the_engine_have_names_too(code: int, name: str) -> None:
    assert code_name(code) == name


def test_a_failed_statement_suggests_no_table_of_the_library() -> None:
    missing = 'Catalog Error: Table with name x does not exist!\nDid you mean "{}"?\n\nLINE 1: a'
    assert "mean" not in str(statement_failure(ValueError(missing.format("pg_enum"))))
    assert "mean" in str(statement_failure(ValueError(missing.format("orders"))))


def test_mistakes_follow_the_sentence_and_its_reason(home: Home) -> None:
    manifest = "apiVersion: qsync.dev/v1alpha1\nkind: QsyncCluster\nmetadata: {name: A}\n"
    failed = with_input(home, manifest + "spec: {replicas: 0}\n", "apply", "-f", "-")
    first, *mistakes = failed.stderr.splitlines()
    assert (failed.returncode, first) == (1, "qsync: standard input has 2 mistakes: (Invalid)")
    assert len(mistakes) == 2
    assert all(line.startswith("  ") for line in mistakes)


def test_commands_name_options_and_not_fields_of_a_manifest(home: Home) -> None:
    archive = ("--archive", "file:///nonexistent")
    said = home.refuse("restore", "x", *archive, "--to-time", "yesterday")
    assert "--to-time: invalid time 'yesterday'" in said
    said = home.refuse("restore", "x", *archive, "--new-archive", "/folder")
    assert "--new-archive '/folder': write a URL with its scheme" in said
    said = home.refuse("apply", "-f", THREE, "--archive", "file://folder")
    assert f"'file://folder' has no absolute path: use file://{Path.cwd()}/folder" in said


def test_a_command_without_a_local_form_is_named(home: Home) -> None:
    failed = home.run("local", "switchover", "orders")
    assert failed.returncode == 2
    assert "local has no command switchover: write `" in failed.stderr
    assert "No such command 'switchovr'" in home.run("local", "switchovr").stderr


def test_closed_standard_input_is_named(home: Home) -> None:
    command = f"exec '{sys.executable}' -m qsync_cli.main apply -f - <&-"
    failed = subprocess.run(
        ["sh", "-c", command], env=home.environment, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert failed.stderr == "qsync: cannot read standard input: it is closed (Invalid)\n"


def test_reason_of_a_failure_stands_after_its_last_sentence() -> None:
    for text, expected in {
        "it failed": "it failed (Invalid)",
        "two mistakes:\n  a\n  b": "two mistakes: (Invalid)\n  a\n  b",
        "files:\n  a\nadd --yes": "files:\n  a\nadd --yes (Invalid)",
    }.items():
        assert with_reason(text, FailureReason.INVALID) == expected


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_verbs_of_kubernetes_name_the_remedy_for_a_local_cluster(
    home: Home, tmp_path: Path
) -> None:
    # A dead Kubernetes must not matter.
    config = tmp_path / ".kube" / "config"
    config.parent.mkdir()
    config.write_text("current-context: dead\n")
    home.environment = {**home.environment, "HOME": str(tmp_path)}
    home.environment.pop("KUBECONFIG")
    try:
        applied = with_input(home, THREE.read_text(), "apply", "-f", "-")
        assert applied.returncode == 0, applied
        assert "unchanged" in with_input(home, THREE.read_text(), "diff", "-f", "-").stdout
        assert home.do("status").startswith("orders: Ready")
        for verb, remedy in {
            "pause": "`qsync stop orders`",
            "resume": "`qsync start orders`",
            "bundle": f"copy {home.directory / 'orders'}",
        }.items():
            assert remedy in home.refuse(verb, "orders")
        assert "`qsync restart orders`" in home.refuse("replace", "orders", "orders-1")

        home.do("put", "orders", "orders", '[1, "a", 1]')
        assert "(NO_SUCH_FIELD_NAME)" in home.refuse(
            "update", "orders", "orders", "1", "--set", "nothing=1"
        )
        for path in ("/nonexistent/a.csv", "/nonexistent/a.parquet"):
            said = home.refuse("import", "orders", "orders", path)
            assert f"cannot read {path}: No such file or directory (Invalid)" in said
        said = home.refuse("bench", "orders", "--seconds", "1", "--ledger", "/nonexistent/x")
        assert "ledger /nonexistent/x: No such file or directory; correct --ledger" in said

        said = home.refuse("bench", "orders", "--user", "app", "--password", "wrong")
        assert "invalid; correct --user and --password (Refused)" in said
        said = home.run("destroy", "order", "--delete-data").stderr
        assert "are for local clusters only (on this machine: orders). On" in said

        home.do("local", "stop", "orders")
        assert "run `qsync start orders`" in home.do("status", "orders")
        home.do("local", "start", "orders")
        assert json.loads(home.do("list", "-o", "json"))[0]["status"] == "Ready"
    finally:
        home.close()
