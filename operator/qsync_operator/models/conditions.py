"""What conditions of all kinds have in common, in the form that `kubectl wait` knows."""

from typing import Literal

from qsync_operator.models.base import StatusModel


class BaseCondition(StatusModel):
    """A fact with its sentence; which facts there are, each kind says itself."""

    status: Literal["True", "False", "Unknown"] = "Unknown"
    """Whether it is so."""
    reason: str = ""
    """In one word, for tools."""
    message: str = ""
    """In a sentence, for people."""
    last_transition_time: str = ""
    """Since when."""
    observed_generation: int = 0
    """Of the specification that it is about."""
