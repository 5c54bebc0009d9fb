"""The start of commands: imported packages, and the form of help."""

import subprocess
import sys
from pathlib import Path

import pytest

from qsync_cli.clusters import observe
from qsync_local import views
from qsync_local.store import ClusterFiles, PageAddress
from qsync_local.views import served_view
from qsync_operator.views.statusview import view_of
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

HEAVY = frozenset({
    "aiohttp", "cryptography", "grpc", "kopf", "kubernetes", "obstore", "prompt_toolkit", "pyspark",
})  # fmt: skip
SLOW = HEAVY | {"pydantic", "pydantic_core", "yaml"}
"""Packages whose import alone takes half of the time in which a simple command must end."""


def loaded(home: Home, *arguments: str, of: frozenset[str] = SLOW) -> set[str]:
    """Return the packages of a set that a command has loaded when it ends."""
    script = (
        "import sys, types\n"
        "from qsync_cli.main import main\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        # A module whose execution is deferred has another type.
        "print('loaded:', *(k for k, v in sys.modules.items() if type(v) is types.ModuleType))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=home.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    return set(of) & set(done.stdout.rpartition("loaded:")[2].split())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"], ["--help"], ["-h"], ["local", "--help"], ["journals", "-h"],
        ["get", "--help"], ["status", "--help"], ["fence", "-h"], ["cat", "-h"], ["logs", "-h"],
        ["apply", "-h"], ["bench", "-h"], ["top", "-h"], ["explain", "289"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_loads_nothing_slow(home: Home, arguments: list[str]) -> None:
    assert loaded(home, *arguments) == set()


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("arguments", [["-h"], ["status", "-h"], ["journals", "publish", "-h"]])
def test_help_is_plain_text_of_at_most_100_columns(
    home: Home, arguments: list[str], columns: str
) -> None:
    home.environment |= {"COLUMNS": columns, "FORCE_COLOR": "1"}
    text = home.do(*arguments)
    assert "\x1b" not in text
    assert "..." not in text.partition("Commands:")[2]  # the help of no command is shortened
    assert max(map(len, text.splitlines())) <= min(int(columns), 100)


def test_usage_names_arguments_as_manuals_do(home: Home) -> None:
    assert home.do("get", "-h").startswith(
        "Usage: python -m qsync_cli.main get [OPTIONS] CLUSTER SPACE KEY...\n"
    )
    assert "[OPTIONS] [CLUSTER]\n" in home.do("status", "-h")
    assert "--local NAME" in home.do("status", "-h")
    assert "--limit NUMBER" in home.do("select", "-h")
    assert "<" not in home.do("bench", "-h").replace("<=", "")


def test_verbs_on_a_local_cluster_load_nothing_slow(home: Home) -> None:
    try:
        home.do("apply", "-f", EXAMPLES / "three-nodes.yaml")
        for verb in (
            ["put", "orders", "orders", '[1, "alice", 9.5]'],
            ["get", "orders", "orders", "1"],
            ["select", "orders", "orders", "--limit", "5", "-o", "json"],
            ["update", "orders", "orders", "1", "--set", "total+=5"],
            ["count", "orders", "orders"],
            ["spaces", "orders"],
            ["describe", "orders", "orders"],
        ):
            assert loaded(home, *verb) == set(), verb
        # The supervisor answers: not even an event loop is needed.
        assert loaded(home, "list") == set()
        for verb in (["status", "orders"], ["status", "orders", "-o", "json"]):
            assert loaded(home, *verb, of=SLOW | {"asyncio"}) == set(), verb
        check_views(home)
    finally:
        home.close()


def check_views(home: Home) -> None:
    """The view of the supervisor is that of the command; one of another version is not used."""
    store = ClusterFiles(home.directory / "orders")
    served = served_view(store)
    assert served is not None
    own = view_of(observe(store))
    assert (served.rows, served.health) == (own.rows, own.health)
    assert served.lines == own.lines
    page = store.load_page()
    assert page is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(views, "__version__", "0.0.0")
        assert served_view(store) is None
    store.save_page(PageAddress(page.port, "another token"))
    assert served_view(store) is None
    store.save_page(page)
    home.kill_supervisors()
    assert served_view(store) is None
    assert "orders: Ready" in home.do("status", "orders")
