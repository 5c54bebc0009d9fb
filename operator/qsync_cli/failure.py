"""Failure of a command: exit code 1, one sentence and a reason."""

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not at run time: commands import nothing heavy before they run
    from qsync_operator.kubernetes.api import ApiError
    from qsync_operator.members.links import LinkError


def cause_of(error: Exception) -> str:
    """Return the cause of an error of a file, without the number and the name of the file."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error)


def install_command(extra: str) -> str:
    """Return the command that installs an extra: `qsync-db` is not in a package index yet."""
    return f"`pip install '.[{extra}]'` in a checkout of Qsync"


class FailureReason(StrEnum):
    """Stable reasons of failures, printed in parentheses after the sentence."""

    NOT_FOUND = "NotFound"
    ALREADY_EXISTS = "AlreadyExists"
    INVALID = "Invalid"
    REFUSED = "Refused"
    NOT_READY = "NotReady"
    TIMED_OUT = "TimedOut"
    UNREACHABLE = "Unreachable"
    NOT_INSTALLED = "NotInstalled"
    DAMAGED = "Damaged"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class FailureEntry:
    """The explanation of one reason, in the form of `qsync_operator.api.catalogue`."""

    name: FailureReason
    meaning: str
    action: str


FAILURES = (
    FailureEntry(
        FailureReason.NOT_FOUND,
        "The cluster, member, audit, Secret or file does not exist",
        "Correct the name; the message names the command that lists the existing ones",
    ),
    FailureEntry(
        FailureReason.ALREADY_EXISTS,
        "An object or a state that the command should create exists",
        "Choose another name, or leave it as it is",
    ),
    FailureEntry(
        FailureReason.INVALID,
        "A manifest, name, option or file is invalid",
        "Correct the field or option that the message names",
    ),
    FailureEntry(
        FailureReason.REFUSED,
        "The cluster, a member or the API server refused the command, which could cause harm",
        "Follow the message",
    ),
    FailureEntry(
        FailureReason.NOT_READY,
        "The cluster or a member cannot do this at the moment",
        "Check `qsync status`, and retry later",
    ),
    FailureEntry(
        FailureReason.TIMED_OUT,
        "The result did not arrive in time; the command may still take effect",
        "Check `qsync status` before you repeat it",
    ),
    FailureEntry(
        FailureReason.UNREACHABLE,
        "A member or the API server does not answer",
        "Check the address, the network and the credentials",
    ),
    FailureEntry(
        FailureReason.NOT_INSTALLED,
        "A package or program that the command needs is missing",
        "Install it as the message describes",
    ),
    FailureEntry(
        FailureReason.DAMAGED,
        "A log file, or a file of a local cluster, is damaged",
        "Copy the directory before any change, then follow the message",
    ),
    FailureEntry(
        FailureReason.FAILED,
        "A process that the command started has failed",
        "Read the file that the message names",
    ),
)
"""Every reason, in the order of `FailureReason`."""


class Failure(Exception):  # noqa: N818  # an outcome that is shown to a person
    """A command failed.

    Args:
        reason: the stable reason.
        message: the cause and the action to take, in one sentence.
    """

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def failure_of(error: "LinkError | ApiError") -> Failure:
    """Return the failure for an error of a member or of the API server."""
    status = getattr(error, "status", 0)
    is_refusal = getattr(error, "is_refusal", False) or status >= 400
    reason = FailureReason.REFUSED if is_refusal else FailureReason.UNREACHABLE
    return Failure(FailureReason.NOT_FOUND if status == 404 else reason, str(error))
