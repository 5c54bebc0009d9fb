"""`qsync unfence`: a fenced member may lead again."""

from typing import Annotated

import typer

from qsync_cli.options import AddressOption, LocalOption, SecretOption
from qsync_cli.output import say

MemberArgument = Annotated[
    str | None, typer.Argument(help="the member; not needed with --address", metavar="MEMBER")
]


def unfence(
    member: MemberArgument = None,
    local: LocalOption = None,
    address: AddressOption = None,
    secret: SecretOption = None,
) -> None:
    """Let a fenced member lead again."""
    from qsync_cli.targets import ask, resolve  # noqa: PLC0415

    target = resolve(local, address, secret)
    if (member is None) != (address is not None):
        raise typer.BadParameter("name the MEMBER with --local, and only there")
    node = target.address_of(member or "")
    ask(target, lambda links: links.post(node, "/verb/unfence", {}))
    say(f"{member or address} is unfenced")
