"""`qsync import`: the rows of a file into a space, each at most once.

Rows are sent in batches. Each row has an idempotency key: the name of this import, the number of
its row and the mark of its batch. FILE.SPACE.import records name, mark and position before a batch
is sent, so that the same command repeats an interrupted batch under the same keys, and the cluster
executes no row twice (rule T9).

    recorded    batch sent    interrupted     next run
    ---------   -----------   -------------   -----------------------------------------------------
    batch n     no, in part   yes             repeats batch n under the recorded keys
    batch n     yes           before n+1      the same: the keys return the first outcomes
    batch n     yes           after the       an expired key: the row is compared with the one in
                              keys expired    the space, and written if there is none
"""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from qsync_cli.data.connecting import ConnectionTarget, Endpoint, SpaceArgument, on_cluster
from qsync_cli.data.exporting import FormatOption, replace_text, space_of
from qsync_cli.data.files import format_of, read_rows
from qsync_cli.data.records import Read
from qsync_cli.data.values import json_of
from qsync_cli.failure import Failure, FailureReason, cause_of
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import counted, print_document, progress
from qsync_client import (
    Client,
    Committed,
    ErrorCode,
    InvalidArgument,
    Outcome,
    Refused,
    RequestKey,
    RolledBack,
    Space,
    Unknown,
)

DEADLINE_S = 30.0
BATCH_BYTES = 4 << 20
SPACE_BYTES_MAX = 100
"""Bytes of a name of a space in the name of a file, whose length file systems limit."""
FileArgument = Annotated[
    Path, typer.Argument(help="File, or - for standard input.", metavar="FILE")
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Replace rows with the same primary key.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check all rows, and write nothing.")]
BatchOption = Annotated[
    int, typer.Option("--batch", help="Rows in flight at once.", min=1, max=2000)
]
MaxBadOption = Annotated[
    int, typer.Option("--max-bad", help="Stop after this number of invalid rows.", min=0)
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Begin again, without the state of an interrupted import.")
]


@on_cluster
def import_rows(  # noqa: PLR0913, PLR0917  # as many as there are options
    target: ConnectionTarget,
    space: SpaceArgument,
    file: FileArgument,
    chosen: FormatOption = None,
    is_replace: ReplaceOption = False,
    dry_run: DryRunOption = False,
    batch: BatchOption = 500,
    max_bad: MaxBadOption = 20,
    restart: RestartOption = False,
    output: OutputOption = None,
) -> None:
    """Write the rows of a CSV, JSON lines or Parquet file into a space."""
    is_stream = str(file) == "-"
    file_format = format_of(None if is_stream else file, chosen)
    with target.endpoint() as endpoint, target.connect_to(endpoint) as client:
        found = space_of(client, space)
        report = ImportReport(max_bad)
        with progress(f"import {found.name}", 1.0, is_quiet=False) as advance:
            rows = read_rows(file, file_format, found, advance)
            if dry_run:
                for read in rows:
                    report.check(read)
            else:
                path = None if is_stream else state_path(file, found)
                state = ImportState.begin(file, found, batch, is_replace)
                if path is not None and not restart:
                    state = state.resumed(path)
                try:
                    with target.failures():
                        asyncio.run(_import(endpoint, found, rows, state, path, report))
                except KeyboardInterrupt:
                    raise Failure(
                        FailureReason.FAILED,
                        "the import was interrupted: repeat the same command to continue",
                    ) from None
                if path is not None:
                    path.unlink(missing_ok=True)
    _conclude(report, found, dry_run, output)


def state_path(file: Path, space: Space) -> Path:
    """Return the file with the state of an import; the name of a space may contain anything."""
    name = space.name
    if "/" in name or "\0" in name or len(name.encode(errors="replace")) > SPACE_BYTES_MAX:
        name = f"{space.id}"
    return file.with_name(f"{file.name}.{name}.import")


def _conclude(report: "ImportReport", space: Space, is_dry: bool, output: Output | None) -> None:
    if output in (Output.json, Output.yaml):
        counts = {"imported": report.written, "repeated": report.repeated, "invalid": report.bad}
        print_document({"space": space.name, "dryRun": is_dry, **counts}, output)
    verb = "would import" if is_dry else "imported"
    text = f"{verb} {counted(report.written)} into {space.name}"
    if report.repeated:
        text += f", {report.repeated} of them in an earlier run"
    typer.echo(text, err=True)
    if report.bad:
        verb = "was" if report.bad == 1 else "were"
        raise Failure(
            FailureReason.INVALID,
            f"{counted(report.bad)} {verb} not imported: correct the lines above, and import "
            "them from a file of their own",
        )


# --- counts and state ---------------------------------------------------------------------------


@dataclass(slots=True)
class ImportReport:
    """Counts of an import; invalid rows are printed as they occur."""

    max_bad: int
    written: int = 0
    repeated: int = 0
    bad: int = 0

    def check(self, read: Read) -> bool:
        """Return whether a row is valid, and count it."""
        if read.error is not None:
            self.refuse(read.line, read.error.field, str(read.error))
            return False
        self.written += 1
        return True

    def refuse(self, line: int, name: str, reason: str) -> None:
        """Print an invalid row.

        Raises:
            Failure: there are too many.
        """
        self.bad += 1
        where = f", field {name}" if name else ""
        typer.echo(f"line {line}{where}: {reason}", err=True)
        if self.bad > self.max_bad:
            raise Failure(
                FailureReason.INVALID,
                f"the import stopped at line {line}: more than {self.max_bad} rows are invalid; "
                "correct the file, or raise --max-bad",
            )


@dataclass(frozen=True, slots=True)
class ImportState:
    """The state of an import, which FILE.SPACE.import holds.

    Attributes:
        source: path, size and time of change of the file.
        space: name of the space.
        batch: number of rows of a batch.
        is_replace: whether rows replace existing ones.
        client: name in the keys.
        mark: mark of the keys of the batch in flight.
        first: number of rows before this batch.
        bad: number of invalid rows among them.
        is_repeated: whether the batch may have been sent by an earlier run.
    """

    source: list[Any]
    space: str
    batch: int
    is_replace: bool
    client: str = field(default_factory=lambda: f"import-{os.urandom(8).hex()}")
    mark: int = 0
    first: int = 0
    bad: int = 0
    is_repeated: bool = False

    @staticmethod
    def begin(file: Path, space: Space, batch: int, is_replace: bool) -> "ImportState":
        """Return the state before the first row."""
        source: list[Any] = [str(file)]
        if str(file) != "-" and file.exists():
            facts = file.stat()
            source = [str(file.resolve()), facts.st_size, facts.st_mtime_ns]
        return ImportState(source, space.name, batch, is_replace)

    def resumed(self, path: Path) -> "ImportState":
        """Return the state of the interrupted import of this file, or `self`.

        Raises:
            Failure: the interrupted import had another file or other options.
        """
        try:
            found = ImportState(**json.loads(path.read_text()))
        except FileNotFoundError:
            return self
        except (OSError, ValueError, TypeError) as error:
            raise Failure(
                FailureReason.INVALID,
                f"cannot continue from {path}: {cause_of(error)}; use --restart",
            ) from error
        wanted = (self.source, self.space, self.is_replace)
        if (found.source, found.space, found.is_replace) != wanted:
            raise Failure(
                FailureReason.INVALID,
                f"{path} belongs to an import of another version of the file, into another "
                "space or with other options: use --restart to begin again",
            )
        typer.echo(f"continuing after {counted(found.first)}", err=True)
        return replace(found, is_repeated=True)


# --- sending ------------------------------------------------------------------------------------


async def _import(
    endpoint: Endpoint,
    space: Space,
    rows: Iterator[Read],
    state: ImportState,
    path: Path | None,
    report: ImportReport,
) -> None:
    """Send all batches."""
    report.bad = state.bad
    report.written = report.repeated = sum(1 for _ in islice(rows, state.first)) - state.bad
    async with Client(
        endpoint.addresses,
        endpoint.user,
        endpoint.password,
        deadline_s=DEADLINE_S,
        tls=endpoint.tls,
    ) as client:
        while batch := _batch(rows, state.batch):
            if not state.is_repeated:
                state = replace(state, mark=(await client.new_key()).mark)
                if path is not None:
                    _save(path, state)
            await _send(client, space, batch, state, report)
            first = state.first + len(batch)
            state = replace(state, first=first, bad=report.bad, is_repeated=False)


def _save(path: Path, state: ImportState) -> None:
    """Record the batch that is sent next. Raises Failure."""
    try:
        replace_text(path, json.dumps(asdict(state)))
    except OSError as error:
        raise Failure(
            FailureReason.FAILED,
            f"cannot write {path}, which records how far the import came: {cause_of(error)}; copy "
            "the file to a folder that you may write, or import it from standard input with -",
        ) from error


def _batch(rows: Iterator[Read], limit: int) -> list[Read]:
    """Return the next rows: the same ones in each run, and a bounded amount of text."""
    batch: list[Read] = []
    size = 0
    while len(batch) < limit and size < BATCH_BYTES:
        read = next(rows, None)
        if read is None:
            break
        batch.append(read)
        size += sum(len(one) for one in read.row or () if isinstance(one, str | bytes))
    return batch


async def _send(
    client: Client, space: Space, batch: Sequence[Read], state: ImportState, report: ImportReport
) -> None:
    """Send one batch, and report its outcomes in the order of the file.

    Raises:
        Failure: the outcome of a row is unknown, or the cluster refuses all rows.
    """
    numbers = range(state.first + 1, state.first + len(batch) + 1)
    valid = [
        (number, read) for number, read in zip(numbers, batch, strict=True) if read.row is not None
    ]
    outcomes = await asyncio.gather(
        *(_write(client, space, read, number, state) for number, read in valid)
    )
    by_number = dict(zip((number for number, _ in valid), outcomes, strict=True))
    for number, read in zip(numbers, batch, strict=True):
        if report.check(read) and not isinstance(by_number[number], Committed):
            report.written -= 1
            _refuse(read, by_number[number], report)


async def _write(
    client: Client, space: Space, read: Read, number: int, state: ImportState
) -> Outcome:
    assert read.row is not None
    write = client.replace if state.is_replace else client.insert
    key = RequestKey(state.client, number, state.mark)
    try:
        outcome = await write(space.id, read.row, request_key=key)
    except InvalidArgument as error:  # a value that msgpack lacks
        return Refused(int(ErrorCode.ILLEGAL_PARAMS), str(error))
    if state.is_repeated and isinstance(outcome, Unknown) and outcome.code == ErrorCode.KEY_EXPIRED:
        parts = [read.row[part] for part in space.indexes[0].fields]
        present = await client.get(space.id, parts)
        if present is None:
            return await client.insert(space.id, read.row)
        if list(present) == read.row:
            return Committed([present])
        return Refused(
            int(ErrorCode.TUPLE_FOUND),
            f"the import was interrupted too long ago, and the space has {json_of(list(present))}",
        )
    return outcome


def _refuse(read: Read, outcome: Outcome, report: ImportReport) -> None:
    match outcome:
        case Unknown(reason):
            raise Failure(
                FailureReason.TIMED_OUT,
                f"the import stopped at line {read.line}: {reason}; repeat the same command to "
                "continue",
            )
        case RolledBack(reason) | Refused(_, reason):
            report.refuse(read.line, "", reason)
