"""`qsync journals delete`: a journal and its bytes at the brokers are deleted."""

from typing import TYPE_CHECKING, Annotated

import typer

from qsync_broker import client as broker_client
from qsync_broker import status
from qsync_cli.consent import require_consent
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    JournalArgument,
    TokenOption,
    ask_broker,
)
from qsync_cli.options import LocalOption, OutputOption
from qsync_cli.output import done

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient, ListedJournal


def delete(
    journal: JournalArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete without a question, in a script.")
    ] = False,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Delete a journal, its registers, and its bytes at the brokers.

    The command asks. Persisted fragments stay in their stores. If a QsyncJournal declares the
    journal, delete the QsyncJournal first: the operator can create a declared journal again.
    """

    async def find(client: "JournalClient") -> "list[ListedJournal]":
        return await client.journals(broker_client.selector_of_name(journal))

    found: list[ListedJournal] = ask_broker(broker, local, token, ca, find)
    if not found:
        text = status.refusal(journal, status.Status.JOURNAL_NOT_FOUND)
        raise Failure(FailureReason.NOT_FOUND, text)
    text = (
        f"{journal}: its registers, its waiting publications, and its bytes at the brokers are lost"
        " with it."
    )
    remedy = "add --yes to delete the journal"
    require_consent(journal, text, f"Delete {journal}?", remedy, is_given=yes)

    async def delete_found(client: "JournalClient") -> None:
        await client.delete(journal, found[0].revision)

    ask_broker(broker, local, token, ca, delete_found)
    done(f"{journal} deleted", output, journal=journal)
