"""Reads the status of each member, and tells answers over TLS from those that prove nothing."""

import contextlib
from dataclasses import dataclass, field, replace

from qsync_operator.desired.state import ClusterState
from qsync_operator.links import LinkError, NodeLinks
from qsync_operator.observed import NodeStatus


@dataclass(frozen=True, slots=True)
class Statuses:
    """By member; `proven` holds the images of those that answered over TLS."""

    found: dict[str, NodeStatus] = field(default_factory=dict)
    proven: dict[str, str] = field(default_factory=dict)

    def noted_in(self, state: ClusterState) -> ClusterState:
        """Return which instance a volume holds, that a reader was registered (M5), and which images
        speak TLS. Answers without TLS change none of these."""
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
    """Ask the members at these addresses; `images` are those that they run."""
    tls_only = [name for name in addresses if images[name] in state.tls_images]
    read = Statuses()
    for name, said in (await links.statuses(addresses, tls_only)).items():
        if isinstance(said, LinkError) or said.get("name") != name:
            continue
        if said.get("replicaset_uuid") not in ("", state.replicaset_uuid):
            continue  # an address that another cluster's pod has now
        with contextlib.suppress(KeyError, TypeError, ValueError):
            status = NodeStatus.from_json(said)
            if links.is_proven(addresses[name]):
                read.proven[name] = images[name]
            elif status.uuid != (state.members[name].uuid or status.uuid):
                continue  # a man in the middle may have answered: identities change over TLS only
            else:
                status = replace(status, is_proven=False)
            read.found[name] = status
    return read
