"""Which nodes a verb is for, and how they are spoken to.

Members of a local cluster and a node named by its address are asked over HTTP. On Kubernetes a
question goes through the API server into the member's pod: no port has to be open, and who asked
what stands in the audit log.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason, failure_of
from qsync_cli.kubernetes import session
from qsync_cli.where import Where
from qsync_node.adminport import trusting
from qsync_operator.members.links import LinkError, NodeLinks

TargetResultT = TypeVar("TargetResultT")


class CommandLinks(Protocol):
    """Connections to nodes. Each call can raise LinkError."""

    async def status(self, address: str) -> dict[str, Any]: ...
    async def post(self, address: str, path: str, fields: dict[str, Any]) -> Any: ...

    async def statuses(self, addresses: dict[str, str]) -> dict[str, dict[str, Any] | LinkError]:
        """Return the statuses of the named nodes, requested concurrently."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """Addresses by member, as `open` takes them; "" names the only node of `--address`."""

    addresses: dict[str, str]
    open: Callable[[], CommandLinks]

    def address_of(self, member: str) -> str:
        address = self.addresses.get(member)
        if address is None:
            known = ", ".join(self.addresses)
            raise Failure(
                FailureReason.NOT_FOUND, f"member {member} not found: the cluster has {known}"
            )
        return address


def resolve(where: Where, member: str | None = None) -> CommandTarget:
    """Return the target that the options select. `member` selects among several clusters."""
    if where.address is not None:
        context = context_of(where.ca)
        return CommandTarget(
            {"": where.address}, lambda: NodeLinks(where.secret or "", lambda: context)
        )
    if where.local is not None:
        return _local(where.local)

    names, open_links = session.pod_target(where, member)
    return CommandTarget({name: name for name in names}, open_links)


def context_of(ca: Path | None) -> ssl.SSLContext | None:
    """Return the context of connections to a node with this authority; None for plain ones."""
    if ca is None:
        return None
    try:
        return trusting(ca)
    except OSError as error:
        raise Failure(
            FailureReason.INVALID,
            f"cannot use --ca {ca}: {error}; specify a file of PEM certificates",
        ) from error


def _local(name: str) -> CommandTarget:
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    members = store.load_state().members
    secret, certificates = clusters.secrets_of(store).cluster, clusters.certificates_of(store)
    return CommandTarget(
        {name: f"127.0.0.1:{record.admin}" for name, record in members.items()},
        lambda: NodeLinks(secret, certificates.context),
    )


def ask(
    target: CommandTarget, question: Callable[[CommandLinks], Awaitable[TargetResultT]]
) -> TargetResultT:
    """Run a conversation with nodes, and convert their refusals to failures."""

    async def run() -> TargetResultT:
        links = target.open()
        try:
            return await question(links)
        finally:
            await links.close()

    try:
        return asyncio.run(run())
    except LinkError as error:
        raise failure_of(error) from error


async def statuses(links: CommandLinks, target: CommandTarget) -> dict[str, dict[str, Any]]:
    """Return the statuses of all members that answer.

    Raises:
        LinkError: no member answers.
    """
    answers = await links.statuses(target.addresses)
    found = {name: said for name, said in answers.items() if not isinstance(said, LinkError)}
    if not found:
        raise next(said for said in answers.values() if isinstance(said, LinkError))
    return found


def leader_of(found: dict[str, dict[str, Any]]) -> str | None:
    leaders = [name for name, said in found.items() if said["role"] == "leader"]
    return max(leaders, key=lambda name: int(found[name]["term"]), default=None)
