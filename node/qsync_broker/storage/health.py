"""The state of the disk as this process knows it."""

import contextlib
import errno
from collections.abc import Iterator


class Health:
    """Refuse further writes after a failed flush.

    After a failed flush the kernel may have marked the lost pages clean. The page cache then shows
    bytes that the disk does not have, and a repeated flush succeeds without writing them. The files
    are therefore not written again until the directory is reopened: recovery rewrites every byte
    that the last successful flush may not cover.
    """

    def __init__(self) -> None:
        self.failed = ""

    def check(self) -> None:
        """Raise OSError after a failed flush."""
        if self.failed:
            raise OSError(errno.EIO, f"an earlier flush failed ({self.failed}); restart the broker")

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """Remember a failure of the flush in this context."""
        try:
            yield
        except OSError as error:
            self.failed = str(error) or type(error).__name__
            raise
