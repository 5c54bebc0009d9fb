"""The result of a pass over a part of the log: flat records of one schema, fewer than rows.

Data that must be compared with other members' logs becomes *chunks*: the combined content hash of
each 4,096 LSNs of one replica.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from qsync_spark.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.decode import HASH_BYTES
from qsync_spark.parts import Part

CHUNK_BITS = 12

FACTS = pa.schema(
    [
        pa.field("fact", pa.string()),
        pa.field("member", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("index", pa.int64()),
        pa.field("term", pa.int64()),
        pa.field("replica_id", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("a", pa.int64()),
        pa.field("b", pa.int64()),
        pa.field("c", pa.int64()),
        pa.field("time", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("body", pa.binary()),
    ]
)
FACTS_SQL = sql_of(FACTS)


class Facts:
    """A collector of the facts of one part, as Arrow batches."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._rows: list[tuple[Any, ...]] = []

    def add(  # noqa: PLR0913, PLR0917  # a fact has that many fields
        self, fact: str, offset: int = 0, index: int = 0, term: int = 0, replica_id: int = 0,
        lsn: int = 0, a: int = 0, b: int = 0, c: int = 0, time: float = 0.0, text: str = "",
        body: bytes = b"",
    ) -> None:  # fmt: skip
        part = self._part
        self._rows.append((fact, part.member, part.kind, part.key, offset, index, term, replica_id,
                           lsn, a, b, c, time, text, body))  # fmt: skip

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= ROWS_MAX

    def take(self) -> pa.RecordBatch:
        batch = batch_of(self._rows, FACTS)
        self._rows = []
        return batch


class Chunks:
    """Content hashes of rows, combined per 4,096 LSNs of a replica."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, int], list[bytes]] = {}
        self._span: dict[tuple[int, int], tuple[int, int]] = {}
        self._done: dict[tuple[int, int], tuple[int, int, int]] = {}

    def add(
        self, replica_id: int, lsn: int, index: int, digest: bytes, offset: int, term: int
    ) -> None:
        key = (replica_id, lsn >> CHUNK_BITS)
        digests = self._digests.get(key)
        if digests is None:
            self._fold()
            digests = self._digests[key] = []
            self._span.setdefault(key, (index, index))
        digests.append(digest)
        self._reach(key, index, index)

    def add_run(self, replica_id: int, first: int, index: int, digests: list[bytes]) -> None:
        """Add rows with consecutive LSNs from `first` and indexes from `index`."""
        done = 0
        while done < len(digests):
            lsn = first + done
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

    def report(self, facts: Facts) -> None:
        self._fold()
        for (replica_id, chunk), (count, one, two) in self._done.items():
            low, high = self._span[replica_id, chunk]
            facts.add("chunk", lsn=chunk, replica_id=replica_id, a=count, b=one, c=two, index=low,
                      offset=high)  # fmt: skip


class RowFacts:
    """A collector that makes one fact of each wanted row, instead of chunks."""

    def __init__(self, facts: Facts, wanted: frozenset[tuple[int, int]] | None) -> None:
        self._facts = facts
        self._wanted = wanted

    def add(
        self, replica_id: int, lsn: int, index: int, digest: bytes, offset: int, term: int
    ) -> None:
        if self._wanted is None or (replica_id, lsn >> CHUNK_BITS) in self._wanted:
            self._facts.add("row", offset, index, term, replica_id, lsn, body=digest)

    def report(self, facts: Facts) -> None:
        """Do nothing: all rows were reported."""
