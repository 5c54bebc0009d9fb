"""What the watches have shown of the objects that the operator made, by cluster.

Old or incomplete at any moment, and good enough: the plan concludes nothing from absence, and an
apply of what is already there changes nothing.
"""

from collections.abc import Callable

from qsync_operator.desired.labels import CLUSTER_LABEL, Object

Key = tuple[str, str]  # namespace and cluster


class Cache:
    """Fed by watches; wakes the listeners of a cluster."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[tuple[str, str], Object]] = {}
        self._listeners: dict[Key, Callable[[], None]] = {}

    def listen(self, key: Key, listener: Callable[[], None]) -> None:
        self._listeners[key] = listener

    def forget(self, key: Key, listener: Callable[[], None]) -> None:
        """Remove a listener, unless another one has taken its place since."""
        if self._listeners.get(key) == listener:
            del self._listeners[key]

    def note(self, kind: str, document: Object, is_gone: bool = False) -> None:
        metadata = document["metadata"]
        cluster = (metadata.get("labels") or {}).get(CLUSTER_LABEL)
        if cluster is None:
            return
        key = (metadata["namespace"], cluster)
        objects = self._objects.setdefault(key, {})
        place = (kind, metadata["name"])
        if is_gone:
            # An event that is late is of an object that had the name before.
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

    def of_kind(self, kind: str, namespace: str = "") -> list[Object]:
        """Return all objects of a kind, of one namespace or of all of them."""
        return [
            document
            for (where, _), objects in self._objects.items()
            if namespace in ("", where)
            for (found, _), document in objects.items()
            if found == kind
        ]

    def all(self, key: Key, kind: str) -> list[Object]:
        return [o for (k, _), o in self._objects.get(key, {}).items() if k == kind]

    def get(self, key: Key, kind: str, name: str) -> Object | None:
        return self._objects.get(key, {}).get((kind, name))
