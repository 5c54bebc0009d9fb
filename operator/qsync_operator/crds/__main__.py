"""`python -m qsync_operator.crds [--write] [DIRECTORY...]`: writes or compares the CRDs.

Without `--write` it exits with 1 if the files differ from the models.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from qsync_operator.crds.kinds import KINDS, definition

# A chart cannot read beside itself, so it has a copy.
DIRECTORIES = [Path("crds"), Path("charts/qsync-operator/files/crds")]
HEADER = (
    "# Generated from qsync_operator/models by `make crds`: change the models, not this file.\n"
)


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice: an alias saves bytes and costs the reader."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def rendered() -> dict[str, str]:
    """File name -> text, for every kind."""
    return {
        f"{kind.plural}.yaml": HEADER
        + yaml.dump(definition(kind), Dumper=_Dumper, sort_keys=False, width=100)
        for kind in KINDS
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_operator.crds", description=__doc__)
    parser.add_argument("directories", type=Path, nargs="*", default=DIRECTORIES)
    parser.add_argument("--write", action="store_true", help="write the files")
    parsed = parser.parse_args(arguments)
    differing = []
    for directory in parsed.directories:
        for name, text in rendered().items():
            path = directory / name
            if path.exists() and path.read_text() == text:
                continue
            differing.append(str(path))
            if parsed.write:
                directory.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                sys.stdout.write(f"{path} written\n")
    if differing and not parsed.write:
        sys.stderr.write(f"{', '.join(differing)} differ from the models: run `make crds`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
