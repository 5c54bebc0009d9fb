"""`qsync export`: the rows of a space as a file.

By default the rows are read in pages, in the order of the primary key. A page shows the confirmed
state at its own time, so writes during the export may be in the file or not. `--consistent` reads
one snapshot at one index of the log, from which `qsync tail` continues.

Rows go to FILE.part. With pages of text, FILE.part.json records where the next page begins, and the
same command continues an interrupted export.
"""

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from qsync_cli.data import following
from qsync_cli.data.connecting import ConnectionTarget, Endpoint, SpaceArgument, on_cluster
from qsync_cli.data.files import FileFormat, RowWriter, TextWriter, format_of
from qsync_cli.data.reading import named
from qsync_cli.failure import Failure, FailureReason, cause_of
from qsync_cli.output import counted, counting
from qsync_client import Committed, Row, Space, SyncClient
from qsync_client import Iterator as IndexIterator
from qsync_client.outcomes import is_page_too_large

PAGE_ROWS = 1000
FormatOption = Annotated[
    FileFormat | None,
    typer.Option("--format", help="Format. The default follows from the name of the file.",
                 show_default=False),
]  # fmt: skip
FileOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="File to write. The default is standard output.",
                 metavar="FILE", show_default=False),
]  # fmt: skip
ConsistentOption = Annotated[
    bool, typer.Option("--consistent", help="Read one snapshot, in place of pages.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Discard the part of an interrupted export.")
]


@on_cluster
def export(
    target: ConnectionTarget,
    space: SpaceArgument,
    chosen: FormatOption = None,
    output: FileOption = None,
    consistent: ConsistentOption = False,
    overwrite: OverwriteOption = False,
    restart: RestartOption = False,
) -> None:
    """Write the rows of a space as CSV, JSON lines or Parquet."""
    file_format = format_of(output, chosen)
    if output is None and file_format is FileFormat.parquet:
        raise typer.BadParameter("Parquet cannot be written to standard output: add -o FILE")
    if output is not None and output.exists() and not overwrite:
        raise Failure(
            FailureReason.ALREADY_EXISTS, f"{output} exists: choose another file or --overwrite"
        )
    with target.endpoint() as endpoint, target.connect_to(endpoint) as client:
        found = space_of(client, space)
        if output is None:
            writer: RowWriter = TextWriter(sys.stdout.buffer, found, file_format, None)
            rows, index = _copy(client, endpoint, found, writer, consistent)
        elif consistent or file_format is FileFormat.parquet:
            with _whole_file(output, found, file_format) as writer:
                rows, index = _copy(client, endpoint, found, writer, consistent)
        else:
            rows, index = _resumable(client, found, output, file_format, restart), 0
    where = f" to {output}" if output is not None else ""
    text = f"exported {counted(rows)} of {found.name}{where}"
    if consistent:
        follow = f"qsync tail {target.cluster} {found.name} --from {index + 1}"
        text += f", as they were at index {index}; next: {follow}"
    typer.echo(text, err=True)


def space_of(client: SyncClient, space: str) -> Space:
    """Return a space by name or id.

    Raises:
        SchemaError: there is no such space.
    """
    wanted = named(space)
    schema = client.schema()
    found = next((one for one in schema if wanted == one.id), None)
    return schema.space(space) if found is None else found


# --- sources ------------------------------------------------------------------------------------


def _copy(
    client: SyncClient, endpoint: Endpoint, space: Space, writer: RowWriter, is_consistent: bool
) -> tuple[int, int]:
    """Write all rows; return their number, and the index of the snapshot or 0."""
    rows = index = 0
    with counting(f"export {space.name}") as count:
        if is_consistent:
            for page, reached in following.snapshot(endpoint, [space]):
                index = reached
                writer.write(page)
                rows += len(page)
                count(rows)
        else:
            for page, _ in pages(client, space):
                writer.write(page)
                rows += len(page)
                count(rows)
        writer.close()
    return rows, index


def pages(
    client: SyncClient, space: Space, after: bytes = b""
) -> Iterator[tuple[list[Row], bytes]]:
    """Yield pages in the order of the primary key, and the position after each; b"" at the end.

    A page becomes smaller if its rows are too large for one answer.

    Raises:
        Failure: a read failed.
    """
    limit = PAGE_ROWS
    while True:
        page = client.select(
            space.id, iterator=IndexIterator.ALL, limit=limit, after=after, fetch_position=True
        )
        if is_page_too_large(page) and limit > 1:
            limit //= 2
            continue
        if not isinstance(page, Committed):
            raise Failure(FailureReason.REFUSED, f"the rows were not read: {page.reason}")
        after = page.position if len(page.tuples) == limit else b""
        yield page.tuples, after
        if not after:
            return


# --- files --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ExportProgress:
    """The state of an interrupted export: everything up to `size` is in the file."""

    space: str
    chosen: str
    fields: list[str]
    rows: int
    size: int
    after: str
    has_rest: bool | None

    def fits(self, other: "_ExportProgress") -> bool:
        return (self.space, self.chosen, self.fields) == (other.space, other.chosen, other.fields)


def _resumable(
    client: SyncClient, space: Space, output: Path, chosen: FileFormat, is_restart: bool
) -> int:
    part = output.with_name(output.name + ".part")
    journal = output.with_name(output.name + ".part.json")
    fields = [field.name for field in space.fields]
    state = _ExportProgress(space.name, chosen.value, fields, 0, 0, "", None)
    try:
        with _opened_alone(part) as file:
            if not is_restart and file.seek(0, os.SEEK_END):
                state = _saved(journal, state)
            if file.seek(0, os.SEEK_END) < state.size:
                raise Failure(
                    FailureReason.INVALID,
                    f"cannot continue: {part} is shorter than {journal} records; use --restart",
                )
            if not state.rows:
                journal.unlink(missing_ok=True)  # of an earlier export, if it was left
            file.truncate(state.size)
            file.seek(state.size)
            rows = _append_pages(client, space, file, journal, state)
            _finish(file, part, output)
            journal.unlink(missing_ok=True)
    except OSError as error:
        raise Failure(FailureReason.FAILED, f"cannot write {part}: {cause_of(error)}") from error
    except KeyboardInterrupt:
        raise Failure(
            FailureReason.FAILED, "the export was interrupted: repeat the same command to continue"
        ) from None
    return rows


@contextlib.contextmanager
def _opened_alone(part: Path) -> Iterator[IO[bytes]]:
    """Open the part of an export, which is created if it is missing.

    Raises:
        Failure: another export writes it, or has just finished it.
    """
    with open(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat())
        except BlockingIOError:
            is_alone = False
        if not is_alone:
            raise Failure(
                FailureReason.NOT_READY,
                f"cannot write {part}: another export writes it; wait for its end, or choose "
                "another file",
            )
        yield file


def _append_pages(
    client: SyncClient, space: Space, file: IO[bytes], journal: Path, state: _ExportProgress
) -> int:
    writer = TextWriter(file, space, FileFormat(state.chosen), state.has_rest)
    rows = state.rows
    if rows:
        typer.echo(f"continuing after {counted(rows)}", err=True)
    with counting(f"export {space.name}") as count:
        for page, after in pages(client, space, bytes.fromhex(state.after)):
            writer.write(page)
            rows += len(page)
            count(rows)
            file.flush()
            os.fsync(file.fileno())  # the journal must never count bytes that the file lacks
            if after:
                saved = asdict(state) | {
                    "rows": rows, "size": file.tell(), "after": after.hex(),
                    "has_rest": writer.has_rest,
                }  # fmt: skip
                replace_text(journal, json.dumps(saved))
        writer.close()
    return rows


def _saved(journal: Path, wanted: _ExportProgress) -> _ExportProgress:
    """Return the state of the interrupted export, or `wanted` to begin.

    Raises:
        Failure: it was an export of something else.
    """
    try:
        found: dict[str, Any] = json.loads(journal.read_text())
        state = _ExportProgress(**found)
    except FileNotFoundError:
        return wanted
    except (OSError, ValueError, TypeError) as error:
        raise Failure(
            FailureReason.INVALID,
            f"cannot continue from {journal}: {cause_of(error)}; use --restart",
        ) from error
    if not state.fits(wanted):
        raise Failure(
            FailureReason.INVALID,
            f"{journal} belongs to an export of {state.space} as {state.chosen} with the fields "
            f"{', '.join(state.fields)}: use --restart to discard it",
        )
    return state


@contextlib.contextmanager
def _whole_file(output: Path, space: Space, chosen: FileFormat) -> Iterator[RowWriter]:
    """Yield the writer of a file that is written at once."""
    part = output.with_name(output.name + ".part")
    try:
        with _opened_alone(part) as file:
            file.truncate()
            if chosen is FileFormat.parquet:
                from qsync_cli.data import parquet  # noqa: PLC0415  # pyarrow is optional and slow

                yield parquet.ParquetWriter(part, space)
            else:
                yield TextWriter(file, space, chosen, None)
            _finish(file, part, output)
    except OSError as error:
        raise Failure(FailureReason.FAILED, f"cannot write {part}: {cause_of(error)}") from error


def replace_text(path: Path, text: str) -> None:
    """Replace a small file atomically."""
    new = path.with_name(path.name + ".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a power loss must leave the old text or the new one
    new.replace(path)


def _finish(file: IO[bytes], part: Path, output: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    part.replace(output)
