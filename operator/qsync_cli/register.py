"""`qsync register`: an anonymous member becomes a registered one, while it runs."""

from typing import Annotated, Any

import typer

from qsync_cli.failure import Failure
from qsync_cli.options import AddressOption, LocalOption, SecretOption
from qsync_cli.output import say

MemberArgument = Annotated[
    str | None, typer.Argument(help="an anonymous member; not needed with --address")
]
WAIT_S = 20.0
POLL_S = 0.05


def register(
    member: MemberArgument = None,
    local: LocalOption = None,
    address: AddressOption = None,
    secret: SecretOption = None,
) -> None:
    """Register an anonymous member: an id is kept for it, and its log, but it is never counted."""
    from qsync_cli.targets import ask, resolve  # noqa: PLC0415

    target = resolve(local, address, secret)
    if (member is None) != (address is not None):
        raise typer.BadParameter("name the MEMBER with --local, and only there")
    node, name = target.address_of(member or ""), member or address or ""
    replica_id = ask(target, lambda links: _register(links, node, name))
    say(f"{name} is registered with id {replica_id}")


async def _register(links: Any, node: str, name: str) -> int:
    import asyncio  # noqa: PLC0415
    import time  # noqa: PLC0415

    said = await links.status(node)
    if said["role"] != "anonymous":
        raise Failure(f"{name} is not anonymous: it is {said['role']}")
    await links.post(node, "/verb/configure", {"role": "async"})
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        said = await links.status(node)
        if said["replica_id"] and said["role"] == "async":
            return int(said["replica_id"])
        await asyncio.sleep(POLL_S)
    reason = said["refused"] or "no leader answered"
    raise Failure(f"{name} is not registered after {WAIT_S:g} s: {reason}")
