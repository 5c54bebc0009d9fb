"""A storage and the threads at its disk, without a server around them."""

import threading
from pathlib import Path
from typing import Any, cast

from qsync_node.consensus.encoding import encode_transactions
from qsync_node.format.batch import LogBatch
from qsync_node.server.disk import Disk
from qsync_node.storage.files import OsFileSystem
from qsync_node.storage.storage import Storage


def disk_of(storage: object) -> tuple[Disk, list[Any], list[str], threading.Event]:
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


BODY = b"\x82\x10\xcd\x02\x00\x21\x91\x01"


def batch(index: int) -> LogBatch:
    data, _ = encode_transactions([[(2, BODY, None)]], 1, index, 0.0, 0)
    return LogBatch(index, index, 1, index, data)


def storage_in(directory: Path, files: OsFileSystem | None = None) -> Storage:
    uuid = "11111111-0000-4000-8000-000000000001"
    storage = Storage.create(files or OsFileSystem(), str(directory / "data"), uuid)
    storage.install_snapshot({}, [])
    return storage
