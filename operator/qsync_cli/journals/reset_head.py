"""`qsync journals reset-head`."""

from typing import TYPE_CHECKING

from qsync_broker import client as broker_client
from qsync_broker import requests, status
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


def reset_head(
    journal: JournalArgument,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Resume a journal whose last bytes are lost, at its write head.

    A journal without a store needs `qsync journals accept-loss` instead.
    """

    async def work(client: "JournalClient") -> tuple[int, bool]:
        try:
            return (await client.append(journal, suspend=requests.Suspend.KEEP)).end, False
        except broker_client.JournalError as error:
            if error.status is not status.Status.INDEX_HAS_GREATER_OFFSET:
                raise
        found = await client.journals(broker_client.selector_of_name(journal))
        if found and not found[0].spec.fragment.stores:
            raise Failure(
                FailureReason.REFUSED,
                f"{journal} cannot continue at its write head: it has no store, and no broker has"
                " all acknowledged bytes; start the missing brokers, or accept the loss with"
                f" `qsync journals accept-loss {journal}`",
            )
        return await client.reset_head(journal), True

    head, is_reset = ask_broker(broker, local, token, ca, work)
    text = f"{journal} continues at {head}"
    if not is_reset:
        text = (
            f"{journal}: its brokers have all acknowledged bytes, up to {head}; nothing was changed"
        )
    done(text, output, head=head, changed=is_reset)
