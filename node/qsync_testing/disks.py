"""The threads at the disk, without a server around them."""

import threading
from typing import Any, cast

from qsync_node.server.disk import Disk
from qsync_node.storage.storage import Storage


def disk_of(storage: Any) -> tuple[Disk, list[Any], list[str], threading.Event]:
    told: list[Any] = []
    broken: list[str] = []
    heard = threading.Event()

    def deliver(inputs: list[Any]) -> None:
        told.extend(inputs)
        heard.set()

    def on_broken(reason: str) -> None:
        broken.append(reason)
        heard.set()

    return Disk(cast(Storage, storage), deliver, on_broken), told, broken, heard
