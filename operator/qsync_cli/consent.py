"""Consent to commands that destroy data: a question at a terminal, `--yes` in a script."""

import sys

import typer

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.output import warn


def require_consent(
    subject: str, consequence: str, question: str, remedy: str, *, is_given: bool
) -> None:
    """Report the consequence of a command, and ask the person at the terminal.

    Args:
        subject: name of the object that the command destroys or changes.
        consequence: sentence about the loss that follows.
        question: question on a terminal.
        remedy: change of the command without a terminal.
        is_given: whether the command itself gives consent.

    Raises:
        Failure: there is no consent.
    """
    if not is_given and not sys.stdin.isatty():
        separator = "\n" if "\n" in consequence else " "  # after a list of the lost data
        text = f"{consequence}{separator}Nothing was changed: {remedy}"
        raise Failure(FailureReason.REFUSED, text)
    warn(consequence)
    if not is_given and not typer.confirm(question, err=True):
        raise Failure(FailureReason.REFUSED, f"{subject}: nothing was changed")
