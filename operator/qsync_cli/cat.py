"""`qsync cat`: rows of xlog, snap and rollback files, whatever state they are in."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from qsync_cli.failure import Failure, FailureReason
from qsync_node.format import cat as format_cat
from qsync_node.format import row, xlog


class Format(StrEnum):
    """Formats of rows."""

    text = "text"
    json = "json"
    yaml = "yaml"


FilesArgument = Annotated[
    list[Path], typer.Argument(help="Log or snapshot files.", metavar="FILE...")
]
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="Output format.")]


def cat(files: FilesArgument, output: FormatOption = Format.text) -> None:
    """Print the rows of files like `tarantoolctl cat --show-system`, and report damage."""
    unreadable = [file for file in files if not file.is_file()]
    if unreadable:
        names = ", ".join(map(str, unreadable))
        raise Failure(FailureReason.NOT_FOUND, f"cannot read {names}: No such file")
    damages = [damage for file in files if (damage := _print_file(file, output))]
    if damages:
        raise Failure(FailureReason.DAMAGED, "; ".join(damages))


def _print_file(path: Path, output: Format) -> str:
    """Print every readable row. Return a description of the damage, or ""."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    try:
        for record in format_cat.cat_file(data):
            if not isinstance(record, xlog.BlockDamage):
                sys.stdout.write(_shown(record, output) + "\n")
            elif record.is_torn:
                sys.stderr.write(
                    f"{path}: incomplete at offset {record.offset} ({record.why}), as "
                    "after a crash\n"
                )
            else:
                return f"{path} is damaged at offset {record.offset}: {record.why}"
    except (xlog.XlogError, row.RowError) as error:
        return f"cannot read {path}: {error}"
    return ""


def _shown(record: dict[str, Any], output: Format) -> str:
    if output is Format.json:
        return format_cat.to_json(record)
    if output is Format.yaml:
        return "---\n" + str(yaml.safe_dump(record, sort_keys=False, allow_unicode=True)) + "..."
    return shown_as_text(record)


def shown_as_text(record: dict[str, Any]) -> str:
    """Return a row as one line."""
    header = record["HEADER"]
    body = record.get("BODY", {})
    place = f"{header.get('replica_id', 0)}:{header.get('lsn', 0)}"
    fields = " ".join(
        f"{k}={v}" for k, v in header.items() if k not in ("replica_id", "lsn", "type")
    )
    shown = format_cat.to_json(body) if body else ""
    return f"{place:>12} {header['type']!s:<8} {fields} {shown}".rstrip()
