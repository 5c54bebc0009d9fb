"""The explanation of each error code and of each reason for which an order is refused.

The texts are data. `make references` writes them into docs/errors.md, and `qsync explain` prints
them. They are Markdown, and links are relative to docs/. Each text begins with a capital letter and
ends without a full stop.
"""

from dataclasses import dataclass
from typing import Literal

from qsync_node.errors import ErrorCode, OrderRefusal

ErrorOutcome = Literal["refused", "unknown", "rolled back"]
"""The result of a write that ended with an error; docs/errors.md defines the words."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One meaning of an error code."""

    code: ErrorCode
    meaning: str
    outcome: ErrorOutcome
    action: str
    case: str = ""
    """The requests that this meaning applies to, if the code has several meanings."""


@dataclass(frozen=True, slots=True)
class OrderExplanation:
    """One way in which the admin port refuses an order. `reason` is None if it states none."""

    status: int
    """HTTP status of the answer."""
    reason: OrderRefusal | None
    meaning: str
    action: str


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        ErrorCode.UNKNOWN,
        "An error without a code of its own",
        "refused",
        "Read the text; the log of the node contains the cause of an internal error",
    ),
    Explanation(
        ErrorCode.ILLEGAL_PARAMS,
        "A parameter of the request is invalid",
        "refused",
        "Correct the parameter that the text names",
    ),
    Explanation(
        ErrorCode.MEMORY_ISSUE,
        "The memory limit of the node is reached (reads, DELETE and brokers continue), a"
        " transaction is too large, or a result is too large for one answer",
        "refused",
        "Delete rows or raise `memory`; commit in parts; read in pages",
    ),
    Explanation(
        ErrorCode.TUPLE_FOUND,
        "The key exists in a unique index",
        "refused",
        "Use REPLACE or UPSERT, or another key",
    ),
    Explanation(
        ErrorCode.UNSUPPORTED,
        "Qsync, or this member in its present state, does not support the request",
        "refused",
        "Use the alternative that the text names",
    ),
    Explanation(
        ErrorCode.READONLY,
        "The leader is read-only: it leads only until another member can",
        "refused",
        "Retry shortly",
    ),
    Explanation(
        ErrorCode.CREATE_SPACE,
        "A row of `_space` does not define a valid space",
        "refused",
        "Correct the field that the text names",
    ),
    Explanation(
        ErrorCode.DROP_SPACE,
        "The space still has indexes, sequences or grants",
        "refused",
        "Remove them first",
    ),
    Explanation(
        ErrorCode.ALTER_SPACE,
        "The change does not fit the data or the space",
        "refused",
        "Correct the definition, or the data",
    ),
    Explanation(
        ErrorCode.INDEX_TYPE,
        "The index type does not exist",
        "refused",
        "Use TREE or HASH",
    ),
    Explanation(
        ErrorCode.MODIFY_INDEX,
        "The index cannot be created or changed in this way",
        "refused",
        "Correct the definition",
    ),
    Explanation(
        ErrorCode.LAST_DROP,
        "The request would remove the last grant or the last part of the primary key",
        "refused",
        "Keep it; the object needs it",
    ),
    Explanation(
        ErrorCode.DROP_PRIMARY_KEY,
        "The primary key cannot be dropped before the other indexes",
        "refused",
        "Drop the other indexes first",
    ),
    Explanation(
        ErrorCode.KEY_PART_TYPE,
        "A part of the key does not have the type that the index requires",
        "refused",
        "Send a value of that type",
    ),
    Explanation(
        ErrorCode.EXACT_MATCH,
        "The key does not have exactly as many parts as the index",
        "refused",
        "Send all parts",
    ),
    Explanation(
        ErrorCode.INVALID_MSGPACK,
        "The packet, its header or its body is invalid MsgPack or too long",
        "refused",
        "Correct the client; an invalid length closes the connection",
    ),
    Explanation(
        ErrorCode.FIELD_TYPE,
        "A field does not have the type that the format or an index requires",
        "refused",
        "Correct the field",
    ),
    Explanation(
        ErrorCode.SPLICE,
        "The splice operation is invalid",
        "refused",
        "Correct position and length",
    ),
    Explanation(
        ErrorCode.UPDATE_ARG_TYPE,
        "An update operation got an argument of the wrong type",
        "refused",
        "Correct the argument",
    ),
    Explanation(
        ErrorCode.FORMAT_MISMATCH_INDEX_PART,
        "Format and index disagree on a field's type",
        "refused",
        "Make them agree",
    ),
    Explanation(
        ErrorCode.UNKNOWN_UPDATE_OP,
        "The update operation does not exist",
        "refused",
        "Use an operator documented by Tarantool",
    ),
    Explanation(
        ErrorCode.UPDATE_FIELD,
        "An update operation cannot be applied to this field",
        "refused",
        "Correct the operation",
    ),
    Explanation(
        ErrorCode.KEY_PART_COUNT,
        "The key has more parts than the index",
        "refused",
        "Send fewer parts",
    ),
    Explanation(
        ErrorCode.NO_SUCH_PROC,
        "CALL names an unknown procedure; Qsync has no Lua",
        "refused",
        "Use a procedure listed in [compatibility.md](compatibility.md)",
    ),
    Explanation(
        ErrorCode.NO_SUCH_INDEX,
        "The space has no index with this id",
        "refused",
        "Refetch the schema",
    ),
    Explanation(
        ErrorCode.NO_SUCH_SPACE,
        "No space has this id",
        "refused",
        "Refetch the schema",
    ),
    Explanation(
        ErrorCode.NO_SUCH_FIELD_NO,
        "The tuple has no such field",
        "refused",
        "Correct the field number or name",
    ),
    Explanation(
        ErrorCode.EXACT_FIELD_COUNT,
        "The space requires an exact number of fields",
        "refused",
        "Send all fields",
    ),
    Explanation(
        ErrorCode.FIELD_MISSING,
        "A field that must not be null is missing",
        "refused",
        "Send it",
    ),
    Explanation(
        ErrorCode.MORE_THAN_ONE_TUPLE,
        "The key matches several tuples, and the request requires one",
        "refused",
        "Use a unique index",
    ),
    Explanation(
        ErrorCode.ACCESS_DENIED,
        "The user lacks a privilege, `guest` is off, or the cluster's secret is wrong",
        "refused",
        "Grant the privilege; the leader checks the privileges of the client's user",
    ),
    Explanation(
        ErrorCode.CREATE_USER,
        "A row of `_user` does not define a valid user",
        "refused",
        "Correct the field that the text names",
    ),
    Explanation(
        ErrorCode.DROP_USER,
        "The user cannot be dropped: it owns objects or is built in",
        "refused",
        "Drop its objects first",
    ),
    Explanation(
        ErrorCode.NO_SUCH_USER,
        "The user was dropped after the session began",
        "refused",
        "Authenticate as another user",
    ),
    Explanation(
        ErrorCode.PASSWORD_MISMATCH,
        "User or password is wrong; the text does not reveal which",
        "refused",
        "Check the credentials",
    ),
    Explanation(
        ErrorCode.UNKNOWN_REQUEST_TYPE,
        "The request type does not exist; the connection stays open",
        "refused",
        "Use an existing request type",
    ),
    Explanation(
        ErrorCode.UNKNOWN_SCHEMA_OBJECT,
        "A grant names an object type that does not exist",
        "refused",
        "Correct the row",
    ),
    Explanation(
        ErrorCode.NO_SUCH_FUNCTION,
        "No function has this id",
        "refused",
        "Correct the row",
    ),
    Explanation(
        ErrorCode.NO_SUCH_SPACE_NAME,
        "No space has this name",
        "refused",
        "Correct the name",
    ),
    Explanation(
        ErrorCode.CFG,
        "A setting does not exist or has an invalid value, or an unmodified Tarantool has the "
        "UUID of a member",
        "refused",
        "Correct the setting that the text names",
    ),
    Explanation(
        ErrorCode.UNKNOWN_REPLICA,
        "This instance was removed from the replica set, or never registered",
        "refused",
        "Join as a new instance with an empty directory",
    ),
    Explanation(
        ErrorCode.REPLICASET_UUID_MISMATCH,
        "A peer belongs to another replica set",
        "refused",
        "Correct the address or the `replicaset_uuid`",
    ),
    Explanation(
        ErrorCode.MISSING_REQUEST_FIELD,
        "The body lacks a mandatory field",
        "refused",
        "Send it",
    ),
    Explanation(
        ErrorCode.IDENTIFIER,
        "A name is empty, too long or not UTF-8",
        "refused",
        "Choose another name",
    ),
    Explanation(
        ErrorCode.REPLICA_MAX,
        "31 replicas are registered",
        "refused",
        "Unregister one first",
    ),
    Explanation(
        ErrorCode.TIMEOUT,
        "The deadline of a request passed before it was logged, or no log-in arrived in time",
        "refused",
        "Retry",
    ),
    Explanation(
        ErrorCode.TIMEOUT,
        "The verb did not finish in time; it may still take effect",
        "unknown",
        "Check `status`",
        case="of an admin verb",
    ),
    Explanation(
        ErrorCode.ACTIVE_TRANSACTION,
        "BEGIN in a stream with an open transaction",
        "refused",
        "Commit or roll back first",
    ),
    Explanation(
        ErrorCode.CREATE_ROLE,
        "A row of `_user` does not define a valid role",
        "refused",
        "Correct it",
    ),
    Explanation(
        ErrorCode.CANT_UPDATE_PRIMARY_KEY,
        "An update would change the primary key",
        "refused",
        "Delete and insert instead",
    ),
    Explanation(
        ErrorCode.UPDATE_INTEGER_OVERFLOW,
        "The result of an arithmetic update exceeds 64 bits",
        "refused",
        "Use a smaller argument",
    ),
    Explanation(
        ErrorCode.GUEST_USER_PASSWORD,
        "`guest` cannot have a password",
        "refused",
        "Create another user",
    ),
    Explanation(
        ErrorCode.TRANSACTION_CONFLICT,
        "A read of the transaction is no longer valid, or its leader was replaced or cut off",
        "refused",
        "Run the transaction again from BEGIN",
    ),
    Explanation(
        ErrorCode.PROTOCOL,
        "The packet is not allowed at this point",
        "refused",
        "Correct the client",
    ),
    Explanation(
        ErrorCode.WRONG_SCHEMA_VERSION,
        "The schema changed since the client fetched it",
        "refused",
        "Refetch the schema; connectors do so automatically",
    ),
    Explanation(
        ErrorCode.SLAB_ALLOC_MAX,
        "The tuple is larger than 1 MiB",
        "refused",
        "Split it",
    ),
    Explanation(
        ErrorCode.SYSTEM,
        "A system call failed, for example for a snapshot file",
        "refused",
        "Remove the cause that the text names",
    ),
    Explanation(
        ErrorCode.LOADING,
        "The member has not joined its cluster, the cluster is being formed, or state repair "
        "is in progress",
        "refused",
        "Use another member, or wait",
    ),
    Explanation(
        ErrorCode.CONNECTION_TO_SELF,
        "The list of peers contains the address of the member itself",
        "refused",
        "None: the member skips the address",
    ),
    Explanation(
        ErrorCode.SPACE_FIELD_IS_DUPLICATE,
        "Two fields of a format have the same name",
        "refused",
        "Rename one",
    ),
    Explanation(
        ErrorCode.NULLABLE_MISMATCH,
        "Format and index disagree on whether a field may be null",
        "refused",
        "Make them agree",
    ),
    Explanation(
        ErrorCode.CANNOT_REGISTER,
        "The leader cannot register a member now",
        "refused",
        "None: the member retries",
    ),
    Explanation(
        ErrorCode.SYNC_QUORUM_TIMEOUT,
        "No quorum within `synchro_timeout`; the ROLLBACK is confirmed",
        "rolled back",
        "Retry, and find out why followers do not acknowledge",
    ),
    Explanation(
        ErrorCode.SYNC_ROLLBACK,
        "An earlier transaction in the queue had no quorum and was rolled back",
        "rolled back",
        "Retry",
    ),
    Explanation(
        ErrorCode.XLOG_GAP,
        "The member no longer has the rows that a follower needs",
        "refused",
        "None: the follower joins again with a snapshot. Restart the follower if it is an "
        "unmodified Tarantool",
    ),
    Explanation(
        ErrorCode.NOT_LEADER,
        "No leader was known in time, or the member is not the leader",
        "refused",
        "Retry",
    ),
    Explanation(
        ErrorCode.UNABLE_TO_PROCESS_OUT_OF_STREAM,
        "BEGIN, COMMIT or ROLLBACK without a stream id",
        "refused",
        "Send a stream id",
    ),
    Explanation(
        ErrorCode.TRANSACTION_TIMEOUT,
        "The transaction exceeded its timeout",
        "refused",
        "Run it again within the timeout",
    ),
    Explanation(
        ErrorCode.NO_ELECTION_QUORUM,
        "No other voter is available to become leader",
        "refused",
        "Restore a voter first",
    ),
    Explanation(
        ErrorCode.SPLIT_BRAIN,
        "Two logs contradict each other; the member stops serving and waits for an administrator",
        "refused",
        "Keep the files of all members and compare them ([replication.md](replication.md), "
        "L4); empty the directory of the member with the wrong history, and start it as a new "
        "instance",
    ),
    Explanation(
        ErrorCode.SYNC_QUEUE_FULL,
        "The queue of unconfirmed transactions is full, or its oldest entry has waited for "
        "half of `synchro_timeout`",
        "refused",
        "Reduce the rate of writes and retry",
    ),
    Explanation(
        ErrorCode.OUTCOME_UNKNOWN,
        "Leadership or a link was lost, or the deadline passed, while the write waited",
        "unknown",
        "Read before you retry, or use an idempotency key",
    ),
    Explanation(
        ErrorCode.DISK_FULL,
        "The leader's disk is nearly full; reads still work",
        "refused",
        "Free space",
    ),
    Explanation(
        ErrorCode.KEY_EXPIRED,
        "The idempotency key is older than the window",
        "unknown",
        "Read before you retry",
    ),
    Explanation(
        ErrorCode.KEY_REUSED,
        "The idempotency key was used for another request",
        "refused",
        "Use a new number",
    ),
    Explanation(
        ErrorCode.TOO_MANY,
        "Too many connections, open transactions or watched keys",
        "refused",
        "Close some of them",
    ),
    Explanation(
        ErrorCode.NO_SUCH_JOURNAL,
        "The journal of a publication does not exist, or journals are not enabled",
        "refused",
        "Create the journal first",
    ),
    Explanation(
        ErrorCode.PUBLICATIONS_FULL,
        "Too many publications wait until their journal's primary broker appends them",
        "refused",
        "Retry later; if it persists, check why the journal accepts no appends",
    ),
)
"""Every error code, in ascending order."""

ENGINE_CODES: dict[int, str] = {
    24: "INDEX_PART_TYPE_MISMATCH",
    53: "DROP_FUNCTION",
    64: "INVALID_UUID",
    65: "REPLICASET_UUID_IS_READ_ONLY",
    82: "NO_SUCH_ROLE",
    87: "ROLE_LOOP",
    88: "GRANT",
    107: "WRONG_INDEX_PARTS",
    108: "WRONG_INDEX_OPTIONS",
    111: "WRONG_SPACE_OPTIONS",
    112: "UNSUPPORTED_INDEX_FEATURE",
    113: "VIEW_IS_READ_ONLY",
    136: "HASH_PARTIAL_KEY",
    137: "TRUNCATE_SYSTEM_SPACE",
    141: "WRONG_SPACE_FORMAT",
    142: "CREATE_SEQUENCE",
    143: "ALTER_SEQUENCE",
    144: "DROP_SEQUENCE",
    145: "NO_SUCH_SEQUENCE",
    147: "SEQUENCE_OVERFLOW",
    160: "DECIMAL_OVERFLOW",
    173: "DROP_COLLATION",
    201: "NO_SUCH_FIELD_NAME",
    251: "ITERATOR_POSITION",
}
"""Tarantool's codes that only the engine returns, by number (engine/codes.py).

They have the number, name and text of Tarantool, and share one explanation.
"""

ENGINE_MEANING = "A definition, a name or a value in the request is invalid"
ENGINE_ACTION = "Correct the part of the request that the text names"

ORDER_EXPLANATIONS: tuple[OrderExplanation, ...] = (
    OrderExplanation(
        401,
        OrderRefusal.UNSIGNED,
        "The order has no signature of the scheme `Qsync-HMAC-SHA256-2`. A `Bearer` header "
        "is not a signature",
        "Use `qsync` or the operator of this version",
    ),
    OrderExplanation(
        401,
        OrderRefusal.EXPIRED,
        "The challenge is older than 30 seconds, of another member or of an earlier process run",
        "Request another challenge from `/order-challenge`",
    ),
    OrderExplanation(
        401,
        OrderRefusal.WRONG,
        "The signature covers another method, path, body or instance, or was made with "
        "another secret",
        "Check the secret. An order with another body uses up its challenge",
    ),
    OrderExplanation(
        401,
        OrderRefusal.REPLAYED,
        "The challenge was used before",
        "Request another challenge from `/order-challenge`",
    ),
    OrderExplanation(
        426,
        None,
        "The request came without TLS, which the admin port requires",
        "Use `https`, or `qsync --address HOST:PORT --ca FILE`",
    ),
    OrderExplanation(
        429,
        OrderRefusal.TOO_MANY,
        "More than 4,096 orders arrived within 30 seconds",
        "Wait, then retry",
    ),
)
"""Every refusal of an order, by HTTP status and then in the order in which the node checks."""
