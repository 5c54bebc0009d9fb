"""`qsync` and `kubectl qsync`.

Exit codes: 0 done, 1 it did not happen (one sentence on stderr), 2 wrong usage, 3 the outcome of a
write is unknown. `status --check` adds 4 to 6 (statusview.py).
"""

import importlib.util
import sys
from typing import Annotated

import typer

from qsync_cli import lazy
from qsync_cli.commands import COMMANDS, LOCAL
from qsync_cli.failure import Failure, FailureReason, install_command
from qsync_cli.journals.commands import JOURNALS
from qsync_cli.parameters import CONTEXT
from qsync_node import __version__

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""

app = typer.Typer(
    cls=lazy.group_of(COMMANDS),
    help="Qsync: a quorum-synchronous replicated database.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
_LOCAL_HELP = "Manage clusters of local processes, with the same manifests as on Kubernetes."
local_app = typer.Typer(
    cls=lazy.group_of(LOCAL, parents=COMMANDS),
    help=_LOCAL_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
app.add_typer(local_app, name="local", short_help=_LOCAL_HELP)
journals_app = typer.Typer(
    cls=lazy.group_of(JOURNALS),
    help="Read and write journals, through any broker of a cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
app.add_typer(journals_app, name="journals")


EXTRA_PACKAGES = ("aiohttp", "cryptography", "obstore", "sortedcontainers", "uvloop", "kubernetes")
"""Packages without which the distribution manages no cluster: those of an extra."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"qsync {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Qsync: a quorum-synchronous replicated database."""


def main() -> None:
    lazy.install()
    try:
        app()
    except Failure as failure:
        sys.stderr.write(f"qsync: {with_reason(str(failure).rstrip(), failure.reason)}\n")
        sys.exit(1)
    except ImportError as error:
        if _is_interruption(error):
            sys.exit(INTERRUPTED)
        missing = next(filter(_is_missing, EXTRA_PACKAGES), None)
        if missing is None:
            raise
        text = f"the package {missing} is missing: run {install_command('operator')}"
        sys.stderr.write(f"qsync: {text} ({FailureReason.NOT_INSTALLED})\n")
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output is closed
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        sys.stderr.write(f"qsync: {_sentence_of(error)}\n")
        sys.exit(1)
    except AttributeError as error:
        if not _is_interruption(error):
            raise
        sys.exit(INTERRUPTED)


def _is_interruption(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error, for example of a module that was half executed."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def with_reason(text: str, reason: FailureReason) -> str:
    """Return the text with its reason after the last sentence: before a list that ends it."""
    sentence, line, rest = text.partition("\n")
    if rest.rpartition("\n")[2].startswith("  "):
        return f"{sentence} ({reason}){line}{rest}"
    return f"{text} ({reason})"


def _sentence_of(error: OSError) -> str:
    """Return the sentence and the reason for a file that cannot be used."""
    text = f"cannot use {error.filename}: {error.strerror}"
    from qsync_local.store import DamagedFileError, home  # noqa: PLC0415  # slow, for failures only

    if isinstance(error, DamagedFileError):
        return f"{error} ({FailureReason.DAMAGED})"
    directory = str(home())
    if str(error.filename).startswith(directory):
        remedy = f"set QSYNC_HOME to a directory that you may write, instead of {directory}"
    else:
        remedy = "correct the path or its permissions"
    return f"{text}; {remedy} ({FailureReason.FAILED})"


if __name__ == "__main__":
    main()
