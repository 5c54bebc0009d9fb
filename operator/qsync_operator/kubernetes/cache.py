"""A cache of the operator's objects as watches have reported them, by cluster.

It may be stale or incomplete at any time. That is safe: the plan concludes nothing from a missing
object, and applying an unchanged object changes nothing.
"""

from collections.abc import Callable

from qsync_operator.resources.labels import CLUSTER_LABEL, KubernetesObject

ObjectKey = tuple[str, str]  # namespace and cluster


class Cache:
    """Watched objects; each change wakes the listener of its cluster."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, dict[tuple[str, str], KubernetesObject]] = {}
        self._listeners: dict[ObjectKey, Callable[[], None]] = {}

    def listen(self, key: ObjectKey, listener: Callable[[], None]) -> None:
        """Register the listener of a cluster, which each change of its objects wakes."""
        self._listeners[key] = listener

    def forget(self, key: ObjectKey, listener: Callable[[], None]) -> None:
        """Remove a listener, unless another one has replaced it."""
        if self._listeners.get(key) == listener:
            del self._listeners[key]

    def note(self, kind: str, document: KubernetesObject, is_gone: bool = False) -> None:
        """Store or remove a watched object, and wake the listener of its cluster.

        Objects without the label of a cluster are ignored.
        """
        metadata = document["metadata"]
        cluster = (metadata.get("labels") or {}).get(CLUSTER_LABEL)
        if cluster is None:
            return
        key = (metadata["namespace"], cluster)
        objects = self._objects.setdefault(key, {})
        place = (kind, metadata["name"])
        if is_gone:
            # A late event may concern an earlier object of the same name.
            known, uid = objects.get(place), metadata.get("uid")
            if known is None or uid in (None, known["metadata"].get("uid")):
                objects.pop(place, None)
            if not objects:
                del self._objects[key]
        else:
            objects[place] = document
        listener = self._listeners.get(key)
        if listener is not None:
            listener()

    def of_kind(self, kind: str, namespace: str = "") -> list[KubernetesObject]:
        """Return all objects of a kind; an empty `namespace` selects all namespaces."""
        return [
            document
            for (where, _), objects in self._objects.items()
            if namespace in ("", where)
            for (found, _), document in objects.items()
            if found == kind
        ]

    def all(self, key: ObjectKey, kind: str) -> list[KubernetesObject]:
        return [o for (k, _), o in self._objects.get(key, {}).items() if k == kind]

    def get(self, key: ObjectKey, kind: str, name: str) -> KubernetesObject | None:
        return self._objects.get(key, {}).get((kind, name))
