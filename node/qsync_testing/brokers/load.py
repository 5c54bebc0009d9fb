"""Writers and readers of journals that keep a ledger. It imports no code of Qsync.

    python -m qsync_testing.brokers.load --brokers URL,... --journals NAME,... --ledger FILE

Each writer appends one record at a time to a random journal through a random broker: at once, in
slow pieces, or without finishing. Each reader follows all journals through random brokers, and
sometimes reads older bytes again. Every attempt gets a line in the ledger (`checker`).
The process ends on SIGTERM, once all requests have ended.
"""

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from qsync_testing.brokers.checker import record_of

TIMEOUT_S = 8.0
SIZES = (20, 200, 200, 1500, 1500, 6000)
LARGE = 200_000
READ_MAX = 1 << 20


class BrokeOffError(Exception):
    """The client breaks off on purpose."""


class Style(NamedTuple):
    """The way in which a client sends content.

    Attributes:
        pieces: number of parts.
        pause_s: time between two parts.
        breaks: whether the client breaks off before the last part.
    """

    pieces: int = 1
    pause_s: float = 0
    breaks: bool = False


class Appender:
    """Appends records, and writes each attempt to a ledger."""

    def __init__(self, name: str, ledger: Path, seed: int) -> None:
        self.name = name
        self.rng = random.Random(f"{name} {seed}")
        self.outcomes: dict[str, int] = {}
        self._ledger = ledger.open("a")
        self._numbers = itertools.count(1)

    def note(self, **entry: object) -> None:
        self._ledger.write(json.dumps(entry) + "\n")
        self._ledger.flush()

    async def append(
        self,
        session: aiohttp.ClientSession,
        url: str,
        journal: str,
        size: int,
        style: Style = Style(),  # noqa: B008  # is immutable
        on_piece: Callable[[int], None] = lambda left: None,
    ) -> str:
        """Append once.

        Args:
            session: connections.
            url: URL of the broker.
            journal: name of the journal.
            size: length of the payload in bytes.
            style: see `Style`.
            on_piece: called before each part with the number of parts that follow it.

        Returns:
            The outcome.
        """
        name = f"{self.name}-{next(self._numbers)}"
        record = record_of(name, self.rng.randbytes(size // 2 + 1).hex().encode()[:size])

        async def body() -> AsyncIterator[bytes]:
            step = -(-len(record) // style.pieces)
            for number in range(style.pieces):
                if number:
                    await asyncio.sleep(style.pause_s)
                left = style.pieces - number - 1
                if style.breaks and not left:
                    raise BrokeOffError
                on_piece(left)
                yield record[number * step : (number + 1) * step]

        started, answer = time.monotonic(), {"status": 0}
        try:
            async with session.put(f"{url}/{journal}", data=body()) as response:
                await response.read()
                answer["status"] = response.status
                outcome = _outcome(response.status)
                if response.status == 204:
                    answer |= _place(response, record)
        except aiohttp.ClientConnectorError:
            outcome = "refused"  # nothing was sent
        except BrokeOffError:
            outcome = "broken"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            outcome = "broken" if isinstance(error.__cause__, BrokeOffError) else "unknown"
        if style.breaks and outcome == "unknown":
            outcome = "broken"
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.note(
            kind="append",
            id=name,
            journal=journal,
            outcome=outcome,
            started=started,
            ended=time.monotonic(),
            broker=url,
            **answer,
        )
        return outcome


def _outcome(status: int) -> str:
    if status == 204:
        return "acknowledged"
    return "refused" if 400 <= status < 500 or status == 503 else "unknown"


def _place(response: aiohttp.ClientResponse, record: bytes) -> dict[str, int]:
    if response.headers["X-Commit-SHA1-Sum"] != hashlib.sha1(record).hexdigest():
        raise AssertionError(f"{response.url} acknowledged other bytes than those that were sent")
    begin, end = (int(response.headers[f"X-Commit-{name}"]) for name in ("Begin", "End"))
    return {"begin": begin, "end": end}


class JournalLoad:
    """The writers and readers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.brokers = arguments.brokers.split(",")
        self.journals = arguments.journals.split(",")
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.is_stopped = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        async with new_session() as session:
            writers = [self._write(session, number) for number in range(self.arguments.writers)]
            readers = [self._read(session, number) for number in range(self.arguments.readers)]
            await asyncio.gather(*writers, *readers)

    def stop(self) -> None:
        self.is_stopped = True

    def _style(self) -> Style:
        draw = self.rng.random()
        if draw < 0.05:
            return Style(3, self.rng.uniform(0, 0.4), True)
        if draw < 0.15:
            return Style(self.rng.randrange(2, 5), self.rng.uniform(0, 0.4))
        return Style()

    async def _write(self, session: aiohttp.ClientSession, number: int) -> None:
        rng = self.rng
        appender = Appender(f"w{number}", self.arguments.ledger, self.arguments.seed)
        while not self.is_stopped:
            size = LARGE if rng.random() < 0.01 else rng.choice(SIZES)
            broker, journal = rng.choice(self.brokers), rng.choice(self.journals)
            outcome = await appender.append(session, broker, journal, size, self._style())
            await asyncio.sleep(0.01 if outcome == "acknowledged" else 0.1)

    async def _read(self, session: aiohttp.ClientSession, number: int) -> None:
        rng = self.rng
        reader = Appender(f"r{number}", self.arguments.ledger, self.arguments.seed)
        heads = dict.fromkeys(self.journals, 0)
        while not self.is_stopped:
            broker, journal = rng.choice(self.brokers), rng.choice(self.journals)
            offset = heads[journal]
            if rng.random() < 0.2:
                offset = rng.randrange(offset + 1)
            entry = await read(session, broker, journal, offset, READ_MAX)
            if entry is not None:
                content = entry.pop("content")
                reader.note(kind="read", journal=journal, broker=broker, **entry)
                if entry["begin"] == offset:
                    heads[journal] = max(heads[journal], offset + len(content))
            await asyncio.sleep(0.05)


def new_session() -> aiohttp.ClientSession:
    """Return a client whose connections are not shared, so that no request is sent twice."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    )


async def read(
    session: aiohttp.ClientSession, broker: str, journal: str, offset: int, limit: int
) -> dict[str, Any] | None:
    """Read a journal up to its head.

    Returns:
        The entry of the ledger, with `content`; None if nothing was read. `is_whole` states that
        the broker has ended the answer.
    """
    content = bytearray()
    begin, is_whole = -1, False
    try:
        url = f"{broker}/{journal}?offset={offset}&block=false"
        async with session.get(url) as response:
            if response.status != 206:
                return None
            begin = int(response.headers["Content-Range"].split()[1].split("-")[0])
            async for data in response.content.iter_any():
                content += data
                if len(content) > limit:
                    break
            else:
                is_whole = True
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass  # the bytes that arrived were read all the same
    if begin < 0:
        return None
    return {
        "offset": offset,
        "begin": begin,
        "length": len(content),
        "sha1": hashlib.sha1(content).hexdigest(),
        "is_whole": is_whole,
        "content": bytes(content),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--journals", required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(JournalLoad(parser.parse_args()).run())


if __name__ == "__main__":
    main()
