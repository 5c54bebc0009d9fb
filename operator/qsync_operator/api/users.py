"""Users and roles of the database, as a manifest declares them."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from qsync_operator.api.base import SecretName, SpecModel
from qsync_operator.api.patterns import JOURNALS_PATTERN, USER_PATTERN

PrivilegeName = Literal["read", "write", "execute", "create", "alter", "drop"]
BROKER_USER = "qsync_broker"
"""User with which brokers of journals log in."""
RESERVED = ("admin", "guest", "public", "replication", "super", BROKER_USER)


def refuse_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name} is reserved: choose another name")
    return name


class GrantSpec(SpecModel):
    """Privileges on one space, on the universe, or on journals."""

    privileges: list[PrivilegeName] = Field(min_length=1, max_length=6)
    """Granted privileges."""
    space: str | None = Field(default=None, max_length=64)
    """Space on which they are granted."""
    universe: bool = False
    """Whether they are granted on the universe."""
    journal: str | None = Field(default=None, max_length=512, pattern=JOURNALS_PATTERN)
    """Journal, or folder of journals followed by `/*`, to which `write` permits to publish."""

    @model_validator(mode="after")
    def _check(self) -> "GrantSpec":
        if (self.space is not None) + (self.journal is not None) + self.universe != 1:
            raise ValueError("a grant needs exactly one of space, journal and universe: true")
        if self.journal is not None and self.privileges != ["write"]:
            raise ValueError("a grant on a journal has the privilege write only")
        return self


class RoleSpec(SpecModel):
    """A named set of grants."""

    name: str = Field(pattern=USER_PATTERN)
    """Name in the database."""
    roles: list[str] = Field(default_factory=list, max_length=32)
    """Roles whose grants are included."""
    grants: list[GrantSpec] = Field(default_factory=list, max_length=64)
    """Grants on spaces or the universe."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return refuse_reserved(value)


class UserSpec(RoleSpec):
    """A database user. Its password is the key `password` of a Secret."""

    password_secret: SecretName
    """Secret whose key `password` is the password of the user. A change takes effect automatically.
    """
