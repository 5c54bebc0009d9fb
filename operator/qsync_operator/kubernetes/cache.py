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
        self._keys: dict[tuple[str, str, str], ObjectKey] = {}  # by namespace, kind and name
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

        Objects without the label of a cluster are not stored. An object that loses the label is
        removed, so that its cluster restores it.
        """
        metadata = document["metadata"]
        namespace, place = metadata["namespace"], (kind, metadata["name"])
        cluster = (metadata.get("labels") or {}).get(CLUSTER_LABEL)
        key = (namespace, cluster) if cluster is not None else None
        former = self._keys.get((namespace, *place))
        if former is not None and (is_gone or former != key):
            self._remove(former, place, metadata.get("uid") if is_gone else None)
            self._wake(former)
        if is_gone or key is None:
            return
        self._objects.setdefault(key, {})[place] = document
        self._keys[namespace, *place] = key
        self._wake(key)

    def _remove(self, key: ObjectKey, place: tuple[str, str], uid: str | None) -> None:
        """Remove an object; with a `uid`, only the one that has it."""
        objects = self._objects[key]
        # A late event may concern an earlier object of the same name.
        if uid not in (None, objects[place]["metadata"].get("uid")):
            return
        del objects[place], self._keys[key[0], *place]
        if not objects:
            del self._objects[key]

    def _wake(self, key: ObjectKey) -> None:
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
