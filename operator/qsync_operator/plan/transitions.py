"""The stored state of a cluster as the plan reads it, and as actions change it; pure functions."""

from qsync_operator.plan.actions import (
    Action,
    CreateMember,
    RecordBootstrap,
    RecordFenced,
    RecordFormed,
    RemoveMember,
)
from qsync_operator.plan.observed import RecordedMember
from qsync_operator.resources.state import ClusterState


def record_of(state: ClusterState) -> RecordedMember:
    """Return the part of the stored state that the plan depends on."""
    return RecordedMember(
        state.replicaset_uuid,
        state.bootstrap_member,
        state.bootstrap_uuid,
        state.is_formed,
        state.fenced,
    )


def state_after(state: ClusterState, action: Action) -> ClusterState:
    """Return the state to store before the action; most actions leave it unchanged."""
    match action:
        case CreateMember(name, kind):
            return state.with_member(name, kind)
        case RecordBootstrap(name, instance):
            return state.founded_by(name, instance)
        case RecordFormed():
            return state.formed()
        case RemoveMember(name):
            return state.without_member(name)
        case RecordFenced(names):
            return state.with_fenced(names)
        case _:
            return state
