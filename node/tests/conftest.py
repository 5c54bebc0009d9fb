"""Fixtures that several files share."""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asynctnt
import pytest
from hypothesis import settings

from qsync_node.storage.files import FileSystem, OsFileSystem
from qsync_sim.disk import SimDisk
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.object_server import ObjectServer, object_server, used_by_this_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline: a busy machine delays examples, and no test asserts a duration.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(params=["simulated", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """Return a filesystem and a directory on it."""
    if request.param == "real":
        return OsFileSystem(), str(tmp_path / "data")
    return SimDisk(), "/data"


@pytest.fixture(autouse=True)
def streams_of_connector() -> Iterator[None]:
    """Restore asynctnt: a connection to a server without streams disables them in all others."""
    before = asynctnt.Connection.stream
    yield
    asynctnt.Connection.stream = before


@pytest.fixture
def collector_of_a_server() -> Iterator[None]:
    """Configure the garbage collector as a server does (loop.py): it skips existing objects."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from qsync_spark.session import make_session  # noqa: PLC0415 - only its users need Java

    session = make_session("test", "local[2]")
    yield session
    session.stop()


@pytest.fixture(params=["process", "spark"])
def session(request: pytest.FixtureRequest) -> Iterator["SparkSession"]:
    """Return a session of each engine, whose audits must have equal results."""
    if request.param == "spark":
        yield request.getfixturevalue("spark")
        return
    from qsync_spark.local_session import make_local_session  # noqa: PLC0415 - as above

    session = make_local_session()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectServer]:
    """Return an object store without buckets, which this process uses; its listings have pages."""
    with object_server() as server, used_by_this_process(server):
        server.page = 7
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive of a simulated schedule with failovers and rollbacks."""
    from qsync_testing.archives.simulated import archived_runs, is_eventful  # noqa: PLC0415 - only its users need the simulator

    return next(archived_runs(tmp_path_factory.mktemp("archives"), is_eventful, 1))


@pytest.fixture
def archive(folder: Path, tmp_path: Path) -> Path:
    """Return a copy of `folder` that a test can change."""
    copy = tmp_path / "archive"
    shutil.copytree(folder, copy)
    return copy


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Copy:
    """Return a copy of `folder` with methods that change its files and rows."""
    return Copy(folder, tmp_path / "copy", 5)
