"""`qsync journals prune`."""

import time
from itertools import takewhile
from typing import TYPE_CHECKING

from qsync_broker import labels
from qsync_broker import stores as broker_stores
from qsync_cli.options import LocalOption, OutputOption
from qsync_cli.output import done

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient
    from qsync_broker.index import RemoteFragment
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    DryRunOption,
    SelectorOption,
    TokenOption,
    ask_broker,
)


def prune(
    selector: SelectorOption = "",
    dry_run: DryRunOption = False,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Delete persisted fragments that are older than `fragment.retention` of their journal.

    The stores are accessed from this machine. Journals without a retention keep everything, and
    each journal keeps its last fragment, which states its write head. Fragments after one that is
    kept are kept: a journal has no gap.
    """

    async def work(client: "JournalClient") -> tuple[int, int]:
        stores, count, size = broker_stores.FragmentStores(), 0, 0
        for journal in await client.journals(labels.parse_selector(selector)):
            retention_s = journal.spec.fragment.retention_ns / 1e9
            if retention_s <= 0 or not journal.brokers:
                continue
            listed = await client.fragments(journal.spec.name)
            for fragment in expired(listed, time.time() - retention_s):
                count, size = count + 1, size + fragment.end - fragment.begin
                if not dry_run:
                    await stores.delete(fragment)
        return count, size

    count, size = ask_broker(broker, local, token, ca, work)
    verb = "would be deleted" if dry_run else "deleted"
    done(f"{count} fragments with {size} bytes {verb}", output, fragments=count, bytes=size)


def expired(listed: "list[RemoteFragment]", before_s: float) -> "list[RemoteFragment]":
    """Return the first fragments of a journal that were all persisted before a time.

    Args:
        listed: all fragments in their order; those that are not persisted have no store.
        before_s: Unix time.
    """
    persisted = [fragment for fragment in listed if fragment.store]
    # One that was merged is later than the fragments after it, which would leave a gap.
    return list(takewhile(lambda one: one.mod_time < before_s, persisted[:-1]))
