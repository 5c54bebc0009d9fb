"""Volumes that are to grow: a StatefulSet's template cannot change, so it is made again.

Claims first, each by itself; then the StatefulSet is deleted without its pods, and the next one,
of the new size, takes them over: no member restarts.
"""

from collections.abc import Iterable, Mapping

from qsync_operator.desired.labels import Object
from qsync_operator.models.base import quantity


def outgrown_sets(size: str, sizes: Mapping[str, str]) -> list[str]:
    """Names of StatefulSets whose volumes are smaller than what is asked for."""
    return [name for name, found in sizes.items() if quantity(found) < quantity(size)]


def claims_to_grow(claims: Iterable[Object], members: Iterable[str], size: str) -> list[Object]:
    """Changes of the claims of members that ask for less; others' are left alone."""
    names = {f"data-{member}" for member in members}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {key: claim["metadata"][key] for key in ("name", "namespace", "uid")},
            "spec": {"resources": {"requests": {"storage": size}}},
        }
        for claim in claims
        if claim["metadata"]["name"] in names
        and "deletionTimestamp" not in claim["metadata"]
        and quantity(claim["spec"]["resources"]["requests"]["storage"]) < quantity(size)
    ]
