"""Small batches are combined without losing rows, and the retained bytes are bounded."""

from random import Random

import pyarrow as pa

from qsync_spark.decode.batches import SMALL_BYTES, Together

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("body", pa.binary())])


def test_every_row_comes_and_few_batches_do() -> None:
    rng = Random(3)
    together = Together()
    sent, found, number = [], [], 0
    for _ in range(50):
        part = []
        for _ in range(rng.randrange(20)):
            count = rng.choice((0, 1, 1, 5, 3000))
            rows = list(range(number, number + count))
            number += count
            bodies = [b"x" * rng.choice((10, 100, 400_000 if count == 1 else 100)) for _ in rows]
            part.append(pa.record_batch([pa.array(rows, pa.int64()), bodies], schema=SCHEMA))
        sent += part
        found += list(together.add(part))
        assert together._bytes < SMALL_BYTES
    found += list(together.rest())
    assert sorted(n for batch in found for n in batch.column(0).to_pylist()) == list(range(number))
    large = sum(batch.nbytes >= SMALL_BYTES for batch in sent)
    assert len(found) <= large + sum(batch.nbytes for batch in sent) // SMALL_BYTES + 1 < len(sent)
    assert not list(together.rest())
