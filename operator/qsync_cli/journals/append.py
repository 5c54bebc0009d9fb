"""`qsync journals append`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import LocalOption, OutputOption
from qsync_cli.output import done

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    JournalArgument,
    TokenOption,
    ask_broker,
)

CHUNK = 1 << 20


def append(
    journal: JournalArgument,
    file: Annotated[
        Path | None,
        typer.Argument(help="Content; - or nothing for standard input.", show_default=False),
    ] = None,
    offset: Annotated[
        int, typer.Option("--offset", help="Offset at which it must begin.", min=0)
    ] = 0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger", help="File that records the append for audits.", metavar="FILE",
            show_default=False,
        ),
    ] = None,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:  # fmt: skip
    """Append a file as a whole, or standard input, and print its offsets."""
    try:
        stream = sys.stdin.buffer if file in (None, Path("-")) else file.open("rb")
    except OSError as error:
        cause = error.strerror or str(error)
        raise Failure(FailureReason.NOT_FOUND, f"{file} cannot be read: {cause}") from None

    async def work(client: "JournalClient") -> Any:
        return await client.append(journal, iter(lambda: stream.read(CHUNK), b""), offset=offset)

    with stream:
        commit = ask_broker(broker, local, token, ca, work, ledger)
    text = f"appended {commit.end - commit.begin} bytes at {commit.begin}"
    done(text, output, begin=commit.begin, end=commit.end, sha1=commit.sum.hex())
