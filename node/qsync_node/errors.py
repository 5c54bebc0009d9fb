"""Error codes and the exceptions that carry them.

The class of an exception shows *the party that must act*: the caller (`ClientError`), a person
(`log.errors.CorruptionError`), or the node itself (`log.errors.DiskError`: restart from disk).
Codes are Tarantool's where Tarantool has one. Codes from 0x4000 are Qsync's own.
"""

from enum import IntEnum, StrEnum


class ErrorCode(IntEnum):
    """Codes of error answers; the type of an answer is 0x8000 + code. See `explanations.py`."""

    UNKNOWN = 0
    ILLEGAL_PARAMS = 1
    MEMORY_ISSUE = 2
    TUPLE_FOUND = 3
    UNSUPPORTED = 5
    READONLY = 7
    CREATE_SPACE = 9
    DROP_SPACE = 11
    ALTER_SPACE = 12
    INDEX_TYPE = 13
    MODIFY_INDEX = 14
    LAST_DROP = 15
    DROP_PRIMARY_KEY = 17
    KEY_PART_TYPE = 18
    EXACT_MATCH = 19
    INVALID_MSGPACK = 20
    FIELD_TYPE = 23
    SPLICE = 25
    UPDATE_ARG_TYPE = 26
    FORMAT_MISMATCH_INDEX_PART = 27
    UNKNOWN_UPDATE_OP = 28
    UPDATE_FIELD = 29
    KEY_PART_COUNT = 31
    NO_SUCH_PROC = 33
    NO_SUCH_INDEX = 35
    NO_SUCH_SPACE = 36
    NO_SUCH_FIELD_NO = 37
    EXACT_FIELD_COUNT = 38
    FIELD_MISSING = 39
    MORE_THAN_ONE_TUPLE = 41
    ACCESS_DENIED = 42
    CREATE_USER = 43
    DROP_USER = 44
    NO_SUCH_USER = 45
    PASSWORD_MISMATCH = 47
    UNKNOWN_REQUEST_TYPE = 48
    UNKNOWN_SCHEMA_OBJECT = 49
    NO_SUCH_FUNCTION = 51
    NO_SUCH_SPACE_NAME = 57
    CFG = 59
    UNKNOWN_REPLICA = 62
    REPLICASET_UUID_MISMATCH = 63
    MISSING_REQUEST_FIELD = 69
    IDENTIFIER = 70
    REPLICA_MAX = 73
    TIMEOUT = 78
    ACTIVE_TRANSACTION = 79
    CREATE_ROLE = 84
    CANT_UPDATE_PRIMARY_KEY = 94
    UPDATE_INTEGER_OVERFLOW = 95
    GUEST_USER_PASSWORD = 96
    TRANSACTION_CONFLICT = 97
    PROTOCOL = 104
    WRONG_SCHEMA_VERSION = 109
    SLAB_ALLOC_MAX = 110
    SYSTEM = 115
    LOADING = 116
    CONNECTION_TO_SELF = 117
    SPACE_FIELD_IS_DUPLICATE = 149
    NULLABLE_MISMATCH = 152
    CANNOT_REGISTER = 208
    SYNC_QUORUM_TIMEOUT = 216
    SYNC_ROLLBACK = 217
    XLOG_GAP = 219
    NOT_LEADER = 226
    UNABLE_TO_PROCESS_OUT_OF_STREAM = 230
    TRANSACTION_TIMEOUT = 231
    NO_ELECTION_QUORUM = 242
    SPLIT_BRAIN = 244
    SYNC_QUEUE_FULL = 289
    OUTCOME_UNKNOWN = 295  # Tarantool: "sync timeout, transaction detached and still pending"
    DISK_FULL = 0x4001
    KEY_EXPIRED = 0x4002
    KEY_REUSED = 0x4003
    TOO_MANY = 0x4005
    NO_SUCH_JOURNAL = 0x4006
    PUBLICATIONS_FULL = 0x4007


class OrderRefusal(StrEnum):
    """Reasons for refusing an order. See `explanations.py`."""

    UNSIGNED = "OrderUnsigned"
    EXPIRED = "OrderExpired"
    WRONG = "OrderSignatureWrong"
    REPLAYED = "OrderReplayed"
    TOO_MANY = "TooManyOrders"


class QsyncError(Exception):
    """Base of all exceptions that the project raises deliberately."""


class ClientError(QsyncError):
    """A refused request; the client receives `code` and `message`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
