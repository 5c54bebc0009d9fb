"""What a space demands of each tuple: count, presence and types of fields. Data path.

A format joins the space's own fields with the parts of its indexes: a field has the narrower of its
types, and may be NULL only if nobody forbids it. The checks are laid out for the common tuple, long
enough and of simple types; anything else takes the slow walk, which finds the first wrong field.
"""

from collections.abc import Iterable
from typing import Any

from qsync_node.errors import ClientError, ErrorCode

from .definitions import FieldDef, IndexDef, SpaceDef
from .fields import KINDS, is_narrower_or_equal, is_of_type
from .keydef import Part

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
        path_parts: list[Part] = []
        for index in indexes:
            for part in index.parts:
                while len(fields) <= part.field:
                    fields.append(FieldDef("", "any", True))
                if part.path:
                    path_parts.append(part)
                else:
                    fields[part.field] = _join(fields[part.field], part)
        self.fields = fields
        self.field_numbers = {field.name: at for at, field in enumerate(space.fields)}
        self._exact_count = space.field_count
        self._path_parts = path_parts
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
        """Raise unless the tuple fits."""
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
                raise wrong_type(str(number + 1), field.type)
        for number in range(len(fields), len(self.fields)):
            if not self.fields[number].is_nullable:
                raise missing_field(str(number + 1))
        for part in self._path_parts:
            _validate_path(fields, part)


def wrong_type(field: str, expected: str) -> ClientError:
    return ClientError(
        ErrorCode.FIELD_TYPE,
        f"Tuple field {field} type does not match one required by operation: expected {expected}",
    )


def missing_field(field: str) -> ClientError:
    return ClientError(
        ErrorCode.FIELD_MISSING, f"Tuple field {field} required by space format is missing"
    )


def _validate_path(fields: list[Any], part: Part) -> None:
    value = fields[part.field] if part.field < len(fields) else None
    for depth, step in enumerate(part.path):
        if value is None and (depth or part.field >= len(fields) or part.is_nullable):
            break
        container = dict if isinstance(step, str) else list
        if not isinstance(value, container):
            expected = "map" if container is dict else "array"
            raise wrong_type(_path_name(part, depth), expected)
        value = _child(value, step)
    if value is None and not part.is_nullable:
        raise missing_field(_path_name(part, len(part.path)))
    if value is not None and not is_of_type(value, part.type):
        raise wrong_type(_path_name(part, len(part.path)), part.type)


def _child(container: Any, step: Any) -> Any:
    if isinstance(container, dict):
        return container.get(step)
    return container[step] if step < len(container) else None


def _path_name(part: Part, depth: int) -> str:
    """The path down to a depth, as Tarantool writes it: a whole field is its number."""
    if not depth:
        return str(part.field + 1)
    steps = (
        f"[{step + 1}]" if isinstance(step, int) else f'["{step}"]' for step in part.path[:depth]
    )
    return f"[{part.field + 1}]" + "".join(steps)


def _join(field: FieldDef, part: Part) -> FieldDef:
    narrower = part.type if is_narrower_or_equal(part.type, field.type) else field.type
    return FieldDef(field.name, narrower, field.is_nullable and part.is_nullable)
