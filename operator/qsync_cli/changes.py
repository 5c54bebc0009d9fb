"""Differences of two specifications, with the effect of each omission."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qsync_cli.options import Output
from qsync_cli.output import print_document, say

_KEPT = {
    "format": "the database keeps the field, if it exists, unless the space has prune: true",
    "indexes": "the database keeps the index, if it exists, unless the space has prune: true",
    "roles": "the database keeps the role",
    "spaces": "the database keeps the space and its rows",
    "users": "the database keeps the user",
}
"""Effects of an omitted item, by the name of its list."""
SecretContents = Mapping[str, Mapping[str, str]]
"""Contents of Secrets by name."""


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """One difference.

    Attributes:
        path: path of the field, with names of items in brackets.
        old: value before; None if it is new.
        new: value after; None if it is omitted.
        effect: sentence about an omission, or "".
    """

    path: str
    old: Any
    new: Any
    effect: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.old is None:
            return f"+ {self.path}: {_shown(self.new)}"
        if self.new is None:
            effect = f" ({self.effect})" if self.effect else ""
            return f"- {self.path}: {_shown(self.old)}{effect}"
        return f"~ {self.path}: {_shown(self.old)} -> {_shown(self.new)}"


def changes_of(old: dict[str, Any], new: dict[str, Any]) -> list[ManifestChange]:
    """Return the differences of two specifications in the order of their paths.

    Args:
        old: the specification of the cluster, as JSON.
        new: the one of the manifest.
    """
    return list(_of("spec", old, new, _pruned(new)))


def _of(path: str, old: Any, new: Any, pruned: set[str]) -> Iterator[ManifestChange]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _of(f"{path}.{key}", old.get(key), new.get(key), pruned)
        return
    if _is_named(old) and _is_named(new):
        before, after = ({one["name"]: one for one in items} for items in (old, new))
        for name in dict.fromkeys((*before, *after)):
            one = f"{path}[{name}]"
            yield from _of(one, before.get(name), after.get(name), pruned)
        return
    yield ManifestChange(path, old, new, _effect(path, pruned) if new is None else "")


def _is_named(items: object) -> bool:
    return isinstance(items, list) and all(isinstance(one, dict) and "name" in one for one in items)


def _effect(path: str, pruned: set[str]) -> str:
    kind = path.rpartition("[")[0].rpartition(".")[2]
    space = path.removeprefix("spec.spaces[").partition("]")[0]
    if kind in ("format", "indexes") and space in pruned:
        return "it is removed, because the space has prune: true"
    return _KEPT.get(kind, "")


def _pruned(spec: dict[str, Any]) -> set[str]:
    return {space["name"] for space in spec.get("spaces") or () if space.get("prune")}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(one) for one in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def secret_changes(old: SecretContents, new: SecretContents) -> list[ManifestChange]:
    """Return the stored Secrets with other content, which is not shown."""
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    return [ManifestChange(f"secrets[{name}]", "stored content", "new content") for name in changed]


def print_changes(
    name: str,
    old: dict[str, Any] | None,
    new: dict[str, Any],
    output: Output | None,
    secrets: Iterable[ManifestChange] = (),
) -> None:
    """Print the differences of two specifications; `old` is None for a new cluster."""
    found = [*changes_of(old, new), *secrets] if old is not None else []
    if output in (Output.json, Output.yaml):
        listed = [one.document() for one in found]
        print_document({"cluster": name, "isNew": old is None, "changes": listed}, output)
    elif old is None:
        say(f"qsynccluster.qsync.dev/{name} would be created")
    elif not found:
        say(f"qsynccluster.qsync.dev/{name} unchanged")
    else:
        say(f"qsynccluster.qsync.dev/{name} would change:")
        for one in found:
            say(f"  {one}")
