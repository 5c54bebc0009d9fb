"""Reads the status of each member, and distinguishes answers over TLS from unproven ones."""

import contextlib
from dataclasses import dataclass, field, replace

from qsync_operator.members.links import LinkError, NodeLinks
from qsync_operator.plan.observed import NodeStatus
from qsync_operator.resources.state import ClusterState


@dataclass(frozen=True, slots=True)
class Statuses:
    """Statuses by member; `proven` maps the members that answered over TLS to their images."""

    found: dict[str, NodeStatus] = field(default_factory=dict)
    proven: dict[str, str] = field(default_factory=dict)

    def noted_in(self, state: ClusterState) -> ClusterState:
        """Return `state` updated by these answers; answers without TLS change nothing.

        It records instances, registered readers (M5) and images that speak TLS.
        """
        state = state.with_tls_images(self.proven.values())
        for name in self.proven:
            said, member = self.found[name], state.members[name]
            is_registered_reader = member.kind == "anonymous" and said.replica_id > 0
            role = "async" if is_registered_reader else member.role
            if said.uuid and (member.uuid, member.role) != (said.uuid, role):
                state = state.with_instance(name, said.uuid, role)
        return state


async def read_statuses(
    links: NodeLinks, state: ClusterState, addresses: dict[str, str], images: dict[str, str]
) -> Statuses:
    """Query the members at these addresses.

    Args:
        links: connections to the nodes.
        state: stored state of the cluster.
        addresses: admin address by member.
        images: image that each member runs.
    """
    tls_only = [name for name in addresses if images[name] in state.tls_images]
    read = Statuses()
    for name, said in (await links.statuses(addresses, tls_only)).items():
        if isinstance(said, LinkError) or said.get("name") != name:
            continue
        if said.get("replicaset_uuid") not in ("", state.replicaset_uuid):
            continue  # a pod of another cluster now has the address
        with contextlib.suppress(KeyError, TypeError, ValueError):
            status = NodeStatus.from_json(said)
            if links.is_proven(addresses[name]):
                read.proven[name] = images[name]
            elif status.uuid != (state.members[name].uuid or status.uuid):
                continue  # a man in the middle may have answered: only TLS changes an identity
            else:
                status = replace(status, is_proven=False)
            read.found[name] = status
    return read
