"""Requests of clients as bodies of packets. Nothing here waits or connects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qsync_client.errors import InvalidArgument, SchemaError
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.constants import Isolation, Iterator, Key, Type
from qsync_client.protocol.markers import EMPTY_MAP
from qsync_client.protocol.packing import INVALID, pack
from qsync_client.schema import Index, Row, Schema, Space

_SPACE, _INDEX, _LIMIT, _OFFSET, _ITERATOR = (
    int(Key.SPACE_ID),
    int(Key.INDEX_ID),
    int(Key.LIMIT),
    int(Key.OFFSET),
    int(Key.ITERATOR),
)
_KEY, _TUPLE, _OPS = int(Key.KEY), int(Key.TUPLE), int(Key.OPS)
_AFTER_POSITION, _AFTER_TUPLE = int(Key.AFTER_POSITION), int(Key.AFTER_TUPLE)
_FETCH_POSITION, _ISOLATION = int(Key.FETCH_POSITION), int(Key.TXN_ISOLATION)

FieldValues = Sequence[Any] | Mapping[str, Any]
"""A tuple as a sequence, or as a mapping from names of fields."""
Operations = Sequence[Sequence[Any]]
"""Operations of an update, such as `[("+", "balance", 5)]`: operator, field and argument. A field
is a name, a path or a position from 0. `(":", field, position, length, text)` splices."""
IteratorName = Iterator | int | str
"""An `Iterator`, its number, or its name such as "GE"."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request: type and body, and the version of the schema that its names come from."""

    kind: int
    body: bytes
    space: Space | None = None
    schema_version: int = 0
    """0 if no name was used; then the server does not check the version."""

    def as_row(self, fields: Any) -> Any:
        """Return a tuple of the answer as a row, and a result of a procedure as it is."""
        return fields if self.kind == Type.CALL else Row(fields, self.space)


class SpaceTarget:
    """A space that is given by id or by name; `schema` is needed for names only."""

    __slots__ = ("_schema", "id", "space")

    def __init__(self, space: int | str, schema: Schema | None) -> None:
        self._schema = schema
        if isinstance(space, str):
            assert schema is not None, "the caller reads the schema first"
            self.space: Space | None = schema.space(space)
            self.id = self.space.id
        else:
            self.space, self.id = None, space

    @property
    def _version(self) -> int:
        return self._schema.version if self.space is not None and self._schema is not None else 0

    def _request(self, kind: Type, more: dict[int, Any]) -> ClientRequest:
        # The space comes first, for the fast path of the server.
        body = _pack({_SPACE: self.id, **more})
        return ClientRequest(int(kind), body, self.space, self._version)

    def _named(self) -> Space:
        if self.space is None:
            raise SchemaError(
                ErrorCode.NO_SUCH_SPACE, "names need the name of the space, not its id"
            )
        return self.space

    def _fields(self, fields: FieldValues) -> list[Any]:
        if isinstance(fields, Mapping):
            return self._named().tuple_of(fields)
        return list(fields)

    def _index(self, index: int | str) -> int:
        return self._named().index(index).id if isinstance(index, str) else index

    def insert(self, fields: FieldValues) -> ClientRequest:
        return self._request(Type.INSERT, {_TUPLE: self._fields(fields)})

    def replace(self, fields: FieldValues) -> ClientRequest:
        return self._request(Type.REPLACE, {_TUPLE: self._fields(fields)})

    def update(self, key: object, operations: Operations, index: int | str) -> ClientRequest:
        more = {_INDEX: self._index(index), _KEY: key_of(key)}
        return self._request(Type.UPDATE, {**more, _TUPLE: [list(one) for one in operations]})

    def delete(self, key: Any, index: int | str) -> ClientRequest:
        return self._request(Type.DELETE, {_INDEX: self._index(index), _KEY: key_of(key)})

    def upsert(self, fields: FieldValues, operations: Operations) -> ClientRequest:
        more = {_TUPLE: self._fields(fields), _OPS: [list(one) for one in operations]}
        return self._request(Type.UPSERT, more)

    def select(
        self,
        key: object,
        index: int | str,
        iterator: IteratorName,
        limit: int,
        *,
        after: bytes | Sequence[Any] = b"",
        fetch_position: bool = False,
        linearizable: bool = False,
    ) -> ClientRequest:
        more: dict[int, Any] = {
            _INDEX: self._index(index),
            _LIMIT: limit,
            _OFFSET: 0,
            _ITERATOR: iterator_of(iterator),
            _KEY: key_of(key),
        }
        if after:
            is_position = isinstance(after, bytes)
            more[_AFTER_POSITION if is_position else _AFTER_TUPLE] = (
                after if is_position else list(after)
            )
        if fetch_position:
            more[_FETCH_POSITION] = True
        if linearizable:
            more[_ISOLATION] = int(Isolation.LINEARIZABLE)
        return self._request(Type.SELECT, more)

    def index(self, index: int | str) -> Index | None:
        """Return the index if its space is named."""
        if self.space is None:
            return None
        if isinstance(index, str):
            return self.space.index(index)
        return next((one for one in self.space.indexes if one.id == index), None)


def key_of(key: object) -> list[Any]:
    """Return a key as the list of its parts: a scalar is a key of one part, None has no parts."""
    if key is None:
        return []
    return list(key) if isinstance(key, (list, tuple)) else [key]


def check_whole_key(key: object) -> None:
    """Check the key of a request for one tuple.

    Raises:
        InvalidArgument: it is empty; such a key selects each tuple.
    """
    if not key_of(key):
        raise InvalidArgument(
            "get was not sent: the key is empty; give the value of each part, or use select"
        )


def iterator_of(iterator: IteratorName) -> int:
    """Return the number of an iterator.

    Raises:
        ValueError: no iterator has this name.
    """
    if not isinstance(iterator, str):
        return int(iterator)
    try:
        return int(Iterator[iterator.upper()])
    except KeyError:
        names = ", ".join(one.name for one in Iterator)
        raise ValueError(f"unknown iterator {iterator!r}: use one of {names}") from None


def _pack(value: object) -> bytes:
    """Return a body.

    Raises:
        InvalidArgument: msgpack has no such value.
    """
    try:
        return pack(value)
    except INVALID as error:
        raise InvalidArgument(
            f"the request cannot be sent: {error}; use None, bool, int from -2**63 to 2**64-1, "
            "float, str, bytes, list, tuple and dict, and convert other values to these"
        ) from error


def call(name: str, arguments: Sequence[Any]) -> ClientRequest:
    body = _pack({int(Key.FUNCTION_NAME): name, _TUPLE: list(arguments)})
    return ClientRequest(int(Type.CALL), body)


def begin(isolation: int, timeout_s: float = 0.0) -> ClientRequest:
    """Return a BEGIN; 0 leaves the isolation or the timeout to the member."""
    fields: dict[int, Any] = {_ISOLATION: isolation}
    if timeout_s:
        fields[int(Key.TIMEOUT)] = timeout_s
    return ClientRequest(int(Type.BEGIN), _pack(fields))


PING = ClientRequest(int(Type.PING), EMPTY_MAP)
COMMIT = ClientRequest(int(Type.COMMIT), EMPTY_MAP)
ROLLBACK = ClientRequest(int(Type.ROLLBACK), EMPTY_MAP)
