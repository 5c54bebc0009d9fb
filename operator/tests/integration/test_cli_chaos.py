"""`qsync demo`, `chaos` and `verify`, and the commands of docs/chaos.md as printed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qsync_testing.operator.local_clusters import Home
from qsync_testing.pages import scripts_of
from qsync_testing.paths import ROOT

DEMO_S = 10.0
MANIFEST_WITH_USER = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {name: shop}
spec: {replicas: 1, users: [{name: ann, passwordSecret: ann}]}
---
apiVersion: v1
kind: Secret
metadata: {name: ann}
stringData: {password: first}
"""


def scripts() -> list[list[str]]:
    """Return the commands of the page, in their order."""
    return scripts_of((ROOT / "docs" / "chaos.md").read_text())


@pytest.mark.timeout(300)
def test_the_page_works_as_printed(home: Home, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "QSYNC_HOME": str(home.directory), "PATH": path}
    printed = []
    for script in scripts():
        done = subprocess.run(
            script, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, (script, done.stdout, done.stderr, home.logs())
        printed.append(done.stdout)
    everything = "\n".join(printed)
    lines = "".join(printed[1:3]).splitlines()  # of `chaos` and the first `verify`
    proposals = [line for line in lines if line.startswith("next: ")]
    assert len(proposals) == 2
    assert set(proposals) <= set((ROOT / "docs" / "chaos.md").read_text().splitlines())
    assert everything.count("killed demo-") == 3
    assert everything.count("demo: Passed. Each of ") == 2
    assert "qsync destroy demo --delete-data --yes" in printed[0], "how to remove it"
    assert not (home.directory / "demo").exists(), "nothing is left"
    assert home.all_pids() == []


def test_demo_is_ready_soon_and_can_be_repeated(home: Home) -> None:
    found = json.loads(home.do("demo", "-o", "json"))
    assert found["rows"] == 208
    assert found["seconds"] < 3 * DEMO_S, "three times the goal, for a busy machine"
    again = json.loads(home.do("demo", "-o", "json"))
    assert again["rows"] == 208
    assert home.do("count", "demo", "orders").strip().startswith("200")
    assert "ada" in home.do("sh", "demo", "-c", "select orders --limit 8")
    assert home.do("demo").count("qsync top demo") == 1, "no question without a terminal"


def ledger_of(home: Home, tmp_path: Path) -> Path:
    """Write rows through the client, and their ledger."""
    home.do("demo")
    file = tmp_path / "ledger.jsonl"
    lines = []
    for number in (1001, 1002, 1003):
        home.do("put", "demo", "orders", f'[{number}, "ada", "tea", 1]')
        row = [number, "ada", "tea", 1]
        lines.append({"space": "orders", "key": number, "row": row, "outcome": "committed"})
    lines.append({"space": "orders", "key": 1004, "outcome": "refused"})
    lines.append({"space": "orders", "key": 1005, "outcome": "unknown"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_verify_finds_a_planted_loss_on_every_member(home: Home, tmp_path: Path) -> None:
    file = ledger_of(home, tmp_path)
    found = json.loads(home.do("verify", file, "demo", "-o", "json"))
    assert found["verdict"] == "Passed"
    assert found["outcomes"] == {"committed": 3, "refused": 1, "unknown": 1}
    assert [one["problems"] for one in found["members"]] == [{}, {}, {}]

    home.do("delete", "demo", "orders", "1002")  # a lost write
    home.do("put", "demo", "orders", '[1004, "eve", "tea", 1]')  # a refused write that took effect
    done = home.run("verify", file, "demo", "-o", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["verdict"] == "Violated"
    problems = {
        "lost": {"count": 1, "keys": ["[1002]"]}, "resurrected": {"count": 1, "keys": ["[1004]"]},
    }  # fmt: skip
    assert [one["problems"] for one in found["members"]] == [{"orders": problems}] * 3
    shown = home.run("verify", file)
    assert shown.returncode == 1
    assert "orders: acknowledged, and missing: 1 row, such as [1002]" in shown.stdout
    assert "3 of 3 members contradict the ledger" in shown.stdout
    assert "next: keep the ledger" in shown.stdout
    assert re.search(r"^demo-0 +\d+ +orders: ", shown.stdout, re.MULTILINE), "the member's name"
    table = shown.stdout.partition("\n")[2].partition("\ndemo: Violated")[0]
    assert max(map(len, table.splitlines())) <= 80

    line = {"space": "orders", "key": "1001", "row": ["1001", "ada"], "outcome": "committed"}
    file.write_text(json.dumps(line) + "\n")
    said = home.refuse("verify", file, "demo")
    assert 'line 1 has the key ["1001"] that is no unsigned' in said
    assert "correct --user and --password" in home.refuse(
        "verify", file, "demo", "--user", "app", "--password", "wrong"
    )


def test_verify_names_the_mistake_of_a_ledger(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    assert "(NotFound)" in home.refuse("verify", file)
    file.write_text("")
    assert "no complete line" in home.refuse("verify", file)
    file.write_text('{"id": 1, "outcome": "done"}\n')
    assert 'line 1 has the outcome "done"' in home.refuse("verify", file)
    file.write_text('{"id": 1, "outcome": "committed"}\n')
    assert "names no cluster: add CLUSTER" in home.refuse("verify", file)


def test_chaos_asks_for_a_fault_and_a_ledger(home: Home, tmp_path: Path) -> None:
    for words, text in (
        ((), "--kill-leader"),
        (("--kill-leader",), "--ledger FILE is missing"),
        (("--kill-leader", "--no-workload", "--every", "soon"), "use a duration"),
    ):
        done = home.run("chaos", "demo", *words)
        assert done.returncode == 2, words
        assert text in done.stderr, words
    words = ("chaos", "demo", "--kill-leader", "--no-workload")
    home.environment |= {"KUBECONFIG": "", "HOME": str(tmp_path)}
    assert "(NotFound)" in home.refuse(*words)
    done = home.run(*words, "-n", "shop")
    assert "(Unreachable)" in done.stderr
    assert "its leader is deleted" not in done.stdout + done.stderr, "no question before a look"


@pytest.mark.timeout(200)
def test_interrupted_chaos_prints_its_summary(home: Home, tmp_path: Path) -> None:
    home.do("demo")
    words = ("--kill-leader", "--every", "100s", "--ledger", str(tmp_path / "l.jsonl"))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "qsync_cli.main", "chaos", "demo", *words],
        env=home.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "killed demo-" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "demo: 1 leader killed; " in rest
    assert "next: qsync verify" in rest


@pytest.mark.timeout(200)
def test_chaos_without_rights_names_a_remedy(home: Home, tmp_path: Path) -> None:
    manifest = tmp_path / "shop.yaml"
    manifest.write_text(MANIFEST_WITH_USER)
    home.do("apply", "-f", manifest)
    words = ("chaos", "shop", "--kill-leader", "--ledger", str(tmp_path / "l.jsonl"))
    said = home.refuse(*words, "--user", "ann")
    assert "use a user that may create spaces" in said or "grant the privilege" in said, said
