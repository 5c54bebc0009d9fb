"""Reads: SELECT over any state, its iterators, pagination and the views of system spaces.

A position is the msgpack of the entry key's fields in the last tuple of a page. It defines where
the next page starts without naming the tuple's place, so changes in between do no harm.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

from qsync_client.protocol.markers import FIXARRAY, NIL
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol

from . import errors, system
from .access import User
from .fields import decode
from .index import (
    EVERYTHING,
    HashIndex,
    IndexView,
    KeyRange,
    LayerIndex,
    TreeIndex,
    range_after,
    range_of,
)
from .keydef import KeyDef
from .pieces import item_of, read_header
from .requests import Select
from .space import SpaceData
from .tuples import join_array

if TYPE_CHECKING:
    from .state import DatabaseState

_ITERATOR_COUNT = len(protocol.ITERATOR_NAMES)
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of tuples that one answer may hold. A larger result is read in pages."""
WALKED_MAX = 200_000
"""Entries that a read may walk when pending changes prevent a jump."""
_PART = 4096


class SteppedSelect:
    """A SELECT that runs in parts.

    The state may change between two parts: the later parts read from a view of the state at the end
    of the first part (`ReadView`).
    """

    __slots__ = ("_bounds", "_index", "_key_def", "_request", "_tuples", "found", "size")

    def __init__(self, tuples: Iterable[bytes], key_def: KeyDef, request: Select) -> None:
        self.found: list[bytes] = []
        self.size = 0
        self._tuples = iter(tuples)
        self._key_def = key_def
        self._request = request
        self._index: TreeIndex | HashIndex | None = None
        self._bounds = EVERYTHING

    def can_pause_in(self, index: TreeIndex | HashIndex, bounds: KeyRange = EVERYTHING) -> None:
        """Let `pause` resume in `index`, within `bounds`; a hash index is read as a whole."""
        self._index, self._bounds = index, bounds

    def run(self, tuples_max: int = sys.maxsize) -> bool:
        """Read at most `tuples_max` tuples; return True when none is left.

        Raises:
            ClientError: the tuples are too large for one answer.
        """
        left = min(self._request.limit - len(self.found), tuples_max)
        while left and (part := list(islice(self._tuples, min(left, _PART)))):
            self.size += sum(map(len, part))
            if self.size > ANSWER_BYTES_MAX:
                raise ClientError(
                    ErrorCode.MEMORY_ISSUE,
                    f"the read failed: its result has more than {ANSWER_BYTES_MAX} bytes; "
                    "read in pages, with a limit and the position after the last tuple",
                )
            self.found += part
            left -= len(part)
        return left > 0 or len(self.found) == self._request.limit

    def pause(self) -> bool:
        """Prepare to resume in another step; return False if this reading must `run` to its end."""
        index = self._index
        if index is None:
            return False
        if isinstance(index, HashIndex):
            # A view has no position in the order of a hash index: read it again from the start.
            self.found, self.size = [], 0
            self._tuples = iter(index.view())
        elif self.found:
            last = self._key_def.entry_key(decode(self.found[-1]))
            self._tuples = iter(index.view(range_after(self._bounds, last)))
        self._index = None
        return True

    @property
    def position(self) -> bytes | None:
        """The start of the next page; None if the client did not ask for it."""
        if not self._request.wants_position:
            return None
        if not self.found:
            return self._request.after_position
        return _position(self._key_def, self.found[-1])


def select(state: "DatabaseState", request: Select, user: User) -> list[bytes]:
    """Return the tuples of a SELECT."""
    return select_page(state, request, user)[0]


def select_page(
    state: "DatabaseState", request: Select, user: User
) -> tuple[list[bytes], bytes | None]:
    """Return the tuples, and the start of the next page if the client asked for it.

    Raises:
        ClientError: the read is refused or takes more than one step.
    """
    reading = begin(state, request, user)
    if not reading.run(WALKED_MAX) and not reading.run(1):
        raise _walks_too_far()
    return reading.found, reading.position


def begin(state: "DatabaseState", request: Select, user: User) -> SteppedSelect:
    """Return a SELECT that has read nothing yet.

    Raises:
        ClientError: the read is refused.
    """
    if request.iterator >= _ITERATOR_COUNT:
        raise ClientError(ErrorCode.ILLEGAL_PARAMS, "Illegal parameters, Invalid iterator type")
    space = state.space(request.space_id)
    user.check_space(space.definition, system.READ)
    if space.definition.is_view:
        return _read_view(state, space, request, user)
    index = space.index(request.index_id)
    key_def = index.key_def
    if (
        request.iterator == protocol.EQ
        and len(request.key) == len(key_def.parts)
        and key_def.identifies
        and request.after_tuple is None
        and request.after_position is None
    ):
        found = index.get(key_def.exact_key(request.key))
        if found is None or request.offset or not request.limit:
            return SteppedSelect((), key_def, request)
        return SteppedSelect((found,), key_def, request)
    if isinstance(index, LayerIndex):
        index = index.written_to()
    if isinstance(index, TreeIndex):
        bounds = _bounds(space, request.index_id, index, request)
        tuples = index.tuples_in(bounds, min(request.offset, sys.maxsize))
        reading = SteppedSelect(tuples, key_def, request)
        reading.can_pause_in(index, bounds)
        return reading
    entries = _scan(space, request.index_id, index, request)
    if isinstance(index, HashIndex):
        rest = islice(entries, min(request.offset, sys.maxsize), None)
        reading = SteppedSelect(map(itemgetter(1), rest), key_def, request)
        if not request.key and not request.offset and request.limit >= len(index):
            reading.can_pause_in(index)
        return reading
    return SteppedSelect(_walk(entries, request), key_def, request)


def _walk(entries: Iterator[tuple[Any, bytes]], request: Select) -> Iterator[bytes]:
    """Yield the tuples after the offset.

    Raises:
        ClientError: the read walks more than WALKED_MAX entries.
    """
    left = WALKED_MAX - request.offset
    for _, packed in islice(entries, min(request.offset, WALKED_MAX), None):
        if left <= 0:
            raise _walks_too_far()
        left -= 1
        yield packed


def _walks_too_far() -> ClientError:
    return ClientError(
        ErrorCode.MEMORY_ISSUE,
        f"the read failed: it visits more than {WALKED_MAX} index entries; read in pages, "
        "with a limit and the position after the last tuple",
    )


def _scan(
    space: SpaceData, index_id: int, index: IndexView, request: Select
) -> Iterator[tuple[Any, bytes]]:
    if space.index_defs[index_id].is_tree:
        return index.scan(_bounds(space, index_id, index, request))
    _check_full_key(index.key_def, request)
    index.key_def.search_prefix(request.key)
    if request.iterator not in (protocol.EQ, protocol.ALL, protocol.GT):
        _refuse_iterator(space, index_id, is_tree=False)
    if request.after_position is not None or request.after_tuple is not None:
        raise _unsupported(space, index_id, False, "pagination")
    return _scan_hash(index, request)


def _bounds(space: SpaceData, index_id: int, index: IndexView, request: Select) -> KeyRange:
    """Return the range of a tree that the request reads."""
    key_def = index.key_def
    prefix = key_def.search_prefix(request.key)
    if request.iterator > protocol.GT:
        _refuse_iterator(space, index_id, is_tree=True)
    bounds = range_of(key_def, request.iterator, prefix)
    if request.after_position is not None:
        after = _read_position(key_def, request.after_position)
    elif request.after_tuple is not None:
        fields = decode(request.after_tuple)
        space.format.validate(fields)
        after = key_def.entry_key(fields)
    else:
        return bounds
    _check_position(prefix, after if not key_def.is_plain else (after,), request.iterator)
    return range_after(bounds, after)


def _check_position(prefix: tuple[Any, ...], after: tuple[Any, ...], iterator: int) -> None:
    """Raise if a page would begin outside the range of its key.

    A page of GT or LT may begin at a tuple with the key itself, as in Tarantool.

    Source: Tarantool's `iterator_position_validate`.
    """
    place = after[: len(prefix)]
    is_equal = iterator in (protocol.EQ, protocol.REQ)
    is_reverse = iterator in (protocol.REQ, protocol.LT, protocol.LE)
    if place != prefix and (is_equal or (place > prefix) == is_reverse):
        raise _wrong_position()


def _wrong_position() -> ClientError:
    return ClientError(errors.ITERATOR_POSITION, "Iterator position is invalid")


def _check_full_key(key_def: KeyDef, request: Select) -> None:
    given, needed = len(request.key), len(key_def.parts)
    if given >= needed or (not given and request.iterator in (protocol.ALL, protocol.GT)):
        return
    raise ClientError(
        errors.HASH_PARTIAL_KEY,
        "HASH index  does not support selects via a partial key "
        f"(expected {needed} parts, got {given}). Please Consider changing index type to TREE.",
    )


def _scan_hash(index: IndexView, request: Select) -> Iterator[tuple[Any, bytes]]:
    key_def = index.key_def
    if request.key and request.iterator != protocol.ALL:
        key = key_def.exact_key(request.key)
        if request.iterator == protocol.EQ:
            found = index.get(key)
            return iter(()) if found is None else iter(((key, found),))
        return index.scan(KeyRange(key, None, True, False, False))
    return index.entries()


def _refuse_iterator(space: SpaceData, index_id: int, is_tree: bool) -> NoReturn:
    raise _unsupported(space, index_id, is_tree, "requested iterator type")


def _unsupported(space: SpaceData, index_id: int, is_tree: bool, what: str) -> ClientError:
    name = space.index_defs[index_id].name
    kind = "TREE" if is_tree else "HASH"
    return ClientError(
        errors.UNSUPPORTED_INDEX_FEATURE,
        f"Index '{name}' ({kind}) of space '{space.name}' (memtx) does not support {what}",
    )


_NIL = bytes((NIL,))
# A position is an array of a kind and a value.
_WHOLE_TUPLE, _KEY_PARTS = bytes((FIXARRAY | 2, 0)), bytes((FIXARRAY | 2, 1))


def _position(key_def: KeyDef, packed: bytes) -> bytes:
    if any(part.path for part in key_def.entry_parts):
        return _WHOLE_TUPLE + packed
    count = read_header(packed)[0]
    parts = [item_of(packed, p.field) if p.field < count else _NIL for p in key_def.entry_parts]
    return _KEY_PARTS + join_array(parts)


def _read_position(key_def: KeyDef, position: bytes) -> Any:
    try:
        kind, values = decode(position)
        if kind == 0:
            key_def.check_types(values)
            return key_def.entry_key(values)
        fields: list[Any] = [None] * (max(part.field for part in key_def.entry_parts) + 1)
        for part, value in zip(key_def.entry_parts, values, strict=True):
            fields[part.field] = value
        key_def.check_types(fields)
        return key_def.entry_key(fields)
    except (ClientError, ValueError, TypeError, KeyError, IndexError) as error:
        raise _wrong_position() from error


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


def _read_view(
    state: "DatabaseState", view: SpaceData, request: Select, user: User
) -> SteppedSelect:
    source = state.space(_SOURCES.get(view.id, view.id))
    if source is view:
        return SteppedSelect((), view.index(request.index_id).key_def, request)
    view.index(request.index_id)
    index = source.index(request.index_id)
    entries = _scan(source, request.index_id, index, request)
    is_visible = _VISIBILITY[source.id]
    visible = (entry for entry in entries if is_visible(state, decode(entry[1]), user))
    return SteppedSelect(_walk(visible, request), index.key_def, request)


def _has_rights(user: User, object_type: str, object_id: int, owner: int) -> bool:
    own = user.universe | user.grants.get((object_type, ""), 0)
    own |= user.grants.get((object_type, object_id), 0)
    return owner == user.id or bool(own & ~(system.SESSION | system.USAGE))


def _is_space_visible(state: "DatabaseState", row: list[Any], user: User) -> bool:
    return _has_rights(user, "space", row[0], row[1])


def _is_index_visible(state: "DatabaseState", row: list[Any], user: User) -> bool:
    space = state.find_space(row[0])
    return space is not None and _has_rights(user, "space", row[0], space.definition.owner)


def _is_user_visible(state: "DatabaseState", row: list[Any], user: User) -> bool:
    return (
        bool(user.universe & (system.READ | system.WRITE))
        or user.id in (row[0], row[1])
        or row[0] == system.PUBLIC
    )


def _is_priv_visible(state: "DatabaseState", row: list[Any], user: User) -> bool:
    return bool(user.universe & (system.READ | system.WRITE)) or user.id in (row[0], row[1])


def _is_func_visible(state: "DatabaseState", row: list[Any], user: User) -> bool:
    return _has_rights(user, "function", row[0], row[1])


def _is_sequence_visible(state: "DatabaseState", row: list[Any], user: User) -> bool:
    return _has_rights(user, "sequence", row[0], row[1])


_VISIBILITY: dict[int, Callable[["DatabaseState", list[Any], User], bool]] = {
    system.COLLATION_ID: lambda _state, _row, _user: True,
    system.SPACE_ID: _is_space_visible,
    system.INDEX_ID: _is_index_visible,
    system.USER_ID: _is_user_visible,
    system.PRIV_ID: _is_priv_visible,
    system.FUNC_ID: _is_func_visible,
    system.SEQUENCE_ID: _is_sequence_visible,
}
