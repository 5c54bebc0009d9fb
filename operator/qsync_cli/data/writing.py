"""`qsync put`, `insert`, `update`, `delete`: one write, and its outcome as the answer.

Exit codes: 0 committed, 1 refused or rolled back (nothing happened), 3 unknown. An unknown write is
repeated with the key that the message prints; the cluster executes it once.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from qsync_cli.data.connecting import ConnectionTarget, SpaceArgument, on_cluster
from qsync_cli.data.reading import IndexOption, named
from qsync_cli.data.values import code_name, json_of, operation_of, row_of, value_of
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import say
from qsync_client import (
    Committed,
    FirstUse,
    Outcome,
    Refused,
    RequestKey,
    RolledBack,
    SyncClient,
    Unknown,
)
from qsync_client.keys import GivenKey

UNKNOWN_EXIT = 3
RowArgument = Annotated[
    str, typer.Argument(help="A row as JSON: an array, or an object with names.", metavar="ROW")
]
KeyParts = Annotated[list[str], typer.Argument(help="Parts of the key.", metavar="KEY...")]
ChangesOption = Annotated[
    list[str],
    typer.Option("--set", "-s", help="FIELD=VALUE, or FIELD+=NUMBER, -=, &=, |=, ^=.",
                 metavar="CHANGE"),
]  # fmt: skip
RequestKeyOption = Annotated[
    str,
    typer.Option(
        "--key", help="Idempotency key of an earlier attempt, CLIENT/NUMBER/MARK.",
        metavar="KEY", show_default=False,
    ),
]  # fmt: skip


@on_cluster
def put(
    target: ConnectionTarget,
    space: SpaceArgument,
    row: RowArgument,
    request_key: RequestKeyOption = "",
    output: OutputOption = None,
) -> None:
    """Insert a row, or replace the one with the same primary key."""
    fields = row_of(row)
    _write(
        target, request_key, output,
        lambda client, key: client.replace(named(space), fields, request_key=key),
    )  # fmt: skip


@on_cluster
def insert(
    target: ConnectionTarget,
    space: SpaceArgument,
    row: RowArgument,
    request_key: RequestKeyOption = "",
    output: OutputOption = None,
) -> None:
    """Insert a row; it is refused if one has its primary key."""
    fields = row_of(row)
    _write(
        target, request_key, output,
        lambda client, key: client.insert(named(space), fields, request_key=key),
    )  # fmt: skip


@on_cluster
def update(
    target: ConnectionTarget,
    space: SpaceArgument,
    key: KeyParts,
    changes: ChangesOption,
    index: IndexOption = "0",
    request_key: RequestKeyOption = "",
    output: OutputOption = None,
) -> None:
    """Change fields of one row."""
    operations = [operation_of(change) for change in changes]
    parts = [value_of(part) for part in key]
    _write(
        target, request_key, output,
        lambda client, key: client.update(
            named(space), parts, operations, index=named(index), request_key=key
        ),
    )  # fmt: skip


@on_cluster
def delete(
    target: ConnectionTarget,
    space: SpaceArgument,
    key: KeyParts,
    index: IndexOption = "0",
    request_key: RequestKeyOption = "",
    output: OutputOption = None,
) -> None:
    """Delete one row."""
    parts = [value_of(part) for part in key]
    _write(
        target, request_key, output,
        lambda client, key: client.delete(
            named(space), parts, index=named(index), request_key=key
        ),
    )  # fmt: skip


def _write(
    target: ConnectionTarget,
    request_key: str,
    output: Output | None,
    send: Callable[[SyncClient, GivenKey], Outcome],
) -> None:
    given = _key_of(request_key) if request_key else None
    with target.connect() as client:
        key = given or client.new_key()
        outcome = send(client, given or FirstUse(key))
    _print_outcome(outcome, key, output, is_retry=given is not None)


def _print_outcome(
    outcome: Outcome, key: RequestKey, output: Output | None, *, is_retry: bool
) -> None:
    match outcome:
        case Committed(rows, at=index):
            if output is Output.json:
                facts = {"outcome": "committed", "at": index, "rows": [list(row) for row in rows]}
                say(json_of(facts))
            elif rows or is_retry:  # the answer to a retry has no rows
                say(f"committed at {index}")
            else:
                say("nothing changed: no row has this key")
        case RolledBack(reason):
            raise Failure(FailureReason.FAILED, f"rolled back: {reason}; it has no effect")
        case Refused(code, reason):
            raise Failure(FailureReason.REFUSED, f"refused: {reason} ({code_name(code)})")
        case Unknown(reason):
            text = "/".join(map(str, key))
            if output is Output.json:
                say(json_of({"outcome": "unknown", "reason": reason, "key": text}))
            typer.echo(f"qsync: unknown: {reason}; repeat it with --key {text}", err=True)
            raise typer.Exit(UNKNOWN_EXIT)


def _key_of(text: str) -> RequestKey:
    client, _, rest = text.partition("/")
    number, _, mark = rest.partition("/")
    if not (client and number.isdigit() and mark.isdigit()):
        raise typer.BadParameter(
            f"--key {text} is no idempotency key: copy the one that an unknown write printed"
        )
    return RequestKey(client, int(number), int(mark))
