"""`qsync switchover`: leadership moves between live members; clients see a pause."""

import asyncio
import time
from typing import Any, NamedTuple

from qsync_cli import targets
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_at_members

WAIT_S = 10.0
POLL_S = 0.05


class TermLeader(NamedTuple):
    """A leader and its term."""

    name: str
    term: int


@aimed_at_members
def switchover(where: Where, member: str | None = None, output: OutputOption = None) -> None:
    """Move leadership to another member without losing a write."""
    target = targets.resolve(where, member)
    before, now = targets.ask(target, lambda links: _switch_over(links, target, member))
    check_successor(before, now, member if where.address is None else None)  # else a UUID
    text = f"{now.name} leads in term {now.term}, after {before.name}"
    done(text, output, leader=now.name, term=now.term, previousLeader=before.name)


def check_successor(before: TermLeader, now: TermLeader, wanted: str | None) -> None:
    """Check that leadership has moved to the wanted member.

    Args:
        before: the leader before the switchover.
        now: the leader after it.
        wanted: name of the wanted one, or None if each other member is right.

    Raises:
        Failure: another member won the election.
    """
    if now.name == before.name or (wanted is not None and now.name != wanted):
        was = "again" if now.name == before.name else f"instead of {wanted}"
        raise Failure(
            FailureReason.FAILED,
            f"switchover failed: {now.name} leads {was}, in term {now.term}, because it won the "
            "election; run `qsync status`, then repeat the command",
        )


async def _switch_over(
    links: targets.CommandLinks, target: targets.CommandTarget, member: str | None
) -> tuple[TermLeader, TermLeader]:
    """Return the leader before and the one after.

    Raises:
        LinkError: a node does not answer.
        Failure: no member leads, before or afterwards.
    """
    found = await targets.statuses(links, target)
    leader = targets.leader_of(found)
    if leader is None:
        raise Failure(
            FailureReason.NOT_READY,
            "switchover failed: no member leads; run `qsync promote MEMBER` to nominate one",
        )
    before = TermLeader(str(found[leader]["name"]), int(found[leader]["term"]))
    if member is None:
        await links.post(target.address_of(leader), "/verb/demote", {})
        return before, await _next(links, target, before)
    if leader == member:
        raise Failure(FailureReason.ALREADY_EXISTS, f"switchover failed: {member} already leads")
    uuid = found[member]["uuid"] if member in found else member
    await links.post(target.address_of(leader), "/verb/switchover", {"target": uuid})
    return before, await _next(links, target, before)


async def _next(
    links: targets.CommandLinks, target: targets.CommandTarget, before: TermLeader
) -> TermLeader:
    """Wait until a member leads in a later term, and accepts writes if it is asked itself."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        found = successor(await targets.statuses(links, target), before.term)
        if found is not None:
            return found
        await asyncio.sleep(POLL_S)
    raise Failure(
        FailureReason.TIMED_OUT,
        f"{before.name} handed leadership over, but no member leads after {WAIT_S:g} s: check "
        "`qsync status`",
    )


def successor(found: dict[str, dict[str, Any]], term: int) -> TermLeader | None:
    """Return the leader of a term later than `term`, or None.

    Args:
        found: statuses of members. With `--address` this is one member, which names its leader.
        term: the term of the previous leader.
    """
    later = [said for said in found.values() if int(said["term"]) > term]
    leading = [said for said in later if said["role"] == "leader"]
    if leading:
        newest = max(leading, key=lambda said: int(said["term"]))
        name = str(newest["name"])
        return TermLeader(name, int(newest["term"])) if newest["is_writable"] else None
    named = [said for said in later if said["leader_name"] and len(found) == 1]
    return TermLeader(str(named[0]["leader_name"]), int(named[0]["term"])) if named else None
