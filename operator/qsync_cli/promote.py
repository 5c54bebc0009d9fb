"""`qsync promote`: a member takes leadership, by the same vote as always."""

import asyncio
import time

import typer

from qsync_cli import targets
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_at_member

WAIT_S = 10.0
POLL_S = 0.05


@aimed_at_member
def promote(where: Where, member: str | None = None, output: OutputOption = None) -> None:
    """Make a member the leader: by switchover, or by nomination without a leader."""
    if (member is None) != (where.address is not None):
        raise typer.BadParameter("specify exactly one of MEMBER or --address")
    target = targets.resolve(where, member)
    node = target.address_of(member or "")
    if member is None:
        targets.ask(target, lambda links: links.post(node, "/verb/promote", {}))
        done(f"{node} leads", output, leader=node)
        return
    term = targets.ask(target, lambda links: _promote(links, target, member))
    done(f"{member} leads in term {term}", output, leader=member, term=term)


async def _promote(links: targets.CommandLinks, target: targets.CommandTarget, member: str) -> int:
    """Return the term in which the member leads.

    Raises:
        LinkError: a node does not answer.
        Failure: the member does not become leader.
    """
    found = await targets.statuses(links, target)
    if member not in found:
        raise Failure(
            FailureReason.UNREACHABLE,
            f"cannot promote {member}: it does not answer; check its pod or process",
        )
    leader = targets.leader_of(found)
    if leader == member and found[member]["is_writable"]:
        return int(found[member]["term"])
    if leader is not None:
        order = {"target": found[member]["uuid"]}
        await links.post(target.address_of(leader), "/verb/switchover", order)
    else:
        term = max(int(said["term"]) for said in found.values())
        await links.post(target.address_of(member), "/verb/nominate", {"term": term})
    return await _until_writable(links, target.address_of(member), member)


async def _until_writable(links: targets.CommandLinks, address: str, member: str) -> int:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        said = await links.status(address)
        if said["role"] == "leader" and said["is_writable"]:
            return int(said["term"])
        await asyncio.sleep(POLL_S)
    raise Failure(
        FailureReason.TIMED_OUT,
        f"promotion of {member} did not finish in {WAIT_S:g} s: check `qsync status`",
    )
