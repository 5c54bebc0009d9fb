"""`qsync sh`: the terminal of the console, or its script."""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import prompt_toolkit
import prompt_toolkit.completion
import prompt_toolkit.history
import typer

from qsync_cli.data.connecting import ConnectionTarget, on_cluster
from qsync_cli.data.writing import UNKNOWN_EXIT
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.shell.completion import completions
from qsync_cli.shell.grammar import SyntaxFailed, parse
from qsync_cli.shell.session import FailedRequest, Leave, ShellSession
from qsync_client import QsyncError

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

CommandOption = Annotated[
    list[str] | None,
    typer.Option("--command", "-c", help="Run this line, and leave. Can be repeated.",
                 metavar="LINE", show_default=False),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Show rows as JSON lines.")]


@on_cluster
def sh(
    target: ConnectionTarget, command: CommandOption = None, is_json: JsonOption = False
) -> None:
    """Open a console for the rows of a cluster."""
    with target.endpoint() as endpoint, target.connect_to(endpoint) as client:
        session = ShellSession(client, endpoint, is_json)
        try:
            if command:
                run_script(session, command)
            elif not sys.stdin.isatty():
                run_script(session, sys.stdin)
            else:
                session.read_schema()
                run_terminal(session, target.cluster)
        finally:
            session.close()


def run_script(session: ShellSession, lines: Iterable[str]) -> None:
    """Run lines, and stop at the first failure; lines that begin with # are comments.

    Raises:
        Failure: a line failed.
        Exit: the outcome of a write is unknown (exit code 3).
    """
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            continue
        try:
            run_line(session, line, _print)
        except Leave:
            return
        except FailedRequest as error:
            if not error.is_unknown:
                raise Failure(FailureReason.FAILED, f"line {number}: {error}") from error
            typer.echo(f"qsync: line {number}: {error}", err=True)
            raise typer.Exit(UNKNOWN_EXIT) from error


def run_terminal(session: ShellSession, name: str) -> None:
    """Read lines from the terminal until the user leaves."""
    prompts: prompt_toolkit.PromptSession[str] = prompt_toolkit.PromptSession(
        history=prompt_toolkit.history.FileHistory(str(history_path())),
        completer=_Completer(session),
        complete_while_typing=False,
    )
    members = len(session.endpoint.addresses)
    where = "one member" if members == 1 else f"{members} members"
    _print(f"connected to {name} ({where}) as {session.endpoint.user}; `help` lists the verbs")
    while True:
        try:
            line = prompts.prompt(f"{name}{'*' if session.is_in_transaction else ''}> ")
            run_line(session, line, _print)
        except KeyboardInterrupt:
            _print("interrupted; if it was a write, `retry` finds its outcome")
        except FailedRequest as error:
            _print(str(error))
        except (EOFError, Leave):
            return


def run_line(session: ShellSession, line: str, show: Callable[[str], None]) -> None:
    """Run one line, and show its answer.

    Raises:
        Leave: the user leaves.
        Failed: the command failed.
    """
    try:
        command = parse(line)
        for text in () if command is None else session.run(command):
            show(text)
    except (SyntaxFailed, Failure, QsyncError) as error:
        raise FailedRequest(str(error)) from error
    except typer.BadParameter as error:
        raise FailedRequest(error.message) from error


def history_path() -> Path:
    """Return the file of the history, which only its user can read."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(base) / "qsync" / "history"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    return path


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class _Completer(prompt_toolkit.completion.Completer):
    """Completions for prompt_toolkit."""

    def __init__(self, session: ShellSession) -> None:
        self._session = session

    def get_completions(
        self, document: "Document", complete_event: "CompleteEvent"
    ) -> Iterable[prompt_toolkit.completion.Completion]:
        for one in completions(document.text_before_cursor, self._session.spaces):
            yield prompt_toolkit.completion.Completion(
                one.text, start_position=-one.length, display_meta=one.meta
            )
