"""`qsync snapshot`: members write their confirmed state to a snapshot file."""

from typing import TYPE_CHECKING, Annotated

import typer

from qsync_cli.options import AddressOption, LocalOption, SecretOption
from qsync_cli.output import say

if TYPE_CHECKING:
    from qsync_cli.targets import Target

MemberArgument = Annotated[
    str | None, typer.Argument(help="a member; all without", metavar="MEMBER")
]


def snapshot(
    member: MemberArgument = None,
    local: LocalOption = None,
    address: AddressOption = None,
    secret: SecretOption = None,
) -> None:
    """Write snapshots now; nodes also do it by themselves as the log grows."""
    from qsync_cli.targets import resolve  # noqa: PLC0415

    target = resolve(local, address, secret)
    if address is not None and member is not None:
        raise typer.BadParameter("--address names the node: leave MEMBER out")
    names = [member] if member is not None else list(target.addresses)
    for name in names:
        _write(target, name)
        say(f"{name or address} wrote a snapshot")


def _write(target: "Target", name: str) -> None:
    from qsync_cli.targets import ask  # noqa: PLC0415

    node = target.address_of(name)
    ask(target, lambda links: links.post(node, "/verb/snapshot", {}))
