"""`qsync get`, `select`, `count`: rows that a majority of the voters has."""

import base64
import binascii
from typing import Annotated

import typer

from qsync_cli.data.connecting import ConnectionTarget, SpaceArgument, on_cluster
from qsync_cli.data.values import json_of, plain_of, table_of, value_of
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, print_table, say
from qsync_client import Committed, Iterator, Refused, Row

KeyArgument = Annotated[
    list[str] | None, typer.Argument(help="Parts of the key, as JSON or text.", metavar="KEY...")
]
IndexOption = Annotated[str, typer.Option("--index", help="Name or id of the index.")]
IteratorOption = Annotated[
    str,
    typer.Option(
        "--iterator",
        help="EQ, REQ, ALL, LT, LE, GE, GT. ALL reads the whole index.",
        show_default=False,
    ),
]
LinearizableOption = Annotated[
    bool,
    typer.Option("--linearizable", help="Read the newest state, confirmed by a quorum."),
]
LimitOption = Annotated[
    int, typer.Option("--limit", help="Maximum number of rows.", min=1, max=10_000)
]
AfterOption = Annotated[
    str,
    typer.Option("--after", help="Continue after a page: the text that it printed.",
                 show_default=False),
]  # fmt: skip


@on_cluster
def get(
    target: ConnectionTarget,
    space: SpaceArgument,
    key: Annotated[list[str], typer.Argument(help="Parts of the key.", metavar="KEY...")],
    index: IndexOption = "0",
    linearizable: LinearizableOption = False,
    output: OutputOption = None,
) -> None:
    """Print the row with a key of a unique index."""
    with target.connect() as client:
        row = client.get(
            named(space), [value_of(part) for part in key], index=named(index),
            linearizable=linearizable,
        )  # fmt: skip
    if row is None:
        raise Failure(FailureReason.NOT_FOUND, f"no row of {space} has the key {' '.join(key)}")
    print_rows([row], output)


@on_cluster
def select(
    target: ConnectionTarget,
    space: SpaceArgument,
    key: KeyArgument = None,
    index: IndexOption = "0",
    iterator: IteratorOption = "",
    limit: LimitOption = 100,
    after: AfterOption = "",
    linearizable: LinearizableOption = False,
    output: OutputOption = None,
) -> None:
    """Print rows in the order of an index, and the position of the next page."""
    with target.connect() as client:
        outcome = client.select(
            named(space),
            [value_of(part) for part in key or ()],
            index=named(index),
            iterator=iterator_of(iterator, key),
            limit=limit,
            linearizable=linearizable,
            after=_position_of(after),
            fetch_position=True,
        )
    if not isinstance(outcome, Committed):
        code = f" (error {outcome.code})" if isinstance(outcome, Refused) else ""
        raise Failure(FailureReason.REFUSED, f"the rows were not read: {outcome.reason}{code}")
    print_rows(outcome.tuples, output)
    if len(outcome.tuples) == limit and outcome.position:
        position = base64.urlsafe_b64encode(outcome.position).decode()
        typer.echo(f"more rows: --after {position}", err=True)


@on_cluster
def count(
    target: ConnectionTarget,
    space: SpaceArgument,
    key: KeyArgument = None,
    index: IndexOption = "0",
    iterator: IteratorOption = "",
    output: OutputOption = None,
) -> None:
    """Print the number of rows of a space, or of a key."""
    with target.connect() as client:
        rows = client.count(
            named(space),
            [value_of(part) for part in key or ()],
            index=named(index),
            iterator=iterator_of(iterator, key),
        )
    if output in (Output.json, Output.yaml):
        print_document({"rows": rows}, output)
    else:
        say(str(rows))


def named(text: str) -> int | str:
    """Return a name, or an id."""
    return int(text) if text.isdigit() else text


def iterator_of(name: str, key: list[str] | None) -> Iterator:
    """Return the iterator of an option: without one, equality, or all rows without a key.

    Raises:
        BadParameter: there is no such iterator.
    """
    if not name:
        return Iterator.EQ if key else Iterator.ALL
    try:
        return Iterator[name.upper()]
    except KeyError:
        known = ", ".join(one.name for one in Iterator)
        raise typer.BadParameter(f"unknown iterator {name}: choose one of {known}") from None


def print_rows(rows: list[Row], output: Output | None) -> None:
    """Print rows: a table, or one JSON object a line with the names of the fields."""
    if output is Output.json:
        for row in rows:
            say(json_of(row.as_dict() if row.space is not None else list(row)))
    elif output is Output.yaml:
        plain = [plain_of(row.as_dict() if row.space else list(row)) for row in rows]
        print_document(plain, output)
    else:
        space = next((row.space for row in rows), None)
        names = [field.name for field in space.fields] if space is not None else []
        print_table(*table_of(rows, names))


def _position_of(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text)
    except (binascii.Error, ValueError) as error:
        raise typer.BadParameter(
            f"--after {text} is no position: {error}; copy the text that a page printed"
        ) from error
