"""Fixtures of more than one file."""

from pathlib import Path

import pytest

from qsync_node.log.files import FileSystem, OsFileSystem
from qsync_sim.disk import SimDisk


@pytest.fixture(params=["simulated", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A filesystem and a directory on it."""
    if request.param == "real":
        return OsFileSystem(), str(tmp_path / "data")
    return SimDisk(), "/data"
