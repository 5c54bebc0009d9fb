"""A client of Qsync that reports the known outcome of each write.

`Client` is asynchronous and `SyncClient` is not; both have the same verbs. The package needs
msgpack and the standard library. Names load on first use, because the node, the command line and
the simulator import `qsync_client.protocol` and must not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qsync_client.client import Client
    from qsync_client.errors import (
        AccessDenied,
        ClientClosed,
        InvalidArgument,
        QsyncError,
        RequestFailed,
        SchemaError,
        StatementFailed,
        TransactionLost,
    )
    from qsync_client.keys import FirstUse, RequestKey
    from qsync_client.outcomes import Committed, Outcome, Refused, RolledBack, Unknown
    from qsync_client.pool import Member
    from qsync_client.protocol.codes import ErrorCode
    from qsync_client.protocol.constants import Iterator
    from qsync_client.schema import Field, Index, Row, Schema, Space
    from qsync_client.sync import SyncClient, SyncTransaction
    from qsync_client.transaction import Transaction

__version__ = "0.1.0"

_MODULES = {
    "client": ("Client",),
    "errors": (
        "AccessDenied",
        "ClientClosed",
        "InvalidArgument",
        "QsyncError",
        "RequestFailed",
        "SchemaError",
        "StatementFailed",
        "TransactionLost",
    ),
    "keys": ("FirstUse", "RequestKey"),
    "outcomes": ("Committed", "Outcome", "Refused", "RolledBack", "Unknown"),
    "pool": ("Member",),
    "protocol.codes": ("ErrorCode",),
    "protocol.constants": ("Iterator",),
    "schema": ("Field", "Index", "Row", "Schema", "Space"),
    "sync": ("SyncClient", "SyncTransaction"),
    "transaction": ("Transaction",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AccessDenied",
    "Client",
    "ClientClosed",
    "Committed",
    "ErrorCode",
    "Field",
    "FirstUse",
    "Index",
    "InvalidArgument",
    "Iterator",
    "Member",
    "Outcome",
    "QsyncError",
    "Refused",
    "RequestFailed",
    "RequestKey",
    "RolledBack",
    "Row",
    "Schema",
    "SchemaError",
    "Space",
    "StatementFailed",
    "SyncClient",
    "SyncTransaction",
    "Transaction",
    "TransactionLost",
    "Unknown",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
