"""Orders to members, in the same form on every platform.

A platform knows where members are; the orders themselves do not depend on that. Each order is
signed for one instance, so that another one at the same address refuses it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from qsync_operator.members.links import LinkError, NodeLinks
from qsync_operator.plan.actions import (
    Action,
    Bootstrap,
    Fence,
    Nominate,
    Switchover,
    Unfence,
    Unregister,
)

UNKNOWN_SETTING = "unknown setting"


class OrderPlace(NamedTuple):
    """Where a member takes orders.

    Attributes:
        address: admin address, or "" if none is known yet.
        instance: uuid of the instance on its disk, or "" if none was observed.
    """

    address: str
    instance: str


class MemberOrders:
    """Sends orders to the members of one cluster."""

    def __init__(self, links: NodeLinks, place_of: Callable[[str], OrderPlace]) -> None:
        self._links = links
        self._place_of = place_of

    async def send(self, member: str, path: str, fields: dict[str, Any]) -> Any:
        """Send one order and return its result.

        Raises:
            LinkError: the order was not sent, was refused or was not answered.
        """
        place = self._place_of(member)
        if not place.address:
            raise LinkError(f"{member} has no address yet")
        return await self._links.post(place.address, path, fields, place.instance)

    async def perform(self, action: Action) -> bool:
        """Send the order of an action, and return False if the action is no order.

        Raises:
            LinkError: the order was not sent, was refused or was not answered.
        """
        match action:
            case Nominate(name, term):
                await self.send(name, "/verb/nominate", {"term": term})
            case Switchover(leader, target, _):
                order = {"target": self._place_of(target).instance}
                await self.send(leader, "/verb/switchover", order)
            case Unregister(leader, _, instance, _):
                await self.send(leader, "/verb/unregister", {"uuid": instance})
            case Fence(name):
                await self.send(name, "/verb/fence", {})
            case Unfence(name):
                await self.send(name, "/verb/unfence", {})
            case _:
                return False
        return True

    async def bootstrap(self, action: Bootstrap, users: dict[str, str]) -> None:
        """Order the founder to form the cluster.

        Args:
            action: founder, its instance and the number of voters.
            users: passwords of the first users by name.

        Raises:
            LinkError: the order was not sent, was refused or was not answered.
        """
        order = {
            "instance_uuid": action.uuid,
            "voters": action.voters,
            "users": users,
        }
        await self.send(action.member, "/bootstrap", order)

    async def configure(self, member: str, changes: dict[str, Any]) -> None:
        """Send settings; if an older node refuses them for one that it does not know, one by one.

        Raises:
            LinkError: the node cannot be reached, or refuses a setting that it knows.
        """
        try:
            await self.send(member, "/verb/configure", changes)
        except LinkError as error:
            if UNKNOWN_SETTING not in str(error) or len(changes) < 2:
                raise
            for setting, value in changes.items():
                await self._configure_one(member, setting, value)

    async def _configure_one(self, member: str, setting: str, value: object) -> None:
        try:
            await self.send(member, "/verb/configure", {setting: value})
        except LinkError as error:
            if UNKNOWN_SETTING not in str(error):
                raise
