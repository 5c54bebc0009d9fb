"""Labels of journals, registers, and selectors, as in Gazette: a multi-map of names to values.

A selector is also written as text, for example `content-type = text/csv, region in (eu, us)`:

    name = value, name == value     one label
    name in (value, value)          one of several labels
    name                            any value
    name != value, !name, name notin (value, value), name not in (value, value)
    name:prefix = value             values that begin so; also with `in`, `!=` and `notin`
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Pair = tuple[str, str]

NAME_LABEL = "name"
"""Label that each journal has in selections: its name."""
PREFIX_LABEL = "prefix"
"""Label of a selector that stands for journals in a folder: `prefix=orders/`."""
PREFIX_SUFFIX = ":prefix"
SELECTOR_LABELS_MAX = 256
"""Maximum number of labels of a selector, which may be compared with many journals."""
SELECTOR_MAX = 256 << 10
"""Maximum length of the text of a selector in characters."""


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
        mine, others = self._by_name(), other._by_name()
        gone = {name for name, values in others.items() if mine.get(name) == values}
        return LabelSet(tuple(pair for pair in self if pair[0] not in gone))

    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in self._pairs:
            found.setdefault(name, []).append(value)
        return found


NO_LABELS = LabelSet(())


class Wanted(NamedTuple):
    """One label of a selector.

    Attributes:
        name: name of the label.
        value: its value; an empty one stands for all values.
        is_prefix: whether values that begin with `value` match, too.
    """

    name: str
    value: str = ""
    is_prefix: bool = False

    def matches(self, labels: LabelSet) -> bool:
        """Return whether one of the labels is a wanted one."""
        found = labels.values(self.name)
        if self.is_prefix:
            return any(value.startswith(self.value) for value in found)
        return bool(found) and (not self.value or self.value in found)


class LabelSelector(NamedTuple):
    """A selector: every included name has a wanted value, and no excluded label occurs."""

    include: tuple[Wanted, ...] = ()
    exclude: tuple[Wanted, ...] = ()

    def matches(self, labels: LabelSet) -> bool:
        """Return whether the selector selects these labels."""
        if any(wanted.matches(labels) for wanted in self.exclude):
            return False
        matched: dict[str, bool] = {}
        for wanted in self.include:
            matched[wanted.name] = matched.get(wanted.name, False) or wanted.matches(labels)
        return all(matched.values())


def selector_of_journals(selector: LabelSelector) -> LabelSelector:
    """Return a selector whose `prefix` labels are prefixes of the label `name`.

    Raises:
        ValueError: a prefix is no folder, or the selector has too many labels.
    """
    _check_size(selector)
    return LabelSelector(
        tuple(_of_journals(wanted) for wanted in selector.include),
        tuple(_of_journals(wanted) for wanted in selector.exclude),
    )


def _check_size(selector: LabelSelector) -> None:
    count = len(selector.include) + len(selector.exclude)
    if count > SELECTOR_LABELS_MAX:
        raise ValueError(
            f"the selector has {count} labels: use at most {SELECTOR_LABELS_MAX}, or a prefix"
        )


def _of_journals(wanted: Wanted) -> Wanted:
    if wanted.name != PREFIX_LABEL:
        return wanted
    if not wanted.value.endswith("/"):
        raise ValueError(f"invalid prefix {wanted.value!r}: end it with `/`")
    return Wanted(NAME_LABEL, wanted.value, True)


def with_name(labels: LabelSet, name: str) -> LabelSet:
    """Return the labels of a journal with its name as one more label."""
    return LabelSet.of([*labels, (NAME_LABEL, name)])


# --- text -----------------------------------------------------------------------------------------

_TOKEN = r"[\w\-+/.]+(?::prefix)?"
_VALUE = r"[\w\-+/.=%]*"
_LISTED = r"[\w\-+/.=%]+"
_VALUES = rf"\(\s*({_LISTED}(?:\s*,\s*{_LISTED})*)\s*\)"
_TERMS = (
    (re.compile(rf"({_TOKEN})\s*(?:==|=)\s*({_VALUE})\s*"), True),
    (re.compile(rf"({_TOKEN})\s*!=\s*({_VALUE})\s*"), False),
    (re.compile(rf"({_TOKEN})\s+in\s*{_VALUES}\s*"), True),
    (re.compile(rf"({_TOKEN})\s+not\s?in\s*{_VALUES}\s*"), False),
    (re.compile(rf"!\s*({_TOKEN})()\s*"), False),
    (re.compile(rf"({_TOKEN})()\s*"), True),
)


def parse_selector(text: str) -> LabelSelector:
    """Return the selector that a text describes.

    Raises:
        ValueError: the text is no selector, or the selector has too many labels.
    """
    include: list[Wanted] = []
    exclude: list[Wanted] = []
    at, is_first = 0, True
    text = text.strip()
    if len(text) > SELECTOR_MAX:
        raise ValueError(
            f"the selector has {len(text)} characters: use at most {SELECTOR_MAX}, or a prefix"
        )
    while at < len(text):
        if not is_first:
            if text[at] != ",":
                raise ValueError(
                    f"invalid selector at {text[at : at + 80]!r}: separate terms by commas"
                )
            at += 1
            at += len(text[at:]) - len(text[at:].lstrip())
        at += _term(text, at, include, exclude)
        is_first = False
        # Long texts of a hostile client must not occupy the broker.
        _check_size(LabelSelector(tuple(include), tuple(exclude)))
    return LabelSelector(tuple(include), tuple(exclude))


def _term(text: str, at: int, include: list[Wanted], exclude: list[Wanted]) -> int:
    """Add the labels of one term, and return its length."""
    for pattern, is_included in _TERMS:
        found = pattern.match(text, at)
        if found is None or (found.end() < len(text) and text[found.end()] != ","):
            continue
        name, values = found[1], found[2]
        is_prefix = name.endswith(PREFIX_SUFFIX)
        for value in values.split(","):
            wanted = Wanted(name.removesuffix(PREFIX_SUFFIX), value.strip(), is_prefix)
            (include if is_included else exclude).append(wanted)
        return found.end() - at
    raise ValueError(
        f"invalid selector at {text[at : at + 80]!r}: use NAME=VALUE or NAME in (VALUE, VALUE)"
    )
