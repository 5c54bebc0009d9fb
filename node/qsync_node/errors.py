"""Error codes and the exceptions that carry them.

Exceptions branch by *who must act*: the caller (`ClientError`), a peer that broke the protocol
(`RemoteError`: the link is closed, the node goes on), a person (`log.errors.CorruptionError`),
the node itself (`log.errors.DiskError`: restart from disk). Numbers are Tarantool's where one
exists; those from 0x4000 on are Qsync's own.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """What a client reads in an answer's type (0x8000 + code). docs/errors.md explains each."""

    UNKNOWN = 0
    ILLEGAL_PARAMS = 1
    MEMORY_ISSUE = 2
    TUPLE_FOUND = 3
    TUPLE_NOT_FOUND = 4
    UNSUPPORTED = 5
    NONMASTER = 6
    READONLY = 7
    INJECTION = 8
    CREATE_SPACE = 9
    SPACE_EXISTS = 10
    DROP_SPACE = 11
    ALTER_SPACE = 12
    INDEX_TYPE = 13
    MODIFY_INDEX = 14
    LAST_DROP = 15
    TUPLE_FORMAT_LIMIT = 16
    DROP_PRIMARY_KEY = 17
    KEY_PART_TYPE = 18
    EXACT_MATCH = 19
    INVALID_MSGPACK = 20
    TUPLE_NOT_ARRAY = 22
    FIELD_TYPE = 23
    INDEX_PART_TYPE_MISMATCH = 24
    SPLICE = 25
    UPDATE_ARG_TYPE = 26
    FORMAT_MISMATCH_INDEX_PART = 27
    UNKNOWN_UPDATE_OP = 28
    UPDATE_FIELD = 29
    KEY_PART_COUNT = 31
    PROC_LUA = 32
    NO_SUCH_PROC = 33
    NO_SUCH_INDEX = 35
    NO_SUCH_SPACE = 36
    NO_SUCH_FIELD_NO = 37
    EXACT_FIELD_COUNT = 38
    FIELD_MISSING = 39
    WAL_IO = 40
    MORE_THAN_ONE_TUPLE = 41
    ACCESS_DENIED = 42
    CREATE_USER = 43
    DROP_USER = 44
    NO_SUCH_USER = 45
    USER_EXISTS = 46
    PASSWORD_MISMATCH = 47
    UNKNOWN_REQUEST_TYPE = 48
    UNKNOWN_SCHEMA_OBJECT = 49
    CREATE_FUNCTION = 50
    NO_SUCH_FUNCTION = 51
    FUNCTION_EXISTS = 52
    NO_SUCH_SPACE_NAME = 57
    CFG = 59
    UNKNOWN_UPDATE_FIELD = 61
    UNKNOWN_REPLICA = 62
    REPLICASET_UUID_MISMATCH = 63
    INVALID_UUID = 64
    REPLICASET_UUID_IS_RO = 65
    INSTANCE_UUID_MISMATCH = 66
    REPLICA_ID_IS_RESERVED = 67
    INVALID_ORDER = 68
    MISSING_REQUEST_FIELD = 69
    IDENTIFIER = 70
    ITERATOR_TYPE = 72
    REPLICA_MAX = 73
    INVALID_XLOG = 74
    NO_CONNECTION = 77
    TIMEOUT = 78
    ACTIVE_TRANSACTION = 79
    CROSS_ENGINE = 81
    NO_SUCH_ROLE = 82
    ROLE_EXISTS = 83
    CREATE_ROLE = 84
    INDEX_EXISTS = 85
    PRIV_GRANTED = 89
    PRIV_NOT_GRANTED = 91
    MISSING_SNAPSHOT = 93
    CANT_UPDATE_PRIMARY_KEY = 94
    UPDATE_INTEGER_OVERFLOW = 95
    GUEST_USER_PASSWORD = 96
    TRANSACTION_CONFLICT = 97
    LOAD_FUNCTION = 99
    PROTOCOL = 104
    UPSERT_UNIQUE_SECONDARY_KEY = 105
    WRONG_SCHEMA_VERSION = 109
    SLAB_ALLOC_MAX = 110
    NO_SUCH_TRANSACTION = 114
    SYSTEM = 115
    LOADING = 116
    CONNECTION_TO_SELF = 117
    NO_SUCH_SEQUENCE = 132
    SEQUENCE_EXISTS = 133
    SEQUENCE_OVERFLOW = 134
    SPACE_FIELD_IS_DUPLICATE = 149
    NULLABLE_MISMATCH = 152
    BOOTSTRAP_READONLY = 203
    REPLICA_NOT_ANON = 207
    CANNOT_REGISTER = 208
    UNCOMMITTED_FOREIGN_SYNC_TXNS = 214
    SYNC_QUORUM_TIMEOUT = 216
    SYNC_ROLLBACK = 217
    XLOG_GAP = 219
    TOO_EARLY_SUBSCRIBE = 220
    QUORUM_WAIT = 222
    INTERFERING_PROMOTE = 223
    ELECTION_DISABLED = 224
    TXN_ROLLBACK = 225
    NOT_LEADER = 226
    SYNC_QUEUE_UNCLAIMED = 227
    SYNC_QUEUE_FOREIGN = 228
    UNABLE_TO_PROCESS_IN_STREAM = 229
    UNABLE_TO_PROCESS_OUT_OF_STREAM = 230
    TRANSACTION_TIMEOUT = 231
    NO_ELECTION_QUORUM = 242
    SPLIT_BRAIN = 244
    OLD_TERM = 245
    INTERFERING_ELECTIONS = 246
    NIL_UUID = 264
    SHUTDOWN = 279
    SYNC_QUEUE_FULL = 289
    OUTCOME_UNKNOWN = 295  # Tarantool: "sync timeout, transaction detached and still pending"
    DISK_FULL = 0x4001
    KEY_EXPIRED = 0x4002
    KEY_REUSED = 0x4003
    TOO_LARGE = 0x4004
    TOO_MANY = 0x4005


class QsyncError(Exception):
    """Root of everything the project raises on purpose."""


class ClientError(QsyncError):
    """The caller's request cannot be done; `code` and `message` are the answer it gets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RemoteError(QsyncError):
    """A peer broke the protocol: its link is closed, the node itself goes on."""
