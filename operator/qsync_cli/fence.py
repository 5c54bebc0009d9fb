"""`qsync fence`: a member leaves leadership and does not stand; it goes on voting."""

from typing import Annotated

import typer

from qsync_cli.options import AddressOption, LocalOption, SecretOption
from qsync_cli.output import say

MemberArgument = Annotated[
    str | None, typer.Argument(help="the member; not needed with --address", metavar="MEMBER")
]


def fence(
    member: MemberArgument = None,
    local: LocalOption = None,
    address: AddressOption = None,
    secret: SecretOption = None,
) -> None:
    """Keep a member from leading: it votes and acknowledges as before."""
    from qsync_cli.targets import ask, resolve  # noqa: PLC0415

    target = resolve(local, address, secret)
    if (member is None) != (address is not None):
        raise typer.BadParameter("name the MEMBER with --local, and only there")
    node = target.address_of(member or "")
    ask(target, lambda links: links.post(node, "/verb/fence", {}))
    say(f"{member or address} is fenced")
