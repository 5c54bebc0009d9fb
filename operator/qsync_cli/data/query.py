"""`qsync query`: SQL over the rows of a cluster, by DuckDB on this machine.

Tables are loaded if the statement names them:

    SPACE              its confirmed rows; all spaces of one statement are at the same index
    compacted.SPACE    its rows in the newest compaction of the archive
    history.SPACE      all versions of its rows, if the compaction has a history

Rows of the cluster become Parquet files in a temporary folder, so they need disk and not memory.
The statement can read nothing else: neither other files nor the network.
"""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from qsync_cli import clusters
from qsync_cli.data import following
from qsync_cli.data.connecting import ConnectionTarget, Endpoint, on_cluster
from qsync_cli.data.values import cell_of, json_of
from qsync_cli.failure import Failure, FailureReason, install_command
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import counted, counting, print_document, print_table, say
from qsync_client import Space, SyncClient
from qsync_node.archive import location, reader
from qsync_node.format.body import FIRST_USER_SPACE

if TYPE_CHECKING:
    import duckdb

TABLE_ROWS = 1000
COMPACTED, HISTORY = "compacted", "history"
_FOLDERS = {COMPACTED: "spaces", HISTORY: "history"}
_EXPLAIN = re.compile(r"^\s*explain(\s+analyze)?\s+", re.IGNORECASE)
StatementArgument = Annotated[
    str, typer.Argument(help="One SELECT statement in DuckDB's SQL.", metavar="SQL")
]
ArchiveTable = tuple[str, str]
"""Schema, "" for the rows of the cluster, and name."""


@on_cluster
def query(
    target: ConnectionTarget, statement: StatementArgument, output: OutputOption = None
) -> None:
    """Run one read-only SQL statement over the rows of a cluster."""
    tables = tables_of(statement)
    live = [name for schema, name in tables if not schema]
    archived = [table for table in tables if table[0]]
    with tempfile.TemporaryDirectory(prefix="qsync-query-") as folder:
        files: dict[ArchiveTable, str] = {}
        if live:
            with target.endpoint() as endpoint, target.connect_to(endpoint) as client:
                files |= _load(client, endpoint, live, Path(folder))
        if archived:
            files |= _archived(target, archived)
        with opened(files, Path(folder)) as connection:
            _print(_run(connection, statement), output)


# --- tables -------------------------------------------------------------------------------------


def tables_of(statement: str) -> list[ArchiveTable]:
    """Return the tables that a statement names, with names that it defines by WITH.

    Raises:
        Failure: it is invalid, or is not one SELECT.
    """
    duckdb = _duckdb()
    try:
        parsed = duckdb.extract_statements(statement)
        allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(parsed) != 1 or parsed[0].type not in allowed:
            raise Failure(
                FailureReason.INVALID,
                "the statement cannot run: write exactly one SELECT; `put`, `update` and "
                "`delete` change rows",
            )
        with duckdb.connect(":memory:", config=_CLOSED) as connection:
            plain = _EXPLAIN.sub("", statement)
            tree = connection.execute("select json_serialize_sql(?)", [plain]).fetchone()
    except duckdb.Error as error:
        raise statement_failure(error) from error
    document = json.loads(tree[0])
    if document.get("error"):
        raise Failure(
            FailureReason.INVALID, f"the statement failed: {document.get('error_message')}"
        )
    found: set[ArchiveTable] = set()
    _collect(document, found)
    return sorted(found)


def _collect(node: object, found: set[ArchiveTable]) -> None:
    """Add the tables in a part of a syntax tree.

    Raises:
        Failure: a table has an unknown schema.
    """
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            schema, name = str(node["schema_name"]), str(node["table_name"])
            if node.get("catalog_name") or schema.lower() not in ("", *_FOLDERS):
                raise Failure(
                    FailureReason.INVALID,
                    f"unknown table {schema}.{name}: write SPACE, {COMPACTED}.SPACE or "
                    f"{HISTORY}.SPACE",
                )
            found.add((schema.lower(), name))
        for part in node.values():
            _collect(part, found)
    elif isinstance(node, list):
        for part in node:
            _collect(part, found)


def _load(
    client: SyncClient, endpoint: Endpoint, names: Sequence[str], folder: Path
) -> dict[ArchiveTable, str]:
    """Write the rows of spaces to Parquet files, and return the files.

    A name that is no space may be defined by the statement itself; DuckDB reports others.
    """
    from qsync_cli.data import parquet  # noqa: PLC0415  # pyarrow is optional and slow

    known = [space for space in client.schema() if space.id >= FIRST_USER_SPACE]
    spaces = [space for name in names if (space := _space_of(known, name)) is not None]
    writers = {
        space.id: parquet.ParquetWriter(folder / f"{space.id}.parquet", space) for space in spaces
    }
    if not spaces:
        return {}
    rows = index = 0
    with counting("load") as count:
        for page, reached in following.snapshot(endpoint, spaces):
            index = reached
            for row in page:
                assert row.space is not None
                writers[row.space.id].write([row])
            rows += len(page)
            count(rows)
        for writer in writers.values():
            writer.close()
    typer.echo(f"{counted(rows)}, as they were at index {index}", err=True)
    return {("", space.name): str(folder / f"{space.id}.parquet") for space in spaces}


def _space_of(known: Sequence[Space], name: str) -> Space | None:
    """Return a space, or None; SQL does not distinguish capitals."""
    exact = next((space for space in known if space.name == name), None)
    return exact or next((space for space in known if space.name.lower() == name.lower()), None)


def _archived(target: ConnectionTarget, tables: Sequence[ArchiveTable]) -> dict[ArchiveTable, str]:
    """Return the files of compacted tables.

    Raises:
        Failure: the cluster has no archive in a folder, or no such table.
    """
    if target.is_on_kubernetes or not clusters.store_of(target.cluster).exists():
        raise Failure(
            FailureReason.INVALID,
            "compacted tables can be read for local clusters only: use Spark or DuckDB with the "
            "URL of the archive",
        )
    archive = clusters.load_cluster(clusters.open_store(target.cluster)).spec.archive
    folder = location.folder_of(archive.url) if archive is not None else None
    if archive is None or folder is None:
        where = "none" if archive is None else archive.url
        raise Failure(
            FailureReason.INVALID,
            f"compacted tables need an archive in a folder: that of {target.cluster} is {where}",
        )
    try:
        made = reader.load_archive(archive.url).compactions
    except location.ArchiveError as error:
        raise Failure(FailureReason.FAILED, str(error)) from error
    if not made:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"the archive has no compaction: run `qsync local compact {target.cluster}`",
        )
    newest = made[-1]
    typer.echo(f"compacted tables, as they were at index {newest.index}", err=True)
    return {
        table: str(_folder_of_table(folder / newest.folder, table) / "*.parquet")
        for table in tables
    }


def _folder_of_table(folder: Path, table: ArchiveTable) -> Path:
    schema, name = table
    for path in sorted((folder / _FOLDERS[schema]).glob("*-*")):
        if path.name.partition("-")[2].lower() == name.lower():
            return path
    remedy = ": add --history to `qsync local compact`" if schema == HISTORY else ""
    raise Failure(
        FailureReason.NOT_FOUND, f"the newest compaction has no table {schema}.{name}{remedy}"
    )


# --- execution ----------------------------------------------------------------------------------

_CLOSED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


@contextlib.contextmanager
def opened(files: dict[ArchiveTable, str], folder: Path) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Yield a database with a view of each file, which can read these files only."""
    duckdb = _duckdb()
    folders = sorted({str(Path(file).parent) for file in files.values()})
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"set temp_directory = {_text(str(folder))}")
        connection.execute(f"set allowed_directories = [{', '.join(map(_text, folders))}]")
        for name, value in sorted(_CLOSED.items()):
            connection.execute(f"set {name} = {value}")
        for (schema, name), file in files.items():
            if schema:
                connection.execute(f"create schema if not exists {schema}")
            view = f"{schema or 'main'}.{_name(name)}"
            connection.execute(f"create view {view} as from read_parquet({_text(file)})")
        connection.execute("set lock_configuration = true")
        yield connection


def _run(connection: "duckdb.DuckDBPyConnection", statement: str) -> "duckdb.DuckDBPyConnection":
    try:
        return connection.execute(statement)
    except _duckdb().Error as error:
        raise statement_failure(error) from error


def _print(result: "duckdb.DuckDBPyConnection", output: Output | None) -> None:
    names = _distinct([column[0] for column in result.description or ()])
    if output is Output.json:
        while page := result.fetchmany(TABLE_ROWS):
            for row in page:
                say(json_of(dict(zip(names, row, strict=True))))
        return
    rows = result.fetchmany(TABLE_ROWS + 1)
    shown = rows[:TABLE_ROWS]
    if output is Output.yaml:
        plain: list[dict[str, Any]] = [
            dict(zip(names, map(_cell, row), strict=True)) for row in shown
        ]
        print_document(plain, output)
    else:
        print_table(names, [[_cell(value) for value in row] for row in shown])
    if len(rows) > TABLE_ROWS:
        typer.echo(f"only the first {TABLE_ROWS} rows are shown: use -o json for all", err=True)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names of columns; a repeated one gets a number, as in a join of two tables."""
    found: dict[str, None] = {}
    taken = set(names)
    for name in names:
        unique, number = name, 0
        while unique in found or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        found[unique] = None
    return list(found)


def _cell(value: object) -> str:
    """Return a value as a cell: times, decimals and UUIDs, which JSON lacks, without quotes."""
    return cell_of(str(value) if isinstance(value, date | Decimal | UUID) else value)


def statement_failure(error: Exception) -> Failure:
    """Return the failure of a statement, without places in it and tables of DuckDB's own."""
    text = _INTERNAL.sub("", " ".join(str(error).partition("\n\nLINE")[0].split())).rstrip()
    return Failure(FailureReason.INVALID, f"the statement failed: {text}")


_INTERNAL = re.compile(r'Did you mean "(pg_|duckdb_|sqlite_|pragma_|information_schema)[^"]*"\?')
"""A suggestion of DuckDB that names one of its own tables."""


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def _duckdb() -> Any:
    try:
        import duckdb  # noqa: PLC0415  # it is optional and slow
    except ModuleNotFoundError as absent:
        raise Failure(
            FailureReason.NOT_INSTALLED, f"SQL needs DuckDB: run {install_command('query')}"
        ) from absent
    return duckdb
