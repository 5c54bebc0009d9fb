"""Folders of journals: no journal is a folder of another one.

All objects in a folder of a store belong to one journal. Two journals of which one is a folder of
the other would serve, and delete, the fragments of each other.
"""

from collections.abc import Iterable


def folders_of(name: str) -> list[str]:
    """Return the folders above a name, the outermost first."""
    return [name[:at] for at, char in enumerate(name) if char == "/"]


def refusal(name: str, other: str) -> str:
    """Return why a journal cannot be created beside another one."""
    return (
        f"{name!r} and {other!r} would share a folder of fragments: choose a name that is no folder"
        " of another journal"
    )


class Folders:
    """Names of journals, in which a conflict is found without a look at each of them."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._inside: dict[str, str] = {}  # a journal by each folder above it
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a name."""
        self._names.add(name)
        self._inside.update(dict.fromkeys(folders_of(name), name))

    def other(self, name: str) -> str:
        """Return the name itself, a folder above it, or a name below it, if there is one, or ""."""
        if name in self._names:
            return name
        above = next((folder for folder in folders_of(name) if folder in self._names), "")
        return above or self._inside.get(name, "")
