"""A small blocking IPROTO client for DDL and users: it sends one request at a time."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.connection import (
    Answered,
    ClientConnection,
    ClientConnectionState,
    ConnectionEvent,
    Credentials,
    Ended,
    Opened,
    error_code,
)
from qsync_client.protocol.constants import Iterator as IteratorType
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.packing import INVALID, pack, unpack
from qsync_node.format.proofs import admin_password

SPACE, INDEX, KEY, TUPLE = Key.SPACE_ID, Key.INDEX_ID, Key.KEY, Key.TUPLE
ROWS_MAX = 1_000_000
READ_BYTES = 1 << 16


class DatabaseError(Exception):
    """A refused request, whose text is the database's message, or an unreachable database.

    `code` is the database's error code, or 0 if the database could not be reached.
    """

    def __init__(self, sentence: str, code: int = 0) -> None:
        super().__init__(sentence)
        self.code = code


class IprotoConnection:
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
        self._protocol = ClientConnection(Credentials(user, password))
        self._streams = 0
        self._stream = 0  # 0 outside a transaction
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        except (OSError, ValueError) as error:  # the address of a member without a pod is empty
            raise DatabaseError(f"cannot connect to {address}: {error}") from error
        try:
            if context is not None:
                self._socket = context.wrap_socket(self._socket)
            self._open()
        except OSError as error:
            self._socket.close()
            raise DatabaseError(f"cannot connect to {address}: {error}") from error
        except DatabaseError:
            self._socket.close()
            raise

    def _open(self) -> None:
        """Wait until the server has accepted the user.

        Raises:
            OSError: the connection was lost, or the server does not speak IPROTO.
            DatabaseError: the server refused the user.
        """
        while True:
            for event in self._receive():
                if isinstance(event, Opened):
                    return
                if isinstance(event, Ended):
                    if event.code:
                        raise DatabaseError(event.reason or f"error {event.code}", event.code)
                    raise ConnectionResetError(event.reason)
            self._socket.sendall(self._protocol.take_output())

    def __enter__(self) -> "IprotoConnection":
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
            Key.LIMIT: ROWS_MAX,
            Key.OFFSET: 0,
            Key.ITERATOR: IteratorType.EQ if key else IteratorType.ALL,
            KEY: key or [],
        }
        return self._request(Type.SELECT, body)

    def first_from(self, space: int, key: list[Any]) -> list[Any] | None:
        """Return the first row at or after `key` in the primary index, or None."""
        body = {
            SPACE: space,
            INDEX: 0,
            Key.LIMIT: 1,
            Key.OFFSET: 0,
            Key.ITERATOR: IteratorType.GE,
            KEY: key,
        }
        return next(iter(self._request(Type.SELECT, body)), None)

    def insert(self, space: int, row: list[Any]) -> None:
        self._request(Type.INSERT, {SPACE: space, TUPLE: row})

    def replace(self, space: int, row: list[Any]) -> None:
        self._request(Type.REPLACE, {SPACE: space, TUPLE: row})

    def update(self, space: int, key: list[Any], operations: list[list[Any]]) -> None:
        self._request(Type.UPDATE, {SPACE: space, INDEX: 0, KEY: key, TUPLE: operations})

    def delete(self, space: int, key: list[Any]) -> None:
        self._request(Type.DELETE, {SPACE: space, INDEX: 0, KEY: key})

    def call(self, name: str) -> list[Any]:
        """Return the result of a procedure without arguments."""
        result: list[Any] = self._request(Type.CALL, {Key.FUNCTION_NAME: name, TUPLE: []})
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
            self._request(Type.BEGIN, {})
            try:
                yield
            except BaseException:
                with contextlib.suppress(DatabaseError):
                    self._request(Type.ROLLBACK, {})
                raise
            self._request(Type.COMMIT, {})
        finally:
            self._stream = 0

    def _request(self, kind: Type, fields: dict[Key, Any]) -> list[list[Any]]:
        if self._protocol.state is not ClientConnectionState.READY:
            raise DatabaseError("the connection to the node was lost")
        sync = self._protocol.request(int(kind), pack(fields), stream=self._stream)
        try:
            self._socket.sendall(self._protocol.take_output())
            answer = self._await(sync)
            content = unpack(answer.body) if answer.body else {}
        except (OSError, *INVALID) as error:
            raise DatabaseError(f"the connection to the node was lost: {error}") from error
        if answer.kind:
            code = error_code(answer.kind)
            raise DatabaseError(str(content.get(Key.ERROR_24, f"error {code}")), code)
        rows: list[list[Any]] = content.get(Key.DATA, [])
        return rows

    def _await(self, sync: int) -> Answered:
        """Return the answer to a request. Raises OSError if the connection is lost."""
        while True:
            for event in self._receive():
                if isinstance(event, Answered) and event.sync == sync:
                    return event
                if isinstance(event, Ended):
                    raise ConnectionResetError(event.reason)

    def _receive(self) -> list[ConnectionEvent]:
        return self._protocol.receive(self._socket.recv(READ_BYTES))


def connect_as_admin(
    address: str, secret: str, timeout_s: float, context: ssl.SSLContext | None
) -> IprotoConnection:
    """Connect as `admin`.

    In a cluster created by an older version, the password is the secret itself until the
    operator replaces it.

    Raises:
        DatabaseError: the database cannot be reached or refused the log-in.
    """
    try:
        return IprotoConnection(address, "admin", admin_password(secret), timeout_s, context)
    except DatabaseError as error:
        if error.code != ErrorCode.PASSWORD_MISMATCH:
            raise
    return IprotoConnection(address, "admin", secret, timeout_s, context)
