"""Rows that a member rolled back: they were never confirmed, and are kept in files."""

from pathlib import Path
from typing import Any

DIRECTORY = "rollback"
ROWS_MAX = 10_000


def rollback_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of each rollback file in a node's directory, oldest file first.

    `damage` describes an unreadable file, or is "". At most `ROWS_MAX` rows of a file are returned.
    """
    from qsync_node.format.cat import cat_file  # noqa: PLC0415  # only this query needs it
    from qsync_node.format.xlog import BlockDamage, XlogError  # noqa: PLC0415  # as above

    found: list[dict[str, Any]] = []
    for path in sorted((directory / DIRECTORY).glob("*.xlog")):
        rows: list[dict[str, Any]] = []
        damage = ""
        try:
            for record in cat_file(path.read_bytes()):
                if isinstance(record, BlockDamage):
                    damage = str(record.why)
                elif len(rows) < ROWS_MAX:
                    rows.append(record)
        except (OSError, XlogError) as error:
            damage = str(error)
        found.append({"file": path.name, "damage": damage, "rows": rows})
    return found
