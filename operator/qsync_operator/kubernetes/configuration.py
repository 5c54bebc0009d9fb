"""Settings and peers that running members have received, and the differences from the wanted ones.

A starting node reads its files, which may be outdated by then. Therefore every new process receives
settings and peers once. Later changes of settings are actions of the plan.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.members.links import LinkError
from qsync_operator.members.livelinks import LiveLinks
from qsync_operator.members.orders import MemberOrders
from qsync_operator.plan.observed import NodeStatus
from qsync_operator.resources.config import member_settings, peer_address
from qsync_operator.resources.nodeconfig import Drift, drift_of, live_changes
from qsync_operator.resources.state import ClusterState, MemberState


@dataclass(frozen=True, slots=True)
class AppliedConfig:
    """The settings sent to a node over one connection; a new process has received none."""

    connection: int
    settings: dict[str, Any]
    peers: dict[str, str]


class MemberConfiguration:
    """The configuration of the running members of one cluster."""

    def __init__(self, orders: MemberOrders, live: LiveLinks) -> None:
        self._orders = orders
        self._live = live
        self._applied: dict[str, AppliedConfig] = {}

    def drift(self, cluster: QsyncCluster, name: str, member: MemberState) -> Drift:
        """Return whether settings of the running process differ from the specification."""
        applied = self._applied.get(name)
        if applied is None or applied.connection != self._live.state(name).number:
            return "none"
        return drift_of(applied.settings, _wanted(cluster, member))

    async def send_to_new(
        self, cluster: QsyncCluster, state: ClusterState, statuses: dict[str, NodeStatus]
    ) -> None:
        """Send settings and peers to every process that has not received them.

        The next call repeats a failed request.
        """
        peers = {name: peer_address(cluster, name) for name in state.members}
        for name, status in statuses.items():
            applied, connection = self._applied.get(name), self._live.state(name).number
            if connection == 0 or not status.takes_orders:
                continue
            if applied is None or applied.connection != connection:
                with contextlib.suppress(LinkError):
                    await self._send(cluster, name, state.members[name], {})
                applied = self._applied.get(name)
            if applied is not None and applied.peers != peers:
                with contextlib.suppress(LinkError):
                    await self._orders.send(name, "/peers", {"addresses": peers})
                    self._applied[name] = AppliedConfig(applied.connection, applied.settings, peers)

    async def change(self, cluster: QsyncCluster, name: str, member: MemberState) -> None:
        """Send the settings that differ from those sent before.

        Raises:
            LinkError: the settings did not arrive, or were refused.
        """
        applied = self._applied.get(name)
        await self._send(cluster, name, member, applied.settings if applied else {})

    async def _send(
        self, cluster: QsyncCluster, name: str, member: MemberState, applied: dict[str, Any]
    ) -> None:
        wanted = _wanted(cluster, member)
        connection = self._live.state(name).number
        await self._orders.configure(name, live_changes(applied, wanted))
        old = self._applied.get(name)
        is_same = old is not None and old.connection == connection
        peers = old.peers if old and is_same else {}
        self._applied[name] = AppliedConfig(connection, wanted, peers)


def _wanted(cluster: QsyncCluster, member: MemberState) -> dict[str, Any]:
    return member_settings(cluster, member.role or member.kind)
