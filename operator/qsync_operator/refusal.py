"""A specification that cannot be used: said beside the status of the last one that could."""

import time
from dataclasses import dataclass

from qsync_operator.models.status import ClusterStatus, Condition


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is wrong with which generation, and since when that is known."""

    sentence: str
    generation: int
    since: str
    reason: str = "InvalidSpec"


def refusal_now(sentence: str, generation: int, reason: str = "InvalidSpec") -> Refusal:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Refusal(sentence, generation, since, reason)


def with_refusal(status: ClusterStatus, refusal: Refusal) -> ClusterStatus:
    """The status as it is, but Degraded."""
    degraded = Condition(
        type="Degraded",
        status="True",
        reason=refusal.reason,
        message=refusal.sentence,
        last_transition_time=refusal.since,
        observed_generation=refusal.generation,
    )
    others = [c for c in status.conditions if c.type != "Degraded"]
    return status.model_copy(update={"conditions": [*others, degraded]})
