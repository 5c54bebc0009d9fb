"""The storage engine: confirmed state (`Database`), pending state (`Pending`), transactions."""

from .access import User
from .database import Database
from .overlay import Executed, Pending
from .requests import DataRequest, Delete, Put, Select, Update, Upsert, decode_request
from .space import SpaceChange, SpaceData
from .transaction import OpenTransaction

__all__ = [
    "DataRequest",
    "Database",
    "Delete",
    "Executed",
    "OpenTransaction",
    "Pending",
    "Put",
    "Select",
    "SpaceChange",
    "SpaceData",
    "Update",
    "Upsert",
    "User",
    "decode_request",
]
