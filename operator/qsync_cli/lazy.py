"""Loads modules when they are first used, so that simple commands start fast.

Commands import at the top of their files, as everywhere else. This module makes that cheap in two
ways, and is the only one that does:

1. A `LazyCommand` names its function as text. Its module is imported when the command runs, or when
   its own help is shown. The help of a group shows the short texts of the table.
2. `install` defers the execution of heavy modules until one of their attributes is read. It works
   for `from package import module` and `import package.module`; `from module import name` reads an
   attribute, so it loads the module at once. A module of only one platform is imported in the
   first form.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from qsync_cli.parameters import CONTEXT, QuickCommand, quickened

if TYPE_CHECKING:
    from typer._click import Context
    from typer._click.core import Parameter

DEFERRED = ("qsync_", "rich.")
"""Beginnings of the names of modules that are executed when they are first used."""
DEFERRED_PACKAGES = ("yaml", "importlib.metadata")
"""Packages that are executed then, too. Pydantic reads metadata only to find its plugins."""


class LazyCommand(NamedTuple):
    """A command of a group.

    Attributes:
        name: name of the command.
        function: its module in `qsync_cli` and its function, as MODULE:FUNCTION.
        help: first line of the function's docstring.
        examples: complete command lines.
    """

    name: str
    function: str
    help: str
    examples: tuple[str, ...]

    @property
    def epilog(self) -> str:
        """Return the examples, each in a line that is not wrapped: that is what \b means."""
        return "\n".join(("\b", "Examples:", *(f"  {example}" for example in self.examples)))

    def summary(self) -> TyperCommand:
        """Return a command that can be listed but not run."""
        return TyperCommand(
            self.name,
            help=self.help,
            short_help=self.help,  # in full: otherwise a long one ends with dots
            epilog=self.epilog,
            rich_markup_mode=None,
        )

    def load(self) -> Any:
        """Import the module and return the command."""
        module, _, function = self.function.partition(":")
        callback = getattr(importlib.import_module(f"qsync_cli.{module}"), function)
        info = CommandInfo(
            self.name,
            cls=QuickCommand,
            callback=callback,
            epilog=self.epilog,
            context_settings=CONTEXT,
            options_metavar="[OPTIONS]",
        )
        return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)


def group_of(table: Sequence[LazyCommand], parents: Sequence[LazyCommand] = ()) -> type[TyperGroup]:
    """Return the class of a group with these commands, followed by its other groups.

    Args:
        table: the commands.
        parents: commands of the parent group. The error about one of them names that group.
    """
    lazy = {command.name: command for command in table}
    above = {command.name for command in parents} - set(lazy)

    class LazyGroup(TyperGroup):
        """A group that imports the module of a command on demand."""

        def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
            listed = {name: command.summary() for name, command in lazy.items()}
            super().__init__(commands={**listed, **(commands or {})}, **attributes)
            self._is_listing = False

        def get_params(self, ctx: "Context") -> "list[Parameter]":
            return quickened(super().get_params(ctx))

        def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]  # typer's own type of contexts is private
            if cmd_name in lazy and not self._is_listing:
                return lazy[cmd_name].load()
            if cmd_name in above and ctx.parent is not None:
                path = f"{ctx.parent.command_path} {cmd_name}"
                ctx.fail(f"{ctx.command_path} has no command {cmd_name}: write `{path}`")
            return self.commands.get(cmd_name)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self._is_listing = True
            super().format_help(ctx, formatter)

        def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
            self._is_listing = True
            return super().shell_complete(ctx, incomplete)

    return LazyGroup


class _DeferredModule(ModuleType):
    """A module that is executed when one of its attributes is read, except `__spec__`.

    The interpreter reads `__spec__` in each `import` of a known module, and drops every exception
    of that read. A module that was executed by it could therefore lose a KeyboardInterrupt, and
    remain half executed.
    """

    executing: Any

    def __getattribute__(self, name: str) -> object:
        if name == "__spec__":
            return super().__getattribute__(name)
        self.__class__ = _DeferredModule.executing
        return getattr(self, name)


class _DeferringLoader(importlib.util.LazyLoader):
    """A loader of such modules. The class of the standard library executes them."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _DeferredModule.executing = type(module)
        module.__class__ = _DeferredModule


class _DeferringFinder:
    """A finder that defers the execution of the modules listed above."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(DEFERRED) and name not in DEFERRED_PACKAGES:
            return None
        spec = _found(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        if spec.submodule_search_locations is None or name in DEFERRED_PACKAGES:
            # Other packages are executed at once: their submodules need their path soon.
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def _found(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Ask the other finders, such as those of an editable installation or a packed program."""
    for finder in sys.meta_path:
        if isinstance(finder, _DeferringFinder):
            continue
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return PathFinder.find_spec(name, path, target)


def install() -> None:
    """Defer heavy modules from now on. A second call changes nothing."""
    if not any(isinstance(finder, _DeferringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeferringFinder())
