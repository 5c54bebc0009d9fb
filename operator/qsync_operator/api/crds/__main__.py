"""Writes or compares the CRDs: `python -m qsync_operator.api.crds [--write] [DIRECTORY...]`.

Without a directory, this includes the page of all fields and the schema of the chart qsync-cluster.
Without `--write`, the command exits with 1 if the files differ from the models.
"""

import argparse
import sys
from pathlib import Path

import yaml

from qsync_operator.api.crds.kinds import KINDS, definition
from qsync_operator.api.crds.reference import reference
from qsync_operator.api.crds.values import values_schema

# A chart cannot read files outside its directory, so it has a copy.
DIRECTORIES = [Path("crds"), Path("charts/qsync-operator/files/crds")]
PAGE, VALUES = Path("docs/reference.md"), Path("charts/qsync-cluster/values.schema.json")
HEADER = "# Generated from qsync_operator/api by `make crds`: change the models, not this file.\n"


class _Dumper(yaml.SafeDumper):
    """A dumper that writes repeated values in full, because aliases are hard to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def rendered() -> dict[str, str]:
    """Return the text of each kind's definition by file name."""
    return {
        f"{kind.plural}.yaml": HEADER
        + yaml.dump(definition(kind), Dumper=_Dumper, sort_keys=False, width=100)
        for kind in KINDS
    }


def _files(directories: list[Path]) -> dict[Path, str]:
    if directories:
        return {d / name: text for d in directories for name, text in rendered().items()}
    files = {d / name: text for d in DIRECTORIES for name, text in rendered().items()}
    return {**files, PAGE: reference(), VALUES: values_schema()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_operator.api.crds", description=__doc__)
    parser.add_argument("directories", type=Path, nargs="*")
    parser.add_argument("--write", action="store_true", help="write the files")
    parsed = parser.parse_args(arguments)
    differing = []
    for path, text in _files(parsed.directories).items():
        if path.exists() and path.read_text() == text:
            continue
        differing.append(str(path))
        if parsed.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"{path} written\n")
    if differing and not parsed.write:
        sys.stderr.write(f"{', '.join(differing)} differ from the models: run `make crds`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
