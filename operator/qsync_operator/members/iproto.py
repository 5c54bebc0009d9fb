"""A small blocking IPROTO client for DDL and users: it sends one request at a time."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgpack

from qsync_client.protocol.auth import MECHANISM, scramble
from qsync_client.protocol.frame import Frame, FrameDecoder, FrameError
from qsync_client.protocol.greeting import GREETING_BYTES, GreetingError, decode_greeting
from qsync_node.format.frame import encode_request
from qsync_node.format.proofs import admin_password

SELECT, INSERT, REPLACE, UPDATE, DELETE, AUTH, CALL = 1, 2, 3, 4, 5, 7, 10
BEGIN, COMMIT, ROLLBACK = 14, 15, 16
SPACE, INDEX, LIMIT, OFFSET, ITERATOR, KEY, TUPLE, FUNCTION, USER = (
    0x10, 0x11, 0x12, 0x13, 0x14, 0x20, 0x21, 0x22, 0x23,
)  # fmt: skip
DATA, ERROR_TEXT = 0x30, 0x31
ITERATOR_EQ, ITERATOR_ALL, ITERATOR_GE = 0, 2, 5
ROWS_MAX = 1_000_000


PASSWORD_MISMATCH = 47


class DatabaseError(Exception):
    """A refused request, whose text is the database's message, or an unreachable database.

    `code` is the database's error code, or 0 if the database could not be reached.
    """

    def __init__(self, sentence: str, code: int = 0) -> None:
        super().__init__(sentence)
        self.code = code


class Connection:
    """An authenticated connection; use it as a context manager."""

    def __init__(
        self,
        address: str,
        user: str,
        password: str,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self._sync = 0
        self._streams = 0
        self._stream = 0  # 0 outside a transaction
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
            if context is not None:
                self._socket = context.wrap_socket(self._socket)
            greeting = decode_greeting(self._read_exactly(GREETING_BYTES))
        except (OSError, GreetingError) as error:
            raise DatabaseError(f"cannot connect to {address}: {error}") from error
        proof = scramble(password, greeting.salt)
        try:
            self._request(AUTH, {USER: user, TUPLE: [MECHANISM, proof]})
        except DatabaseError:
            self._socket.close()
            raise

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def select(self, space: int, key: list[Any] | None = None, index: int = 0) -> list[list[Any]]:
        """Return the rows with `key` in an index, or all rows without a key; at most `ROWS_MAX`."""
        body = {
            SPACE: space,
            INDEX: index,
            LIMIT: ROWS_MAX,
            OFFSET: 0,
            ITERATOR: ITERATOR_EQ if key else ITERATOR_ALL,
            KEY: key or [],
        }
        return self._request(SELECT, body)

    def first_from(self, space: int, key: list[Any]) -> list[Any] | None:
        """Return the first row at or after `key` in the primary index, or None."""
        body = {
            SPACE: space,
            INDEX: 0,
            LIMIT: 1,
            OFFSET: 0,
            ITERATOR: ITERATOR_GE,
            KEY: key,
        }
        return next(iter(self._request(SELECT, body)), None)

    def insert(self, space: int, row: list[Any]) -> None:
        self._request(INSERT, {SPACE: space, TUPLE: row})

    def replace(self, space: int, row: list[Any]) -> None:
        self._request(REPLACE, {SPACE: space, TUPLE: row})

    def update(self, space: int, key: list[Any], operations: list[list[Any]]) -> None:
        self._request(UPDATE, {SPACE: space, INDEX: 0, KEY: key, TUPLE: operations})

    def delete(self, space: int, key: list[Any]) -> None:
        self._request(DELETE, {SPACE: space, INDEX: 0, KEY: key})

    def call(self, name: str) -> list[Any]:
        """Return the result of a procedure without arguments."""
        result: list[Any] = self._request(CALL, {FUNCTION: name, TUPLE: []})
        return result

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Carry out the requests of the block in one serializable transaction.

        Raises:
            DatabaseError: a request or the commit was refused, for example because of a conflict.
        """
        self._streams += 1
        self._stream = self._streams
        try:
            self._request(BEGIN, {})
            try:
                yield
            except BaseException:
                with contextlib.suppress(DatabaseError):
                    self._request(ROLLBACK, {})
                raise
            self._request(COMMIT, {})
        finally:
            self._stream = 0

    def _request(self, kind: int, body: dict[int, Any]) -> list[list[Any]]:
        self._sync += 1
        packed = msgpack.packb(body)
        try:
            header = {"stream_id": self._stream} if self._stream else {}
            self._socket.sendall(encode_request(kind, self._sync, packed, **header))
            while True:
                while not self._frames:
                    self._frames = self._decoder.feed(self._read())
                answer, sync, _, data = self._frames.pop(0)
                if sync == self._sync:
                    break
        except (OSError, FrameError) as error:
            raise DatabaseError(f"the connection to the node was lost: {error}") from error
        fields = msgpack.unpackb(data, strict_map_key=False) if data else {}
        if answer & 0x8000:
            code = answer & 0x7FFF
            raise DatabaseError(str(fields.get(ERROR_TEXT, f"error {code}")), code)
        rows: list[list[Any]] = fields.get(DATA, [])
        return rows

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the node closed it")
        return data

    def _read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("the node closed it")
            data += piece
        return data


def connect_as_admin(
    address: str, secret: str, timeout_s: float, context: ssl.SSLContext | None
) -> Connection:
    """Connect as `admin`.

    In a cluster created by an older version, the password is the secret itself until the
    operator replaces it.

    Raises:
        DatabaseError: the database cannot be reached or refused the log-in.
    """
    try:
        return Connection(address, "admin", admin_password(secret), timeout_s, context)
    except DatabaseError as error:
        if error.code != PASSWORD_MISMATCH:
            raise
    return Connection(address, "admin", secret, timeout_s, context)
