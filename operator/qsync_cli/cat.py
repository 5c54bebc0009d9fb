"""`qsync cat`: rows of xlog, snap and rollback files, whatever state they are in."""

import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from qsync_cli.failure import Failure, FailureReason
from qsync_node.format import cat as format_cat
from qsync_node.format import row, xlog
from qsync_node.format.keys import Key, Type

_ELSEWHERE = ("replica_id", "lsn", "type", "timestamp")
"""Fields of a header with a place of their own in a line."""
_TYPES = {int(one): one.name.removeprefix("RAFT_") for one in Type}
_KEYS = {str(int(key)): key.name.lower() for key in Key}
_RAFT_KEYS = {"0": "term", "1": "vote", "2": "state", "3": "vclock"}


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
    """Print the rows of log and snapshot files, and report damage.

    The text names types and keys. JSON and YAML have the form of `tarantoolctl cat --show-system`.
    """
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
    header, body = record["HEADER"], record.get("BODY", {})
    kind = header["type"]
    place = f"{header.get('replica_id', 0)}:{header.get('lsn', 0)}"
    fields = [f"{k}={v}" for k, v in header.items() if k not in _ELSEWHERE]
    if "timestamp" in header:
        fields.insert(0, _clock(header["timestamp"]))
    if body:
        fields.append(format_cat.to_json(_named(body, is_raft=kind == Type.RAFT)))
    return f"{place:>12} {_TYPES.get(kind, kind)!s:<8} {' '.join(fields)}".rstrip()


def _clock(timestamp: float) -> str:
    """Return the local time of a timestamp; one that is no time stays as it is."""
    try:
        return datetime.fromtimestamp(timestamp).isoformat(" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"timestamp={timestamp}"


def _named(body: dict[str, object] | list[object], *, is_raft: bool) -> dict[str, object]:
    """Return a body with names in place of numbers. A list begins with the value of key 1."""
    items = body.items() if isinstance(body, dict) else enumerate(body, 1)
    names = _RAFT_KEYS if is_raft else _KEYS
    return {names.get(str(key), str(key)): value for key, value in items if value is not None}
