"""The rows of a fresh database: Tarantool 2.6's own system spaces, users and rights.

They are written compactly here and expanded once. Connectors read the views among them on connect,
and Tarantool can open a snapshot made of them. Fields are `name:type`; `?` after the type means
that the field may be NULL. Parts of indexes are `field:type`; a leading `!` means that the index is
not unique.
"""

from collections.abc import Iterator
from typing import Any

from qsync_client.protocol.spaces import SYSTEM_SPACE_MAX, SystemSpace

from . import system

_SPACES: tuple[tuple[SystemSpace, str, str], ...] = (
    (SystemSpace.VINYL_DEFERRED_DELETE, "blackhole", "space_id:unsigned lsn:unsigned tuple:array"),
    (SystemSpace.SCHEMA, "memtx", "key:string value:any?"),
    (
        SystemSpace.COLLATION,
        "memtx",
        "id:unsigned name:string owner:unsigned type:string locale:string opts:map",
    ),
    (SystemSpace.VCOLLATION, "sysview", "=COLLATION"),
    (
        SystemSpace.SPACE,
        "memtx",
        "id:unsigned owner:unsigned name:string engine:string field_count:unsigned "
        "flags:map format:array",
    ),
    (SystemSpace.VSPACE, "sysview", "=SPACE"),
    (
        SystemSpace.SEQUENCE,
        "memtx",
        "id:unsigned owner:unsigned name:string step:integer min:integer max:integer "
        "start:integer cache:integer cycle:boolean",
    ),
    (SystemSpace.SEQUENCE_DATA, "memtx", "id:unsigned value:integer"),
    (SystemSpace.VSEQUENCE, "sysview", "=SEQUENCE"),
    (
        SystemSpace.INDEX,
        "memtx",
        "id:unsigned iid:unsigned name:string type:string opts:map parts:array",
    ),
    (SystemSpace.VINDEX, "sysview", "=INDEX"),
    (
        SystemSpace.FUNC,
        "memtx",
        "id:unsigned owner:unsigned name:string setuid:unsigned language:string "
        "body:string routine_type:string param_list:array returns:string "
        "aggregate:string sql_data_access:string is_deterministic:boolean "
        "is_sandboxed:boolean is_null_call:boolean exports:array opts:map "
        "comment:string created:string last_altered:string",
    ),
    (SystemSpace.VFUNC, "sysview", "id:unsigned owner:unsigned name:string setuid:unsigned"),
    (SystemSpace.USER, "memtx", "id:unsigned owner:unsigned name:string type:string auth:map"),
    (SystemSpace.VUSER, "sysview", "=USER"),
    (
        SystemSpace.PRIV,
        "memtx",
        "grantor:unsigned grantee:unsigned object_type:string object_id:scalar privilege:unsigned",
    ),
    (SystemSpace.VPRIV, "sysview", "=PRIV"),
    (SystemSpace.CLUSTER, "memtx", "id:unsigned uuid:string"),
    (SystemSpace.TRIGGER, "memtx", "name:string space_id:unsigned opts:map"),
    (SystemSpace.TRUNCATE, "memtx", "id:unsigned count:unsigned"),
    (
        SystemSpace.SPACE_SEQUENCE,
        "memtx",
        "id:unsigned sequence_id:unsigned is_generated:boolean field:unsigned path:string",
    ),
    (
        SystemSpace.FK_CONSTRAINT,
        "memtx",
        "name:string child_id:unsigned parent_id:unsigned is_deferred:boolean "
        "match:string on_delete:string on_update:string child_cols:array "
        "parent_cols:array",
    ),
    (
        SystemSpace.CK_CONSTRAINT,
        "memtx",
        "space_id:unsigned name:string is_deferred:boolean language:str code:str "
        "is_enabled:boolean",
    ),
    (SystemSpace.FUNC_INDEX, "memtx", "space_id:unsigned index_id:unsigned func_id:unsigned"),
    (SystemSpace.SESSION_SETTINGS, "service", "name:string value:any"),
)
_FLAGS: dict[SystemSpace, dict[str, Any]] = {
    SystemSpace.VINYL_DEFERRED_DELETE: {"group_id": 1},
    SystemSpace.SESSION_SETTINGS: {"temporary": True},
}
_FIELD_COUNTS = {SystemSpace.SESSION_SETTINGS: 2}

_INDEXES: tuple[tuple[SystemSpace, str], ...] = (
    (SystemSpace.SCHEMA, "0=primary=0:string"),
    (SystemSpace.COLLATION, "0=primary=0:unsigned 1=name=1:string"),
    (SystemSpace.SPACE, "0=primary=0:unsigned 1=owner=!1:unsigned 2=name=2:string"),
    (SystemSpace.SEQUENCE, "0=primary=0:unsigned 1=owner=!1:unsigned 2=name=2:string"),
    (SystemSpace.SEQUENCE_DATA, "0=primary=0:unsigned"),
    (SystemSpace.INDEX, "0=primary=0:unsigned,1:unsigned 2=name=0:unsigned,2:string"),
    (SystemSpace.FUNC, "0=primary=0:unsigned 1=owner=!1:unsigned 2=name=2:string"),
    (SystemSpace.USER, "0=primary=0:unsigned 1=owner=!1:unsigned 2=name=2:string"),
    (
        SystemSpace.PRIV,
        "0=primary=1:unsigned,2:string,3:scalar 1=owner=!0:unsigned 2=object=!2:string,3:scalar",
    ),
    (SystemSpace.CLUSTER, "0=primary=0:unsigned 1=uuid=1:string"),
    (SystemSpace.TRIGGER, "0=primary=0:string 1=space_id=!1:unsigned"),
    (SystemSpace.TRUNCATE, "0=primary=0:unsigned"),
    (SystemSpace.SPACE_SEQUENCE, "0=primary=0:unsigned 1=sequence=!1:unsigned"),
    (SystemSpace.FK_CONSTRAINT, "0=primary=0:string,1:unsigned 1=child_id=!1:unsigned"),
    (SystemSpace.CK_CONSTRAINT, "0=primary=0:unsigned,1:string"),
    (SystemSpace.FUNC_INDEX, "0=primary=0:unsigned,1:unsigned 1=fid=!2:unsigned"),
    (SystemSpace.SESSION_SETTINGS, "0=primary=0:string"),
)
_VIEWS = {
    SystemSpace.VCOLLATION: SystemSpace.COLLATION,
    SystemSpace.VSPACE: SystemSpace.SPACE,
    SystemSpace.VSEQUENCE: SystemSpace.SEQUENCE,
    SystemSpace.VINDEX: SystemSpace.INDEX,
    SystemSpace.VFUNC: SystemSpace.FUNC,
    SystemSpace.VUSER: SystemSpace.USER,
    SystemSpace.VPRIV: SystemSpace.PRIV,
}

_SQL_FUNCTIONS = (
    "-", "TRIM", "TYPEOF", "PRINTF", "UNICODE", "CHAR", "HEX", "VERSION", "QUOTE",
    "REPLACE", "SUBSTR", "GROUP_CONCAT", "JULIANDAY", "DATE", "TIME", "DATETIME",
    "STRFTIME", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_DATE", "LENGTH", "POSITION",
    "ROUND", "UPPER", "LOWER", "IFNULL", "RANDOM", "CEIL", "CEILING", "CHARACTER_LENGTH",
    "CHAR_LENGTH", "FLOOR", "MOD", "OCTET_LENGTH", "ROW_COUNT", "COUNT", "LIKE", "ABS",
    "EXP", "LN", "POWER", "SQRT", "SUM", "TOTAL", "AVG", "RANDOMBLOB", "NULLIF",
    "ZEROBLOB", "MIN", "MAX", "COALESCE", "EVERY", "EXISTS", "EXTRACT", "SOME", "GREATER",
    "LESSER", "SOUNDEX", "LIKELIHOOD", "LIKELY", "UNLIKELY", "_sql_stat_get",
    "_sql_stat_push", "_sql_stat_init", "--", "GREATEST", "LEAST",
)  # fmt: skip
BUILTIN_FUNCTIONS = len(_SQL_FUNCTIONS)
"""Ids of functions that each database has are 1 to this number."""
_CREATED = "2019-12-29 17:52:51"
_EMPTY_PASSWORD = "vhvewKp0tNyweZQ+cFKAlsyphfg="


def _fields(text: str) -> list[dict[str, Any]]:
    if text.startswith("="):
        return next(_fields(row[2]) for row in _SPACES if row[0] is SystemSpace[text[1:]])
    fields = []
    for word in text.split():
        name, type_name = word.split(":")
        field: dict[str, Any] = {"name": name, "type": type_name.rstrip("?")}
        if type_name.endswith("?"):
            field["is_nullable"] = True
        fields.append(field)
    return fields


def space_rows() -> Iterator[list[Any]]:
    for space_id, engine, fields in _SPACES:
        count = _FIELD_COUNTS.get(space_id, 0)
        yield [
            int(space_id),
            system.ADMIN,
            space_id.space_name,
            engine,
            count,
            _FLAGS.get(space_id, {}),
            _fields(fields),
        ]


def index_rows() -> Iterator[list[Any]]:
    described = dict(_INDEXES)
    for space_id in sorted([*described, *_VIEWS]):
        for word in described[_VIEWS.get(space_id, space_id)].split():
            index_id, name, parts = word.split("=")
            pairs = [part.split(":") for part in parts.lstrip("!").split(",")]
            kind = "hash" if space_id == system.SEQUENCE_DATA_ID else "tree"
            unique = {"unique": not parts.startswith("!")}
            key = [[int(field), type_name] for field, type_name in pairs]
            yield [int(space_id), int(index_id), name, kind, unique, key]


def _function_row(function_id: int, name: str) -> list[Any]:
    language, body, parameters, exports = "SQL_BUILTIN", "", list[str](), list[str]()
    if name == "-":
        name, language, exports = "box.schema.user.info", "LUA", ["LUA"]
    elif name == "--":
        name, language, exports = "LUA", "LUA", ["LUA", "SQL"]
        body, parameters = "function(code) return assert(loadstring(code))() end", ["string"]
    head = [function_id, system.ADMIN, name, 1, language, body, "function", parameters, "any"]
    tail = ["none", "none", False, False, True, exports, {}, "", _CREATED, _CREATED]
    return head + tail


def _user_rows() -> Iterator[list[Any]]:
    yield [system.GUEST, system.ADMIN, "guest", "user", {"chap-sha1": _EMPTY_PASSWORD}]
    yield [system.ADMIN, system.ADMIN, "admin", "user", {}]
    yield [system.PUBLIC, system.ADMIN, "public", "role", {}]
    yield [system.REPLICATION, system.ADMIN, "replication", "role", {}]
    yield [system.SUPER, system.ADMIN, "super", "role", {}]


def _priv_rows() -> Iterator[list[Any]]:
    admin = system.ADMIN
    yield [admin, system.GUEST, "role", system.PUBLIC, system.EXECUTE]
    yield [admin, system.GUEST, "universe", 0, system.SESSION | system.USAGE]
    yield [admin, system.ADMIN, "universe", 0, system.ALL_PRIVILEGES]
    for number in range(1, len(_SQL_FUNCTIONS) + 1):
        yield [admin, system.PUBLIC, "function", number, system.EXECUTE]
    yield [admin, system.PUBLIC, "space", system.COLLATION_ID, system.WRITE]
    for view_id in _VIEWS:
        yield [admin, system.PUBLIC, "space", int(view_id), system.READ]
    yield [admin, system.PUBLIC, "space", system.TRUNCATE_ID, system.WRITE]
    yield [admin, system.REPLICATION, "space", system.CLUSTER_ID, system.WRITE]
    yield [admin, system.REPLICATION, "universe", 0, system.READ]
    yield [admin, system.SUPER, "universe", 0, system.ALL_PRIVILEGES]


def bootstrap_rows(
    replicaset_uuid: str, version: tuple[int, int, int]
) -> Iterator[tuple[int, list[Any]]]:
    """Yield (space id, row) in loading order: definitions before contents."""
    for row in space_rows():
        yield system.SPACE_ID, row
    for row in index_rows():
        yield system.INDEX_ID, row
    yield system.SCHEMA_ID, ["cluster", replicaset_uuid]
    yield system.SCHEMA_ID, ["max_id", SYSTEM_SPACE_MAX]
    yield system.SCHEMA_ID, ["version", *version]
    for number, (name, kind) in enumerate((("none", "BINARY"), ("binary", "BINARY"))):
        yield system.COLLATION_ID, [number * 3, name, 1, kind, "", {}]
    yield system.COLLATION_ID, [1, "unicode", 1, "ICU", "", {"strength": "tertiary"}]
    yield system.COLLATION_ID, [2, "unicode_ci", 1, "ICU", "", {"strength": "primary"}]
    for number, name in enumerate(_SQL_FUNCTIONS, 1):
        yield system.FUNC_ID, _function_row(number, name)
    for row in _user_rows():
        yield system.USER_ID, row
    for row in _priv_rows():
        yield system.PRIV_ID, row
