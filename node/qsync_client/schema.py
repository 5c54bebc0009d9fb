"""Names of spaces, indexes and fields.

The client reads `_vspace` and `_vindex`, which show the objects that the user may access. A request
that used a name carries the version of the schema. If the schema has changed since, the server
refuses the request (109), and the client reads the schema again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qsync_client.errors import SchemaError
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.spaces import SystemSpace

VSPACE, VINDEX = int(SystemSpace.VSPACE), int(SystemSpace.VINDEX)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a space's format."""

    name: str
    type: str = "any"
    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """An index; `fields` are the positions of its parts in a row, and `types` their types."""

    id: int
    name: str
    type: str
    is_unique: bool
    fields: tuple[int, ...]
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Space:
    """A space with its format and its indexes."""

    id: int
    name: str
    fields: tuple[Field, ...] = ()
    indexes: tuple[Index, ...] = ()
    _positions: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._positions.update({one.name: number for number, one in enumerate(self.fields)})

    def index(self, name: str) -> Index:
        """Return an index by its name.

        Raises:
            SchemaError: the space has no such index.
        """
        for index in self.indexes:
            if index.name == name:
                return index
        raise SchemaError(
            ErrorCode.NO_SUCH_INDEX,
            f"the space {self.name!r} has no index {name!r}; "
            f"it has {', '.join(repr(index.name) for index in self.indexes) or 'none'}",
        )

    def position(self, name: str) -> int:
        """Return the position of a field in a row, from 0.

        Raises:
            SchemaError: the format has no such field.
        """
        found = self._positions.get(name)
        if found is None:
            raise SchemaError(
                ErrorCode.NO_SUCH_FIELD_NO, f"the space {self.name!r} has no field {name!r}"
            )
        return found

    def tuple_of(self, fields: Mapping[str, Any]) -> list[Any]:
        """Return a tuple with named fields in the order of the format; absent ones are null.

        Raises:
            SchemaError: the format has no field of such a name.
        """
        found = {self.position(name): value for name, value in fields.items()}
        return [found.get(number) for number in range(max(found, default=-1) + 1)]


class Row(list[Any]):
    """A tuple as a list that knows the names of its fields if its space was named."""

    __slots__ = ("space",)

    def __init__(self, fields: Iterable[Any], space: Space | None = None) -> None:
        super().__init__(fields)
        self.space = space

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name.

        A field that the format names and the row lacks is None. A field after the format has its
        position as its name, for example "3" for the fourth field.

        Raises:
            SchemaError: the request named the space by its id, so the row has no names.
        """
        if self.space is None:
            raise SchemaError(
                ErrorCode.NO_SUCH_FIELD_NO,
                "the fields have no names here: name the space in the request, not its id",
            )
        names = [one.name for one in self.space.fields]
        named: dict[str, Any] = dict.fromkeys(names)
        for number, value in enumerate(self):
            named[names[number] if number < len(names) else str(number)] = value
        return named


class Schema:
    """The spaces that a user may see, at one version of the schema."""

    def __init__(self, version: int, spaces: Iterable[Space]) -> None:
        self.version = version
        self._by_name = {space.name: space for space in spaces}

    def __iter__(self) -> Iterator[Space]:
        return iter(self._by_name.values())

    def space(self, name: str) -> Space:
        """Return a space by its name.

        Raises:
            SchemaError: no such space exists, or the user may not access it.
        """
        found = self._by_name.get(name)
        if found is None:
            raise SchemaError(
                ErrorCode.NO_SUCH_SPACE,
                f"the space {name!r} does not exist, or the user may not access it",
            )
        return found


def decode_schema(
    version: int, spaces: Sequence[Sequence[Any]], indexes: Sequence[Sequence[Any]]
) -> Schema:
    """Return a schema from the rows of `_vspace` and `_vindex`."""
    found: dict[int, list[Index]] = {}
    for space_id, index_id, name, kind, options, parts, *_ in indexes:
        found_parts = [_part(one) for one in parts]
        fields = tuple(number for number, _ in found_parts)
        types = tuple(kind for _, kind in found_parts)
        is_unique = bool(options.get("unique", True))
        found.setdefault(space_id, []).append(Index(index_id, name, kind, is_unique, fields, types))
    return Schema(
        version,
        (
            Space(
                row[0],
                row[2],
                tuple(_field(one) for one in row[6]),
                tuple(found.get(row[0], ())),
            )
            for row in spaces
        ),
    )


def _part(one: dict[str, Any] | list[Any]) -> tuple[int, str]:
    """Return position and type of a part of an index: a map, or a list that begins with both."""
    if isinstance(one, dict):
        return one["field"], one.get("type", "any")
    return one[0], one[1] if len(one) > 1 else "any"


def _field(one: Any) -> Field:
    """Return a field from an entry of a format: a map, or a list that begins with name and type."""
    if isinstance(one, dict):
        return Field(one.get("name", ""), one.get("type", "any"), bool(one.get("is_nullable")))
    return Field(one[0], one[1] if len(one) > 1 else "any")
