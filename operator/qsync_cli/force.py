"""`qsync force-confirm` and `force-rollback`: continue after a quorum is lost permanently (E11).

Both exclude voters whose disks are destroyed or fenced off. `force-confirm` keeps all rows of the
best survivor, `force-rollback` only the rows that it knows to be confirmed. The user must confirm
the order, because a running voter could elect another leader.
"""

from typing import Annotated

import typer

from qsync_cli import targets
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed

LostOption = Annotated[
    list[str], typer.Option("--lost", help="Voter to exclude, by name or UUID. Repeatable.")
]
DestroyedOption = Annotated[
    bool,
    typer.Option(
        "--disks-destroyed",
        help="Confirm that the disks of all lost voters are destroyed or fenced off.",
    ),
]


@aimed
def force_confirm(
    where: Where,
    lost: LostOption,
    disks_destroyed: DestroyedOption = False,
    output: OutputOption = None,
) -> None:
    """Continue without lost voters, and keep all rows of the best survivor."""
    _force("force-confirm", where, lost, disks_destroyed, output)


@aimed
def force_rollback(
    where: Where,
    lost: LostOption,
    disks_destroyed: DestroyedOption = False,
    output: OutputOption = None,
) -> None:
    """Continue without lost voters, and keep only confirmed rows of the best survivor."""
    _force("force-rollback", where, lost, disks_destroyed, output)


def _force(
    verb: str, where: Where, lost: list[str], disks_destroyed: bool, output: Output | None
) -> None:
    if not disks_destroyed:
        raise Failure(
            FailureReason.REFUSED,
            f"{verb} was not sent: lost voters that still run could elect a second "
            "leader; destroy or fence off their disks, then add --disks-destroyed",
        )
    target = targets.resolve(where, lost[0])
    survivor = targets.ask(target, lambda links: _order(links, target, verb, lost))
    name = survivor or target.address_of("")
    done(
        f"{name} leads without {', '.join(lost)}; restart these members as new instances "
        "with empty directories",
        output,
        leader=name,
        lost=lost,
    )


async def _order(
    links: targets.CommandLinks, target: targets.CommandTarget, verb: str, lost: list[str]
) -> str:
    """Order the best survivor: greatest term of the last row, then the longest log (E2)."""
    found = await targets.statuses(links, target)
    survivors = {
        name: said
        for name, said in found.items()
        if said["can_stand"] and name not in lost and said["uuid"] not in lost
    }
    if not survivors:
        raise Failure(
            FailureReason.NOT_READY,
            f"{verb} failed: no surviving voter can stand for election; check `qsync status`",
        )
    best = max(survivors, key=lambda n: (survivors[n]["last_term"], survivors[n]["last_index"]))
    uuids = {m["name"]: m["uuid"] for m in survivors[best]["members"]}
    order = {"lost": [uuids.get(one, one) for one in lost], "disks_destroyed": True}
    await links.post(target.address_of(best), f"/verb/{verb}", order)
    return best
