"""A store of fragments that real brokers persisted, with a ledger; and damage to copies of it.

It is a folder, or a bucket of an object server, whose objects are the files of a folder.
"""

import asyncio
import hashlib
import json
import random
import shutil
from pathlib import Path

from qsync_broker.codecs import Codec, compressor, decompressor
from qsync_broker.fragments import content_name, parse_path
from qsync_broker.index import RemoteFragment
from qsync_broker.ledger import AppendLedger, LedgerAppend, append_of_line
from qsync_broker.pipelining import AppendPipeline
from qsync_broker.spec import JournalSpec
from qsync_testing.brokers.servers import brokers
from qsync_testing.object_server import ObjectServer

JOURNAL = "a/journal"
CODECS = (Codec.NONE, Codec.GZIP, Codec.ZSTANDARD, Codec.SNAPPY)


def url_of(folder: Path, server: ObjectServer | None) -> str:
    """Return the URL of a folder, or of a bucket with its files."""
    if server is None:
        return f"file://{folder}/"
    # A process opens a store once for each URL, so each folder has its own bucket.
    bucket = f"b-{hashlib.sha1(str(folder).encode()).hexdigest()}"
    folder.mkdir(parents=True, exist_ok=True)
    server.buckets[bucket] = folder
    return f"s3://{bucket}/"


def make_store(folder: Path, codec: Codec, server: ObjectServer | None = None) -> None:
    """Append through brokers until ten fragments are persisted."""
    asyncio.run(_make_store(folder, codec, url_of(folder / "store", server)))


async def _make_store(folder: Path, codec: Codec, url: str) -> None:
    (folder / "brokers").mkdir(parents=True)
    store = folder / "store"
    generator = random.Random(11)
    ledger = AppendLedger(folder / "ledger.jsonl")
    async with (
        brokers(
            folder / "brokers",
            2,
            length=4096,
            compression_codec=codec.name,
            stores=[url],
        ) as nodes,
        AppendPipeline(nodes[0].url, JOURNAL, ledger=ledger) as pipeline,
    ):
        async with asyncio.timeout(60):
            while len(list(store.rglob("[0-9a-f]*-*-*"))) < 10:
                size = generator.randint(1, 900)
                await asyncio.gather(*(pipeline.append(generator.randbytes(size)) for _ in "ab"))
    ledger.close()


class JournalStore:
    """A copy of a store that a test can change."""

    def __init__(self, source: Path, folder: Path, server: ObjectServer | None = None) -> None:
        shutil.copytree(source / "store", folder / "store")
        shutil.copy(source / "ledger.jsonl", folder / "ledger.jsonl")
        self.folder = folder / "store"
        self.ledger = folder / "ledger.jsonl"
        self.url = url_of(self.folder, server)
        self.journals = folder / "journals.json"
        self.describe()
        # The tail of the ledger is not persisted.
        self.write([one for one in self.appends() if one.end <= self.fragments()[-1].end])

    def describe(self, **fragment: object) -> None:
        """Write the list of journals."""
        spec = {"fragment": {"stores": [self.url], **fragment}}
        self.journals.write_text(json.dumps([{"name": JOURNAL, "spec": spec}]))
        self.spec = spec

    def specs(self) -> list[JournalSpec]:
        """Return the specifications of the journals."""
        return [JournalSpec.from_row(JOURNAL, self.spec)]

    def fragments(self) -> list[RemoteFragment]:
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        names = [str(path.relative_to(self.folder)) for path in paths]
        found = [parse_path(self.url, JOURNAL, name, 0) for name in names]
        return sorted(one for one in found if one is not None)

    def path(self, fragment: RemoteFragment) -> Path:
        return self.folder / fragment.path

    def content(self, fragment: RemoteFragment) -> bytes:
        reader = decompressor(fragment.codec)
        return b"".join(reader.feed(self.path(fragment).read_bytes()))

    def put(self, begin: int, content: bytes, codec: int, *, end: int | None = None) -> str:
        """Write a fragment with a true name, except for `end`, and return its path."""
        end = begin + len(content) if end is None else end
        writer = compressor(codec)
        name = f"{JOURNAL}/{content_name(begin, end, hashlib.sha1(content).digest(), codec)}"
        (self.folder / name).write_bytes(writer.feed(content) + writer.finish())
        return name

    def appends(self) -> list[LedgerAppend]:
        return [append_of_line(line) for line in self.ledger.read_bytes().splitlines()]

    def write(self, appends: list[LedgerAppend]) -> None:
        """Replace the ledger."""
        self.ledger.unlink()
        ledger = AppendLedger(self.ledger)
        ledger.record(appends)
        ledger.close()
