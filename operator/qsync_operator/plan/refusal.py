"""An unusable specification, reported in addition to the status of the last good one."""

import time
from dataclasses import dataclass
from typing import Literal

from qsync_operator.api.reasons import Reason
from qsync_operator.api.status import ClusterStatus, Condition


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """A reason, the generation that it concerns, and the time since when it is known."""

    sentence: str
    generation: int
    since: str
    reason: Reason = Reason.INVALID_SPEC


def refusal_now(
    sentence: str, generation: int, reason: Reason = Reason.INVALID_SPEC
) -> PlanRefusal:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return PlanRefusal(sentence, generation, since, reason)


def with_refusal(status: ClusterStatus, refusal: PlanRefusal) -> ClusterStatus:
    """Return the status with Degraded and Stalled.

    The generation was observed, and waiting does not help. Tools that know kstatus then report a
    failure.
    """
    kinds: tuple[Literal["Degraded", "Stalled"], ...] = ("Degraded", "Stalled")
    added = [
        Condition(
            type=kind,
            status="True",
            reason=refusal.reason,
            message=refusal.sentence,
            last_transition_time=refusal.since,
            observed_generation=refusal.generation,
        )
        for kind in kinds
    ]
    others = [c for c in status.conditions if c.type not in kinds]
    generation = max(status.observed_generation, refusal.generation)
    changed = {"conditions": [*others, *added], "observed_generation": generation}
    return status.model_copy(update=changed)
