"""The storage engine: confirmed state (`Database`), pending state (`Pending`), transactions."""

from .access import User
from .database import Database
from .overlay import Executed, Pending
from .requests import Delete, Put, Request, Select, Update, Upsert, decode_request
from .space import Change, Space
from .transaction import Transaction

__all__ = [
    "Change",
    "Database",
    "Delete",
    "Executed",
    "Pending",
    "Put",
    "Request",
    "Select",
    "Space",
    "Transaction",
    "Update",
    "Upsert",
    "User",
    "decode_request",
]
