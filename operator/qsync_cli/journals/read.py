"""`qsync journals read`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from qsync_cli.options import LocalOption
from qsync_cli.output import warn

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    JournalArgument,
    TokenOption,
    ask_broker,
)


def read(
    journal: JournalArgument,
    offset: Annotated[
        int, typer.Option("--offset", help="First offset; -1 for the write head.", min=-1)
    ] = 0,
    end: Annotated[int, typer.Option("--end", help="Offset after the last byte.", min=0)] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the write head.")
    ] = False,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
) -> None:
    """Write the bytes of a journal to standard output.

    A range whose bytes are lost is passed over, with a warning. An offset after the write head is
    refused without `--follow`.
    """

    def on_gap(begin: int, until: int) -> None:
        warn(f"{journal}: no fragment has the bytes from {begin} to {until}; the output lacks them")

    async def work(client: "JournalClient") -> None:
        parts = client.read(journal, offset, is_blocking=follow, end=end, on_gap=on_gap)
        async for _, data in parts:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    ask_broker(broker, local, token, ca, work)
