"""Options of the commands for journals, and the broker that they select."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_broker import client as broker_client
from qsync_broker import ledger as broker_ledger
from qsync_broker import stores as broker_stores
from qsync_cli import brokers, clusters
from qsync_cli.failure import Failure, FailureReason

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient
    from qsync_cli.brokers import BrokerAccess


BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker", envvar="BROKER_ADDRESS", help="URL of any broker.", metavar="URL",
        show_default=False,
    ),
]  # fmt: skip
TokenOption = Annotated[
    str, typer.Option("--token", envvar="BROKER_AUTH_TOKEN", help="Token for the brokers.",
                      metavar="JWT", show_default=False),
]  # fmt: skip
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="BROKER_TRUSTED_CA_FILE", help="File with the authorities of the brokers.",
        metavar="FILE", show_default=False,
    ),
]  # fmt: skip
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Report the fragments, and change nothing.")
]
JournalArgument = Annotated[str, typer.Argument(help="Name of the journal.", metavar="JOURNAL")]
SelectorOption = Annotated[
    str,
    typer.Option(
        "--selector", "-l", help="Labels of the wanted journals.", metavar="SELECTOR",
        show_default=False,
    ),
]  # fmt: skip


def ask_broker(
    broker: str | None,
    local: str | None,
    token: str,
    ca: Path | None,
    work: "Callable[[JournalClient], Coroutine[Any, Any, Any]]",
    ledger: Path | None = None,
) -> Any:
    """Run requests at a broker.

    Raises:
        Failure: no broker is given or reachable, or it refused a request.
    """

    async def run() -> Any:
        access = broker_access(broker, local, token, ca)
        record = broker_ledger.AppendLedger(ledger) if ledger is not None else None
        async with broker_client.JournalClient(
            access.url, access.token, access.ca, record
        ) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except broker_client.JournalError as error:
        is_reached = "cannot be reached" not in str(error)
        reason = FailureReason.REFUSED if is_reached else FailureReason.UNREACHABLE
        raise Failure(reason, str(error)) from None
    except (broker_ledger.AppendLedgerError, broker_stores.FragmentStoreError) as error:
        raise Failure(FailureReason.FAILED, str(error)) from None
    except (OSError, ValueError) as error:
        raise Failure(FailureReason.INVALID, str(error)) from None


def broker_access(
    broker: str | None, local: str | None, token: str, ca: Path | None
) -> "BrokerAccess":
    """Return the way to a broker.

    Raises:
        Failure: no broker is given, none of the cluster is ready, or the file with the authorities
            cannot be used.
    """
    if local is not None:
        found = brokers.answering_broker(clusters.open_store(local))
        access = found._replace(token=token or found.token, ca=ca or found.ca)
    elif broker is not None:
        access = brokers.BrokerAccess(broker, token, ca)
    else:
        raise Failure(FailureReason.INVALID, "no broker is given: use --local NAME or --broker URL")
    try:
        access.context()
    except OSError as error:
        cause = error.strerror or str(error)
        raise Failure(
            FailureReason.INVALID,
            f"the authorities of the brokers in {access.ca} cannot be used: {cause}; set --ca or"
            " BROKER_TRUSTED_CA_FILE to a file with PEM certificates",
        ) from None
    return access
