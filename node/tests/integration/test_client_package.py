"""The client installs alone: a wheel, msgpack, and nothing else of Qsync."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import msgpack
import pytest

import qsync_client
from qsync_node import __version__
from qsync_testing.paths import ROOT
from qsync_testing.processes import PASSWORD, USER, running_cluster

SOURCE = Path(qsync_client.__file__).parent
PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]

PROGRAM = """
import sys
import qsync_client
from qsync_client import Committed, SyncClient

assert not [name for name in sys.modules if name.startswith("qsync_node")]
FORMAT = [{{"name": "id", "type": "unsigned"}}]
with SyncClient(sys.argv[1:], {user!r}, {password!r}) as client:
    client.insert(280, [512, 1, "kv", "memtx", 0, {{"is_sync": True}}, FORMAT])
    client.insert(288, [512, 0, "primary", "tree", {{"unique": True}}, [[0, "unsigned"]]])
    outcome = client.insert("kv", {{"id": 1}})
    assert isinstance(outcome, Committed), outcome
    print(qsync_client.__file__, client.get("kv", 1).as_dict())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from a copy of the sources, so that the build leaves nothing there."""
    folder = tmp_path_factory.mktemp("client")
    copy = shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "-w", str(folder), str(copy)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    (found,) = folder.glob("*.whl")
    return found


def test_wheel_contains_the_whole_package_and_its_types(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = message_from_string(
            archive.read(f"qsync_client-{__version__}.dist-info/METADATA").decode()
        )
    sources = {f"qsync_client/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.py")}
    assert sources | {"qsync_client/py.typed"} <= names
    assert metadata["Name"] == "qsync-client"
    assert metadata.get_all("Requires-Dist") == ["msgpack>=1.1"]


def test_client_has_the_version_of_the_node() -> None:
    assert PROJECT["version"] == qsync_client.__version__ == __version__


def test_wheel_with_msgpack_alone_talks_to_a_server(wheel: Path, tmp_path: Path) -> None:
    """msgpack is copied from this environment, so the test needs no network."""
    venv.create(tmp_path / "venv", with_pip=False)
    (library,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    shutil.copytree(Path(msgpack.__file__).parent, library / "msgpack")
    with ZipFile(wheel) as archive:
        archive.extractall(library)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(user=USER, password=PASSWORD))
    with running_cluster(tmp_path / "cluster", 1) as cluster:
        done = subprocess.run(
            [str(tmp_path / "venv" / "bin" / "python"), "-I", str(program), *cluster.addresses],
            capture_output=True,
            text=True,
            check=False,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
    assert done.returncode == 0, done.stderr
    assert str(library) in done.stdout
    assert "{'id': 1}" in done.stdout


USE = """
from qsync_client import (
    Client, Committed, Refused, RolledBack, Row, SyncClient, SyncTransaction, Unknown,
)

def use(client: SyncClient) -> int:
    match client.insert("accounts", {"id": 1}):
        case Committed(rows, at=index):
            return index + len(rows)
        case RolledBack(reason) | Unknown(reason) | Refused(_, reason):
            return len(reason)

def read(client: SyncClient, transaction: SyncTransaction) -> Row | None:
    return client.get("accounts", 1) or transaction.get("accounts", 1)

async def use_later(client: Client) -> None:
    reveal_type(await client.get("accounts", 1))
    async for row in client.scan("accounts"):
        reveal_type(row)
    await client.insert(1.5, [])
"""


def test_types_of_the_installed_wheel_reach_a_strict_program(wheel: Path, tmp_path: Path) -> None:
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "library")
    (tmp_path / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull,
         "--cache-dir", str(ROOT / ".mypy_cache" / "client"), "--follow-imports", "silent",
         "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": "library"},
    )  # fmt: skip
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines()]
    assert [line for line in lines if line.startswith("note: Revealed")] == [
        'note: Revealed type is "qsync_client.schema.Row | None"',
        'note: Revealed type is "qsync_client.schema.Row"',
    ]
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 1, "only the space that is neither name nor id"
    assert 'has incompatible type "float"' in errors[0]
