"""The interface of a platform: it observes the cluster and performs one action at a time.

Both operations must be repeatable. An action that cannot be done raises `ActionRefused` with one
sentence. The controller shows the sentence in the status and plans again, because the cluster may
have changed meanwhile.
"""

from typing import Protocol

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.reasons import Reason
from qsync_operator.api.status import ClusterStatus
from qsync_operator.plan.actions import Action
from qsync_operator.plan.observed import Memory, Observed, Trouble
from qsync_operator.resources.labels import KubernetesObject


class ActionRefused(Exception):  # noqa: N818  # an answer, not a failure
    """A refused action; the text states the reason in one sentence."""

    reason: Reason = Reason.WAITING


class NameTaken(ActionRefused):
    """A required object name that another owner already uses."""

    reason = Reason.NAME_TAKEN


class ActionAwaits(ActionRefused):
    """An action that is not possible yet and becomes possible with time; this is not an error."""


class Platform(Protocol):
    """The platform of one cluster: local processes or Kubernetes."""

    async def observe(
        self, cluster: QsyncCluster, memory: Memory, previous: ClusterStatus
    ) -> Observed: ...

    async def act(self, cluster: QsyncCluster, action: Action) -> None: ...

    async def reconcile(
        self, cluster: QsyncCluster, observed: Observed, objects: list[KubernetesObject]
    ) -> tuple[Trouble, ...]:
        """Ensure everything that must hold between actions.

        Processes run, labels name the leader, and the objects of the plan exist. Return the
        problems that remain.
        """

    async def wait(self, timeout_s: float) -> None:
        """Return after `timeout_s` seconds, or earlier on an event that needs attention."""
