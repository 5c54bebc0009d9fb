"""Failures of a data directory, by the party that must act."""

from qsync_node.errors import QsyncError


class DiskError(QsyncError):
    """A write, flush or directory operation failed: the node restarts from disk (D4)."""


class DiskFull(DiskError):  # noqa: N818  # the word of replication.md
    """The disk is full, and the file contains no part of the refused write.

    The member is read-only until space is available (D5).
    """


class CorruptionError(QsyncError):
    """Flushed bytes were changed or are missing: a person must act (D7)."""

    def __init__(self, file: str, offset: int, why: str) -> None:
        super().__init__(
            f"{file} is damaged at offset {offset}: {why}; keep a copy of the data directory, "
            "empty it and start the node, which then joins its cluster as a new instance"
        )
        self.file = file
        self.offset = offset
        self.why = why


class NotInLog(QsyncError):  # noqa: N818  # a fact, not a failure
    """The requested rows are older than the oldest segment: the reader needs a snapshot (S3)."""

    def __init__(self, after_index: int, first_available_index: int) -> None:
        super().__init__(
            f"rows after index {after_index} were removed; the first available index is "
            f"{first_available_index}"
        )
        self.after_index = after_index
        self.first_available_index = first_available_index
