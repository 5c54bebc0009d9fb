"""Numbers of the protocol that client and server share: packet types, keys and iterators.

Values are Tarantool's if Tarantool has one. Keys 0x70 .. 0x7f are Qsync's own. In a body,
Tarantool's tools print them by number. In a row's header, 2.6 refuses each unknown key and silently
skips the whole block; only a TUPLE_META map is skipped alone. Our header keys are therefore inside
such a map, and a file that uses them stays readable by `tarantoolctl cat`.
"""

from enum import IntEnum


class Type(IntEnum):
    """Types of packets and of log rows."""

    OK = 0
    SELECT = 1
    INSERT = 2
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    CALL_16 = 6
    AUTH = 7
    EVAL = 8
    UPSERT = 9
    CALL = 10
    EXECUTE = 11
    NOP = 12
    PREPARE = 13
    BEGIN = 14
    COMMIT = 15
    ROLLBACK = 16
    INSERT_ARROW = 17
    DELETE_RANGE = 18
    RAFT = 30
    RAFT_PROMOTE = 31
    RAFT_DEMOTE = 32
    RAFT_CONFIRM = 40
    RAFT_ROLLBACK = 41
    PING = 64
    JOIN = 65
    SUBSCRIBE = 66
    VOTE_DEPRECATED = 67
    VOTE = 68
    FETCH_SNAPSHOT = 69
    REGISTER = 70
    JOIN_META = 71
    JOIN_SNAPSHOT = 72
    ID = 73
    WATCH = 74
    UNWATCH = 75
    EVENT = 76
    WATCH_ONCE = 77
    HELLO = 80  # Qsync's own: the first packet between two members (P1)
    CHUNK = 128
    ERROR = 0x8000


class Key(IntEnum):
    """Keys of packet headers (below 0x10) and of bodies."""

    REQUEST_TYPE = 0x00
    SYNC = 0x01
    REPLICA_ID = 0x02
    LSN = 0x03
    TIMESTAMP = 0x04
    SCHEMA_VERSION = 0x05
    SERVER_VERSION = 0x06
    GROUP_ID = 0x07
    TSN = 0x08
    FLAGS = 0x09
    STREAM_ID = 0x0A
    THREAD_ID = 0x0B
    SPACE_ID = 0x10
    INDEX_ID = 0x11
    LIMIT = 0x12
    OFFSET = 0x13
    ITERATOR = 0x14
    INDEX_BASE = 0x15
    FETCH_POSITION = 0x1F
    KEY = 0x20
    TUPLE = 0x21
    FUNCTION_NAME = 0x22
    USER_NAME = 0x23
    INSTANCE_UUID = 0x24
    REPLICASET_UUID = 0x25
    VCLOCK = 0x26
    EXPR = 0x27
    OPS = 0x28
    BALLOT = 0x29
    TUPLE_META = 0x2A
    OPTIONS = 0x2B
    OLD_TUPLE = 0x2C
    NEW_TUPLE = 0x2D
    AFTER_POSITION = 0x2E
    AFTER_TUPLE = 0x2F
    DATA = 0x30
    ERROR_24 = 0x31
    METADATA = 0x32
    BIND_METADATA = 0x33
    BIND_COUNT = 0x34
    POSITION = 0x35
    SQL_TEXT = 0x40
    SQL_BIND = 0x41
    SQL_INFO = 0x42
    STMT_ID = 0x43
    REPLICA_ANON = 0x50
    ID_FILTER = 0x51
    ERROR = 0x52
    TERM = 0x53
    VERSION = 0x54
    FEATURES = 0x55
    TIMEOUT = 0x56
    EVENT_KEY = 0x57
    EVENT_DATA = 0x58
    TXN_ISOLATION = 0x59
    VCLOCK_SYNC = 0x5A
    AUTH_TYPE = 0x5B
    REPLICASET_NAME = 0x5C
    INSTANCE_NAME = 0x5D
    SPACE_NAME = 0x5E
    INDEX_NAME = 0x5F
    TUPLE_FORMATS = 0x60
    IS_SYNC = 0x61
    IS_CHECKPOINT_JOIN = 0x62
    CHECKPOINT_VCLOCK = 0x63
    CHECKPOINT_LSN = 0x64
    IDEMPOTENCY = 0x70  # in TUPLE_META of a row's header: the transaction's key (T9)
    INDEX = 0x71  # CONFIRM, ROLLBACK, PROMOTE: target row (L2); SUBSCRIBE: last row known (F5)
    INDEX_TERM = 0x72  # body of CONFIRM, ROLLBACK, PROMOTE: term of that row (L2)
    SPACES = 0x73  # body of FETCH_SNAPSHOT, SUBSCRIBE: user spaces that are wanted, as ids (F1)


class HelloKey(IntEnum):
    """Keys of the bodies of HELLO and of its answer, apart from those of `Key` (P1).

    Their numbers overlap with `Key`: no other body contains them.
    """

    PROOF = 0x73
    NONCE = 0x74
    LEVEL = 0x75
    KNOWN = 0x76  # name -> host:port of members
    INCARNATION = 0x77  # random, per process: a new value means that the member was restarted
    BOUND_PROOF = 0x78  # the proof over TLS, instead of PROOF


class Iterator(IntEnum):
    """Values of `Key.ITERATOR`."""

    EQ = 0
    REQ = 1
    ALL = 2
    LT = 3
    LE = 4
    GE = 5
    GT = 6
    BITS_ALL_SET = 7
    BITS_ANY_SET = 8
    BITS_ALL_NOT_SET = 9
    OVERLAPS = 10
    NEIGHBOR = 11


class Isolation(IntEnum):
    """Values of `Key.TXN_ISOLATION`."""

    DEFAULT = 0
    READ_COMMITTED = 1
    READ_CONFIRMED = 2
    BEST_EFFORT = 3
    LINEARIZABLE = 4


class Extension(IntEnum):
    """Types of msgpack extensions."""

    DECIMAL = 1
    UUID = 2
    ERROR = 3
    DATETIME = 4
    INTERVAL = 6


class Feature(IntEnum):
    """Values of `Key.FEATURES` in the answer to ID."""

    STREAMS = 0
    TRANSACTIONS = 1
    ERROR_EXTENSION = 2
    WATCHERS = 3
    PAGINATION = 4
    SPACE_AND_INDEX_NAMES = 5
    WATCH_ONCE = 6
    DML_TUPLE_EXTENSION = 7
    CALL_RET_TUPLE_EXTENSION = 8
    CALL_ARG_TUPLE_EXTENSION = 9
    FETCH_SNAPSHOT_CURSOR = 10
    IS_SYNC = 11
    INSERT_ARROW = 12


PROTOCOL_VERSION = 6
FEATURES = (
    Feature.STREAMS,
    Feature.TRANSACTIONS,
    Feature.ERROR_EXTENSION,
    Feature.WATCHERS,
    Feature.PAGINATION,
    Feature.WATCH_ONCE,
    Feature.IS_SYNC,
)
"""Version and features of the protocol that a member answers to ID."""

CLIENT_BYTES_MAX = 64
"""Maximum length of the name of a client in an idempotency key."""
