"""`qsync fence`: a member leaves leadership and does not stand; it still votes."""

import typer

from qsync_cli import targets
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_at_member


@aimed_at_member
def fence(where: Where, member: str | None = None, output: OutputOption = None) -> None:
    """Fence a member: it votes and acknowledges but cannot lead."""
    if (member is None) != (where.address is not None):
        raise typer.BadParameter("specify exactly one of MEMBER or --address")
    target = targets.resolve(where, member)
    node = target.address_of(member or "")
    targets.ask(target, lambda links: links.post(node, "/verb/fence", {}))
    done(f"{member or node} is fenced", output, member=member or node, fenced=True)
