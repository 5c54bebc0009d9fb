"""Expansion of volumes: a StatefulSet's volume template is immutable, so the set is recreated.

First each claim is expanded. Then the StatefulSet is deleted without its pods, and a new one with
the new size adopts them, so no member restarts.
"""

from collections.abc import Iterable, Mapping

from qsync_operator.api.base import quantity
from qsync_operator.resources.labels import KubernetesObject


def outgrown_sets(size: str, sizes: Mapping[str, str]) -> list[str]:
    """Return the names of StatefulSets whose volumes are smaller than specified."""
    return [name for name, found in sizes.items() if quantity(found) < quantity(size)]


def claims_to_grow(
    claims: Iterable[KubernetesObject], members: Iterable[str], size: str
) -> list[KubernetesObject]:
    """Return the changes that expand the smaller claims of `members`; others stay unchanged."""
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
