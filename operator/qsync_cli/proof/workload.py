"""The workload of `qsync chaos`: inserts with idempotency keys, each with a line in a ledger."""

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import TextIO

from qsync_cli.bench import ensure_space, outcome_word
from qsync_cli.data.connecting import Endpoint
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.proof.ledger import WritePause
from qsync_client import Client, Committed, Iterator, Outcome, Unknown
from qsync_client.ledger import COMMITTED

DEADLINE_S = 15.0
"""Time in which the client repeats an unknown write under its key."""
FLUSH_S = 0.05
VALUE_BYTES = 100


@dataclass
class LedgerWorkload:
    """Workers that share one client.

    Attributes:
        endpoint: members and user.
        cluster: name for the lines.
        space: name of the space; it is created if it is missing.
        lines: the ledger.
        workers: number of concurrent writes.
        rate: writes in a second, 0 for no limit.
        outcomes: number of lines of this run by outcome.
        pause: the pause of acknowledged writes that is being measured, if one is.
        refusal: reason of the last write that was not acknowledged, "" without one.
    """

    endpoint: Endpoint
    cluster: str
    space: str
    lines: TextIO
    workers: int
    rate: float
    outcomes: dict[str, int] = field(default_factory=dict)
    pause: WritePause | None = None
    refusal: str = ""
    is_stopping: bool = False

    @property
    def writes(self) -> int:
        """Return the number of writes whose outcome is recorded."""
        return sum(self.outcomes.values())

    @property
    def committed(self) -> int:
        """Return the number of acknowledged writes."""
        return self.outcomes.get(COMMITTED, 0)

    async def run(self) -> None:
        """Write until `is_stopping`. Each worker waits for its outcome."""
        async with Client(
            self.endpoint.addresses, self.endpoint.user, self.endpoint.password,
            deadline_s=DEADLINE_S, tls=self.endpoint.tls,
        ) as client:  # fmt: skip
            space = await ensure_space(client, self.space)
            numbers = itertools.count(await _first_free(client, space))
            flusher = asyncio.create_task(self._flush())
            try:
                await asyncio.gather(
                    *(self._work(client, space, numbers) for _ in range(self.workers))
                )
            finally:
                flusher.cancel()
                self.lines.flush()

    async def _work(self, client: Client, space: int, numbers: "itertools.count[int]") -> None:
        pause_s = self.workers / self.rate if self.rate else 0.0
        while not self.is_stopping:
            started_s = time.time()
            number = next(numbers)
            value = f"value-{number}".ljust(VALUE_BYTES, ".")
            outcome: Outcome = Unknown("interrupted")
            try:
                outcome = await client.insert(space, [number, value])
            finally:  # an interrupted write may take effect
                self._record(space, number, value, started_s, outcome)
            if not isinstance(outcome, Committed):
                await asyncio.sleep(0.01)  # a refusal may return at once
            if pause_s:
                await asyncio.sleep(max(0.0, started_s + pause_s - time.time()))

    def _record(
        self, space: int, number: int, value: str, started_s: float, outcome: Outcome
    ) -> None:
        word, ended_s = outcome_word(outcome), time.time()
        line = {
            "cluster": self.cluster, "space": space, "id": number, "value": value,
            "outcome": word, "started": started_s, "ended": ended_s,
        }  # fmt: skip
        self.lines.write(json.dumps(line) + "\n")
        self.outcomes[word] = self.outcomes.get(word, 0) + 1
        if self.pause is not None:
            self.pause.add(word, started_s, ended_s)
        if not isinstance(outcome, Committed):
            self.refusal = outcome.reason

    async def _flush(self) -> None:
        while True:
            self.lines.flush()
            await asyncio.sleep(FLUSH_S)


async def _first_free(client: Client, space: int) -> int:
    """Return the first id after those of earlier runs.

    Raises:
        Failure: it is unknown. A write to an earlier id would be refused, and its row is present.
    """
    found = await client.select(space, iterator=Iterator.LE, limit=1, linearizable=True)
    if not isinstance(found, Committed):
        raise Failure(
            FailureReason.REFUSED,
            f"no write was sent, because the newest row is unknown: {found.reason}; try again",
        )
    return int(found.tuples[0][0]) + 1 if found.tuples else 1
