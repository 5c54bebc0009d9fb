"""Rows that must be compared with other members' logs: combined to chunks, or one by one."""

import numpy as np
import pyarrow as pa

from qsync_spark.decode.batches import ROWS_MAX, batch_of
from qsync_spark.decode.blocks import HASH_BYTES
from qsync_spark.decode.edges import Ints
from qsync_spark.decode.parts import FilePart
from qsync_spark.facts.kinds import Chunk
from qsync_spark.facts.table import COPIES, Facts

CHUNK_BITS = 12

ChunkPlace = tuple[str, str, str, int, int, int, int, int]
"""The fields of a `RowFact`."""


class Chunks:
    """Content hashes of rows, combined per 4,096 LSNs of a replica."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, int], list[bytes]] = {}
        self._span: dict[tuple[int, int], tuple[int, int]] = {}
        self._done: dict[tuple[int, int], tuple[int, int, int]] = {}

    def add_run(self, first: ChunkPlace, offsets: Ints, digests: list[bytes]) -> None:
        """Add consecutive rows, the first of them at the place `first`."""
        index, replica_id, first_lsn = first[4], first[6], first[7]
        done = 0
        while done < len(digests):
            lsn = first_lsn + done
            count = min((1 << CHUNK_BITS) - lsn % (1 << CHUNK_BITS), len(digests) - done)
            key = (replica_id, lsn >> CHUNK_BITS)
            if key not in self._digests:
                self._fold()
                self._digests[key] = []
                self._span.setdefault(key, (index + done, index + done))
            self._digests[key] += digests[done : done + count]
            self._reach(key, index + done, index + done + count - 1)
            done += count

    def _reach(self, key: tuple[int, int], first: int, last: int) -> None:
        low, high = self._span[key]
        if first < low or last > high:
            self._span[key] = (min(low, first), max(high, last))

    def _fold(self) -> None:
        for key, digests in self._digests.items():
            words = np.frombuffer(b"".join(digests), dtype="<i8").reshape(-1, HASH_BYTES // 8)
            count, one, two = self._done.get(key, (0, 0, 0))
            folded = np.bitwise_xor.reduce(words, axis=0)
            self._done[key] = (count + len(words), one ^ int(folded[0]), two ^ int(folded[1]))
        self._digests = {}

    def report(self, part: FilePart, facts: Facts) -> None:
        self._fold()
        for (replica_id, number), (count, one, two) in self._done.items():
            span = self._span[replica_id, number]
            facts.add(
                Chunk(part.member, part.kind, part.key, replica_id, number, count, one, two, *span)
            )


class Copies:
    """Copies of each wanted row, instead of chunks."""

    def __init__(self, wanted: frozenset[tuple[int, int]] | None) -> None:
        self._wanted = wanted
        self._rows: list[tuple[str | int | bytes, ...]] = []

    def add_run(self, first: ChunkPlace, offsets: Ints, digests: list[bytes]) -> None:
        """Add the wanted ones of consecutive rows, the first of them at the place `first`."""
        *file, _, index, term, replica_id, lsn = first
        rows = zip(offsets.tolist(), digests, strict=True)
        for number, (offset, digest) in enumerate(rows):
            if self._wanted is None or (replica_id, (lsn + number) >> CHUNK_BITS) in self._wanted:
                place = (*file, offset, index + number, term, replica_id, lsn + number)
                self._rows.append((*place, digest))

    def report(self, part: FilePart, facts: Facts) -> None:
        """Do nothing: copies are no facts about the part."""

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= ROWS_MAX

    def take(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        return batch_of(rows, COPIES)
