"""`qsync snapshot`: members write their confirmed state to a snapshot file."""

from typing import TYPE_CHECKING

import typer

from qsync_cli import targets
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_at_members

if TYPE_CHECKING:
    from qsync_cli.targets import CommandTarget


@aimed_at_members
def snapshot(where: Where, member: str | None = None, output: OutputOption = None) -> None:
    """Write snapshots now. Nodes also write them automatically as the log grows."""
    if where.address is not None and member is not None:
        raise typer.BadParameter("specify MEMBER or --address, not both")
    target = targets.resolve(where, member)
    names = [member] if member is not None else list(target.addresses)
    written = [_write(target, name) for name in names]
    done("\n".join(f"{name} wrote a snapshot" for name in written), output, members=written)


def _write(target: "CommandTarget", name: str) -> str:
    node = target.address_of(name)
    targets.ask(target, lambda links: links.post(node, "/verb/snapshot", {}))
    return name or node
