"""`qsync switchover`: leadership moves between live members; clients see a pause."""

from qsync_cli import targets
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_at_members


@aimed_at_members
def switchover(where: Where, member: str | None = None, output: OutputOption = None) -> None:
    """Move leadership to another member without losing a write."""
    target = targets.resolve(where, member)
    leader = targets.ask(target, lambda links: _switch_over(links, target, member))
    name = leader or target.address_of("")
    done(f"{name} handed leadership over", output, previousLeader=name)


async def _switch_over(
    links: targets.CommandLinks, target: targets.CommandTarget, member: str | None
) -> str:
    found = await targets.statuses(links, target)
    leader = targets.leader_of(found)
    if leader is None:
        raise Failure(
            FailureReason.NOT_READY,
            "switchover failed: no member leads; run `qsync promote MEMBER` to nominate one",
        )
    if member is None:
        await links.post(target.address_of(leader), "/verb/demote", {})
        return leader
    if leader == member:
        raise Failure(FailureReason.ALREADY_EXISTS, f"switchover failed: {member} already leads")
    uuid = found[member]["uuid"] if member in found else member
    await links.post(target.address_of(leader), "/verb/switchover", {"target": uuid})
    return leader
