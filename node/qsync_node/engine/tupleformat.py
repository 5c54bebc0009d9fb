"""A space's requirements for its tuples: count, presence and types of fields. Data path.

A format joins the space's own fields with the parts of its indexes. A field has the narrower of its
types, and may be NULL unless a part forbids it. The checks favour the common tuple, which is long
enough and of simple types. Any other tuple takes the slow walk, which finds the first wrong field.
"""

from collections.abc import Iterable
from typing import Any

from qsync_node.errors import ClientError, ErrorCode

from . import errors
from .definitions import FieldDef, IndexDef, SpaceDef
from .fields import KINDS, is_narrower_or_equal, is_of_type
from .keydef import KeyPart
from .paths import PathStep

_NULL_KIND = frozenset({type(None)})


class TupleFormat:
    """The checks for the tuples of one space."""

    __slots__ = (
        "_exact_count",
        "_kinds",
        "_length",
        "_path_parts",
        "_unsigned",
        "doubles",
        "field_numbers",
        "fields",
    )

    def __init__(self, space: SpaceDef, indexes: Iterable[IndexDef]) -> None:
        fields = list(space.fields)
        path_parts: list[KeyPart] = []
        indexed: set[int] = set()
        inside: dict[tuple[PathStep, ...], str] = {}
        for index in indexes:
            for part in index.parts:
                while len(fields) <= part.field:
                    fields.append(FieldDef("", "any", True))
                if part.path:
                    path_parts.append(part)
                    _join_path(fields[part.field].type, part, inside)
                elif (part.field,) in inside:
                    raise _part_mismatch(str(part.field + 1), inside[part.field,], part.type)
                else:
                    is_indexed = part.field in indexed
                    fields[part.field] = _join(fields[part.field], part, is_indexed)
                    indexed.add(part.field)
        self.fields = fields
        self.field_numbers = {field.name: at for at, field in enumerate(space.fields)}
        # A format without fields checks nothing.
        self._exact_count = space.field_count if fields else 0
        # Each part gets the narrowest type that any part requires at its place.
        self._path_parts = [
            part._replace(type=inside[part.field, *part.path])
            for part in sorted(path_parts, key=lambda part: part.field)
        ]
        self._kinds: list[tuple[int, frozenset[type]]] = []
        self._unsigned: list[int] = []
        self._length = 0
        self.doubles = frozenset(i for i, field in enumerate(fields) if field.type == "double")
        for number, field in enumerate(fields):
            self._add(number, field)

    def _add(self, number: int, field: FieldDef) -> None:
        if not field.is_nullable:
            self._length = number + 1
        if field.type == "any":
            return
        self._length = number + 1
        kinds = KINDS[field.type] | (_NULL_KIND if field.is_nullable else frozenset())
        self._kinds.append((number, kinds))
        if field.type == "unsigned":
            self._unsigned.append(number)

    def validate(self, fields: list[Any]) -> None:
        """Raise unless the tuple fits the format."""
        if len(fields) < self._length or self._exact_count or self._path_parts:
            self._validate_slowly(fields)
            return
        for number, kinds in self._kinds:
            if type(fields[number]) not in kinds:
                self._validate_slowly(fields)
                return
        for number in self._unsigned:
            value = fields[number]
            if value is not None and value < 0:
                self._validate_slowly(fields)

    def _validate_slowly(self, fields: list[Any]) -> None:
        if self._exact_count and len(fields) != self._exact_count:
            raise ClientError(
                ErrorCode.EXACT_FIELD_COUNT,
                f"Tuple field count {len(fields)} does not match space field count "
                f"{self._exact_count}",
            )
        for number, (value, field) in enumerate(zip(fields, self.fields, strict=False)):
            if value is None and field.is_nullable:
                continue
            if not is_of_type(value, field.type):
                # An error inside an earlier field takes precedence.
                self._find_missing(fields, number)
                raise wrong_type(str(number + 1), field.type)
        missing = self._find_missing(fields, len(self.fields)) if self._path_parts else None
        for number in range(len(fields), len(self.fields)):
            if not (self.fields[number].is_nullable or self._looks_into(number)):
                raise missing_field(str(number + 1))
        if missing is not None:
            raise missing_field(_path_name(missing, len(missing.path)))

    def _find_missing(self, fields: list[Any], stop: int) -> KeyPart | None:
        """Return the first part whose path leads to no value in a field before `stop`, or None."""
        missing = None
        for part in self._path_parts:
            number = part.field
            if number < len(fields):
                is_there = number >= stop or _is_path_there(fields[number], part)
            else:
                is_there = part.is_nullable
            if not is_there and missing is None:
                missing = part
        return missing

    def _looks_into(self, number: int) -> bool:
        """Return whether a part needs a value inside the field.

        The field itself then does not count as missing.
        """
        return any(part.field == number for part in self._path_parts)


def wrong_type(field: str, expected: str) -> ClientError:
    return ClientError(
        ErrorCode.FIELD_TYPE,
        f"Tuple field {field} type does not match one required by operation: expected {expected}",
    )


def missing_field(field: str) -> ClientError:
    return ClientError(
        ErrorCode.FIELD_MISSING, f"Tuple field {field} required by space format is missing"
    )


def _is_path_there(value: object, part: KeyPart) -> bool:
    """Return whether the field has the value that the part needs.

    Raises:
        ClientError: a value on the path is not a container, or the last one has the wrong type.
    """
    for depth, step in enumerate(part.path):
        if value is None and (depth or part.is_nullable):
            break
        container = dict if isinstance(step, str) else list
        if not isinstance(value, container):
            expected = "map" if container is dict else "array"
            raise wrong_type(_path_name(part, depth), expected)
        value = _child(value, step)
    if value is None:
        return part.is_nullable
    if not is_of_type(value, part.type):
        raise wrong_type(_path_name(part, len(part.path)), part.type)
    return True


def _child(container: Any, step: Any) -> Any:
    if isinstance(container, dict):
        return container.get(step)
    return container[step] if step < len(container) else None


def _path_name(part: KeyPart, depth: int) -> str:
    """Return the path down to a depth, as Tarantool writes it: a whole field is its number."""
    if not depth:
        return str(part.field + 1)
    steps = (
        f"[{step + 1}]" if isinstance(step, int) else f'["{step}"]' for step in part.path[:depth]
    )
    return f"[{part.field + 1}]" + "".join(steps)


def _join(field: FieldDef, part: KeyPart, is_indexed: bool) -> FieldDef:
    """Return the field of the format and the indexes so far, joined with one more part."""
    narrower = part.type
    if not is_narrower_or_equal(part.type, field.type):
        narrower = field.type
        if not is_narrower_or_equal(field.type, part.type):
            raise _mismatch(field, part, is_indexed)
    return FieldDef(field.name, narrower, field.is_nullable and part.is_nullable)


def _mismatch(field: FieldDef, part: KeyPart, is_indexed: bool) -> ClientError:
    number = part.field + 1
    if is_indexed:
        return _part_mismatch(str(number), field.type, part.type)
    return ClientError(
        ErrorCode.FORMAT_MISMATCH_INDEX_PART,
        f"Field {number} has type '{field.type}' in space format, "
        f"but type '{part.type}' in index definition",
    )


def _part_mismatch(place: str, known: str, wanted: str) -> ClientError:
    return ClientError(
        errors.INDEX_PART_TYPE_MISMATCH,
        f"Field {place} has type '{known}' in one index, but type '{wanted}' in another",
    )


def _join_path(root_type: str, part: KeyPart, inside: dict[tuple[PathStep, ...], str]) -> None:
    """Record the types that a part requires along its path, by field number and steps."""
    inside.setdefault((part.field,), root_type)
    for depth, step in enumerate(part.path):
        place = (part.field, *part.path[:depth])
        container = "map" if isinstance(step, str) else "array"
        if inside.setdefault(place, "any") not in ("any", container):
            raise _part_mismatch(_path_name(part, depth), inside[place], container)
        inside[place] = container
    leaf = (part.field, *part.path)
    known = inside.get(leaf, "any")
    if is_narrower_or_equal(part.type, known):
        inside[leaf] = part.type
    elif not is_narrower_or_equal(known, part.type):
        raise _part_mismatch(_path_name(part, len(part.path)), known, part.type)
