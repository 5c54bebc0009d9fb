"""`qsync force-confirm` and `force-rollback`: continue after a quorum is lost permanently (E11).

Both exclude voters whose disks are destroyed or fenced off. `force-confirm` keeps all rows of the
best survivor, `force-rollback` only the rows that it knows to be confirmed. The user must confirm
the order, because a running voter could elect another leader.
"""

from typing import Annotated, Any

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
    """Order the best survivor to continue; return its name."""
    found = await targets.statuses(links, target)
    left = {
        name: said for name, said in found.items() if name not in lost and said["uuid"] not in lost
    }
    best = best_survivor(verb, left)
    uuids = {m["name"]: m["uuid"] for m in left[best]["members"]}
    order = {"lost": [uuids.get(one, one) for one in lost], "disks_destroyed": True}
    await links.post(target.address_of(best), f"/verb/{verb}", order)
    return best


def best_survivor(verb: str, left: dict[str, dict[str, Any]]) -> str:
    """Return the member for the order: greatest term of the last row, then the longest log (E2).

    Of equal logs, it is the one of which its member knows the most rows to be confirmed.

    Args:
        verb: the order.
        left: statuses of the members that are not lost, by name.

    Raises:
        Failure: no member can stand, or a rollback would discard a row that another member knows
            to be confirmed. That member would stop (L4).
    """
    survivors = {name: said for name, said in left.items() if said["can_stand"]}
    if not survivors:
        raise Failure(
            FailureReason.NOT_READY,
            f"{verb} failed: no surviving voter can stand for election; check `qsync status`",
        )

    def position(name: str) -> tuple[int, int, int]:
        said = survivors[name]
        return int(said["last_term"]), int(said["last_index"]), int(said["confirmed_index"])

    best = max(survivors, key=position)
    informed = max(left, key=lambda name: int(left[name]["confirmed_index"]))
    known = int(left[best]["confirmed_index"])
    if verb == "force-rollback" and int(left[informed]["confirmed_index"]) > known:
        raise Failure(
            FailureReason.REFUSED,
            f"{verb} was not sent: {informed} knows rows to be confirmed that {best} would roll "
            "back; use `qsync force-confirm`",
        )
    return best
