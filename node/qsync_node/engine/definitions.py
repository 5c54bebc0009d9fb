"""Definitions of spaces and indexes: values read from rows of `_space` and `_index`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .keydef import KeyPart


@dataclass(frozen=True, slots=True)
class FieldDef:
    """One field of a space's format."""

    name: str
    type: str = "any"
    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class IndexDef:
    """One row of `_index`."""

    space_id: int
    id: int
    name: str
    is_tree: bool
    is_unique: bool
    parts: tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True)
class SpaceDef:
    """One row of `_space`."""

    id: int
    owner: int
    name: str
    engine: str = "memtx"
    field_count: int = 0
    flags: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[FieldDef, ...] = ()

    @property
    def is_view(self) -> bool:
        return self.engine == "sysview"
