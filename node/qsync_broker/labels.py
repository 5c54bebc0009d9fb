"""Labels of journals, registers, and selectors, as in Gazette: a multi-map of names to values."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

Pair = tuple[str, str]


class LabelSet:
    """An immutable set of (name, value) pairs, in ascending order."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: tuple[Pair, ...]) -> None:
        self._pairs = pairs

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> "LabelSet":
        """Return a set of pairs in any order."""
        return cls(tuple(sorted(set(pairs))))

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSet) and self._pairs == other._pairs

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        return f"LabelSet.of({list(self._pairs)})"

    def values(self, name: str) -> tuple[str, ...]:
        """Return the values of a name."""
        return tuple(value for one, value in self._pairs if one == name)

    def union(self, other: "LabelSet") -> "LabelSet":
        """Return both sets; a name of `other` has the values of `other` only."""
        names = {name for name, _ in other}
        return LabelSet.of([*(pair for pair in self if pair[0] not in names), *other])

    def subtract(self, other: "LabelSet") -> "LabelSet":
        """Return this set without the names that have exactly the values of `other`."""
        gone = {name for name, _ in other if self.values(name) == other.values(name)}
        return LabelSet.of(pair for pair in self if pair[0] not in gone)


NO_LABELS = LabelSet(())


class LabelSelector(NamedTuple):
    """A selector: every included name has a wanted value, and no excluded pair occurs.

    An empty value stands for all values of its name.
    """

    include: LabelSet = NO_LABELS
    exclude: LabelSet = NO_LABELS

    def matches(self, labels: LabelSet) -> bool:
        """Return whether the selector selects these labels."""
        if any(_is_in(pair, labels) for pair in self.exclude):
            return False
        names = {name for name, _ in self.include}
        return all(
            any(_is_in((name, value), labels) for value in self.include.values(name))
            for name in names
        )


def _is_in(wanted: Pair, labels: LabelSet) -> bool:
    name, value = wanted
    found = labels.values(name)
    return bool(found) and (not value or value in found)
