"""The free space of a broker's disk, as inputs of its core."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from qsync_broker.config import ServerConfig
from qsync_broker.events import SpaceChanged

CHECK_S = 1.0
log = logging.getLogger("qsync.broker")


def free_bytes(directory: Path) -> int:
    """Return the free bytes of a directory's file system.

    Raises:
        OSError: they cannot be read.
    """
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def problem_of(config: ServerConfig) -> str:
    """Return why the disk of a broker takes no further content, or "".

    Raises:
        OSError: its free space cannot be read.
    """
    if free_bytes(config.data_dir) >= config.disk_reserve:
        return ""
    return (
        f"the disk of broker {config.name} has less than {config.disk_reserve >> 20} MiB of free"
        " space: free space, or enlarge the disk"
    )


async def watch_space(config: ServerConfig, feed: Callable[[SpaceChanged], None]) -> None:
    """Compare the free space with the reserve each second, and pass changes on.

    The state remains as it was while the free space cannot be read.
    """
    known = ""
    while True:
        try:
            found = problem_of(config)
        except OSError as error:
            log.warning("free space of %s cannot be read: %s", config.data_dir, error)
            found = known
        if found != known:
            known = found
            if found:
                log.warning("appends are refused: %s", found)
            else:
                log.warning("appends are accepted: the disk has free space again")
            feed(SpaceChanged(found))
        await asyncio.sleep(CHECK_S)
