"""The connectors, the checks, and the table in docs/clients.md.

A driver is a program in the connector's language (`drivers/`). It makes each check that its
connector has functions for, and prints one line for each: `NAME: ok` or `NAME: failed: REASON`. The
environment gives it the members' addresses (the leader's first), user and password. In the last
check it prints `failover: ready` while it writes; then the leader is killed, and later writes must
succeed.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

CHECKS: Final = {
    "log in": "a password is accepted, a wrong one is refused",
    "types": "values of each type that the connector has come back equal",
    "requests": "insert, replace, update, upsert, delete, and select with iterator, limit, offset",
    "errors": "a duplicate key is error 3",
    "names": "spaces and indexes by name",
    "transactions": "a stream commits and rolls back",
    "watchers": "events of `box.election` and `box.schema`",
    "pages": "positions of pagination",
    "console": "EVAL of a console, CALL of `box.info`",
    "failover": "writes succeed again after the leader was killed",
}
"""Each check with its meaning, in the order of the drivers."""

OK: Final = "ok"


class Connector(NamedTuple):
    """A connector, and the commands that install its driver and run it.

    Attributes:
        name: Its name and version.
        language: Its language.
        folder: The folder of its driver.
        builds: Commands that install it, run in a copy of the folder.
        run: The command that runs its driver there.
        absent: The checks that it has no functions for, each with the reason.
    """

    name: str
    language: str
    folder: str
    builds: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]
    absent: Mapping[str, str] = {}


NO_STREAMS = "no streams"
NO_WATCHERS = "no watchers"
NO_PAGES = "no positions"
_PYTHON = "e2e.connectors.drivers.python"
_CARGO = ("cargo", "build", "--quiet", "--release")

CONNECTORS: Final = (
    Connector(
        "asynctnt 2.4.0", "Python", "python", (), ("python", "-m", f"{_PYTHON}.with_asynctnt"),
        {"watchers": NO_WATCHERS, "pages": NO_PAGES},
    ),
    Connector(
        "tarantool 1.3.0", "Python", "python", (), ("python", "-m", f"{_PYTHON}.with_tarantool"),
        {"transactions": NO_STREAMS, "watchers": NO_WATCHERS, "pages": NO_PAGES},
    ),
    Connector(
        "go-tarantool 2.4.1", "Go", "go",
        (("go", "build", "-tags", "v2", "-o", "driver", "."),), ("./driver",),
    ),
    Connector(
        "go-tarantool 3.0.2", "Go", "go",
        (("go", "build", "-tags", "v3", "-o", "driver", "."),), ("./driver",),
    ),
    Connector(
        "tarantool-driver 3.1.0", "Node.js", "node",
        (("npm", "ci", "--silent", "--no-audit", "--no-fund"),), ("node", "driver.js"),
        {"transactions": NO_STREAMS, "watchers": NO_WATCHERS, "pages": NO_PAGES},
    ),
    Connector(
        "tarantool-rs 0.0.10", "Rust", "rust", (_CARGO,), ("target/release/driver",),
        {"watchers": NO_WATCHERS, "pages": NO_PAGES},
    ),
    Connector(
        "connector 1.9.4", "Java", "java",
        (("mvn", "-q", "-B", "package"),), ("java", "-cp", "target/*:target/lib/*", "Driver"),
        {"transactions": NO_STREAMS, "watchers": NO_WATCHERS, "pages": NO_PAGES},
    ),
    Connector(
        "net.box of Tarantool 2.6", "Lua", "lua", (), ("tarantool", "driver.lua"),
        {"transactions": NO_STREAMS, "watchers": NO_WATCHERS, "pages": NO_PAGES},
    ),
)  # fmt: skip


def problems(connector: Connector, results: Mapping[str, str]) -> list[str]:
    """Return the sentences about checks that did not succeed, or that a driver left out.

    Args:
        connector: The connector.
        results: The result of each check that its driver made.
    """
    found = [f"{name}: an unknown check" for name in results if name not in CHECKS]
    for name in CHECKS:
        result = results.get(name)
        if name in connector.absent:
            if result is not None:
                found.append(f"{name}: {result}, but the connector should not have it")
        elif result is None:
            found.append(f"{name}: not reached")
        elif result != OK:
            found.append(f"{name}: {result}")
    return found


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return the matrix as Markdown.

    Args:
        results: For each connector by name, the result of each check.
    """
    names = [name for name in CHECKS if name != "log in"]
    lines = ["| connector | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for connector in CONNECTORS:
        found = results.get(connector.name, {})
        cells = [connector.absent.get(name) or found.get(name, "not run") for name in names]
        lines.append(f"| {connector.name} ({connector.language}) | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
