"""Finds the reason why a member has no pod, which only an Event of its StatefulSet states.

A pod that Kubernetes refuses to create (Pod Security, a quota, a webhook) leaves no trace in any
status. Once a pod has been missing for `PATIENCE_S` seconds, the Events of its StatefulSet are
read, at most every `ASK_AGAIN_S` seconds.
"""

import time
from collections.abc import Iterable

from qsync_operator.api.names import MemberKind
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.kubernetes.cache import ObjectKey
from qsync_operator.kubernetes.pods import MESSAGE_MAX
from qsync_operator.resources.labels import KubernetesObject, set_name

PATIENCE_S = 3.0
ASK_AGAIN_S = 10.0


class AbsentPods:
    """The reasons why members of one cluster have no pod."""

    def __init__(self, api: Api, key: ObjectKey) -> None:
        self._api = api
        self._key = key
        self._since_s: dict[str, float] = {}
        self._asked_s = 0.0
        self._reasons: dict[str, str] = {}

    def reason(self, member: str) -> str:
        """Return the reason as one sentence, or "" if the pod exists or no reason is known."""
        return self._reasons.get(member, "")

    async def observe(self, absent: dict[str, MemberKind]) -> None:
        """Update the reasons of `absent`, the members that should have a pod and have none."""
        now_s = time.monotonic()
        self._since_s = {name: self._since_s.get(name, now_s) for name in absent}
        self._reasons = {name: why for name, why in self._reasons.items() if name in absent}
        late = {n: k for n, k in absent.items() if now_s - self._since_s[n] > PATIENCE_S}
        if not late or now_s - self._asked_s < ASK_AGAIN_S:
            return
        self._asked_s = now_s
        for kind in set(late.values()):
            name = set_name(self._key[1], kind)
            fields = f"involvedObject.kind=StatefulSet,involvedObject.name={name}"
            try:
                events = await self._api.find("Event", self._key[0], fields=fields)
            except ApiError:
                continue  # the reason is only informative: a failed request is not worth more
            self._reasons |= refusals(events, [n for n in late if late[n] == kind])


def refusals(events: Iterable[KubernetesObject], members: Iterable[str]) -> dict[str, str]:
    """Return the newest refusal to create a pod, by member, for members that have one."""
    found: dict[str, str] = {}
    for event in sorted(events, key=lambda one: str(one.get("lastTimestamp") or "")):
        message = str(event.get("message", ""))
        for member in members:
            if event.get("reason") == "FailedCreate" and f"Pod {member} in" in message:
                _, _, why = message.partition("failed error: ")
                found[member] = f"FailedCreate: {(why or message)[:MESSAGE_MAX]}"
    return found
