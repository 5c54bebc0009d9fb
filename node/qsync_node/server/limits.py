"""The limits of one member, and the error or effect when each is exceeded.

The values come from the constants that enforce them. `make references` writes the limits as a table
into docs/limits.md.
"""

from dataclasses import dataclass

from qsync_client.protocol.constants import CLIENT_BYTES_MAX
from qsync_node.consensus.membership import REPLICAS_MAX
from qsync_node.consensus.settings import SECOND, ConsensusSettings
from qsync_node.engine import publishing
from qsync_node.engine.operations import OPERATIONS_MAX
from qsync_node.engine.reads import ANSWER_BYTES_MAX
from qsync_node.engine.requests import BODY_KEYS_MAX
from qsync_node.engine.rows import PARTS_MAX
from qsync_node.engine.tuples import NESTING_MAX, TUPLE_BYTES_MAX
from qsync_node.errors import ErrorCode, OrderRefusal
from qsync_node.server import (
    admin,
    admission,
    bounds,
    connection,
    login,
    orders,
    watches,
)
from qsync_node.server.config import NodeConfig
from qsync_node.transactions import procedures, streams
from qsync_node.transactions.own_rows import KEY_WINDOW_ROWS


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit, in Markdown. `setting` is empty for a fixed limit."""

    subject: str
    value: str
    effect: str
    setting: str = ""


def count(value: int) -> str:
    return f"{value:,}"


def size(value: int) -> str:
    """Format a number of bytes as MiB or KiB."""
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"


def seconds(value: float) -> str:
    return f"{value:g} s"


def _closed(code: ErrorCode) -> str:
    return f"{code}, and the connection is closed"


_SETTINGS = ConsensusSettings()
_CONFIG = {name: field.default for name, field in NodeConfig.model_fields.items()}
_REQUEST_MAX: int = next(
    bound.le for bound in NodeConfig.model_fields["max_request"].metadata if hasattr(bound, "le")
)
_OLDEST = "the oldest of them is closed"
_PAUSED = "the connection is not read until half of them are answered"

LIMITS: tuple[Limit, ...] = (
    Limit(
        "connections",
        count(_CONFIG["max_connections"]),
        _closed(ErrorCode.TOO_MANY),
        "`max_connections`, without those of members",
    ),
    Limit(
        "additional connections of `admin`",
        count(admission.ADMIN_RESERVE),
        _closed(ErrorCode.TOO_MANY),
    ),
    Limit("connections before log-in", count(admission.UNAUTHENTICATED_MAX), _OLDEST),
    Limit("TLS handshakes in progress", count(admission.HANDSHAKES_MAX), _OLDEST),
    Limit("time until log-in", seconds(connection.LOGIN_S), _closed(ErrorCode.TIMEOUT)),
    Limit(
        "packets before log-in, where `guest` is off",
        count(connection.UNAUTHENTICATED_PACKETS_MAX),
        _closed(ErrorCode.TOO_MANY),
    ),
    Limit(
        "failed log-ins on a connection",
        count(login.LOGIN_FAILURES_MAX),
        f"{_closed(ErrorCode.PASSWORD_MISMATCH)}. Each failure is answered after"
        f" {seconds(login.LOGIN_DELAY_S)}",
    ),
    Limit(
        "size of a request",
        size(_CONFIG["max_request"]),
        _closed(ErrorCode.INVALID_MSGPACK),
        f"`max_request`, up to {size(_REQUEST_MAX)}",
    ),
    Limit(
        "size of a request before log-in",
        size(connection.UNAUTHENTICATED_BYTES_MAX),
        _closed(ErrorCode.INVALID_MSGPACK),
    ),
    Limit("requests in flight on a connection", count(bounds.IN_FLIGHT_MAX), _PAUSED),
    Limit(
        "size of the requests in flight on a connection",
        size(bounds.REQUEST_BYTES_MAX),
        _PAUSED,
    ),
    Limit(
        "size of the requests in flight on all connections",
        size(admission.REQUESTS_TOTAL_BYTES_MAX),
        "no connection is read until a quarter of them is answered",
    ),
    Limit(
        "size of the answers that a client has not read",
        size(bounds.UNREAD_BYTES_MAX),
        "its next requests are neither executed nor read",
    ),
    Limit(
        "size of the answers that all clients have not read",
        size(admission.UNREAD_TOTAL_BYTES_MAX),
        "the connection with most of them is closed",
    ),
    Limit(
        "size of the tuples in one answer",
        size(ANSWER_BYTES_MAX),
        f"{ErrorCode.MEMORY_ISSUE}; read in pages",
    ),
    Limit("watched keys of a connection", count(watches.WATCHED_KEYS_MAX), f"{ErrorCode.TOO_MANY}"),
    Limit(
        "length of a watched key", count(watches.WATCHED_KEY_MAX), f"{ErrorCode.INVALID_MSGPACK}"
    ),
    Limit("size of a tuple", size(TUPLE_BYTES_MAX), f"{ErrorCode.SLAB_ALLOC_MAX}"),
    Limit(
        "levels of arrays and maps in a request or a tuple",
        count(NESTING_MAX),
        f"{ErrorCode.INVALID_MSGPACK}",
    ),
    Limit("operations of one update", count(OPERATIONS_MAX), f"{ErrorCode.ILLEGAL_PARAMS}"),
    Limit("keys in the body of a request", count(BODY_KEYS_MAX), f"{ErrorCode.INVALID_MSGPACK}"),
    Limit("parts of an index", count(PARTS_MAX), f"{ErrorCode.MODIFY_INDEX}"),
    Limit("open transactions of a leader", count(streams.STREAMS_MAX), f"{ErrorCode.TOO_MANY}"),
    Limit(
        "open transactions of a connection",
        count(streams.SESSION_STREAMS_MAX),
        f"{ErrorCode.TOO_MANY}",
    ),
    Limit(
        "open transactions of all unauthenticated clients",
        count(streams.GUESTS_STREAMS_MAX),
        f"{ErrorCode.TOO_MANY}",
    ),
    Limit(
        "size of the open transactions of all unauthenticated clients",
        size(streams.GUESTS_BYTES_MAX),
        f"{ErrorCode.MEMORY_ISSUE}",
    ),
    Limit(
        "size of the open transactions of all clients",
        size(_SETTINGS.transactions_bytes_max),
        f"{ErrorCode.MEMORY_ISSUE}",
    ),
    Limit(
        "size of the rows of one transaction",
        size(_SETTINGS.transaction_bytes_max),
        f"{ErrorCode.MEMORY_ISSUE}",
    ),
    Limit(
        "age of an open transaction",
        seconds(_SETTINGS.transaction_timeout_ns / SECOND),
        f"{ErrorCode.TRANSACTION_TIMEOUT}",
        "timeout of BEGIN, downwards",
    ),
    Limit(
        "unconfirmed transactions",
        count(_SETTINGS.limbo_entries_max),
        f"{ErrorCode.SYNC_QUEUE_FULL}",
    ),
    Limit(
        "size of the unconfirmed transactions",
        size(_SETTINGS.limbo_bytes_max),
        f"{ErrorCode.SYNC_QUEUE_FULL}",
    ),
    Limit(
        "wait of the oldest unconfirmed transaction",
        seconds(_SETTINGS.synchro_timeout_ns / 2 / SECOND),
        f"{ErrorCode.SYNC_QUEUE_FULL}",
        "half of `synchro_timeout`",
    ),
    Limit(
        "wait of a request for its answer",
        seconds(_SETTINGS.request_timeout_ns / SECOND),
        f"{ErrorCode.TIMEOUT}, or {ErrorCode.OUTCOME_UNKNOWN} if it may have been logged",
    ),
    Limit(
        "memory of the tuples",
        size(_SETTINGS.memory_bytes_max) if _SETTINGS.memory_bytes_max else "none",
        f"{ErrorCode.MEMORY_ISSUE}; reads, DELETE, and leases of brokers still work",
        "`memory`",
    ),
    Limit(
        "free space of a disk, at least",
        size(_CONFIG["disk_reserve"]),
        f"{ErrorCode.DISK_FULL}; reads still work",
        "`disk_reserve`",
    ),
    Limit("registered members", count(REPLICAS_MAX), f"{ErrorCode.REPLICA_MAX}"),
    Limit(
        "rows for which the cluster remembers an idempotency key",
        count(KEY_WINDOW_ROWS),
        f"{ErrorCode.KEY_EXPIRED}",
        "verb `set_key_window`",
    ),
    Limit(
        "length of the client in an idempotency key",
        count(CLIENT_BYTES_MAX),
        f"{ErrorCode.ILLEGAL_PARAMS}",
    ),
    Limit(
        "publications of a journal that wait for its primary broker",
        count(publishing.PUBLICATIONS_MAX),
        f"{ErrorCode.PUBLICATIONS_FULL}",
    ),
    Limit(
        "bytes of the publications of a journal that wait for its primary broker",
        size(publishing.PENDING_BYTES_MAX),
        f"{ErrorCode.PUBLICATIONS_FULL}",
    ),
    Limit(
        "publications of one transaction",
        count(publishing.TRANSACTION_MAX),
        f"{ErrorCode.MEMORY_ISSUE}",
    ),
    Limit(
        "calls that wait for a publication",
        count(procedures.PUBLICATION_WAITS_MAX),
        f"{ErrorCode.TOO_MANY}",
    ),
    Limit("connections to the admin port", count(admin.SERVED_MAX), _OLDEST),
    Limit(
        "idle time of a connection to the admin port",
        seconds(admin.IDLE_S),
        "the connection is closed",
    ),
    Limit(
        "connections to the admin port that have not sent a byte, where `tls` is set",
        count(admin.UNDECIDED_MAX),
        _OLDEST,
    ),
    Limit(
        "time until the first byte of such a connection",
        seconds(admin.FIRST_BYTE_S),
        "the connection is closed",
    ),
    Limit(
        "body of an HTTP request",
        size(admin.BODY_BYTES_MAX),
        "HTTP status 413. The member checks the signature before it reads the body",
    ),
    Limit(
        "age of the challenge that an order signs",
        seconds(orders.CHALLENGE_S),
        f"HTTP status 401, reason `{OrderRefusal.EXPIRED}`",
    ),
    Limit(
        f"orders within {seconds(orders.CHALLENGE_S)}",
        count(orders.TAKEN_MAX),
        f"HTTP status 429, reason `{OrderRefusal.TOO_MANY}`",
    ),
)
"""All limits: connections, requests, data, transactions, resources, then the admin port."""
