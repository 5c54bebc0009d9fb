"""Descriptions of journals by a broker, for the operator and for `qsync local journals`."""

from typing import Any

from qsync_broker.broker import Broker
from qsync_broker.replica import FragmentPart, JournalReplica
from qsync_broker.spec import JournalFlags
from qsync_node.format.journals import JournalRow

NO_LEASE = "it has no lease, because the cluster does not accept its renewals"


def all_parts(replica: JournalReplica) -> list[FragmentPart]:
    """Return all fragments of a journal, persisted ones and local ones that are not."""
    remote = [FragmentPart.of_remote(fragment) for fragment in replica.remote]
    local = [part for part in replica.local_parts if not replica.remote.covers(*part[:2])]
    return sorted([*remote, *local], key=lambda part: part.begin)


def describe(core: Broker, journal: JournalRow) -> dict[str, Any]:
    """Return route and state of a journal. Other brokers than its own do not know its state."""
    keys, name = core.keys, journal.name
    route, replica = keys.route(name), core.replica(name)
    found = {
        "name": name,
        "replication": core.desired_replicas(journal),
        "brokers": [broker.suffix for broker in route.members],
        "primary": route.members[route.primary].suffix if route.primary >= 0 else "",
        "is_consistent": keys.is_consistent(journal),
        "suspend_level": journal.suspend_level,
        "is_read_only": journal.spec.get("flags") == JournalFlags.O_RDONLY.name,
        "is_ready": False,
        "write_head": None,
        "fragments": None,
        "bytes": None,
        "persisted": None,
        "stores": None,
        "store_error": None,
        "append_error": None,
        "is_head_known": None,
    }
    if replica is None:
        return found
    parts = all_parts(replica)
    return {
        **found,
        "is_ready": replica.pipeline is not None and replica.pipeline.is_ready,
        "write_head": replica.visible_end,
        "fragments": len(parts),
        "bytes": sum(part.end - part.begin for part in parts),
        "persisted": replica.remote.end,
        "stores": len(replica.settings.stores),
        "store_error": replica.store_error,
        "append_error": replica.append_error
        or (NO_LEASE if core.is_fenced else core.space_problem),
        "is_head_known": replica.is_head_known,
    }
