"""The fields that the conditions of all kinds share, in the form that `kubectl wait` expects."""

from typing import Literal

from qsync_operator.api.base import StatusModel


class BaseCondition(StatusModel):
    """Fields that the conditions of all kinds share."""

    status: Literal["True", "False", "Unknown"] = "Unknown"
    """Whether the condition is true."""
    reason: str = ""
    """Stable CamelCase reason, for programs."""
    message: str = ""
    """Explanation, for people."""
    last_transition_time: str = ""
    """Time of the last change of `status`."""
    observed_generation: int = 0
    """Generation of the specification that the condition describes."""
