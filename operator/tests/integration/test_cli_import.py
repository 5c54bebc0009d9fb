"""`qsync export` and `import` on a cluster: nothing is lost, and nothing is written twice."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

ROWS = 6000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("files") / "home")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    yield home
    home.close()


def newest(home: Home) -> int:
    return int(home.run("tail", "orders").stderr.split()[-1])


def test_killed_import_continues_and_writes_each_row_once(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    lines = [f"{number},name {number},{number / 4}" for number in range(ROWS)]
    file.write_text("\n".join(["id,customer,total", *lines]) + "\n")
    start = newest(home)
    command = [sys.executable, "-m", "qsync_cli.main", "import", "orders", "orders", str(file),
               "--replace", "--batch", "200"]  # fmt: skip
    state = tmp_path / "rows.csv.orders.import"
    kills = 0
    for reached in (1, 1500, 3500):
        with subprocess.Popen(command, env=home.environment, stderr=subprocess.PIPE) as process:
            while process.poll() is None:
                if state.exists() and json.loads(state.read_text())["first"] >= reached:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    break
                time.sleep(0.002)
    assert kills
    done = home.run(*command[3:])
    assert "continuing after" in done.stderr
    assert f"imported {ROWS} rows into orders" in done.stderr
    assert not state.exists()
    changes = home.do("tail", "orders", "orders", "--from", str(start)).splitlines()
    assert len(changes) == ROWS
    assert {json.loads(line)["row"]["id"] for line in changes} == set(range(ROWS))


def test_interrupted_import_names_the_way_to_continue(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'[{number}, "x"]\n' for number in range(300000, 320000)))
    command = [sys.executable, "-m", "qsync_cli.main", "import", "orders", "orders", str(file)]
    state = tmp_path / "rows.jsonl.orders.import"
    with subprocess.Popen(command, env=home.environment, stderr=subprocess.PIPE) as process:
        while not state.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.endswith(b"repeat the same command to continue (Failed)\n")
    assert state.exists()


@pytest.mark.parametrize("options", [(), ("--consistent",)])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_export_contains_every_row(
    home: Home, tmp_path: Path, suffix: str, options: tuple[str, ...]
) -> None:
    home.do("put", "orders", "orders", '[100000, "ümläut, \\"quoted\\"", null]')
    file = tmp_path / f"orders.{suffix}"
    done = home.run("export", "orders", "orders", "-o", file, *options)
    assert done.returncode == 0, done.stderr
    total = int(home.do("count", "orders", "orders"))
    assert f"exported {total} rows" in done.stderr
    start = newest(home)
    checked = home.run("import", "orders", "orders", file, "--dry-run")
    assert f"would import {total} rows" in checked.stderr
    assert newest(home) == start
    assert home.run("import", "orders", "orders", file, "--replace").returncode == 0
    again = tmp_path / f"again.{suffix}"
    home.do("export", "orders", "orders", "-o", again)
    if suffix != "parquet":
        assert again.read_bytes() == file.read_bytes()
    assert "(AlreadyExists)" in home.refuse("export", "orders", "orders", "-o", file)


def test_consistent_export_continues_as_changes(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    done = home.run("export", "orders", "orders", "--consistent", "-o", file)
    home.do("put", "orders", "orders", '[100001, "later", 1]')
    printed = done.stderr.partition("next: qsync ")[2].split()
    changes = home.do(*printed).splitlines()
    assert [json.loads(line)["row"]["id"] for line in changes] == [100001]


def test_invalid_rows_are_listed_and_the_others_written(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('[200000, "a", 1]\n[200001, 7, 1]\n{"id": 200000, "customer": "b"}\n'
                    '[200002, "c"]\n')  # fmt: skip
    done = home.run("import", "orders", "orders", file)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert said[0] == "line 2, field customer: 7 is no string"
    assert said[1].startswith("line 3: Duplicate key")
    assert said[2] == "imported 2 rows into orders"
    assert "2 rows were not imported" in said[3]
    assert home.do("get", "orders", "orders", "200002")
    stopped = home.run("import", "orders", "orders", file, "--max-bad", "0", "--dry-run")
    assert "stopped at line 2" in stopped.stderr


def test_export_and_import_are_pipes(home: Home) -> None:
    rows = subprocess.run(
        [sys.executable, "-m", "qsync_cli.main", "export", "orders", "orders"],
        env=home.environment, capture_output=True, check=True,
    ).stdout  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "qsync_cli.main", "import", "orders", "orders", "-", "--replace"],
        env=home.environment, input=rows, capture_output=True, check=True,
    )  # fmt: skip
    assert f"imported {len(rows.splitlines())} rows".encode() in done.stderr
