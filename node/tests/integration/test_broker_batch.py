"""Group commit of small appends, batches of them, and the client that sends batches."""

import asyncio
import hashlib
import random
import re
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest

from qsync_broker import batch as batches
from qsync_broker import pipelining
from qsync_broker.auth import Authorizer, Capability
from qsync_broker.client import JournalError
from qsync_broker.events import AppendBegun
from qsync_broker.grouping import HELD_MAX, SMALL, Groups
from qsync_broker.labels import LabelSet
from qsync_broker.pipelining import AppendPipeline
from qsync_broker.requests import Append, Appended, Finish, Piece
from qsync_broker.server import BrokerServer
from qsync_broker.status import Status
from qsync_testing.brokers.grpc_client import GrpcClient
from qsync_testing.brokers.servers import BrokerNode, brokers
from qsync_testing.paths import DOCS

JOURNAL = "a/journal"


def primary(nodes: list[BrokerNode]) -> BrokerNode:
    """Return the broker that is the journal's primary."""
    route = nodes[0].server.core.keys.route(JOURNAL)
    return next(node for node in nodes if node.server.core.me == route.members[route.primary])


async def content(node: BrokerNode) -> bytes:
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/{JOURNAL}") as answer:
        return await answer.read()


def begun(node: BrokerNode) -> list[AppendBegun]:
    """Return the list of appends that the core gets from now on."""
    found: list[AppendBegun] = []
    feed = node.server.feed

    def listen(event: Any) -> None:
        if isinstance(event, AppendBegun):
            found.append(event)
        feed(event)

    node.server.feed = listen  # type: ignore[method-assign]  # and feeds
    return found


@pytest.mark.asyncio
async def test_small_appends_share_a_proposal_and_have_own_spans(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes:
        node = primary(nodes)
        proposals = begun(node)
        contents = [b"%d " % number * (number + 1) for number in range(50)]
        groups = node.server.groups
        joined = [groups.append(Append(JOURNAL), one) for one in contents]
        results = [await one.result() for one in joined]
        assert len(proposals) == 1
        whole = await content(node)
        assert whole == b"".join(contents)
        position = 0
        for (result, is_proxied), one in zip(results, contents, strict=True):
            assert not is_proxied
            assert (result.begin, result.end) == (position, position + len(one))
            assert result.sum == hashlib.sha1(one).digest()
            position = result.end
        assert groups.held == 0


@pytest.mark.asyncio
async def test_group_is_closed_by_size_and_by_other_appends(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes:
        server = nodes[0].server
        proposals = begun(nodes[0])
        joined = [server.groups.append(Append(JOURNAL), bytes(50_000)) for _ in range(7)]
        assert len(proposals) == 2
        other = server.append(Append(JOURNAL, offset=350_000), 5)
        joined.append(server.groups.append(Append(JOURNAL), b"last"))
        assert [event.request.offset for event in proposals] == [0, 0, 350_000, 0]
        for event in (Piece(b"middle"), Finish()):
            other.give(event)
        results = [await one.result() for one in joined]
        assert (await other.result)[0].end == 350_006
        assert results[-1][0].begin == 350_006


def test_append_that_differs_by_more_than_its_content_is_not_grouped() -> None:
    groups = Groups(None)  # type: ignore[arg-type]  # it begins no append here
    registers = LabelSet.of([("a", "b")])
    assert groups.may_join(Append(JOURNAL, may_proxy=False, min_revision=9), 1)
    assert not groups.may_join(Append(JOURNAL), 0)
    assert not groups.may_join(Append(JOURNAL), SMALL + 1)
    assert not groups.may_join(Append(JOURNAL, offset=1), 1)
    assert not groups.may_join(Append(JOURNAL, union=registers), 1)
    groups.held = HELD_MAX
    assert not groups.may_join(Append(JOURNAL), 1)


@pytest.mark.asyncio
async def test_group_that_fails_fails_all_its_appends_and_holds_nothing(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes:
        groups = nodes[0].server.groups
        joined = [groups.append(Append("no/journal"), b"content") for _ in range(3)]
        for one in joined:
            result, _ = await one.result()
            assert result.resolution.status is Status.JOURNAL_NOT_FOUND
        assert groups.held == 0
        following = groups.append(Append("no/journal"), b"content")
        assert following.group is not joined[0].group


@pytest.mark.asyncio
async def test_concurrent_appends_by_grpc_and_http_are_each_whole(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        spans: dict[int, bytes] = {}

        async def by_http(number: int) -> None:
            data = b"<http %d>" % number * 20
            url = f"{nodes[number % 3].url}/{JOURNAL}"
            async with http.put(url, data=data) as answer:
                assert answer.status == 204, await answer.text()
                spans[int(answer.headers["X-Commit-Begin"])] = data

        async def by_grpc(client: GrpcClient, number: int) -> None:
            data = b"<grpc %d>" % number * 20
            answer = await client.append(data[:50], data[50:])
            assert answer.commit.end - answer.commit.begin == len(data)
            assert answer.total_chunks == 3
            spans[answer.commit.begin] = data

        async with GrpcClient(nodes[0]) as first, GrpcClient(nodes[1]) as second:
            await asyncio.gather(
                *(by_http(number) for number in range(40)),
                *(by_grpc((first, second)[number % 2], number) for number in range(40)),
            )
        assert len(spans) == 80
        assert await content(primary(nodes)) == b"".join(spans[at] for at in sorted(spans))


@pytest.mark.asyncio
async def test_pipeline_appends_in_order_through_any_broker(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes:
        generator = random.Random(7)
        contents = [generator.randbytes(generator.randint(1, 90_000)) for _ in range(60)]
        for node in nodes:
            async with AppendPipeline(node.url, JOURNAL) as pipeline:
                commits = await asyncio.gather(*(pipeline.append(one) for one in contents))
            found = await content(primary(nodes))
            for commit, one in zip(commits, contents, strict=True):
                assert found[commit.begin : commit.end] == one
                assert commit.sum == hashlib.sha1(one).digest()
            # One batch is carried out in order. Batches that are under way together may not be.
            assert len({commit.begin for commit in commits}) == len(contents)


@pytest.mark.asyncio
async def test_pipeline_that_closes_takes_no_more_appends(tmp_path: Path) -> None:
    """Their futures never had a result: the tasks that sent them failed without the session."""
    async with brokers(tmp_path, 1) as nodes:
        pipeline = AppendPipeline(nodes[0].url, JOURNAL)
        first = pipeline.append(b"first")
        closing = asyncio.ensure_future(pipeline.close())
        await asyncio.sleep(0)
        with pytest.raises(JournalError, match="the pipeline is closed") as raised:
            pipeline.append(b"late")
        assert raised.value.is_refused
        await closing
        assert first.done()
        with pytest.raises(JournalError, match="the pipeline is closed"):
            pipeline.append(b"later")
        assert await content(nodes[0]) == b"first"


@pytest.mark.asyncio
async def test_appends_have_results_although_the_close_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit of the close ended the tasks that sent them, and their futures waited on."""
    may_send, exchange = asyncio.Event(), AppendPipeline._exchange

    async def exchange_late(pipeline: AppendPipeline, body: bytes) -> object:
        await may_send.wait()
        return await exchange(pipeline, body)

    monkeypatch.setattr(AppendPipeline, "_exchange", exchange_late)
    async with brokers(tmp_path, 1) as nodes:
        pipeline = AppendPipeline(nodes[0].url, JOURNAL)
        first = pipeline.append(b"first")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pipeline.close(), 0.05)
        may_send.set()
        assert (await asyncio.wait_for(first, 10)).begin == 0
        await pipeline.close()


@pytest.mark.asyncio
async def test_unexpected_error_of_a_sender_ends_its_appends_and_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> object:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(AppendPipeline, "_exchange", fail)
    pipeline = AppendPipeline("http://127.0.0.1:1", JOURNAL)
    append = pipeline.append(b"content")
    with pytest.raises(RuntimeError, match="unexpected"):
        await pipeline.close()
    assert append.cancelled()


@pytest.mark.asyncio
async def test_conditions_in_a_batch_see_the_appends_before_them(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        contents: list[bytes | dict[str, Any]] = [
            b"first",
            {"content": b"second", "offset": 5, "union": {"lock": "mine"}},
            {"content": b"wrong offset", "offset": 5},
            {"content": b"third", "check": "lock=mine"},
            {"content": b"wrong register", "check": "lock=other"},
            b"fourth",
        ]
        body = b"".join(map(batches.encode_item, contents))
        async with http.post(f"{primary(nodes).url}/{JOURNAL}", data=body) as answer:
            assert answer.status == 200
            outcomes = batches.decode_outcomes(await answer.read())
        assert [(one.status, one.begin, one.end) for one in outcomes] == [
            ("OK", 0, 5),
            ("OK", 5, 11),
            ("WRONG_APPEND_OFFSET", 0, 0),
            ("OK", 11, 16),
            ("REGISTER_MISMATCH", 0, 0),
            ("OK", 16, 22),
        ]
        assert outcomes[1].registers == {"lock": "mine"}
        assert [one.error for one in outcomes if one.error] == [
            "a/journal: WRONG_APPEND_OFFSET: the next append begins at 11, not at 5; read the"
            " write head again",
            "a/journal: REGISTER_MISMATCH: the registers do not match the check; read the"
            " registers again",
        ]
        assert await content(primary(nodes)) == b"firstsecondthirdfourth"


@pytest.mark.asyncio
async def test_batch_of_which_a_part_was_appended_is_not_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary changes while a batch is under way: forwarding would append a part again."""
    append_items = batches.append_items
    moved: list[bool] = []

    async def moving(
        server: BrokerServer, items: Sequence[batches.BatchItem]
    ) -> list[tuple[Appended, bool]]:
        results = await append_items(server, items)
        if not moved:
            moved.append(True)
            results[0] = (results[0][0], True)
        return results

    monkeypatch.setattr("qsync_broker.http.appends.append_items", moving)
    async with brokers(tmp_path, 2) as nodes, aiohttp.ClientSession() as http:
        first = batches.encode_item({"content": b"first", "check": "!absent"})
        body = first + batches.encode_item(b"second")
        async with http.post(f"{primary(nodes).url}/{JOURNAL}", data=body) as answer:
            outcomes = batches.decode_outcomes(await answer.read())
        expected = ["NOT_JOURNAL_PRIMARY_BROKER", "OK"]
        assert [one.status for one in outcomes] == expected
        assert (await content(primary(nodes))).count(b"second") == 1


@pytest.mark.asyncio
async def test_refusals_of_a_batch_are_errors_of_the_appends(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes:
        async with AppendPipeline(nodes[0].url, "no/journal") as pipeline:
            with pytest.raises(JournalError) as raised:
                await pipeline.append(b"content")
            assert raised.value.status is Status.JOURNAL_NOT_FOUND
        async with AppendPipeline("http://127.0.0.1:1", JOURNAL) as pipeline:
            with pytest.raises(JournalError) as raised:
                await pipeline.append(b"content")
            assert raised.value.status is None


@pytest.mark.parametrize(
    ("conditions", "cause"),
    [
        ({"union": "k=w"}, "the append is invalid: union: use a map of strings"),
        ({"union": {"k": 1}}, "union: use a map of strings"),
        ({"union": {"k": object()}}, "can not serialize 'object'"),
        ({"subtract": {"k\n": "w"}}, "subtract: the name"),
        ({"check": "a b"}, "the append is invalid: invalid selector"),
        ({"offset": 1 << 80}, "the append is invalid"),
        ({"offsets": 1}, "unknown field 'offsets'"),
    ],
)
@pytest.mark.asyncio
async def test_invalid_append_does_not_fail_the_others_of_its_batch(
    tmp_path: Path, conditions: dict[str, Any], cause: str
) -> None:
    async with brokers(tmp_path, 1) as nodes, AppendPipeline(nodes[0].url, JOURNAL) as pipeline:
        before = pipeline.append(b"before")
        with pytest.raises(ValueError, match=cause):
            await pipeline.append(b"content", **conditions)
        after = pipeline.append(b"after", union={"k": "w"})
        assert ((await before).end, (await after).end) == (6, 11)


@pytest.mark.asyncio
async def test_pipeline_splits_batches_with_many_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker refuses a batch whose checks or registers are too many together."""
    for module in (batches, pipelining):
        monkeypatch.setattr(module, "CHECKS_MAX", 40)
        monkeypatch.setattr(module, "PAIRS_MAX", 3)
    async with (
        brokers(tmp_path, 1) as nodes,
        AppendPipeline(nodes[0].url, JOURNAL) as pipeline,
    ):
        checks = [pipeline.append(b"x", check=f"!absent{number}") for number in range(20)]
        registers = [pipeline.append(b"x", union={"a": "b"}) for _ in range(20)]
        commits = await asyncio.gather(*checks, *registers)
        assert sorted(one.end for one in commits) == list(range(1, 41))


@pytest.mark.asyncio
async def test_batch_needs_the_token_of_an_append(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("c2VjcmV0")
    authorizer = Authorizer.of_text("c2VjcmV0")
    async with brokers(tmp_path, 1, auth_keys_file=keys) as nodes:
        for token, is_permitted in (
            ("", False),
            (authorizer.sign(Capability.READ, {}, 60), False),
            (authorizer.sign(Capability.APPEND, {}, 60), True),
        ):
            async with AppendPipeline(nodes[0].url, JOURNAL, token) as pipeline:
                if is_permitted:
                    assert (await pipeline.append(b"content")).end == 7
                else:
                    with pytest.raises(JournalError, match="HTTP status 401"):
                        await pipeline.append(b"content")


# --- documentation --------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_example_of_the_page_appends_and_reads(tmp_path: Path) -> None:
    path = DOCS / "examples" / "append.py"
    assert path.read_text() in (DOCS / "journals.md").read_text()
    example = runpy.run_path(str(path))
    events = [b"event %d\n" % number for number in range(20)]
    async with brokers(tmp_path) as nodes:
        ledger = tmp_path / "ledger.jsonl"
        offsets = await example["append"](nodes[1].url, JOURNAL, events, ledger)
        assert len(ledger.read_text().splitlines()) == len(events)
        found = await example["read"](primary(nodes).url, JOURNAL, min(offsets))
        assert sorted(found.splitlines(keepends=True)) == sorted(events)


def test_page_states_the_modules_of_public_classes() -> None:
    page = (DOCS / "journals.md").read_text().partition("## Clients in Python")[2]
    table, _, rest = page.partition("```python\n")
    names: dict[str, Any] = {}
    exec(rest.partition("```")[0], names)  # noqa: S102  # runs the documented imports
    listed = re.findall(r"\| `(\w+)` \| `([\w.]+)` \|", table.partition("\n## ")[0])
    assert len(listed) == 5
    for name, module in listed:
        assert names[name].__module__ == module


def test_page_states_the_fields_of_a_batch() -> None:
    page = (DOCS / "journals.md").read_text().partition("## Many small appends")[2]
    request, answer = re.findall(r"\| --- \| --- \| --- \|\n((?:\|.*\n)+)", page)[:2]
    assert set(re.findall(r"^\| `(\w+)` \|", request, re.MULTILINE)) == batches._FIELDS
    assert len(answer.splitlines()) == len(batches.BatchOutcome._fields)


# --- format ---------------------------------------------------------------------------------------


def invalid_bodies() -> Iterator[tuple[bytes, str]]:
    pack = msgpack.packb
    yield pack(7), "append 0 of the batch is invalid: use bytes, or a map"
    yield pack(b"x") + pack({"size": 1}), "append 1 of the batch is invalid: unknown field 'size'"
    yield pack({"content": "text"}), "content: use bytes"
    yield pack({"offset": -1}), "offset: use a number of bytes"
    yield pack({"offset": True}), "offset: use a number of bytes"
    yield pack({"union": ["a"]}), "union: use a map of strings"
    yield pack(b"content")[:-1], "append 0 of the batch is incomplete"
    yield pack(b"content")[:2], "append 0 of the batch is incomplete"
    yield pack(b"x") + pack(b"content")[:2], "append 1 of the batch is incomplete"
    yield pack({"check": 7}), "check: use a string"
    yield pack({"union": {"a\n": "b"}}), "union: the name 'a.*n' must have 1 to 64 letters"
    yield pack({"union": {str(number): "" for number in range(2000)}}), "exceeds max_map_len"
    checks = [pack({"check": ",".join([f"a{number}=x"] * 250)}) for number in range(100)]
    yield b"".join(checks), "check: all distinct ones may have 16384 bytes"
    registers = [pack({"union": {f"a{one}": "" for one in range(1000)}})] * 17
    yield b"".join(registers), "union: the batch may have 16384 registers"
    yield b"\xc1", "append 0 of the batch is invalid: the bytes are no MessagePack"
    yield pack(b"") * (batches.BATCH_APPENDS + 1), "the batch has more than 4096 appends"
    yield bytes(batches.BATCH_BYTES + 1), "send at most 4194304"


@pytest.mark.parametrize(("body", "sentence"), list(invalid_bodies()))
def test_invalid_batch_is_refused_as_a_whole(body: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        batches.decode_items(body, Append(JOURNAL))


@pytest.mark.asyncio
async def test_few_appends_of_a_batch_are_under_way_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.batch.AT_ONCE", 4)
    most = 0
    begin = BrokerServer.begin

    def counted(server: BrokerServer, *arguments: Any) -> Any:
        nonlocal most
        call = begin(server, *arguments)
        most = max(most, len(server._calls))
        return call

    monkeypatch.setattr(BrokerServer, "begin", counted)
    contents = [{"content": b"%03d" % number, "check": "lock=mine"} for number in range(100)]
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/{JOURNAL}"
        answer = await http.post(url, data=b"".join(map(batches.encode_item, contents)))
        outcomes = batches.decode_outcomes(await answer.read())
        assert [one.begin for one in outcomes] == list(range(0, 300, 3))
    assert 1 < most <= 5


@pytest.mark.asyncio
async def test_batches_count_only_while_they_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.http.appends.BATCHES_BYTES", 1000)
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        bodies = [batches.encode_item(bytes(400)), b"\xc1" * 400]
        for body, status in zip(bodies * 3, (200, 400) * 3, strict=True):
            async with http.post(f"{nodes[0].url}/{JOURNAL}", data=body) as answer:
                assert answer.status == status, await answer.text()


@pytest.mark.asyncio
async def test_batches_beyond_limits_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.http.appends.BATCHES_BYTES", 1000)
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/{JOURNAL}"

        async def chunks() -> Any:
            yield msgpack.packb(b"x")

        for data, status in (
            (msgpack.packb(bytes(1000)), 503),
            (chunks(), 411),
            (msgpack.packb(b"x") + b"\xc1", 400),
            (msgpack.packb(b"x"), 200),
        ):
            async with http.post(url, data=data) as answer:
                assert answer.status == status, await answer.text()
        answer = await http.post(url, data=bytes(batches.BATCH_BYTES + 1))
        assert answer.status == 413
