"""The same requests to Qsync's brokers and to Gazette's, answer by answer.

    python -m e2e.journals.differential [--seeds 0..19] [--steps 120]

Each seed is a random series of requests of one client: specifications, appends with and without
preconditions, suspensions, broken and malformed appends, reads and listings. The parts of answers
that the protocol defines must be equal: statuses, offsets, checksums, registers, contents, names,
suspensions and fragments. The differences that are intended stand in `EXPLAINED`, each with its
reason.
"""

import argparse
import asyncio
import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
from rich.console import Console
from rich.progress import Progress

from e2e.journals.peers import gazette
from e2e.local_cluster import LocalCluster
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc.convert import enum_value
from qsync_testing.ports import free_port

MANIFEST = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata:
  name: journals
spec:
  replicas: 1
  journals:
    enabled: true
    port: {port}
"""
TIMEOUT_S = 20.0
REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
NAMES = ("a/one", "a/two", "b/three", "four")
SELECTORS: tuple[dict[str, str], ...] = (
    {},
    {"tag": "a"},
    {"tag": ""},
    {"prefix": "a/"},
    {"name": "four"},
    {"tag": "c"},
)
REGISTERS = ("x1", "y2", "z3")
RETRIED = (
    pb.NO_JOURNAL_PRIMARY_BROKER,
    pb.NOT_JOURNAL_PRIMARY_BROKER,
    pb.INSUFFICIENT_JOURNAL_BROKERS,
)
NO_RESUME, IF_FLUSHED, NOW = range(1, 4)
EXPLAINED = {
    "invalid request": "Gazette answers UNKNOWN, Qsync INVALID_ARGUMENT, to the same requests",
    "no name": "an append to the journal `` is refused, as one to `x` is; Gazette does not find it",
    "content in the first message": "Gazette answers INTERNAL",
    "fragments": "Gazette completes the first fragment after the first append, so that its store"
    " shows that the journal is not new; here the epoch in the key space shows it",
    "suspension": "Gazette resumes a journal whose new specification does not state the suspension,"
    " so all of them state it",
}

console = Console(highlight=False, soft_wrap=True)
BrokerReply = dict[str, Any]


class ComparedSystem:
    """A broker under test."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.channel = grpc.aio.insecure_channel(url.removeprefix("http://"))
        self.stub: Any = pb_grpc.JournalStub(self.channel)
        self.revisions: dict[str, int] = {}

    async def perform(self, operation: str, fields: BrokerReply) -> BrokerReply:
        """Carry an operation out, and return the comparable parts of the answer."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found: BrokerReply = await getattr(self, operation)(**fields)
                return found
        except grpc.aio.AioRpcError as error:
            code = error.code()
            return {"error": "refused" if code in REFUSED else code.name}

    # --- operations -----------------------------------------------------------------------

    async def apply(self, name: str, expected: str, spec: pb.JournalSpec | None) -> BrokerReply:
        """Create, change or delete a journal; `expected` names the expected revision."""
        revision = {
            "absent": 0,
            "any": -1,
            "known": self.revisions.get(name, 0),
            "old": max(self.revisions.get(name, 0) - 1, 1),
        }[expected]
        change = pb.ApplyRequest.Change(expect_mod_revision=revision)
        if spec is None:
            change.delete = name
        else:
            change.upsert.CopyFrom(spec)
            # Gazette resumes a journal whose new specification does not state the suspension.
            suspension = await self._suspension(name)
            if suspension is not None:
                change.upsert.suspend.CopyFrom(suspension)
        answer = await self.stub.Apply(pb.ApplyRequest(changes=[change]))
        await self.listing({})
        return {"status": answer.status}

    async def _suspension(self, name: str) -> pb.JournalSpec.Suspend | None:
        """Return the suspension of a journal, or None if it does not exist."""
        async for message in self.stub.List(pb.ListRequest()):
            for journal in message.journals:
                if journal.spec.name == name:
                    suspend: pb.JournalSpec.Suspend = journal.spec.suspend
                    return suspend
        return None

    async def listing(self, labels: dict[str, str]) -> BrokerReply:
        """List the journals with some labels, and note the revisions."""
        include = [pb.Label(name=name, value=value) for name, value in labels.items()]
        selector = pb.LabelSelector(include=pb.LabelSet(labels=include))
        found: BrokerReply = {}
        async for message in self.stub.List(pb.ListRequest(selector=selector)):
            for journal in message.journals:
                self.revisions[journal.spec.name] = journal.mod_revision
                spec = pb.JournalSpec()
                spec.CopyFrom(journal.spec)
                spec.ClearField("suspend")
                found[journal.spec.name] = (
                    spec.SerializeToString(deterministic=True).hex(),
                    journal.spec.suspend.level,
                )
        if not labels:
            self.revisions = {name: self.revisions[name] for name in found}
        return found

    async def append(
        self, contents: list[bytes], ending: str, fields: dict[str, Any]
    ) -> BrokerReply:
        """Append; `ending` is how the request ends."""

        async def requests() -> AsyncIterator[pb.AppendRequest]:
            yield pb.AppendRequest(**fields)
            for content in contents:
                yield pb.AppendRequest(content=content)
            if ending != "break":
                yield pb.AppendRequest()
            if ending == "more":
                yield pb.AppendRequest(content=b"more")
            if ending == "header":
                yield pb.AppendRequest(journal="a/one")

        for _ in range(100):
            answer = await self.stub.Append(requests())
            is_resuming = answer.status == pb.SUSPENDED and not fields.get("suspend")
            if answer.status not in RETRIED and not is_resuming:
                break
            await asyncio.sleep(0.1)  # the journal is new, or being resumed
        commit = answer.commit
        return {
            "status": answer.status,
            "span": (commit.begin, commit.end),
            "sum": commit.sum.SerializeToString().hex(),
            "registers": sorted((one.name, one.value) for one in answer.registers.labels),
            "chunks": answer.total_chunks,
        }

    async def read(self, **fields: object) -> BrokerReply:
        """Read without blocking, again while the journal has no broker yet."""
        for _ in range(100):
            found = await self._read(**fields)
            if not set(found["statuses"]) & set(RETRIED):
                break
            await asyncio.sleep(0.1)
        return found

    async def _read(self, **fields: Any) -> BrokerReply:
        content = b""
        statuses = []
        head = offset = 0
        async for message in self.stub.Read(pb.ReadRequest(**fields)):
            if message.content:
                assert message.offset == offset + len(content) or not content
                offset = offset if content else message.offset
                content += message.content
            else:
                statuses.append(message.status)
                head = max(head, message.write_head)
        return {
            "statuses": sorted(set(statuses)),
            "head": head,
            "content": hashlib.sha1(content).hexdigest(),
            "size": len(content),
        }

    async def fragments(self, **fields: Any) -> BrokerReply:
        """List the fragments of a journal."""
        for _ in range(100):
            answer = await self.stub.ListFragments(pb.FragmentsRequest(**fields))
            if answer.status not in RETRIED:
                break
            await asyncio.sleep(0.1)
        return {
            "status": answer.status,
            "fragments": [
                (one.spec.begin, one.spec.end, one.spec.sum.SerializeToString().hex())
                for one in answer.fragments
            ],
        }


# --- requests -------------------------------------------------------------------------------------


def random_spec(rng: Random, name: str) -> pb.JournalSpec:
    """Return a specification, sometimes an invalid one."""
    fragment = pb.JournalSpec.Fragment(
        length=rng.choice((1024, 4096, 1 << 20, 1 << 20, 100)),
        compression_codec=enum_value(rng.choice((1, 2, 4, 4, 0))),
    )
    fragment.refresh_interval.seconds = rng.choice((1, 60, 300, 300, 0))
    fragment.flush_interval.seconds = rng.choice((0, 0, 0, 3600, 5))
    pairs = rng.sample([("tag", "a"), ("tag", "b"), ("region", "eu"), ("empty", "")], 2)
    labels = sorted(pairs, reverse=rng.random() < 0.05)
    return pb.JournalSpec(
        name=rng.choice((name,) * 12 + (f"/{name}", f"{name}/", "x", f"{name}//x", f"{name} x")),
        replication=rng.choice((1,) * 12 + (0, 6)),
        labels=pb.LabelSet(labels=[pb.Label(name=one, value=value) for one, value in labels]),
        fragment=fragment,
        flags=rng.choice((0, 4, 4, 4, 4, 4, 4, 1, 2, 3)),
        max_append_rate=rng.choice((0,) * 12 + (-1,)),
    )


def good_spec(name: str, length: int = 4096) -> pb.JournalSpec:
    """Return a valid specification."""
    fragment = pb.JournalSpec.Fragment(length=length, compression_codec=pb.SNAPPY)
    fragment.refresh_interval.seconds = 300
    return pb.JournalSpec(name=name, replication=1, fragment=fragment, flags=4)


def label_set(rng: Random) -> pb.LabelSet:
    """Return some registers."""
    names = sorted(rng.sample(REGISTERS, rng.randrange(1, 3)))
    return pb.LabelSet(labels=[pb.Label(name=one, value=rng.choice("ab")) for one in names])


class Requests:
    """A series of random requests that depends on a seed only."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.ends: Counter[str] = Counter()
        self.texts = 0

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next operation and its arguments."""
        kinds = ("append",) * 10 + ("read",) * 6 + ("fragments", "list", "apply", "apply", "delete")
        kind = self.rng.choice(kinds)
        return getattr(self, f"_{kind}")()  # type: ignore[no-any-return]  # by name

    def _apply(self) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        name = rng.choice(NAMES)
        expected = rng.choice(("absent", "known", "known", "any", "old"))
        return "apply", {"name": name, "expected": expected, "spec": random_spec(rng, name)}

    def _delete(self) -> tuple[str, dict[str, Any]]:
        expected = self.rng.choice(("known", "any", "old"))
        name = self.rng.choice(NAMES)
        self.ends[name] = 0
        return "apply", {"name": name, "expected": expected, "spec": None}

    def _list(self) -> tuple[str, dict[str, Any]]:
        return "listing", {"labels": self.rng.choice(SELECTORS)}

    def _append(self) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        name = rng.choice(NAMES)
        fields: dict[str, Any] = {"journal": rng.choice((name,) * 9 + (f"{name};x=y",))}
        if rng.random() < 0.03:
            fields["journal"] = rng.choice(("no/journal", "", "/a", "a b c d"))
        sizes = [rng.choice((1, 20, 700, 3000)) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
        contents = []
        for size in sizes:
            self.texts += 1
            contents.append((f"<{self.texts}>".encode() * size)[:size])
        ending = rng.choice(("commit",) * 12 + ("break", "more", "header"))
        if rng.random() < 0.15:
            fields["offset"] = rng.choice((self.ends[name], self.ends[name], 1, 99_999_999, -5))
        if rng.random() < 0.25:
            fields["union_registers"] = label_set(rng)
        if rng.random() < 0.15:
            fields["subtract_registers"] = label_set(rng)
        if rng.random() < 0.25:
            fields["check_registers"] = pb.LabelSelector(include=label_set(rng))
        if rng.random() < 0.03:
            fields["content"] = b"early"
        if rng.random() < 0.15:
            fields["suspend"] = enum_value(rng.choice((NO_RESUME, IF_FLUSHED, NOW, NOW)))
            contents = contents if rng.random() < 0.3 else []
        return "append", {"contents": contents, "ending": ending, "fields": fields}

    def _read(self) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        name = rng.choice((*NAMES * 4, "no/journal", "/a"))
        end = self.ends[name]
        offset = rng.choice((0, 0, end // 2, end, end + 10, -1, -2))
        fields: dict[str, Any] = {"journal": name, "offset": offset}
        if rng.random() < 0.2:
            fields["metadata_only"] = True
        if rng.random() < 0.2:
            fields["end_offset"] = rng.choice((end // 2, end, 3))
        return "read", fields

    def _fragments(self) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        return "fragments", {
            "journal": rng.choice((*NAMES, "no/journal")),
            "page_limit": rng.choice((0, 1, 2, 10_000, 20_000, -1)),
            "next_page_token": rng.choice((0, 0, 1, 3000)),
        }


# --- comparison -----------------------------------------------------------------------------------


def comparable(operation: str, fields: BrokerReply, answer: BrokerReply) -> BrokerReply:
    """Return the parts of an answer that both systems define."""
    if operation == "fragments" and "fragments" in answer:
        ends = [end for _, end, _ in answer["fragments"]]
        is_whole = fields["page_limit"] in (0, 10_000) and not fields["next_page_token"]
        return {"status": answer["status"], "end": max(ends, default=0) if is_whole else None}
    if operation == "append" and not fields["fields"]["journal"]:
        return {"error": "refused"}
    return answer


def described(fields: BrokerReply) -> str:
    """Return the arguments of an operation, with the sizes of its contents."""
    shown = dict(fields)
    if "contents" in shown:
        shown["contents"] = [len(content) for content in shown["contents"]]
    return " ".join(f"{name}={value}" for name, value in shown.items()).replace("\n", " ")


async def compare(
    seed: int, steps: int, systems: list[ComparedSystem], counts: Counter[str]
) -> list[str]:
    """Run one series, and return its differences."""
    requests = Requests(seed)
    for system in systems:
        for name in list(await system.listing({})):
            await system.apply(name, "any", None)
        for name in NAMES:
            await system.apply(name, "absent", good_spec(name))
    for number in range(steps):
        operation, fields = requests.next()
        answers = [
            comparable(operation, fields, await system.perform(operation, fields))
            for system in systems
        ]
        counts[operation] += 1
        outcome = answers[0].get("status", answers[0].get("error", "ok"))
        counts[f"{operation} {pb.Status.Name(outcome) if type(outcome) is int else outcome}"] += 1
        if answers[0] != answers[1]:
            return [
                f"seed {seed}, step {number}: {operation} {described(fields)}",
                *(f"  {system.name}: {one}" for system, one in zip(systems, answers, strict=True)),
            ]
        if operation == "append" and answers[0].get("status") == pb.OK:
            requests.ends[fields["fields"]["journal"].partition(";")[0]] = answers[0]["span"][1]
    return []


async def run(first: int, last: int, steps: int, urls: dict[str, str]) -> int:
    """Run all series, and return the number of those that differ."""
    systems = [ComparedSystem(name, url) for name, url in urls.items()]
    counts: Counter[str] = Counter()
    failed = 0
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("series", total=last - first + 1)
        for seed in range(first, last + 1):
            differences = await compare(seed, steps, systems, counts)
            if differences:
                failed += 1
                console.print("\n".join(differences), markup=False)
            progress.advance(task)
    for system in systems:
        await system.channel.close()
    for name, count in sorted(counts.items()):
        console.print(f"{count:8} {name}")
    for name, reason in EXPLAINED.items():
        console.print(f"explained: {name}: {reason}")
    console.print(f"{failed} of {last - first + 1} series differ")
    return failed


def main() -> int:
    """Start both systems, compare them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0..19", help="first and last seed")
    parser.add_argument("--steps", type=int, default=120, help="requests of each seed")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port(6)  # brokers use successive ones
        manifest = folder / "cluster.yaml"
        manifest.write_text(MANIFEST.format(port=port))
        (folder / "stores").mkdir()
        cluster = LocalCluster("journals", manifest, folder / "home")
        try:
            cluster.apply()
            with gazette(folder, folder / "stores") as url:
                urls = {"Qsync": f"http://127.0.0.1:{port}", "Gazette": url}
                failed = asyncio.run(run(int(first), int(last or first), arguments.steps, urls))
        finally:
            cluster.delete()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
