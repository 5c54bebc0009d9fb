"""Rows of `_space` and `_index` as definitions, with every check that can refuse one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from qsync_client.protocol.spaces import SYSTEM_SPACE_MAX
from qsync_node.errors import ClientError, ErrorCode

from . import errors
from .definitions import FieldDef, IndexDef, SpaceDef
from .fields import FIELD_TYPES, INDEXABLE_TYPES
from .keydef import KeyPart
from .paths import PathError, parse_path

BINARY_COLLATIONS = frozenset({0, 3})  # none, binary
PARTS_MAX = 255
INDEX_ID_MAX = 127
INDEX_FIELD_MAX = 100_000
NAME_BYTES_MAX = 65000
# Bytes of a name that an error repeats if the name is too long.
_SHORTENED_BYTES = 64
_ENGINE_NAME_MAX = 16
# Names of some types in old rows.
_TYPE_ALIASES = {"*": "any", "num": "unsigned", "str": "string"}
# Options of a space, a field, an index and a part, each with the kind of its value.
_SPACE_OPTIONS = {
    "group_id": "unsigned", "temporary": "boolean", "view": "boolean", "is_sync": "boolean",
    "sql": "string",
}  # fmt: skip
_FIELD_OPTIONS = {
    "name": "string", "type": "enum", "is_nullable": "boolean", "nullable_action": "enum",
    "collation": "unsigned", "default": "string",
}  # fmt: skip
_INDEX_OPTIONS = {
    "unique": "boolean", "dimension": "integer", "distance": "enum", "range_size": "integer",
    "page_size": "integer", "run_count_per_level": "integer", "run_size_ratio": "float",
    "bloom_fpr": "float", "lsn": "integer", "func": "unsigned",
}  # fmt: skip
_PART_OPTIONS = {
    "field": "unsigned", "type": "enum", "collation": "unsigned", "is_nullable": "boolean",
    "nullable_action": "enum", "sort_order": "enum", "path": "string",
}  # fmt: skip
_OPTION_KINDS: dict[str, tuple[type, ...]] = {
    "unsigned": (int,),
    "integer": (int,),
    "float": (float, int),
    "boolean": (bool,),
    "string": (str,),
    "enum": (str,),
}
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


def is_too_long(name: str) -> bool:
    return len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX


def shortened(name: str) -> str:
    """Return the beginning of a name that is too long, for the error message."""
    start = name.encode("utf-8", "surrogateescape")[:_SHORTENED_BYTES]
    return start.decode("utf-8", "surrogateescape")


def check_name(name: str) -> None:
    """Raise unless the name can be an identifier."""
    if not name or not name.isprintable():
        raise ClientError(
            ErrorCode.IDENTIFIER,
            f"Invalid identifier '{name}' (expected printable symbols only or it is too long)",
        )


def read_space(row: list[Any], is_new: bool) -> SpaceDef:
    """Return the definition in a row of `_space` whose fields already have the right types."""
    space_id, owner, name, engine, field_count, flags, fields = row[:7]
    failed = create_error if is_new else alter_error
    if is_too_long(name):
        raise failed(shortened(name), "space name is too long")
    check_name(name)
    if space_id > 0x7FFFFFFF:
        raise failed(name, "space id is too big")
    if space_id == 0:
        raise failed(name, "space id 0 is reserved")
    if len(engine.encode("utf-8", "surrogateescape")) > _ENGINE_NAME_MAX:
        raise failed(name, "space engine name is too long")
    check_name(engine)
    formats = tuple(_read_fields(name, fields, failed))
    if field_count and len(formats) > field_count:
        raise failed(name, "exact_field_count must be either 0 or >= formatted field count")
    if not isinstance(flags, dict):
        raise _wrong_space_option("names of options must be strings")
    _check_known(flags, _SPACE_OPTIONS, _wrong_space_option)
    if engine not in ("memtx", "vinyl", "sysview", "blackhole", "service"):
        raise ClientError(ErrorCode.NO_SUCH_SPACE_NAME, f"Space engine '{engine}' does not exist")
    if space_id > SYSTEM_SPACE_MAX and is_new:
        _check_user_space(name, engine, flags)
    _check_field_names(formats)
    return SpaceDef(space_id, owner, name, engine, field_count, flags, formats)


def _wrong_space_option(reason: str) -> ClientError:
    return ClientError(errors.WRONG_SPACE_OPTIONS, f"Wrong space options (field 5): {reason}")


def _check_user_space(name: str, engine: str, flags: Any) -> None:
    if engine != "memtx":
        raise create_error(name, f"engine '{engine}' is not supported, use 'memtx'")
    if flags.get("group_id"):
        raise create_error(name, "local spaces are not supported")
    check_flags(name, flags, create_error)


def check_flags(
    name: str, flags: Mapping[str, object], failed: Callable[[str, str], ClientError]
) -> None:
    """Raise if the flags of a user space demand an unsupported kind of space."""
    if flags.get("temporary"):
        raise failed(name, "temporary spaces are not supported")
    if flags.get("view") or flags.get("sql"):
        raise failed(name, "SQL views are not supported")


def _read_fields(name: str, fields: list[Any], failed: Any) -> Iterator[FieldDef]:
    for number, field in enumerate(fields, 1):
        if not isinstance(field, dict):
            raise failed(name, f"field {number} is not map")
        bad_key = failed(name, f"field {number} format is not map with string keys")
        _check_known(field, _FIELD_OPTIONS, partial(_wrong_format, number), bad_key, True)
        field_name = field.get("name")
        if not field_name:
            raise failed(name, f"field {number} name is not specified")
        if is_too_long(field_name):
            raise failed(name, f"field {number} name is too long")
        check_name(field_name)
        type_name = _type_name(field.get("type", "any"))
        if type_name is None:
            if name != "_ck_constraint":
                raise failed(name, f"field {number} has unknown field type")
            type_name = "string"
        is_nullable, collation = field.get("is_nullable", False), field.get("collation", 0)
        if _is_contradictory(field):
            raise failed(
                name,
                f"field {number} has conflicting nullability and nullable action properties",
            )
        if collation and type_name not in ("string", "scalar", "any"):
            raise failed(name, "collation is reasonable only for string, scalar and any fields")
        if collation not in BINARY_COLLATIONS:
            raise failed(name, f"field {number}: only binary collations are supported")
        yield FieldDef(field_name, type_name, is_nullable)


def _is_contradictory(options: dict[str, Any]) -> bool:
    """Return whether the options of a field or part contradict each other about NULL."""
    action = options.get("nullable_action")
    return action is not None and options.get("is_nullable", False) != (action == "none")


def _check_field_names(fields: Iterable[FieldDef]) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            raise ClientError(
                ErrorCode.SPACE_FIELD_IS_DUPLICATE, f"Space field '{field.name}' is duplicate"
            )
        seen.add(field.name)


def _wrong_format(number: int, reason: str) -> ClientError:
    return ClientError(errors.WRONG_SPACE_FORMAT, f"Wrong space format (field {number}): {reason}")


def _check_known(
    options: dict[Any, Any],
    known: dict[str, str],
    wrong: Callable[[str], ClientError],
    bad_key: ClientError | None = None,
    skips_unknown: bool = False,
) -> None:
    """Raise unless each option is known and has a value of its kind."""
    for option, value in options.items():
        if not isinstance(option, str):
            raise bad_key or wrong("key must be a string")
        kind = known.get(option)
        if kind is None:
            if skips_unknown:
                continue
            raise wrong(f"unexpected option '{option}'")
        if type(value) not in _OPTION_KINDS[kind] or (kind == "unsigned" and value < 0):
            raise wrong(f"'{option}' must be {kind}")


def read_index(row: list[Any], space: SpaceDef) -> IndexDef:
    """Return the definition in a row of `_index` whose fields already have the right types.

    The checks run in Tarantool's order.
    """
    space_id, index_id, name, kind, options, raw_parts = row[:6]
    if not isinstance(options, dict):
        raise _wrong_index_options(4, "names of options must be strings")
    _check_known(options, _INDEX_OPTIONS, partial(_wrong_index_options, 4))
    if is_too_long(name):
        raise index_error(shortened(name), space.name, "index name is too long")
    check_name(name)
    if options.get("func"):
        raise index_error(name, space.name, "functional indexes are not supported")
    kind = kind.lower()
    is_unique = options.get("unique", True)
    parts = tuple(_read_parts(raw_parts, name, space))
    definition = IndexDef(space_id, index_id, name, kind == "tree", is_unique, parts)
    _check_index(definition, space)
    _check_kind(definition, kind, space)
    return definition


def check_distance(row: list[Any]) -> None:
    """Raise unless the distance in a row of `_index` is known to Tarantool.

    The distance matters only to RTREE, and rows from before this check may have any value. It is
    therefore checked only for statements of users.
    """
    options = row[4]
    if not isinstance(options, dict) or not isinstance(options.get("distance"), str):
        return
    wrong = partial(_wrong_index_options, 4)
    _check_known(options, _INDEX_OPTIONS, wrong)
    if options["distance"].lower() not in ("euclid", "manhattan"):
        raise wrong("distance must be either 'euclid' or 'manhattan'")


def _check_index(index: IndexDef, space: SpaceDef) -> None:
    if index.id > INDEX_ID_MAX:
        raise index_error(index.name, space.name, "index id too big")
    if index.id == 0 and not index.is_unique:
        raise index_error(index.name, space.name, "primary key must be unique")
    if not index.parts:
        raise index_error(index.name, space.name, "part count must be positive")
    if len(index.parts) > PARTS_MAX:
        raise index_error(index.name, space.name, "too many key parts")
    seen = set()
    for part in index.parts:
        if part.field >= INDEX_FIELD_MAX:
            raise index_error(index.name, space.name, "field no is too big")
        if (part.field, part.path) in seen:
            raise index_error(index.name, space.name, "same key part is indexed twice")
        seen.add((part.field, part.path))


def _check_kind(index: IndexDef, kind: str, space: SpaceDef) -> None:
    """Raise unless the definition suits an index of this kind."""
    if any(part.is_nullable for part in index.parts):
        if index.id == 0:
            raise ClientError(
                ErrorCode.NULLABLE_MISMATCH,
                f"Primary index of space '{space.name}' can not contain nullable parts",
            )
        if not index.is_tree:
            raise ClientError(
                ErrorCode.UNSUPPORTED, f"{kind.upper()} does not support nullable parts"
            )
    if kind in ("bitset", "rtree"):
        raise index_error(index.name, space.name, f"{kind.upper()} indexes are not supported")
    if kind not in ("tree", "hash"):
        raise ClientError(
            ErrorCode.INDEX_TYPE,
            f"Unsupported index type supplied for index '{index.name}' in space '{space.name}'",
        )
    if kind == "hash" and not index.is_unique:
        raise index_error(index.name, space.name, "HASH index must be unique")
    for part in index.parts:
        if part.type not in INDEXABLE_TYPES:
            raise index_error(index.name, space.name, f"field type '{part.type}' is not supported")


def _read_parts(raw_parts: list[Any], index_name: str, space: SpaceDef) -> Iterator[KeyPart]:
    """Yield the parts, which are all arrays or all maps, as the first one is."""
    are_arrays = bool(raw_parts) and isinstance(raw_parts[0], list)
    for number, raw in enumerate(raw_parts, 1):
        yield (
            _read_array_part(raw) if are_arrays else _read_map_part(number, raw, index_name, space)
        )


def _read_array_part(raw: object) -> KeyPart:
    if not isinstance(raw, list):
        raise _wrong_parts("expected an array")
    if not raw:
        raise _wrong_parts("expected a non-empty array")
    if len(raw) < 2:
        raise _wrong_parts("a field type is missing")
    field, type_value = raw[:2]
    if type(field) is not int or field < 0:
        raise _wrong_parts("field id must be an integer")
    if not isinstance(type_value, str):
        raise _wrong_parts("field type must be a string")
    type_name = _type_name(type_value)
    if type_name is None:
        raise _wrong_parts("unknown field type")
    return KeyPart(field, type_name)


def _read_map_part(number: int, raw: object, index_name: str, space: SpaceDef) -> KeyPart:
    if not isinstance(raw, dict):
        raise _wrong_index_options(number, "index part is expected to be a map")
    _check_known(raw, _PART_OPTIONS, partial(_wrong_index_options, number))
    field = raw.get("field")
    if field is None:
        raise _wrong_parts("field id must be an integer")
    type_name = _type_name(raw.get("type", "any"))
    if type_name is None:
        raise _wrong_index_options(number, "index part: unknown field type")
    collation, is_nullable = raw.get("collation", 0), raw.get("is_nullable", False)
    if collation and type_name not in ("string", "scalar"):
        raise _wrong_index_options(
            number, "collation is reasonable only for string and scalar parts"
        )
    if _is_contradictory(raw):
        raise _wrong_index_options(
            number, "index part: conflicting nullability and nullable action properties"
        )
    if collation not in BINARY_COLLATIONS:
        raise index_error(index_name, space.name, "only binary collations are supported")
    path: tuple[str | int, ...] = ()
    if raw.get("path"):
        path = _read_path(number, raw["path"])
    return KeyPart(field, type_name, is_nullable, path)


def _read_path(number: int, text: object) -> tuple[str | int, ...]:
    try:
        if isinstance(text, str):
            return parse_path(text)
    except PathError:
        pass
    raise _wrong_index_options(number, "invalid path")


def _wrong_index_options(number: int, reason: str) -> ClientError:
    return ClientError(
        errors.WRONG_INDEX_OPTIONS, f"Wrong index options (field {number}): {reason}"
    )


def _wrong_parts(reason: str) -> ClientError:
    return ClientError(errors.WRONG_INDEX_PARTS, f"Wrong index parts: {reason}; {_EXPECTED_PARTS}")
