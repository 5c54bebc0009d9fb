"""Fences requested by an annotation: set in the nodes, which store them, and removed again.

The operator must not remove a fence that a user set through the admin API. Therefore the plan
records each fence before it sets the fence, and it removes only recorded ones.
"""

from qsync_operator.api.annotations import fenced_members
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.plan.actions import Action, Fence, RecordFenced, Unfence
from qsync_operator.plan.observed import Observed


def plan_fences(cluster: QsyncCluster, observed: Observed) -> tuple[Action, ...]:
    """Return the actions for fences, also without a leader: a fence may be the reason for that."""
    known = {member.name for member in observed.members}
    wanted = fenced_members(cluster)
    recorded = frozenset(observed.record.fenced)
    actions: list[Action] = []
    kept = wanted | recorded
    for member in observed.members:
        said, name = member.status, member.name
        if said is None:
            continue
        if name in wanted and not said.is_fenced:
            actions.append(Fence(name))
        elif name in recorded - wanted:
            if said.is_fenced:
                actions.append(Unfence(name))
            else:
                kept -= {name}
    kept &= known
    if kept != recorded:
        actions.insert(0, RecordFenced(tuple(sorted(kept))))
    return tuple(actions)
