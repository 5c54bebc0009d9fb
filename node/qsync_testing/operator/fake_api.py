"""A fake API server that stores versioned documents in memory.

It replaces only the boundary `platform/kubernetes/api.py`. Scenarios on a real cluster test the
rest.
"""

import copy
import itertools
from typing import Any

from qsync_operator.kubernetes.api import ApiError


class FakeApi:
    """API server that records every write.

    Calls on a kind in `failing` fail as if the server could not be reached.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.events: list[dict[str, Any]] = []
        self.failing: set[str] = set()
        self.refusing: dict[str, int] = {}  # kind or kind/name -> HTTP status of its writes
        self._applied: dict[tuple[str, ...], dict[str, Any]] = {}  # by the only field manager
        self.kinds: set[str] = set()  # optional kinds that are defined
        self._versions = itertools.count(1)

    def named(self, kind: str, name: str, namespace: str = "ns") -> dict[str, Any]:
        return self.objects[kind, namespace, name]

    def put(self, document: dict[str, Any]) -> dict[str, Any]:
        """Store a document as another client would, without recording a write; return it."""
        return self._store(copy.deepcopy(document))

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._check(kind)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def find(
        self, kind: str, namespace: str, labels: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        self._check(kind)
        wanted = dict(one.split("=") for one in labels.split(",") if one)
        return [
            found
            for (k, n, _), found in self.objects.items()
            if k == kind
            and namespace in ("", n)
            and wanted.items() <= (found["metadata"].get("labels") or {}).items()
        ]

    async def has_kind(self, kind: str) -> bool:
        return kind in self.kinds

    async def create(self, document: dict[str, Any]) -> dict[str, Any]:
        kind = document["kind"]
        self._check(kind)
        self._refuse(document)
        if kind == "Event":
            self.events.append(document)
            return document
        key = _key(document)
        if key in self.objects:
            raise ApiError("it exists", 409)
        self.writes.append(("create", kind, key[2]))
        return copy.deepcopy(self._store(copy.deepcopy(document)))

    async def apply(self, document: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        kind, key = document["kind"], _key(document)
        self._check(kind)
        self._refuse(document)
        found = self.objects.get(key)
        wanted = document["metadata"].get("resourceVersion")
        if wanted and (found is None or found["metadata"]["resourceVersion"] != wanted):
            raise ApiError("it was changed meanwhile", 409)
        uid = document["metadata"].get("uid")
        # A status changes no metadata: the API server takes those of the stored object.
        is_other = found is None or (not subresource and found["metadata"]["uid"] != uid)
        if uid and is_other:
            raise ApiError("it is another one", 409)
        self.writes.append(("status" if subresource else "apply", kind, key[2]))
        # Like server-side apply, remove fields that were applied before and now are not.
        place = (*key, subresource)
        base = _without(found or {}, self._applied.get(place, {}), document) if found else {}
        self._applied[place] = copy.deepcopy(document)
        merged = _merged(base, copy.deepcopy(document))
        if found is not None and subresource:
            merged["metadata"] = copy.deepcopy(found["metadata"])
        return copy.deepcopy(self._store(merged))

    async def patch(
        self, kind: str, namespace: str, name: str, change: dict[str, Any]
    ) -> dict[str, Any]:
        self._check(kind)
        found = self.objects[kind, namespace, name]
        self._refuse(found)
        wanted = change.get("metadata", {}).get("resourceVersion")
        if wanted and found["metadata"]["resourceVersion"] != wanted:
            raise ApiError("it was changed meanwhile", 409)
        self.writes.append(("patch", kind, name))
        return copy.deepcopy(self._store(_patched(found, change)))

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", keeps_pods: bool = False
    ) -> None:
        self._check(kind)
        found = self.objects.get((kind, namespace, name))
        if uid and found is not None and found["metadata"]["uid"] != uid:
            return
        self.writes.append(("delete", kind, name))
        self.objects.pop((kind, namespace, name), None)
        self._applied.pop((kind, namespace, name, ""), None)

    def _refuse(self, document: dict[str, Any]) -> None:
        kind, name = document["kind"], document["metadata"].get("name", "")
        status = self.refusing.get(kind) or self.refusing.get(f"{kind}/{name}")
        if status:
            raise ApiError(f"{kind} {name} is invalid", status)

    def _check(self, kind: str) -> None:
        if kind in self.failing:
            raise ApiError("the API server cannot be reached")

    def _store(self, document: dict[str, Any]) -> dict[str, Any]:
        version = str(next(self._versions))
        metadata = document["metadata"]
        metadata["resourceVersion"] = version
        metadata.setdefault("uid", f"uid-{version}")
        self.objects[_key(document)] = document
        return document


def _key(document: dict[str, Any]) -> tuple[str, str, str]:
    return document["kind"], document["metadata"]["namespace"], document["metadata"]["name"]


def _patched(old: object, change: object) -> Any:
    """Return `old` after a JSON Merge Patch (RFC 7386)."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        found.pop(key, None) if value is None else found.update(
            {key: _patched(found.get(key), value)}
        )
    return found


def _without(live: object, before: object, now: object) -> Any:
    if not (isinstance(live, dict) and isinstance(before, dict) and isinstance(now, dict)):
        return live
    gone = before.keys() - now.keys()
    return {
        key: _without(value, before.get(key), now.get(key))
        for key, value in live.items()
        if key not in gone
    }


def _merged(old: object, new: object) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return new
