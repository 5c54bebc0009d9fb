"""The forms of the entries of the catalogue."""

from dataclasses import dataclass
from enum import StrEnum

from qsync_operator.api.reasons import FailoverReason

NONE = "None"
"""The action for a reason that needs none."""
WAIT = "None: the operator continues automatically"


class Severity(StrEnum):
    """How soon a person must act: not at all, soon, or at once."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def event_type(self) -> str:
        """Return the type of an Event; Kubernetes has two."""
        return "Normal" if self is Severity.INFO else "Warning"


def _with_runbook(text: str, runbook: str) -> str:
    """Return the text with the link to the runbook in place of `{runbook}`."""
    assert ("{runbook}" in text) == bool(runbook), text
    return text.replace("{runbook}", f"the runbook [{runbook}](runbooks/{runbook}.md)")


@dataclass(frozen=True, slots=True)
class ConditionEntry:
    """A condition type."""

    name: str
    meaning: str
    """When the condition is True."""


@dataclass(frozen=True, slots=True)
class ReasonEntry:
    """A reason; `conditions` are the types of the conditions that can have it.

    `{runbook}` in the action stands for the link to the runbook.
    """

    name: str
    conditions: tuple[str, ...]
    meaning: str
    action: str
    severity: Severity = Severity.INFO
    runbook: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", _with_runbook(self.action, self.runbook))


@dataclass(frozen=True, slots=True)
class CauseEntry:
    """A cause of a change of leader."""

    name: FailoverReason
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class EventEntry:
    """A reason of Events."""

    name: str
    severity: Severity
    meaning: str
    action: str
    runbook: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", _with_runbook(self.action, self.runbook))


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """An action of the operator: its Event `name`, and its Event `refused` after a failure."""

    name: str
    meaning: str
    remedy: str
    """What to do if the action is refused."""

    @property
    def refused(self) -> str:
        return f"{self.name}Refused"


@dataclass(frozen=True, slots=True)
class AlertEntry:
    """An alert. `{cluster}` in the summary stands for the name of the cluster."""

    name: str
    severity: Severity
    summary: str

    @property
    def runbook(self) -> str:
        """Return the path of the page about the alert."""
        return f"docs/runbooks/{self.name}.md"
