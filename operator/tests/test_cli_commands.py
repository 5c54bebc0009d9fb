"""The command line itself: help, exit codes, and what needs no cluster."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from local_clusters import Home
from typer.main import get_command

from qsync_cli.main import app
from qsync_cli.output import plain_table

VECTORS = Path(__file__).parents[2] / "node" / "tests" / "vectors"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def commands() -> list[list[str]]:
    found = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found += [[name, verb] for verb in inner] if inner else [[name]]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_help_has_an_example(home: Home, command: list[str]) -> None:
    text = home.do(*command, "--help")
    assert "Example: qsync " + " ".join(command) in re.sub(r"\s+", " ", text)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from qsync_cli.main import app\n"
        "heavy = {'aiohttp', 'pydantic', 'yaml', 'asyncio', 'kopf', 'kubernetes', 'pyspark'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


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
    ("arguments", "sentence"),
    [
        (["local", "apply", "-f", "/nonexistent.yaml"], "No such file"),
        (["local", "status", "orders"], "there is no cluster orders"),
        (["local", "status", "../etc"], "is not a cluster's name"),
        (["local", "delete", "orders"], "there is no cluster orders"),
        (["status", "--address", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["cat", "/nonexistent.xlog"], "No such file"),
    ],
)
def test_what_did_not_happen_is_exit_code_one_and_one_sentence(
    home: Home, arguments: list[str], sentence: str
) -> None:
    assert sentence in home.refuse(*arguments)


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
    names = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'kubectl-qsync = "qsync_cli.main:main"' in names
