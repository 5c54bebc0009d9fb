"""`qsync journals accept-loss`: a journal continues without bytes whose last copy is gone."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from qsync_broker import client, loss_client
from qsync_cli.consent import require_consent
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    JournalArgument,
    TokenOption,
    broker_access,
)
from qsync_cli.options import LocalOption, OutputOption
from qsync_cli.output import done

if TYPE_CHECKING:
    from qsync_broker.loss import Loss


def accept_loss(
    journal: JournalArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Accept the loss without a question, in a script.")
    ] = False,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Accept that bytes of a journal are lost, because the last disk with all of them is gone.

    The command names the offsets, and asks. It is refused while a broker with all bytes is
    reachable. The offsets of lost bytes never get other bytes: the journal continues after them.
    """
    access = broker_access(broker, local, token, ca)

    def ask(resume: int = 0) -> "Loss | None":
        try:
            context = access.context()
            request = loss_client.ask_loss(access.url, journal, access.headers(), context, resume)
            return asyncio.run(request)
        except client.JournalError as error:
            is_reached = "cannot be reached" not in str(error)
            reason = FailureReason.REFUSED if is_reached else FailureReason.UNREACHABLE
            raise Failure(reason, str(error)) from None
        except OSError as error:
            raise Failure(FailureReason.INVALID, f"{access.ca}: {error}") from None

    loss = ask()
    if loss is None:
        text = f"{journal}: its brokers have all acknowledged bytes; nothing was changed"
        raise Failure(FailureReason.REFUSED, text)
    question = "Are these disks lost for good, and are these bytes lost?"
    remedy = "add --yes to accept the loss"
    require_consent(journal, description_of(journal, loss), question, remedy, is_given=yes)
    again = ask(loss.resume)
    if again is not None:
        text = f"{journal}: the journal has changed meanwhile; repeat the command"
        raise Failure(FailureReason.REFUSED, text)
    text = f"{journal} continues at {loss.resume}; its bytes from {loss.begin} on are lost"
    if loss.end != loss.resume:
        text = f"{journal} continues without some of its bytes from {loss.begin} to {loss.end}"
    done(text, output, begin=loss.begin, end=loss.end, resume=loss.resume)


def description_of(journal: str, loss: "Loss") -> str:
    """Return the lost offsets and the brokers that are removed, as sentences."""
    if loss.end == loss.resume:
        text = (
            f"{journal}: no reachable broker has all acknowledged bytes. All bytes from offset"
            f" {loss.begin} on are lost. No byte gets their offsets: the journal continues at"
            f" {loss.resume}."
        )
    else:
        text = (
            f"{journal}: some bytes between the offsets {loss.begin} and {loss.end} are on no"
            " reachable broker. They are lost. Appends and other bytes are not affected."
        )
    if loss.dead:
        names = ", ".join(loss.dead)
        text += f" Brokers that are down, and may have them, are removed from it: {names}."
    return text
