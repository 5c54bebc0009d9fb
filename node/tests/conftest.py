"""Fixtures of more than one file."""

from pathlib import Path

import pytest
from hypothesis import settings

from qsync_node.log.files import FileSystem, OsFileSystem
from qsync_sim.disk import SimDisk

# A busy machine is no finding: nothing here asserts how long it takes.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(params=["simulated", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A filesystem and a directory on it."""
    if request.param == "real":
        return OsFileSystem(), str(tmp_path / "data")
    return SimDisk(), "/data"
