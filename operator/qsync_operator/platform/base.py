"""What a platform is: it looks, and it performs one action at a time.

Both must be repeatable. An action that cannot be done raises `ActionRefused` with a sentence; the
loop shows it in status and asks the plan again, because by then the world may be another one.
"""

from typing import Protocol

from qsync_operator.actions import Action
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.models.status import ClusterStatus
from qsync_operator.observed import Memory, Observed, Trouble


class ActionRefused(Exception):  # noqa: N818 - it is an answer, not a fault
    """The action did not happen; the text says why, in one sentence."""

    reason = "Waiting"


class NameTaken(ActionRefused):
    """An object with a name that the cluster needs has another owner."""

    reason = "NameTaken"


class ActionAwaits(ActionRefused):
    """It did not happen yet, and time alone will change that: nothing is wrong."""


class Platform(Protocol):
    """Local processes or Kubernetes."""

    async def observe(
        self, cluster: QsyncCluster, memory: Memory, previous: ClusterStatus
    ) -> Observed: ...

    async def act(self, cluster: QsyncCluster, action: Action) -> None: ...

    async def keep(self, cluster: QsyncCluster, observed: Observed) -> tuple[Trouble, ...]:
        """Ensure what must be so whatever the plan says: processes run, objects exist, labels
        name the leader. Return what could not be done."""

    async def wait(self, timeout_s: float) -> None:
        """Until something that matters happens, or the time is over."""
