"""Failures of a broker's data directory that a person must resolve.

Failures of the disk itself are the `OSError` of the operating system.
"""

from qsync_node.errors import QsyncError


class StorageDamaged(QsyncError):  # noqa: N818  # a fact about the disk, as `DiskFull`
    """Flushed bytes of the commit log were changed or are missing."""

    def __init__(self, file: str, offset: int, why: str) -> None:
        super().__init__(
            f"cannot open the spools of this broker: {file} is damaged at offset {offset}: {why}; "
            "keep a copy of the directory, empty it and start the broker, which then copies its "
            "journals from the other brokers of their routes"
        )
        self.file = file
        self.offset = offset
        self.why = why
