"""Settings of Hypothesis and of signals, and fixtures of local clusters.

Examples have no deadline, because a busy machine is not a failure.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from qsync_testing.browser import Browser, open_browser
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

# A shell without job control starts a command in the background with SIGINT ignored, which the
# commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Yield an empty folder of local clusters; their processes end with the test."""
    home = Home(tmp_path / "home")
    yield home
    home.close()


@pytest.fixture
def events(home: Home, tmp_path: Path) -> Home:
    """Return a home with the cluster of docs/examples/journals.yaml, at ports of the system."""
    manifest = tmp_path / "journals.yaml"
    manifest.write_text((EXAMPLES / manifest.name).read_text().replace("port: 8080", "port: 0"))
    home.do("local", "apply", "-f", manifest)
    return home


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with open_browser(tmp_path / "profile") as browser:
        yield browser
