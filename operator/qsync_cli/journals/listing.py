"""`qsync journals list`."""

from typing import TYPE_CHECKING, Any

from qsync_broker import labels
from qsync_cli.options import LocalOption, Output, OutputOption
from qsync_cli.output import print_document, print_table

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient, ListedJournal
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    SelectorOption,
    TokenOption,
    ask_broker,
)

SUSPENSIONS = ("", "partial", "full")


def listing(
    selector: SelectorOption = "",
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """List journals: replication, primary, brokers, first store."""

    async def work(client: "JournalClient") -> "list[ListedJournal]":
        return await client.journals(labels.parse_selector(selector))

    found: list[ListedJournal] = ask_broker(broker, local, token, ca, work)
    if output in (Output.json, Output.yaml):
        print_document([document_of(journal) for journal in found], output)
        return
    rows = [
        [
            journal.spec.name,
            str(journal.spec.replication),
            journal.primary or "-",
            ",".join(journal.brokers) or "-",
            SUSPENSIONS[journal.suspend_level] or "-",
            next(iter(journal.spec.fragment.stores), "-"),
        ]
        for journal in found
    ]
    print_table(["JOURNAL", "REPLICATION", "PRIMARY", "BROKERS", "SUSPENDED", "STORE"], rows)


def document_of(journal: "ListedJournal") -> dict[str, Any]:
    """Return a journal as JSON, in the form that an audit reads."""
    return {
        "name": journal.spec.name,
        "revision": journal.revision,
        "primary": journal.primary,
        "brokers": list(journal.brokers),
        "suspended": SUSPENSIONS[journal.suspend_level] or "none",
        "spec": journal.spec.row_fields(),
    }
