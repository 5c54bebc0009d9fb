"""The stored state of a cluster as the plan reads it, and as actions change it; pure functions."""

from qsync_operator.plan.observed import Record
from qsync_operator.resources.state import ClusterState


def record_of(state: ClusterState) -> Record:
    """Return the part of the stored state that the plan depends on."""
    return Record(
        state.replicaset_uuid,
        state.bootstrap_member,
        state.bootstrap_uuid,
        state.is_formed,
        state.fenced,
    )
