"""Options that several commands share, each in one place with its help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """Formats of `-o`."""

    wide = "wide"
    json = "json"
    yaml = "yaml"


OutputOption = Annotated[
    Output | None, typer.Option("-o", "--output", help="wide, json or yaml instead of a table")
]
NameArgument = Annotated[str, typer.Argument(help="the cluster's name", metavar="NAME")]
LocalOption = Annotated[
    str | None, typer.Option("--local", help="a local cluster", metavar="NAME", show_default=False)
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="a node's admin address", metavar="HOST:PORT", show_default=False
    ),
]
SecretOption = Annotated[
    str | None,
    typer.Option(
        "--secret", envvar="QSYNC_SECRET", help="the cluster's secret, with --address",
        show_default=False,
    ),
]  # fmt: skip
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="QSYNC_CA", help="who signed the node's certificate, with --address",
        metavar="FILE", show_default=False,
    ),
]  # fmt: skip
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="seconds to wait until it is Ready", min=0)
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="return as soon as it is ordered")]
