"""Key definitions: from a tuple's fields, or from a client's key, to an index's keys.

An index orders its entries by *entry keys*:

- A unique index without nullable parts: its own parts identify the entry. With a single part the
  entry key is that plain value (the hot case), otherwise a tuple of sort values.
- Any other index: the parts followed by the parts of the primary key, so that equal keys have a
  place each. A NULL sorts before everything: a nullable part becomes `()` or `(value,)`.

A client's key may have fewer parts than the entry key. As a tuple it is a prefix of the entry keys
it matches, and tuples order prefixes first. `GREATEST` after a prefix closes the range.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qsync_node.errors import ClientError, ErrorCode

from .fields import PLAIN_TYPES, is_of_type, sort_function
from .pieces import MapPieces, item_of

TupleFields = Sequence[Any]
_ABSENT = None


class KeyPart(NamedTuple):
    """One part of a key: its field (from zero), its type and a path inside the field."""

    field: int
    type: str
    is_nullable: bool = False
    path: tuple[str | int, ...] = ()
    collation: int | None = None


def value_at(fields: TupleFields, part: KeyPart) -> Any:
    """Return the part's value in a tuple; None if it is absent, which an index treats as NULL."""
    if part.field >= len(fields):
        return _ABSENT
    value = fields[part.field]
    for step in part.path:
        is_found = (
            step in value
            if isinstance(value, dict)
            else isinstance(value, list) and isinstance(step, int) and step < len(value)
        )
        if not is_found:
            return _ABSENT
        value = value[step]
    return value


def packed_values(packed: bytes, parts: Sequence[KeyPart]) -> list[bytes]:
    """Return the values of parts, which must exist, in the encoding of the tuple.

    Each document is opened once, however many parts are inside.
    """
    items: dict[tuple[str | int, ...], bytes] = {(): packed}
    maps: dict[tuple[str | int, ...], MapPieces] = {}

    def item_at(place: tuple[str | int, ...]) -> bytes:
        if place not in items:
            *outer_steps, step = place
            outer = tuple(outer_steps)
            container = item_at(outer)
            if isinstance(step, int):
                items[place] = item_of(container, step)
            else:
                if outer not in maps:
                    maps[outer] = MapPieces(container)
                items[place] = maps[outer].last_of(step)
        return items[place]

    return [item_at((part.field, *part.path)) for part in parts]


def _part_extractor(part: KeyPart) -> Callable[[TupleFields], Any]:
    sort = sort_function(part.type)
    if not part.is_nullable:
        return lambda fields: sort(value_at(fields, part))

    def extract_nullable(fields: TupleFields) -> Any:
        value = value_at(fields, part)
        return () if value is None else (sort(value),)

    return extract_nullable


def _extractor(parts: Sequence[KeyPart]) -> Callable[[TupleFields], tuple[Any, ...]]:
    """Return a function from fields to a tuple of sort values.

    It is specialised for parts that compare directly.
    """
    if all(part.type in PLAIN_TYPES and not (part.is_nullable or part.path) for part in parts):
        positions = [part.field for part in parts]
        if len(positions) == 2:
            first, second = positions
            return lambda fields: (fields[first], fields[second])
        return lambda fields: tuple([fields[position] for position in positions])
    extractors = [_part_extractor(part) for part in parts]
    return lambda fields: tuple([extract(fields) for extract in extractors])


class KeyDef:
    """Construction and reading of the keys of one index of one space."""

    __slots__ = (
        "_sorts",
        "entry_key",
        "entry_parts",
        "has_nulls",
        "is_plain",
        "is_unique",
        "parts",
    )

    def __init__(
        self, parts: Sequence[KeyPart], is_unique: bool, primary: Sequence[KeyPart]
    ) -> None:
        self.parts = tuple(parts)
        self.is_unique = is_unique
        self.has_nulls = any(part.is_nullable for part in parts)
        needs_primary = not is_unique or self.has_nulls
        self.entry_parts = self.parts + (tuple(primary) if needs_primary else ())
        self.is_plain = len(self.entry_parts) == 1
        self._sorts = [sort_function(part.type) for part in self.parts]
        self.entry_key: Callable[[TupleFields], Any] = self._entry_key_function()

    def _entry_key_function(self) -> Callable[[TupleFields], Any]:
        if not self.is_plain:
            return _extractor(self.entry_parts)
        part = self.entry_parts[0]
        if part.path or part.type not in PLAIN_TYPES:
            return _part_extractor(part)
        position = part.field
        return lambda fields: fields[position]

    def check_types(self, fields: TupleFields) -> None:
        """Raise TypeError if a part of the entry key cannot be compared."""
        for part in self.entry_parts:
            value = value_at(fields, part)
            is_right = part.is_nullable if value is None else is_of_type(value, part.type)
            if not is_right:
                raise TypeError(part.type)

    @property
    def identifies(self) -> bool:
        """Whether the parts alone identify an entry."""
        return len(self.entry_parts) == len(self.parts)

    def has_null(self, fields: TupleFields) -> bool:
        """Return whether a nullable part is NULL: NULL is not equal to NULL for uniqueness."""
        return self.has_nulls and any(
            part.is_nullable and value_at(fields, part) is None for part in self.parts
        )

    def prefix_of(self, fields: TupleFields) -> tuple[Any, ...]:
        """Return the tuple's own parts as a search prefix."""
        key = self.entry_key(fields)
        return (key,) if self.is_plain else tuple(key[: len(self.parts)])

    def search_prefix(self, key: Sequence[Any], is_exact: bool = False) -> tuple[Any, ...]:
        """Check a client's key and return it as a prefix of entry keys.

        NULL selects the entries without a value, but identifies none of them.

        Args:
            key: decoded parts, possibly fewer than the index has.
            is_exact: the key must identify an entry, so NULL is refused.

        Raises:
            ClientError: the key has too many parts or a part of the wrong type.
        """
        if len(key) > len(self.parts):
            raise ClientError(
                ErrorCode.KEY_PART_COUNT,
                f"Invalid key part count (expected [0..{len(self.parts)}], got {len(key)})",
            )
        values: list[Any] = []
        for number, (value, part) in enumerate(zip(key, self.parts, strict=False)):
            if value is None and part.is_nullable and not is_exact:
                values.append(())
                continue
            if not is_of_type(value, part.type):
                raise ClientError(
                    ErrorCode.KEY_PART_TYPE,
                    f"Supplied key type of part {number} does not match index part type: "
                    f"expected {part.type}",
                )
            value = self._sorts[number](value)
            values.append((value,) if part.is_nullable else value)
        return tuple(values)

    def exact_key(self, key: Sequence[Any]) -> Any:
        """Return the entry key for a full key of an index whose parts identify entries."""
        if len(key) != len(self.parts):
            raise ClientError(
                ErrorCode.EXACT_MATCH,
                f"Invalid key part count in an exact match "
                f"(expected {len(self.parts)}, got {len(key)})",
            )
        prefix = self.search_prefix(key, is_exact=True)
        return prefix[0] if self.is_plain else prefix
