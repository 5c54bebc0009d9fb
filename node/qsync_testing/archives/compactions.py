"""Run compactions without a Spark session: publish states and remove files as a compaction does."""

import time
from pathlib import Path
from typing import Any
from zlib import crc32

from qsync_node.archive.compaction import COMPACTION_MANIFEST, Compaction, encode_compaction
from qsync_node.archive.description import describe
from qsync_node.archive.location import store_of
from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.archive.outputs import put_bytes
from qsync_node.archive.restore.point import Point
from qsync_node.archive.restore.run import fold
from qsync_spark.compaction.lock import CompactionLock
from qsync_spark.compaction.run import CompactionResult, remove


def publish(
    folder: Path, into: Path, time_s: float = 100.0, verdict: str = "Passed", **point: Any
) -> Compaction:
    """Publish the state at a point of an archive as a compaction.

    Args:
        folder: The archive.
        into: The directory for the restored snapshot; its name is hashed into the
            compaction's name.
        time_s: The time of the latest row, which the rows themselves cannot provide: the clocks
            of simulated leaders jump.
        verdict: The audit's verdict.
        point: The fields of the `Point`.
    """
    url = f"file://{folder}"
    made = fold(url, Point(**point), into)
    data = Path(made.file).read_bytes()
    entry = describe(data, SNAPSHOT, Path(made.file).name, 1)
    name = f"{made.index:020d}-{entry.last_term}-{crc32(into.name.encode()):08x}"
    stored = put_bytes(url, f"compactions/{name}/{entry.name}", data)
    found = Compaction(name, made.replicaset_uuid, made.index, time_s, time.time(), verdict,
                       entry, [], [stored])  # fmt: skip
    put_bytes(url, f"{found.folder}/{COMPACTION_MANIFEST}", encode_compaction(found))
    return found


def removed(
    folder: Path, now_s: float, retention_s: float, audited_index: int = 10**12
) -> CompactionResult:
    url = f"file://{folder}"
    outcome = CompactionResult("sim", url)
    with CompactionLock(store_of(url), url, "test") as lock:
        remove(url, now_s, retention_s, audited_index, outcome, lock)
    return outcome
