"""Options that several commands share, each in one place with its help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qsync_cli import completion


class Output(StrEnum):
    """Formats of `-o`."""

    wide = "wide"
    json = "json"
    yaml = "yaml"


OutputOption = Annotated[
    Output | None, typer.Option("-o", "--output", help="Output format. The default is a table.")
]
NameArgument = Annotated[
    str,
    typer.Argument(
        help="Name of the cluster.", metavar="NAME", autocompletion=completion.local_clusters
    ),
]
LocalOption = Annotated[
    str | None,
    typer.Option(
        "--local", help="Local cluster.", metavar="NAME", show_default=False,
        autocompletion=completion.local_clusters,
    ),
]  # fmt: skip
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="Admin address of a node.", metavar="HOST:PORT", show_default=False
    ),
]
SecretOption = Annotated[
    str | None,
    typer.Option(
        "--secret", envvar="QSYNC_SECRET", help="Secret of the cluster, with --address.",
        show_default=False,
    ),
]  # fmt: skip
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="QSYNC_CA", help="Certificate authority of the node, with --address.",
        metavar="FILE", show_default=False,
    ),
]  # fmt: skip
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait until the cluster is Ready.", min=0)
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return without waiting.")]
