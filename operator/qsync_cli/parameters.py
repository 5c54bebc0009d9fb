"""Arguments and options that are converted without pydantic, so that commands start fast.

Typer builds a validator of pydantic for each parameter with a value. The import of pydantic alone
takes half of the time in which a simple command must end. A value whose conversion is obvious is
converted here; any other value, such as an invalid one, is left to typer, which also reports it.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from typer._coercion import RuntimeParam
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.models import ParameterInfo

if TYPE_CHECKING:
    from typer._click import Context
    from typer._click.core import Parameter
    from typer.core import _TyperParameter

HELP_COLUMNS = 100
"""Width of help on wide terminals."""
CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": HELP_COLUMNS,
}
"""Settings of every command and group."""
_INTEGER = re.compile(r"[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)

_VALUES: dict[object, str] = {int: "NUMBER", float: "NUMBER", Path: "FILE"}


class QuickCommand(TyperCommand):
    """A command of typer with quick parameters."""

    def get_params(self, ctx: "Context") -> "list[Parameter]":
        return quickened(super().get_params(ctx))


def quickened(params: "list[Parameter]") -> "list[Parameter]":
    """Return the parameters of typer, which become quick ones."""
    for one in params:
        one.__class__ = QuickArgument if isinstance(one, TyperArgument) else QuickOption
    return params


@dataclass(frozen=True)
class QuickParam(RuntimeParam):
    """The conversion of one parameter.

    Attributes:
        typers: returns the conversion of typer.
    """

    typers: Callable[[], RuntimeParam]

    def _coerce_value(self, value: object, param: "_TyperParameter", ctx: "Context") -> object:
        found = converted(value, self.annotation, self.parameter_info)
        return found if found is not None else self.typers().coerce(value, param=param, ctx=ctx)


class QuickArgument(TyperArgument):
    """An argument whose usage is `NAME`, `[NAME]` or `NAME...`."""

    def get_runtime_param(self) -> RuntimeParam:
        descriptor = self.type_descriptor
        return QuickParam(
            descriptor.parameter_info, descriptor.annotation, super().get_runtime_param
        )

    def get_usage_pieces(self, ctx: "Context") -> list[str]:
        name = self.display_name_raw.upper()
        if self.nargs != 1 and not name.endswith("..."):
            name += "..."
        return [name if self.required else f"[{name}]"]

    def display_type_rich(self, ctx: "Context") -> str | None:
        return None  # the name and the help state it


class QuickOption(TyperOption):
    """An option whose value is shown as `TEXT` or `NUMBER`, or as its choices."""

    def get_runtime_param(self) -> RuntimeParam:
        descriptor = self.type_descriptor
        return QuickParam(
            descriptor.parameter_info, descriptor.annotation, super().get_runtime_param
        )

    def display_type_rich(self, ctx: "Context") -> str | None:
        if self.metavar is not None:
            return self.metavar
        found, choices = self.type_descriptor, self.type_descriptor.choices
        if choices is not None:
            return "|".join(map(str, choices))
        return _VALUES.get(found.annotation, "TEXT")


def converted(value: object, annotation: object, info: ParameterInfo) -> object:
    """Return a value in the type of its parameter, or None if typer must convert it.

    Args:
        value: text of the command line, or the default.
        annotation: the type, without `None`.
        info: the constraints of the parameter.
    """
    if info.parser is not None or info.clamp:
        return None
    if get_origin(annotation) is list and isinstance(value, list | tuple):
        items = [converted(one, get_args(annotation)[0], info) for one in value]
        return None if any(one is None for one in items) else items
    if not isinstance(annotation, type):
        return None
    if isinstance(value, str):
        value = _parsed(value, annotation, info)
    elif annotation is float and isinstance(value, int):
        value = float(value)
    if not isinstance(value, annotation):
        return None
    return value if _is_in_range(value, info) else None


def _parsed(text: str, annotation: type, info: ParameterInfo) -> object:
    """Return text in a type; None if that is not obvious."""
    if annotation is str:
        return text if _is_text(text) else None
    if annotation is Path:
        return Path(text) if _is_usable(Path(text), info) else None
    if annotation is int and _INTEGER.fullmatch(text):
        return int(text)
    if annotation is float and _DECIMAL.fullmatch(text):
        return float(text)
    if issubclass(annotation, StrEnum):
        return next((one for one in annotation if one.value == text), None)
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8
        return False
    return True


def _is_usable(path: Path, info: ParameterInfo) -> bool:
    """Return whether a path is new, or a file that can be read, and nothing else is demanded."""
    if info.exists or info.writable or info.resolve_path or info.path_type or not info.dir_okay:
        return False
    return not path.exists() or os.access(path, os.R_OK)


def _is_in_range(value: object, info: ParameterInfo) -> bool:
    if not isinstance(value, int | float):
        return True
    return (info.min is None or value >= info.min) and (info.max is None or value <= info.max)
