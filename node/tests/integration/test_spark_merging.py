"""Compaction of small fragments: the store after each step, and reads through brokers."""

import asyncio
import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import obstore
import pytest

from qsync_broker.codecs import Codec
from qsync_broker.fragments import content_name
from qsync_broker.index import RemoteFragment, RemoteIndex
from qsync_broker.spec import FragmentSpec, JournalSpec
from qsync_spark.audit.journals import prove_fragments
from qsync_spark.journals.catalogue import Listing, list_journal
from qsync_spark.journals.checks import OVERLAP, UNREAD, results_of
from qsync_spark.journals.compaction import MergeResult, compact
from qsync_spark.journals.merging import (
    Merge,
    MergeError,
    checks_of,
    merge,
    plan_merges,
    plan_removals,
    remove,
)
from qsync_spark.report.findings import AuditResult
from qsync_testing.brokers.servers import brokers
from qsync_testing.brokers.stores import JOURNAL, JournalStore, make_store, url_of
from qsync_testing.object_server import ObjectServer, Weakness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
LENGTH = 16 << 10
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def persisted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("persisted")
    make_store(folder, Codec.SNAPPY)
    return folder


@pytest.fixture(params=["file", "s3"])
def server(request: pytest.FixtureRequest, object_store: ObjectServer) -> ObjectServer | None:
    return object_store if request.param == "s3" else None


@pytest.fixture
def store(persisted: Path, tmp_path: Path, server: ObjectServer | None) -> JournalStore:
    return JournalStore(persisted, tmp_path, server)


def listing(store: JournalStore) -> Listing:
    return list_journal(JournalSpec(JOURNAL, fragment=FragmentSpec(stores=(store.url,))))


def content(fragments: list[RemoteFragment], store: JournalStore) -> bytes:
    """Return the bytes that a broker with this listing reads."""
    index = RemoteIndex()
    index.replace(fragments)
    found, offset = b"", 0
    while (fragment := index.find(offset)) is not None:
        found += store.content(fragment)[offset - fragment.begin :]
        offset = fragment.end
    return found


def run(store: JournalStore, now_s: float) -> int:
    """Run a job in this process, and return the number of changes."""
    found = listing(store)
    removals = plan_removals(found, now_s, DAY_S)
    bad, sums = set(), {}
    for number, _, _, _, kind, checksum, line, _ in results_of(
        iter(sorted(checks_of(removals), key=lambda check: check[:3]))
    ):
        if kind == OVERLAP:
            sums[number, line] = checksum
        elif kind != UNREAD:
            bad.add(number)
    count = 0
    for number, one in enumerate(removals):
        if number not in bad:
            own = {line: found for (of, line), found in sums.items() if of == number and found}
            count += remove(one, own)[0]
    for plan in plan_merges(found, LENGTH):
        merge(Merge.decode(plan.encode()))
        count += 1
    return count


def test_fragments_become_greater_ones_and_then_their_sources_are_deleted(
    store: JournalStore,
) -> None:
    before = store.fragments()
    whole = content(before, store)
    assert run(store, time.time()) > 0
    both = store.fragments()
    assert set(before) < set(both)
    assert content(both, store) == whole
    assert run(store, time.time() + DAY_S - 60) == 0  # before the end of the grace period
    assert run(store, time.time() + DAY_S + 60) > 0
    after = store.fragments()
    assert len(after) < len(before) / 2
    assert content(after, store) == whole
    assert all(one.end - one.begin <= LENGTH for one in after)
    assert {one.codec for one in after} == {Codec.SNAPPY}
    assert run(store, time.time() + DAY_S + 60) == 0


class KilledError(Exception):
    """The job is killed at this effect."""


def test_killed_job_is_continued_at_every_step(
    persisted: Path,
    tmp_path: Path,
    server: ObjectServer | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kill the job before and after each put and delete; all bytes are readable at any time."""
    effects: dict[str, Callable[..., Any]] = {"put": obstore.put, "delete": obstore.delete}
    countdown = -1

    def effect(name: str) -> Callable[..., Any]:
        def act(*arguments: object, **options: object) -> Any:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                raise KilledError
            found = effects[name](*arguments, **options)
            countdown -= 1
            if countdown == 0:
                raise KilledError
            return found

        return act

    for name in effects:
        monkeypatch.setattr(obstore, name, effect(name))
    finals = set()
    kills = 0
    for step in range(1, 200):
        folder = tmp_path / str(step)
        folder.mkdir()
        store = JournalStore(persisted, folder, server)
        whole = content(store.fragments(), store)
        countdown = step
        was_killed = False
        for _ in range(4):
            try:
                run(store, time.time() + 2 * DAY_S)
            except KilledError:
                was_killed = True
            assert content(store.fragments(), store) == whole
        finals.add(tuple(one[:3] for one in store.fragments()))
        kills += was_killed
        if not was_killed:
            break
    assert kills > 20
    assert len(finals) == 1


def test_only_alike_contiguous_fragments_are_merged(store: JournalStore) -> None:
    def planned() -> list[tuple[int, int]]:
        plans = plan_merges(listing(store), 1 << 20)
        return [(one.sources[0].begin, one.sources[-1].end) for one in plans]

    fragments = store.fragments()
    assert planned() == [(0, fragments[-1].end)]
    store.put(fragments[2].begin, store.content(fragments[2]), Codec.GZIP)
    store.path(fragments[2]).unlink()
    folder = store.folder / JOURNAL / "date=2026-01-01"
    folder.mkdir()
    store.path(fragments[5]).rename(folder / store.path(fragments[5]).name)
    store.path(fragments[7]).unlink()
    assert planned() == [
        (0, fragments[1].end),
        (fragments[3].begin, fragments[4].end),
        (fragments[8].begin, fragments[-1].end),
    ]


def test_damaged_fragments_are_neither_merged_nor_trusted(store: JournalStore) -> None:
    first = store.fragments()[0]
    data = store.path(first).read_bytes()
    store.put(0, b"x" + store.content(first)[1:], Codec.SNAPPY)
    store.path(first).unlink()
    (wrong,) = [one for one in store.fragments() if one.begin == 0]
    store.path(wrong).rename(store.path(first))  # the name of other content
    with pytest.raises(MergeError, match="does not have the SHA-1 of its name"):
        merge(plan_merges(listing(store), LENGTH)[0])
    store.path(first).write_bytes(data)
    run(store, time.time())
    outer = max(store.fragments(), key=lambda one: one.end - one.begin)
    store.path(outer).write_bytes(store.path(outer).read_bytes()[:-1])
    count = len(store.fragments())
    run(store, time.time() + 2 * DAY_S)
    inner = [one for one in store.fragments() if outer.begin <= one.begin < outer.end]
    assert len(inner) > 2, "the sources of a damaged fragment remain"
    assert len(store.fragments()) < count, "those of sound ones do not"


def test_large_fragments_are_uploaded_in_parts(tmp_path: Path, object_store: ObjectServer) -> None:
    """The library sends 5 MiB at a time; a job that is killed in between leaves no object."""
    folder = tmp_path / "store"
    url = url_of(folder, object_store)
    content = random.Random(3).randbytes(9 << 20)
    for begin in range(0, len(content), 3 << 20):
        part = content[begin : begin + (3 << 20)]
        name = content_name(begin, begin + len(part), hashlib.sha1(part).digest(), Codec.NONE)
        (folder / JOURNAL).mkdir(parents=True, exist_ok=True)
        (folder / JOURNAL / name).write_bytes(part)
    spec = JournalSpec(JOURNAL, fragment=FragmentSpec(stores=(url,), length=16 << 20))
    (plan,) = plan_merges(list_journal(spec))
    object_store.weakness = Weakness(cut=1.0)
    with pytest.raises(MergeError, match="are not merged"):
        merge(plan)
    object_store.weakness = Weakness()
    assert len(list_journal(spec).fragments) == 3
    made = merge(plan)
    assert (folder / made.path).read_bytes() == content


def test_job_of_spark_merges_and_the_audit_agrees(
    spark: "SparkSession", store: JournalStore, object_store: ObjectServer
) -> None:
    spark.sparkContext.environment.update(object_store.environment)  # of its workers
    count = len(store.fragments())
    dry = compact(spark, [listing(store)], DAY_S, LENGTH, is_dry=True)
    assert len(store.fragments()) == count
    outcome = compact(spark, [listing(store)], DAY_S, LENGTH)
    assert outcome == dry
    assert (outcome.removed, outcome.problems) == (0, [])
    assert outcome.merged > outcome.written > 0
    old_s = time.time() - 2 * DAY_S
    for one in store.fragments():
        os.utime(store.path(one), (old_s, old_s))
    second = compact(spark, [listing(store)], DAY_S, LENGTH)
    assert second == MergeResult(removed=outcome.merged)
    assert len(store.fragments()) == count + outcome.written - outcome.merged
    result = AuditResult("events", "", "")
    prove_fragments(spark, store.specs(), [str(store.ledger)], 0.0, result)
    assert (result.violations, result.gaps) == ([], [])


@pytest.mark.asyncio
async def test_brokers_read_all_bytes_before_and_after_they_list_the_store(
    tmp_path: Path, server: ObjectServer | None
) -> None:
    store = tmp_path / "store"
    store_url = url_of(store, server)
    (tmp_path / "brokers").mkdir()
    settings: dict[str, Any] = {
        "length": 1024, "compression_codec": "GZIP", "stores": [store_url],
        "refresh_interval": "1s",
    }  # fmt: skip
    spec = JournalSpec(JOURNAL, fragment=FragmentSpec(stores=(store_url,)))
    async with (
        brokers(tmp_path / "brokers", 2, **settings) as nodes,
        aiohttp.ClientSession() as http,
    ):
        url = f"{nodes[1].url}/{JOURNAL}"
        lines = [b"%06d " % number * 180 for number in range(9)]
        for line in lines:
            async with http.put(url, data=line) as answer:
                assert answer.status == 204
        async with asyncio.timeout(30):
            while len(list_journal(spec).fragments) < 8:
                await asyncio.sleep(0.05)

        async def read() -> bytes:
            async with http.get(url) as answer:
                return await answer.read()

        replica = nodes[1].server.core.replica(JOURNAL)
        assert replica is not None
        (plan,) = await asyncio.to_thread(plan_merges, list_journal(spec), 1 << 20)
        made = await asyncio.to_thread(merge, plan)
        assert await read() == b"".join(lines)
        async with asyncio.timeout(30):
            while made.path not in {one.path for one in replica.remote}:
                await asyncio.sleep(0.05)
        assert await read() == b"".join(lines)
        for one in plan.sources:
            (store / one.path).unlink()
        assert await read() == b"".join(lines)
        async with http.put(url, data=b"more") as answer:
            assert answer.status == 204
        assert await read() == b"".join(lines) + b"more"
