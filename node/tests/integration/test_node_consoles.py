"""The console of an unmodified Tarantool, connected to a member."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_node.format.keys import Key, Type
from qsync_testing.processes import ADMIN_PASSWORD, ProcessCluster, running_cluster
from qsync_testing.raw import Raw

EVAL = 'return require("console").eval(...)'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 1) as started:
        yield started


def command(cluster: ProcessCluster) -> list[str]:
    return ["tarantoolctl", "connect", f"admin:{ADMIN_PASSWORD}@{cluster.addresses[0]}"]


def evaluate(cluster: ProcessCluster, line: str) -> subprocess.CompletedProcess[str]:
    run = command(cluster)
    return subprocess.run(run, input=line, capture_output=True, text=True, timeout=30, check=False)


def test_tarantoolctl_evaluates_piped_lines(cluster: ProcessCluster) -> None:
    found = evaluate(cluster, "box.info.name\n")
    assert (found.returncode, found.stdout) == (0, "---\n- n0\n...\n\n"), found.stderr
    found = evaluate(cluster, "box.info.election()")
    assert "state: leader" in found.stdout
    refused = evaluate(cluster, "box.space.kv:select()")
    assert refused.returncode == 3
    assert "Qsync has no Lua. `qsync sh CLUSTER` opens a console for rows" in refused.stderr


def test_tarantoolctl_reaches_a_prompt(cluster: ProcessCluster, tmp_path: Path) -> None:
    """On a terminal: a prompt, completion with the tabulator key, lines, and the end by Ctrl-D."""
    main, terminal = pty.openpty()
    environment = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb"}
    process = subprocess.Popen(
        command(cluster), stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    try:
        read_until(main, f"{cluster.addresses[0]}> ")
        os.write(main, b"box.info.na\t\x7f\x7fname\n")
        read_until(main, "- n0")
        os.write(main, b"1 + 1\n")
        read_until(main, "Qsync has no Lua")
        os.write(main, b"\x04")
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(main)


def read_until(terminal: int, text: str) -> None:
    """Read a terminal until it has shown a text; a `TimeoutError` shows the rest."""
    shown = ""
    deadline = time.monotonic() + 30
    while text not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"{text!r} was not shown: {shown!r}")
        shown += os.read(terminal, 4096).decode(errors="replace")


def test_lines_need_the_rights_of_their_procedures(cluster: ProcessCluster) -> None:
    raw = Raw(cluster.addresses[0])
    body = {Key.EXPR: EVAL, Key.TUPLE: ["box.info"]}
    code, answer = raw.ask(Type.EVAL, body)
    assert code == 0
    assert "denied for user 'guest'" in answer[Key.DATA][0]
    assert raw.ask(Type.EVAL, {Key.EXPR: "return true", Key.TUPLE: []})[1][Key.DATA] == [True]
    raw.log_in()
    assert "vclock" in raw.ask(Type.EVAL, body)[1][Key.DATA][0]


@pytest.mark.parametrize("expression", ["return 1", "os.exit()", EVAL])
def test_other_programs_are_refused(cluster: ProcessCluster, expression: str) -> None:
    raw = Raw(cluster.addresses[0])
    raw.log_in()
    code, answer = raw.ask(Type.EVAL, {Key.EXPR: expression, Key.TUPLE: []})
    assert code == 5
    assert "EVAL is not supported" in answer[Key.ERROR_24]


def test_console_procedure_needs_a_line(cluster: ProcessCluster) -> None:
    raw = Raw(cluster.addresses[0])
    raw.log_in()
    call = {Key.FUNCTION_NAME: "qsync.console", Key.TUPLE: []}
    assert raw.ask(Type.CALL, call)[0] == 1
