"""A specification that cannot be used: reported beside the status of the last good one."""

import time
from dataclasses import dataclass
from typing import Literal

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
    """Return the status as it is, but Degraded and Stalled: the generation was observed, and
    time alone will not make it work (tools that know kstatus report a failure then)."""
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
