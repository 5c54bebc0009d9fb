"""Error codes and the exceptions that carry them.

The class of an exception shows *the party that must act*: the caller (`ClientError`), a person
(`storage.errors.CorruptionError`), or the node itself, which restarts from disk
(`storage.errors.DiskError`).
Codes are Tarantool's where Tarantool has one. Codes from 0x4000 are Qsync's own.
"""

from enum import StrEnum

from qsync_client.errors import QsyncError as QsyncError  # noqa: PLC0414  # shared with the client
from qsync_client.protocol.codes import ErrorCode as ErrorCode  # noqa: PLC0414  # shared


class OrderRefusal(StrEnum):
    """Reasons for refusing an order. See `explanations.py`."""

    UNSIGNED = "OrderUnsigned"
    EXPIRED = "OrderExpired"
    WRONG = "OrderSignatureWrong"
    REPLAYED = "OrderReplayed"
    TOO_MANY = "TooManyOrders"


class ClientError(QsyncError):
    """A refused request; the client receives `code` and `message`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
