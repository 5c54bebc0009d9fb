"""Rows of `_space` and `_index` as definitions, with every reason to refuse one."""

from collections.abc import Iterator
from typing import Any

from qsync_node.errors import ClientError, ErrorCode

from . import codes
from .definitions import FieldDef, IndexDef, SpaceDef
from .fields import FIELD_TYPES, INDEXABLE_TYPES, is_narrower_or_equal
from .keydef import Part
from .paths import PathError, parse_path

BINARY_COLLATIONS = frozenset({0, 3, "none", "binary"})
PARTS_MAX = 255
INDEX_FIELD_MAX = 100_000
NAME_BYTES_MAX = 65000
# Names that old rows have for some types.
_TYPE_ALIASES = {"*": "any", "num": "unsigned", "str": "string"}
_OPTIONS: dict[str, type] = {
    "group_id": int,
    "temporary": bool,
    "view": bool,
    "is_sync": bool,
    "sql": str,
}
_TYPE_WORDS = {int: "unsigned", bool: "boolean", str: "string"}
_EXPECTED_PARTS = "expected field1 id (number), field1 type (string), ..."


def create_error(name: str, reason: str) -> ClientError:
    return ClientError(ErrorCode.CREATE_SPACE, f"Failed to create space '{name}': {reason}")


def alter_error(name: str, reason: str) -> ClientError:
    return ClientError(ErrorCode.ALTER_SPACE, f"Can't modify space '{name}': {reason}")


def index_error(name: str, space_name: str, reason: str) -> ClientError:
    return ClientError(
        ErrorCode.MODIFY_INDEX,
        f"Can't create or modify index '{name}' in space '{space_name}': {reason}",
    )


def _type_name(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    name = value.lower()
    name = _TYPE_ALIASES.get(name, name)
    return name if name in FIELD_TYPES else None


def check_name(name: str) -> None:
    """Raise unless the name can be an identifier."""
    if not name or not name.isprintable():
        raise ClientError(
            ErrorCode.IDENTIFIER,
            f"Invalid identifier '{name}' (expected printable symbols only or it is too long)",
        )


def read_space(row: list[Any], is_new: bool) -> SpaceDef:
    """A row of `_space`, already of the right field types."""
    space_id, owner, name, engine, field_count, flags, fields = row[:7]
    failed = create_error if is_new else alter_error
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise failed(name[:100], "space name is too long")
    check_name(name)
    if space_id > 0x7FFFFFFF:
        raise failed(name, "space id is too big")
    if space_id == 0:
        raise failed(name, "space id 0 is reserved")
    _check_options(flags)
    if engine not in ("memtx", "vinyl", "sysview", "blackhole", "service"):
        raise ClientError(ErrorCode.NO_SUCH_SPACE_NAME, f"Space engine '{engine}' does not exist")
    if space_id > 511 and is_new:
        _check_user_space(name, engine, flags)
    formats = tuple(_read_fields(name, fields, failed))
    if field_count and len(formats) > field_count:
        raise failed(name, "exact_field_count must be either 0 or >= formatted field count")
    return SpaceDef(space_id, owner, name, engine, field_count, flags, formats)


def _check_options(flags: Any) -> None:
    if not isinstance(flags, dict):
        raise _wrong_space_option("names of options must be strings")
    for option, value in flags.items():
        kind = _OPTIONS.get(option)
        if kind is None:
            raise _wrong_space_option(f"unexpected option '{option}'")
        if type(value) is not kind:
            raise _wrong_space_option(f"'{option}' must be {_TYPE_WORDS[kind]}")


def _wrong_space_option(reason: str) -> ClientError:
    return ClientError(codes.WRONG_SPACE_OPTIONS, f"Wrong space options (field 5): {reason}")


def _check_user_space(name: str, engine: str, flags: Any) -> None:
    if engine != "memtx":
        raise create_error(name, f"engine '{engine}' is not supported, use 'memtx'")
    if flags.get("temporary"):
        raise create_error(name, "temporary spaces are not supported")
    if flags.get("group_id"):
        raise create_error(name, "local spaces are not supported")
    if flags.get("view") or flags.get("sql"):
        raise create_error(name, "SQL views are not supported")


def _read_fields(name: str, fields: list[Any], failed: Any) -> Iterator[FieldDef]:
    seen: set[str] = set()
    for number, field in enumerate(fields):
        if not isinstance(field, dict):
            raise failed(name, f"field {number + 1} is not map")
        field_name = field.get("name", "")
        if not isinstance(field_name, str):
            raise _wrong_format(number, "'name' must be string")
        if not field_name:
            raise failed(name, f"field {number + 1} name is not specified")
        check_name(field_name)
        if not isinstance(field.get("type", "any"), str):
            raise _wrong_format(number, "'type' must be enum")
        if not isinstance(field.get("is_nullable", False), bool):
            raise _wrong_format(number, "'is_nullable' must be boolean")
        type_name = _type_name(field.get("type", "any"))
        if type_name is None:
            if name != "_ck_constraint":
                raise failed(name, f"field {number + 1} has unknown field type")
            type_name = "string"
        if not _is_binary(field.get("collation", 0)):
            raise failed(name, f"field {number + 1}: only binary collations are supported")
        if field_name in seen:
            raise ClientError(
                ErrorCode.SPACE_FIELD_IS_DUPLICATE, f"Space field '{field_name}' is duplicate"
            )
        seen.add(field_name)
        yield FieldDef(field_name, type_name, bool(field.get("is_nullable", False)))


def _wrong_format(number: int, reason: str) -> ClientError:
    return ClientError(
        codes.WRONG_SPACE_FORMAT, f"Wrong space format (field {number + 1}): {reason}"
    )


def read_index(row: list[Any], space: SpaceDef) -> IndexDef:
    """A row of `_index`, already of the right field types."""
    space_id, index_id, name, kind, options, raw_parts = row[:6]
    check_name(name)
    if not isinstance(options, dict):
        raise ClientError(
            codes.WRONG_INDEX_OPTIONS,
            "Wrong index options (field 4): names of options must be strings",
        )
    kind = kind.lower()
    if index_id > 127:
        raise index_error(name, space.name, "index id too big")
    if kind not in ("tree", "hash"):
        if kind in ("bitset", "rtree"):
            raise index_error(name, space.name, f"{kind.upper()} indexes are not supported")
        raise ClientError(
            ErrorCode.INDEX_TYPE,
            f"Unsupported index type supplied for index '{name}' in space '{space.name}'",
        )
    is_tree = kind == "tree"
    is_unique = bool(options.get("unique", True))
    if options.get("func"):
        raise index_error(name, space.name, "functional indexes are not supported")
    parts = tuple(_read_part(number, raw, name, space) for number, raw in enumerate(raw_parts))
    definition = IndexDef(space_id, index_id, name, is_tree, is_unique, parts)
    _check_index(definition, space)
    return definition


def _check_index(index: IndexDef, space: SpaceDef) -> None:
    if not index.parts:
        raise index_error(index.name, space.name, "part count must be positive")
    if len(index.parts) > PARTS_MAX:
        raise index_error(index.name, space.name, "too many key parts")
    if index.id == 0 and not index.is_unique:
        raise index_error(index.name, space.name, "primary key must be unique")
    is_nullable = any(part.is_nullable for part in index.parts)
    if index.id == 0 and is_nullable:
        raise ClientError(
            ErrorCode.NULLABLE_MISMATCH,
            f"Primary index of space '{space.name}' can not contain nullable parts",
        )
    if not index.is_tree and is_nullable:
        raise ClientError(ErrorCode.UNSUPPORTED, "HASH does not support nullable parts")
    if not index.is_tree and not index.is_unique:
        raise index_error(index.name, space.name, "HASH index must be unique")
    if len({(part.field, part.path) for part in index.parts}) != len(index.parts):
        raise index_error(index.name, space.name, "same key part is indexed twice")


def _read_part(number: int, raw: Any, index_name: str, space: SpaceDef) -> Part:
    if isinstance(raw, dict):
        field, type_value = raw.get("field"), raw.get("type")
        options = raw
    elif isinstance(raw, list):
        field, type_value = (*raw, None, None)[:2]
        options = {}
    else:
        raise ClientError(
            codes.WRONG_INDEX_OPTIONS,
            f"Wrong index options (field {number + 1}): index part is expected to be a map",
        )
    if type(field) is not int or field < 0:
        raise _wrong_parts("field id must be an integer")
    if field >= INDEX_FIELD_MAX:
        raise index_error(index_name, space.name, "field no is too big")
    if type_value is None:
        raise _wrong_parts("a field type is missing")
    type_name = _type_name(type_value)
    if type_name is None:
        raise _wrong_parts("unknown field type")
    if type_name not in INDEXABLE_TYPES:
        raise index_error(index_name, space.name, f"field type '{type_name}' is not supported")
    if not _is_binary(options.get("collation", 0)):
        raise index_error(index_name, space.name, "only binary collations are supported")
    path: tuple[str | int, ...] = ()
    if options.get("path"):
        path = _read_path(number, options["path"])
    part = Part(field, type_name, bool(options.get("is_nullable", False)), path)
    check_against_format(number, part, index_name, space)
    return part


def check_against_format(number: int, part: Part, index_name: str, space: SpaceDef) -> None:
    if part.path or part.field >= len(space.fields):
        return
    field = space.fields[part.field]
    if field.type in ("array", "map") or not types_meet(field.type, part.type):
        raise ClientError(
            ErrorCode.FORMAT_MISMATCH_INDEX_PART,
            f"Field {part.field + 1} has type '{field.type}' in space format, "
            f"but type '{part.type}' in index definition",
        )


def types_meet(one: str, two: str) -> bool:
    """Whether one of the types contains the other."""
    return is_narrower_or_equal(one, two) or is_narrower_or_equal(two, one)


def _read_path(number: int, text: object) -> tuple[str | int, ...]:
    try:
        if isinstance(text, str):
            return parse_path(text)
    except PathError:
        pass
    raise ClientError(
        codes.WRONG_INDEX_OPTIONS, f"Wrong index options (field {number + 1}): invalid path"
    )


def _is_binary(collation: object) -> bool:
    return isinstance(collation, int | str) and collation in BINARY_COLLATIONS


def _wrong_parts(reason: str) -> ClientError:
    return ClientError(codes.WRONG_INDEX_PARTS, f"Wrong index parts: {reason}; {_EXPECTED_PARTS}")
