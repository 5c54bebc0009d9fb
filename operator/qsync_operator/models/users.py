"""Users and roles of the database, as a manifest declares them."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from qsync_operator.models.base import SecretName, SpecModel

Privilege = Literal["read", "write", "execute", "create", "alter", "drop"]
RESERVED = ("admin", "guest", "public", "replication", "super")
NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,62}$"


def refuse_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name} exists in every database: name another one")
    return name


class GrantSpec(SpecModel):
    """What may be done with one space, or with everything."""

    privileges: list[Privilege] = Field(min_length=1, max_length=6)
    """What may be done."""
    space: str | None = Field(default=None, max_length=64)
    """With one space."""
    universe: bool = False
    """With everything."""

    @model_validator(mode="after")
    def _check(self) -> "GrantSpec":
        if (self.space is None) != self.universe:
            raise ValueError("a grant is for one space, or for the universe: true; name one")
        return self


class RoleSpec(SpecModel):
    """A name for a set of grants."""

    name: str = Field(pattern=NAME)
    """As the database knows it."""
    roles: list[str] = Field(default_factory=list, max_length=32)
    """Roles whose grants it has, too."""
    grants: list[GrantSpec] = Field(default_factory=list, max_length=64)
    """What it may do."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return refuse_reserved(value)


class UserSpec(RoleSpec):
    """A user that logs in with the password that a Secret holds under `password`."""

    password_secret: SecretName
    """The Secret whose `password` the user logs in with. A change takes effect automatically."""
