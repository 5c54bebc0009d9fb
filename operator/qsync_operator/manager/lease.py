"""Leader election of operators: a Lease of the API server selects the one that acts.

Safety does not depend on the Lease, but on the members' votes and on the version of each cluster's
identity. Two acting operators would cause noise but no harm. Therefore only the local clock
measures time. A holder is gone if its record has not changed for a whole duration as observed here.
A restarted container of the same pod is the same holder, and continues at once.

A holder that cannot renew (the API server is unavailable) stops writing but stays. Failovers need
nominations and no API server, and it still holds a Lease that no other operator took. Only a holder
that observes another one in its place exits, and competes again after its restart.
"""

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime

from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.resources.labels import MANAGER, KubernetesObject

DURATION_S = 15
RENEW_DEADLINE_S = 10.0
RETRY_S = 2.0

log = logging.getLogger(__name__)


class OperatorLease:
    """A Lease: acquire it, then hold it until it is lost or released."""

    def __init__(self, api: Api, namespace: str, holder: str, name: str = MANAGER) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._version = ""
        self._seen: tuple[str, float] = ("", 0.0)  # version, and when it was first observed
        self._renewed_s: float | None = None
        self._is_taken = False

    def is_held(self) -> bool:
        """Return whether no other process can have taken the Lease since its last renewal.

        The result depends on the clock alone, even while a request for a renewal hangs.
        """
        renewed_s = self._renewed_s
        return renewed_s is not None and time.monotonic() - renewed_s < RENEW_DEADLINE_S

    async def acquire(self) -> None:
        """Wait without a time limit until this process holds the Lease."""
        while not await self._try():
            await asyncio.sleep(RETRY_S)
        log.info("%s holds Lease %s", self._holder, self._name)

    async def hold(self) -> None:
        """Renew the Lease, also after failed requests; return when another holder has it."""
        was_held = True
        while not self._is_taken:
            await asyncio.sleep(RETRY_S)
            await self._try()
            if was_held != self.is_held():
                was_held = not was_held
                state = "can be renewed again" if was_held else "cannot be renewed: writes stop"
                log.warning("Lease %s of %s %s", self._name, self._holder, state)
        log.warning("%s lost Lease %s to another operator", self._holder, self._name)

    async def release(self) -> None:
        """Release the Lease, so that the next operator need not wait.

        A process that never held it writes nothing.
        """
        if not self._version:
            return
        with contextlib.suppress(ApiError):
            await self._write("", 1)

    async def _try(self) -> bool:
        try:
            found = await self._api.get("Lease", self._namespace, self._name)
            if found is not None and not self._may_take(found):
                self._is_taken = self._renewed_s is not None
                return False
            self._version = found["metadata"]["resourceVersion"] if found is not None else ""
            # Measured before the request, because the record may be older than the answer.
            asked_s = time.monotonic()
            await self._write(self._holder, DURATION_S)
            self._renewed_s = asked_s
        except ApiError as error:
            log.warning("cannot write Lease %s: %s", self._name, error)
            return False
        return True

    def _may_take(self, found: KubernetesObject) -> bool:
        spec, version = found.get("spec") or {}, str(found["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        if spec.get("holderIdentity", "") in ("", self._holder):
            return True
        return time.monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or 0)

    async def _write(self, holder: str, duration_s: int) -> None:
        """Create or update the Lease.

        Raises:
            ApiError: it was not written; the status is 409 if another operator was faster.
        """
        metadata: KubernetesObject = {"name": self._name, "namespace": self._namespace}
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": duration_s,
                "renewTime": datetime.now(UTC).isoformat(timespec="microseconds")[:26] + "Z",
            },
        }
        if self._version:
            metadata["resourceVersion"] = self._version
            found = await self._api.apply(document)
        else:
            found = await self._api.create(document)
        self._version = str(found["metadata"]["resourceVersion"])
