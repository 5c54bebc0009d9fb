"""Runs each connector against a cluster: `python -m e2e.connectors [NAME ...] [--write]`.

Needs Go, Node.js with npm, Cargo, Maven, Java and Debian's Tarantool, and the package registries of
these languages. Exit code 1 if a check failed, or a connector cannot be installed.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from e2e.connectors.matrix import CHECKS, CONNECTORS, problems, table
from e2e.connectors.runner import InstallError, install, run_driver
from e2e.pages import write_between

PAGE = Path(__file__).parents[2] / "docs/clients.md"
BEGIN, END = "<!-- connectors: begin -->\n", "<!-- connectors: end -->\n"


def main() -> int:
    """Run the connectors, print the results, and with --write put the matrix into the page."""
    parser = argparse.ArgumentParser(prog="python -m e2e.connectors")
    parser.add_argument("names", nargs="*", help="connectors, by the beginning of their names")
    parser.add_argument("--write", action="store_true", help=f"write the matrix into {PAGE.name}")
    arguments = parser.parse_args()
    chosen = [
        one
        for one in CONNECTORS
        if not arguments.names or any(one.name.startswith(name) for name in arguments.names)
    ]
    if not chosen:
        parser.error(f"no such connector: {', '.join(arguments.names)}")
    if arguments.write and len(chosen) < len(CONNECTORS):
        parser.error("--write needs the results of all connectors")
    results = {}
    failed = 0
    for connector in chosen:
        try:
            folder = install(connector)
            with tempfile.TemporaryDirectory() as data:
                results[connector.name] = run_driver(connector, folder, Path(data))
            found = problems(connector, results[connector.name])
        except InstallError as error:
            found = [str(error)]
        failed += bool(found)
        done = len(CHECKS) - len(connector.absent)
        print(f"{connector.name} ({connector.language}): {'failed' if found else f'{done} passed'}")
        for problem in found:
            print(f"  {problem}")
    print(f"{len(chosen) - failed} passed, {failed} failed")
    if arguments.write and not failed:
        write_between(PAGE, BEGIN, END, table(results))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
