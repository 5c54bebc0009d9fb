"""Users that every database has, and the bits of privileges in rows of `_priv`."""

from enum import IntEnum, IntFlag
from typing import Final


class UserId(IntEnum):
    """Ids of the users and roles that every database has."""

    GUEST = 0
    ADMIN = 1
    PUBLIC = 2
    REPLICATION = 3
    SUPER = 31


FIRST_USER_ID: Final = 32
"""Users with smaller ids belong to the database."""


class Privilege(IntFlag):
    """Bits of a privilege."""

    READ = 1
    WRITE = 2
    EXECUTE = 4
    SESSION = 8
    USAGE = 16
    CREATE = 32
    DROP = 64
    ALTER = 128
    GRANT = 8192
    REVOKE = 16384


ALL_PRIVILEGES: Final = 0xFFFFFFFF
