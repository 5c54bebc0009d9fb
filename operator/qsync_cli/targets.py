"""Which nodes a verb is for: the members of a local cluster, or one node by its admin address."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from qsync_cli.failure import Failure
from qsync_operator.links import LinkError, NodeLinks

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Target:
    """Admin addresses by member; "" names the only node of `--address`."""

    addresses: dict[str, str]
    secret: str

    def address_of(self, member: str) -> str:
        address = self.addresses.get(member)
        if address is None:
            known = ", ".join(self.addresses)
            raise Failure(f"there is no member {member}: there are {known}")
        return address


def resolve(local: str | None, address: str | None, secret: str | None) -> Target:
    import typer  # noqa: PLC0415

    if (local is None) == (address is None):
        raise typer.BadParameter("give either --local NAME or --address HOST:PORT")
    if address is not None:
        return Target({"": address}, secret or "")
    from qsync_cli.clusters import ensure_supervisor, open_store, secrets_of  # noqa: PLC0415

    assert local is not None
    store = open_store(local)
    ensure_supervisor(store)
    members = store.load_state().members
    return Target(
        {name: f"127.0.0.1:{record.admin}" for name, record in members.items()},
        secrets_of(store).cluster,
    )


def ask(target: Target, question: Callable[[NodeLinks], Awaitable[Result]]) -> Result:
    """Run a conversation with nodes; what they refuse becomes the command's sentence."""

    async def run() -> Result:
        links = NodeLinks(target.secret)
        try:
            return await question(links)
        finally:
            await links.close()

    try:
        return asyncio.run(run())
    except LinkError as error:
        raise Failure(str(error)) from error


async def statuses(links: NodeLinks, target: Target) -> dict[str, dict[str, Any]]:
    """What each member that answers says. Raises LinkError if none does."""
    answers = await links.statuses(target.addresses)
    found = {name: said for name, said in answers.items() if not isinstance(said, LinkError)}
    if not found:
        raise next(said for said in answers.values() if isinstance(said, LinkError))
    return found


def leader_of(found: dict[str, dict[str, Any]]) -> str | None:
    leaders = [name for name, said in found.items() if said["role"] == "leader"]
    return max(leaders, key=lambda name: int(found[name]["term"]), default=None)
