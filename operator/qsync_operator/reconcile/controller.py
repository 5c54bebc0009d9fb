"""One turn of the controller: observe, plan, act and report, in the same way on every platform.

A nomination precedes everything else, because it needs only the nodes: a store or an API server
that hangs must not delay it. Then follow the labels by which clients find the leader, the status,
and the slower actions.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.reasons import EventReason
from qsync_operator.api.status import ClusterStatus
from qsync_operator.plan.actions import Action, Nominate
from qsync_operator.plan.failover import after_nomination, track_leader
from qsync_operator.plan.observed import Memory, Observed
from qsync_operator.plan.planner import Plan, plan
from qsync_operator.reconcile.platform import ActionAwaits, ActionRefused, Platform
from qsync_operator.views.failovers import failover_sentence


class StatusReporter(Protocol):
    """The destination of statuses and events. Neither method raises."""

    async def publish(self, cluster: QsyncCluster, status: ClusterStatus) -> bool:
        """Store the status and return whether that succeeded; if not, the caller retries."""

    async def report(self, reason: str, subject: str, message: str) -> None:
        """Record an Event, whose type the catalogue defines for its reason."""


class Controller:
    """The controller of one cluster."""

    def __init__(
        self,
        platform: Platform,
        reporter: StatusReporter,
        status: ClusterStatus,
        numbers_every_s: float,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare the controller.

        Args:
            platform: platform of the cluster.
            reporter: destination of statuses and events.
            status: last stored status.
            numbers_every_s: minimum seconds between statuses that differ only in numbers.
            may_write: while it returns False, the controller only nominates members.
        """
        self._may_write = may_write
        self.platform = platform
        self.status = status
        self.memory = Memory(
            leader=status.leader, leader_term=status.term, last_failover=status.last_failover
        )
        self._reporter = reporter
        self._published: ClusterStatus | None = None
        self._published_at_s = 0.0
        self._numbers_every_s = numbers_every_s
        self._reported: set[str] = set()
        self.has_acted = False  # in the last turn, so the next observation follows soon

    @property
    def has_published(self) -> bool:
        """Return whether `status` is of this controller, and not of an earlier one."""
        return self._published is not None

    async def turn(self, cluster: QsyncCluster) -> Observed:
        """Observe, plan and act once; return the observation."""
        observed = await self.platform.observe(cluster, self.memory, self.status)
        if cluster.spec.hibernate:
            # No member leads, as requested: the next leader is not a failover.
            self.memory = Memory(
                last_failover=self.memory.last_failover, troubles=self.memory.troubles
            )
        else:
            memory = track_leader(observed, time.monotonic_ns(), time.time())
            await self._remember(cluster, memory)
        troubles = self.memory.troubles
        observed = replace(observed, memory=self.memory, troubles=troubles)
        planned = plan(cluster, observed, time.monotonic_ns(), time.time())
        urgent = [action for action in planned.actions if isinstance(action, Nominate)]
        refusals = [await self._act(cluster, action) for action in urgent]
        if not self._may_write():
            self.has_acted = False
            return observed
        observed, planned = await self._keep(cluster, observed, planned)
        await self._publish(cluster, planned.status, planned.actions)
        for action in planned.actions:
            if not isinstance(action, Nominate):
                refusals.append(await self._act(cluster, action))
        said = [refusal for refusal in refusals if refusal]
        self.memory = replace(self.memory, refusal=said[-1] if said else "")
        self.has_acted = bool(planned.actions) and not said
        return observed

    async def _keep(
        self, cluster: QsyncCluster, observed: Observed, planned: Plan
    ) -> tuple[Observed, Plan]:
        """Maintain the objects; plan again if their problems differ from those known before."""
        troubles = await self.platform.reconcile(cluster, observed, planned.objects)
        for trouble in troubles:
            # Recorded once for as long as it lasts, even if other actions succeed meanwhile.
            if trouble not in observed.troubles:
                await self._reporter.report(trouble.reason, cluster.name, trouble.message)
        if troubles == observed.troubles:
            return observed, planned
        self.memory = replace(self.memory, troubles=troubles)
        observed = replace(observed, memory=self.memory, troubles=troubles)
        return observed, plan(cluster, observed, time.monotonic_ns(), time.time())

    async def _act(self, cluster: QsyncCluster, action: Action) -> str:
        if isinstance(action, Nominate):
            self.memory = after_nomination(self.memory, action, time.monotonic_ns())
        reason = type(action).__name__
        try:
            await self.platform.act(cluster, action)
        except ActionAwaits as awaited:
            return str(awaited)
        except ActionRefused as refused:
            await self._report(f"{reason}Refused", cluster.name, str(refused))
            return str(refused)
        self._reported.clear()
        await self._report(reason, cluster.name, str(action))
        return ""

    async def _report(self, reason: str, subject: str, message: str) -> None:
        """Record an event; repeat an equal one only after a successful action."""
        if message not in self._reported:
            self._reported.add(message)
            await self._reporter.report(reason, subject, message)

    async def _remember(self, cluster: QsyncCluster, memory: Memory) -> None:
        old, new = self.memory.last_failover, memory.last_failover
        self.memory = memory
        if new is None or new == old:
            return
        if old is not None and old.at == new.at:
            await self._reporter.report(
                EventReason.ROWS_ROLLED_BACK,
                new.from_,
                f"{new.rolled_back_rows} unconfirmed rows were truncated and saved in "
                "rollback files",
            )
            return
        await self._reporter.report(EventReason.FAILOVER, cluster.name, failover_sentence(new))

    async def _publish(
        self, cluster: QsyncCluster, status: ClusterStatus, actions: Sequence[Action]
    ) -> None:
        """Publish changes at once, and changed numbers alone every `numbers_every_s` seconds."""
        if status.phase != self.status.phase:
            shown = status.condition("Degraded" if status.phase == "Degraded" else "Ready")
            why = shown.message if shown is not None else ""
            if why in map(str, actions):  # an event of its own follows, with the same text
                why = f"the phase is {status.phase}"
            await self._reporter.report(f"Phase{status.phase}", cluster.name, why)
        before = failures(self.status)
        for member, why in failures(status).items():
            if why != before.get(member):
                await self._report(EventReason.MEMBER_FAILING, member, why)
        self.status = status
        now_s = time.monotonic()
        published = self._published
        is_new = published is None or without_numbers(status) != without_numbers(published)
        if not is_new and now_s - self._published_at_s < self._numbers_every_s:
            return
        if is_new or status != published:
            if not await self._reporter.publish(cluster, status):
                return
            self._published = status
        self._published_at_s = now_s


def failures(status: ClusterStatus) -> dict[str, str]:
    """Return why members are down, by name; the phase may have another cause."""
    return {m.name: m.message for m in status.members if m.role == "down" and m.message}


def without_numbers(status: ClusterStatus) -> ClusterStatus:
    members = [m.model_copy(update={"signature": 0, "lag": 0}) for m in status.members]
    return status.model_copy(update={"confirmed_signature": 0, "members": members})
