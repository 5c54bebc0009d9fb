"""`qsync promote`: a member takes leadership, by the same vote as always."""

from typing import Annotated, Any

import typer

from qsync_cli.failure import Failure
from qsync_cli.options import AddressOption, LocalOption, SecretOption
from qsync_cli.output import say

MemberArgument = Annotated[
    str | None, typer.Argument(help="who shall lead; not needed with --address", metavar="MEMBER")
]
WAIT_S = 10.0
POLL_S = 0.05


def promote(
    member: MemberArgument = None,
    local: LocalOption = None,
    address: AddressOption = None,
    secret: SecretOption = None,
) -> None:
    """Let a member lead: by switchover where somebody leads, by nomination where nobody does."""
    from qsync_cli.targets import ask, resolve  # noqa: PLC0415

    target = resolve(local, address, secret)
    if address is not None:
        if member is not None:
            raise typer.BadParameter("--address names the node: leave MEMBER out")
        ask(target, lambda links: links.post(address, "/verb/promote", {}))
        say(f"{address} leads")
        return
    if member is None:
        raise typer.BadParameter("name the MEMBER that shall lead")
    target.address_of(member)
    term = ask(target, lambda links: _promote(links, target, member))
    say(f"{member} leads in term {term}")


async def _promote(links: Any, target: Any, member: str) -> int:
    """Returns the term in which it leads. Raises LinkError and Failure."""
    from qsync_cli.targets import leader_of, statuses  # noqa: PLC0415

    found = await statuses(links, target)
    if member not in found:
        raise Failure(f"{member} does not answer: it cannot lead")
    leader = leader_of(found)
    if leader == member and found[member]["is_writable"]:
        return int(found[member]["term"])
    if leader is not None:
        order = {"target": found[member]["uuid"]}
        await links.post(target.address_of(leader), "/verb/switchover", order)
    else:
        term = max(int(said["term"]) for said in found.values())
        await links.post(target.address_of(member), "/verb/nominate", {"term": term})
    return await _until_writable(links, target.address_of(member), member)


async def _until_writable(links: Any, address: str, member: str) -> int:
    import asyncio  # noqa: PLC0415
    import time  # noqa: PLC0415

    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        said = await links.status(address)
        if said["role"] == "leader" and said["is_writable"]:
            return int(said["term"])
        await asyncio.sleep(POLL_S)
    raise Failure(f"{member} was asked to lead and does not after {WAIT_S:g} s: see status")
