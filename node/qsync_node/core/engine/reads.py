"""Reads: SELECT over any state, its iterators, pagination and the views of system spaces.

A position is the msgpack of the entry key's fields as they stand in the last tuple of a page: it
says where to go on without naming the tuple's place, so changes in between do no harm.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from qsync_node.errors import ClientError, ErrorCode

from . import codes, system
from .access import User
from .fields import decode
from .index import IndexView, Range, range_after, range_of
from .keydef import KeyDef
from .pieces import item_of, read_header
from .requests import Select
from .space import Space
from .tuples import join_array

if TYPE_CHECKING:
    from .state import State

_ITERATOR_COUNT = len(codes.ITERATOR_NAMES)


def select(state: "State", request: Select, user: User) -> list[bytes]:
    """The tuples a SELECT answers."""
    return select_page(state, request, user)[0]


def select_page(state: "State", request: Select, user: User) -> tuple[list[bytes], bytes | None]:
    """The tuples, and where to go on if that was asked for and there were any."""
    if request.iterator >= _ITERATOR_COUNT:
        raise ClientError(ErrorCode.ILLEGAL_PARAMS, "Illegal parameters, Invalid iterator type")
    space = state.space(request.space_id)
    user.check_space(space.definition, system.READ)
    if space.definition.is_view:
        return _select_view(state, space, request, user)
    index = space.index(request.index_id)
    key_def = index.key_def
    if (
        request.iterator == codes.EQ
        and len(request.key) == len(key_def.parts)
        and key_def.identifies
        and request.after_tuple is None
        and request.after_position is None
    ):
        found = index.get(key_def.exact_key(request.key))
        if found is None or request.offset or not request.limit:
            return [], None
        return [found], _position(key_def, found) if request.wants_position else None
    entries = _scan(space, request.index_id, index, request)
    return _page(entries, key_def, request)


def _page(
    entries: Iterator[tuple[Any, bytes]], key_def: KeyDef, request: Select
) -> tuple[list[bytes], bytes | None]:
    stop = min(request.offset + request.limit, 1 << 62)
    found = [packed for _, packed in islice(entries, min(request.offset, stop), stop)]
    if not request.wants_position:
        return found, None
    if not found:
        return found, request.after_position
    return found, _position(key_def, found[-1])


def _scan(
    space: Space, index_id: int, index: IndexView, request: Select
) -> Iterator[tuple[Any, bytes]]:
    iterator = request.iterator
    is_tree = space.index_defs[index_id].is_tree
    key_def = index.key_def
    if not is_tree:
        _check_full_key(key_def, request)
    prefix = key_def.search_prefix(request.key)
    if iterator > codes.GT or (not is_tree and iterator not in (codes.EQ, codes.ALL, codes.GT)):
        _refuse_iterator(space, index_id, is_tree)
    if not is_tree:
        if request.after_position is not None or request.after_tuple is not None:
            raise _unsupported(space, index_id, is_tree, "pagination")
        return _scan_hash(index, request)
    bounds = range_of(key_def, iterator, prefix)
    if request.after_position is not None:
        bounds = range_after(bounds, _read_position(key_def, request.after_position))
    elif request.after_tuple is not None:
        fields = decode(request.after_tuple)
        space.format.validate(fields)
        bounds = range_after(bounds, key_def.entry_key(fields))
    return index.scan(bounds)


def _check_full_key(key_def: KeyDef, request: Select) -> None:
    given, needed = len(request.key), len(key_def.parts)
    if given >= needed or (not given and request.iterator in (codes.ALL, codes.GT)):
        return
    raise ClientError(
        codes.HASH_PARTIAL_KEY,
        "HASH index  does not support selects via a partial key "
        f"(expected {needed} parts, got {given}). Please Consider changing index type to TREE.",
    )


def _scan_hash(index: IndexView, request: Select) -> Iterator[tuple[Any, bytes]]:
    key_def = index.key_def
    if request.key and request.iterator != codes.ALL:
        key = key_def.exact_key(request.key)
        if request.iterator == codes.EQ:
            found = index.get(key)
            return iter(()) if found is None else iter(((key, found),))
        return index.scan(Range(key, None, True, False, False))
    return index.entries()


def _refuse_iterator(space: Space, index_id: int, is_tree: bool) -> NoReturn:
    raise _unsupported(space, index_id, is_tree, "requested iterator type")


def _unsupported(space: Space, index_id: int, is_tree: bool, what: str) -> ClientError:
    name = space.index_defs[index_id].name
    kind = "TREE" if is_tree else "HASH"
    return ClientError(
        codes.UNSUPPORTED_INDEX_FEATURE,
        f"Index '{name}' ({kind}) of space '{space.name}' (memtx) does not support {what}",
    )


def _position(key_def: KeyDef, packed: bytes) -> bytes:
    if any(part.path for part in key_def.entry_parts):
        return b"\x92\x00" + packed
    count = read_header(packed)[0]
    nil = b"\xc0"
    parts = [item_of(packed, p.field) if p.field < count else nil for p in key_def.entry_parts]
    return b"\x92\x01" + join_array(parts)


def _read_position(key_def: KeyDef, position: bytes) -> Any:
    try:
        kind, values = decode(position)
        if kind == 0:
            return key_def.entry_key(values)
        fields: list[Any] = [None] * (max(part.field for part in key_def.entry_parts) + 1)
        for part, value in zip(key_def.entry_parts, values, strict=True):
            fields[part.field] = value
        return key_def.entry_key(fields)
    except (ClientError, ValueError, TypeError, KeyError, IndexError) as error:
        raise ClientError(codes.ITERATOR_POSITION, "Iterator position is invalid") from error


# --- views ----------------------------------------------------------------------------------------

_SOURCES = {
    system.VCOLLATION_ID: system.COLLATION_ID,
    system.VSPACE_ID: system.SPACE_ID,
    system.VSEQUENCE_ID: system.SEQUENCE_ID,
    system.VINDEX_ID: system.INDEX_ID,
    system.VFUNC_ID: system.FUNC_ID,
    system.VUSER_ID: system.USER_ID,
    system.VPRIV_ID: system.PRIV_ID,
}


def _select_view(
    state: "State", view: Space, request: Select, user: User
) -> tuple[list[bytes], bytes | None]:
    source = state.space(_SOURCES.get(view.id, view.id))
    if source is view:
        return [], None
    view.index(request.index_id)
    index = source.index(request.index_id)
    entries = _scan(source, request.index_id, index, request)
    is_visible = _VISIBILITY[source.id]
    visible = (entry for entry in entries if is_visible(state, decode(entry[1]), user))
    return _page(visible, index.key_def, request)


def _has_rights(user: User, object_type: str, object_id: int, owner: int) -> bool:
    own = user.universe | user.grants.get((object_type, ""), 0)
    own |= user.grants.get((object_type, object_id), 0)
    return owner == user.id or bool(own & ~(system.SESSION | system.USAGE))


def _is_space_visible(state: "State", row: list[Any], user: User) -> bool:
    return _has_rights(user, "space", row[0], row[1])


def _is_index_visible(state: "State", row: list[Any], user: User) -> bool:
    space = state.find_space(row[0])
    return space is not None and _has_rights(user, "space", row[0], space.definition.owner)


def _is_user_visible(state: "State", row: list[Any], user: User) -> bool:
    return (
        bool(user.universe & (system.READ | system.WRITE))
        or user.id in (row[0], row[1])
        or row[0] == system.PUBLIC
    )


def _is_priv_visible(state: "State", row: list[Any], user: User) -> bool:
    return bool(user.universe & (system.READ | system.WRITE)) or user.id in (row[0], row[1])


def _is_func_visible(state: "State", row: list[Any], user: User) -> bool:
    return _has_rights(user, "function", row[0], row[1])


def _is_sequence_visible(state: "State", row: list[Any], user: User) -> bool:
    return _has_rights(user, "sequence", row[0], row[1])


_VISIBILITY: dict[int, Callable[["State", list[Any], User], bool]] = {
    system.COLLATION_ID: lambda _state, _row, _user: True,
    system.SPACE_ID: _is_space_visible,
    system.INDEX_ID: _is_index_visible,
    system.USER_ID: _is_user_visible,
    system.PRIV_ID: _is_priv_visible,
    system.FUNC_ID: _is_func_visible,
    system.SEQUENCE_ID: _is_sequence_visible,
}
