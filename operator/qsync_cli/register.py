"""`qsync register`: an anonymous member becomes a registered one, while it runs."""

import asyncio
import time

import typer

from qsync_cli import targets
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_at_member

WAIT_S = 20.0
POLL_S = 0.05


@aimed_at_member
def register(where: Where, member: str | None = None, output: OutputOption = None) -> None:
    """Register an anonymous member: it gets a replica id, and its log is retained."""
    if (member is None) != (where.address is not None):
        raise typer.BadParameter("specify exactly one of MEMBER or --address")
    target = targets.resolve(where, member)
    node = target.address_of(member or "")
    name = member or node
    replica_id = targets.ask(target, lambda links: _register(links, node, name))
    done(f"{name} is registered with id {replica_id}", output, member=name, replicaId=replica_id)


async def _register(links: targets.CommandLinks, node: str, name: str) -> int:
    said = await links.status(node)
    if said["role"] != "anonymous":
        raise Failure(
            FailureReason.REFUSED,
            f"cannot register {name}: its role is {said['role']}, and only an anonymous "
            "member can be registered",
        )
    await links.post(node, "/verb/configure", {"role": "async"})
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        said = await links.status(node)
        if said["replica_id"] and said["role"] == "async":
            return int(said["replica_id"])
        await asyncio.sleep(POLL_S)
    reason = said["refused"] or "no leader answered; check `qsync status`"
    raise Failure(
        FailureReason.TIMED_OUT, f"registration of {name} did not finish in {WAIT_S:g} s: {reason}"
    )
