"""The declared schema: spaces, their formats and their indexes, in Tarantool's terms."""

from typing import Literal

from pydantic import Field, model_validator

from qsync_operator.api.base import NAMED, SpecModel
from qsync_operator.api.patterns import SPACE_PATTERN

FieldType = Literal[
    "any", "unsigned", "string", "number", "double", "integer", "boolean", "varbinary", "scalar",
    "decimal", "uuid", "datetime", "array", "map",
]  # fmt: skip
KeyType = Literal[
    "unsigned", "string", "number", "double", "integer", "boolean", "varbinary", "scalar",
    "decimal", "uuid", "datetime",
]  # fmt: skip

NAME_MAX = 256
"""Limit below that of Tarantool.

A schema that allows longer names would exceed the API server's cost limit for rules.
"""
_NOT_KEYS = frozenset({"any", "array", "map"})


class FieldSpec(SpecModel):
    """One field of the format of a space."""

    name: str = Field(min_length=1, max_length=NAME_MAX)
    """Name of the field."""
    type: FieldType = "any"
    """Tarantool type of the field."""
    is_nullable: bool = False
    """Whether the field may be null or missing."""


class PartSpec(SpecModel):
    """One part of an index."""

    field: str | int
    """Field by name, or by number from 1."""
    type: KeyType | None = None
    """Tarantool type of the part. The default is the type of the field."""
    is_nullable: bool | None = None
    """Whether the part may be null. The default is that of the field."""


class IndexSpec(SpecModel):
    """An index. The first index of a space is its primary key."""

    name: str = Field(min_length=1, max_length=NAME_MAX)
    """Name of the index."""
    type: Literal["TREE", "HASH"] = "TREE"
    """`TREE`: ordered. `HASH`: equality only."""
    unique: bool = True
    """Whether the keys are unique."""
    parts: list[PartSpec] = Field(min_length=1, max_length=255)
    """Parts of the key, in order."""


class SpaceSpec(SpecModel):
    """A space that the operator creates and never drops."""

    name: str = Field(min_length=1, max_length=NAME_MAX, pattern=SPACE_PATTERN)
    """Name of the space."""
    is_sync: bool = True
    """Whether writes wait for the quorum."""
    format: list[FieldSpec] = Field(default_factory=list, json_schema_extra=NAMED)
    """Fields of the space, in order."""
    indexes: list[IndexSpec] = Field(min_length=1, max_length=128, json_schema_extra=NAMED)
    """Indexes of the space. The first one is the primary key."""
    prune: bool = False
    """Whether indexes, and fields at the end of the format, are removed if the manifest omits them.
    Otherwise the database keeps them. Rows keep the values of removed fields."""

    @model_validator(mode="after")
    def _check(self) -> "SpaceSpec":
        refuse_repeated([field.name for field in self.format], "field")
        refuse_repeated([index.name for index in self.indexes], "index")
        if not self.indexes[0].unique:
            raise ValueError(
                f"index {self.indexes[0].name} of space {self.name} is the first one and "
                "thus the primary key: it must be unique"
            )
        for index in self.indexes:
            for part in index.parts:
                self._check_part(index, part)
        return self

    def _check_part(self, index: IndexSpec, part: PartSpec) -> None:
        where = f"index {index.name} of space {self.name}"
        field = self.field_of(part)
        if field is None:
            if isinstance(part.field, str):
                raise ValueError(f"{where}: field {part.field} not found in the format")
            if part.field < 1:
                raise ValueError(
                    f"{where}: invalid field number {part.field}: numbers begin with 1"
                )
            if part.type is None:
                raise ValueError(
                    f"{where}: field {part.field} is not in the format: specify its type"
                )
            return
        if part.type is None and field.type in _NOT_KEYS:
            raise ValueError(f"{where}: a field of type {field.type} cannot be part of a key")
        if index is self.indexes[0] and (field.is_nullable or part.is_nullable):
            raise ValueError(f"{where}: field {field.name} of a primary key cannot be nullable")
        if index.type == "HASH" and not index.unique:
            raise ValueError(f"{where}: a HASH index must be unique")

    def field_of(self, part: PartSpec) -> FieldSpec | None:
        if isinstance(part.field, str):
            return next((field for field in self.format if field.name == part.field), None)
        return self.format[part.field - 1] if 1 <= part.field <= len(self.format) else None

    def number_of(self, part: PartSpec) -> int:
        """Return the field's number from 0, as IPROTO uses it."""
        if isinstance(part.field, int):
            return part.field - 1
        return next(i for i, field in enumerate(self.format) if field.name == part.field)


def refuse_repeated(names: list[str], what: str) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ValueError(f"{what} {name} is declared twice")
