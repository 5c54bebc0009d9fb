"""Where the members of one cluster are reached, and whether they run, by watched pods and links."""

from qsync_operator.kubernetes import pods
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.members.livelinks import LiveLinks
from qsync_operator.resources.labels import KubernetesObject


class Addresses:
    """Pods and addresses of the members of one cluster."""

    def __init__(self, cache: Cache, key: ObjectKey, live: LiveLinks) -> None:
        self._cache = cache
        self._key = key
        self._live = live

    def pod(self, member: str) -> KubernetesObject | None:
        return self._cache.get(self._key, "Pod", member)

    def address(self, member: str, port: int) -> str:
        """Return the address of the connected process, or else of the pod; "" if there is none."""
        link = self._live.state(member)
        if link.is_connected:
            return f"{link.address.rpartition(':')[0]}:{port}"
        return self.pod_address(member, port)

    def pod_address(self, member: str, port: int) -> str:
        ip = pods.pod_ip(self.pod(member))
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" if ip else ""

    def runs(self, member: str) -> bool:
        """Return whether the member runs; a closed connection is noticed before its pod status."""
        link = self._live.state(member)
        return link.is_connected or (pods.is_running(self.pod(member)) and not link.has_ended)

    def has_process(self, member: str) -> bool:
        return pods.is_running(self.pod(member)) or self._live.state(member).is_connected
