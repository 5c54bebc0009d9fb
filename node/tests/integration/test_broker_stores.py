"""Codecs, names and stores of persisted fragments, and reads from them."""

import asyncio
import gzip
import hashlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from qsync_broker.broker import Broker
from qsync_broker.codecs import PIECE, Codec, CodecError, compressor, decompressor
from qsync_broker.fragments import content_name, parse_path, path_of
from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_broker.stores import SPARE, FragmentMissing, FragmentStoreError, FragmentStores
from qsync_testing.brokers.servers import BrokerNode, brokers

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


def compress(codec: Codec, *parts: bytes) -> bytes:
    writer = compressor(codec)
    return b"".join([*(writer.feed(part) for part in parts), writer.finish()])


def expand(codec: Codec, data: bytes, size: int = 1 << 20) -> bytes:
    reader, found = decompressor(codec), []
    for at in range(0, len(data), size):
        found += list(reader.feed(data[at : at + size]))
    reader.finish()
    assert all(len(piece) <= PIECE for piece in found) or codec is Codec.NONE
    return b"".join(found)


# --- codecs ---------------------------------------------------------------------------------------


@given(st.sampled_from(Codec), st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 99))
def test_content_is_expanded_as_it_was_compressed(
    codec: Codec, parts: list[bytes], cut: int
) -> None:
    assert expand(codec, compress(codec, *parts), cut) == b"".join(parts)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_large_content_is_expanded_in_bounded_pieces(codec: Codec) -> None:
    content = bytes(20 << 20)
    assert expand(codec, compress(codec, content)) == content


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_content_is_refused(codec: Codec) -> None:
    data = compress(codec, b"content" * 20)
    for end in range(11 if codec is Codec.SNAPPY else 1, len(data)):
        with pytest.raises(CodecError):
            expand(codec, data[:end])


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_content_is_refused_or_the_same(codec: Codec) -> None:
    content = b"content of a fragment" * 5
    data = compress(codec, content)
    refused = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        try:
            found = expand(codec, bytes(damaged))
        except CodecError:
            refused += 1
        else:
            assert found == content
    assert refused > len(data) // 2


def test_files_of_other_programs_are_expanded() -> None:
    content = b"content" * 1000
    members = gzip.compress(content) + gzip.compress(b"more")
    assert expand(Codec.GZIP, members, 100) == content + b"more"
    frames = zstandard.ZstdCompressor().compress(content) + zstandard.ZstdCompressor().compress(
        b"x"
    )
    assert expand(Codec.ZSTANDARD, frames, 10) == content + b"x"


# --- names ----------------------------------------------------------------------------------------


def test_content_name_is_gazettes() -> None:
    """Values of Gazette's TestContentNames."""
    checksum = bytes(range(1, 21))
    names = {
        Codec.GZIP: ".gz",
        Codec.SNAPPY: ".sz",
        Codec.GZIP_OFFLOAD_DECOMPRESSION: "",
    }
    for codec, extension in names.items():
        assert content_name(1234567890, (1 << 63) - 1, checksum, codec) == (
            "00000000499602d2-7fffffffffffffff-0102030405060708090a0b0c0d0e0f1011121314" + extension
        )


@given(
    st.integers(0, 1 << 40),
    st.integers(1, 1 << 40),
    st.binary(min_size=20, max_size=20),
    st.sampled_from(["", "of={{ .Spool.Begin }}/more"]),
)
def test_fragment_is_read_from_its_path(
    begin: int, size: int, checksum: bytes, template: str
) -> None:
    for codec in Codec:
        fragment = LocalFragment(begin, begin + size, checksum, codec)
        path = path_of("a/journal", fragment, template)
        expected = RemoteFragment(begin, begin + size, checksum, codec, "file:///s/", path, 7)
        assert parse_path("file:///s/", "a/journal", path, 7) == expected


@pytest.mark.parametrize(
    "path",
    [
        "a/journal/readme.txt",
        "a/journals/0000000000000000-0000000000000001-" + "0" * 40 + ".raw",
        "a/journal/0000000000000002-0000000000000001-" + "0" * 40 + ".raw",
        "a/journal/0000000000000000-0000000000000001-" + "0" * 40 + ".lz4",
        "a/journal/0000000000000000-ffffffffffffffff-" + "0" * 40 + ".raw",
    ],
)
def test_other_objects_are_no_fragments(path: str) -> None:
    assert parse_path("file:///s/", "a/journal", path, 7) is None


# --- stores ---------------------------------------------------------------------------------------

CONTENT = bytes(range(256)) * 20
IN_FOLDERS = [codec for codec in Codec if codec is not Codec.GZIP_OFFLOAD_DECOMPRESSION]


def local(codec: Codec, content: bytes = CONTENT) -> LocalFragment:
    return LocalFragment(100, 100 + len(content), hashlib.sha1(content).digest(), codec)


async def upload(stores: FragmentStores, url: str, folder: Path, codec: Codec) -> RemoteFragment:
    def read(offset: int, size: int) -> bytes:
        return CONTENT[offset - 100 : offset - 100 + size]

    fragment = local(codec)
    return await stores.upload(url, path_of("a/journal", fragment), fragment, read, folder)


@pytest.mark.asyncio
@pytest.mark.parametrize("codec", IN_FOLDERS)
async def test_persisted_fragment_is_listed_and_read(tmp_path: Path, codec: Codec) -> None:
    url, stores = f"file://{tmp_path}/store/", FragmentStores()
    uploaded = await upload(stores, url, tmp_path, codec)
    assert await stores.list(url, "a/journal") == [uploaded]
    assert await stores.list(url, "a/jour") == []
    for offset in (100, 101, 3000, 100 + len(CONTENT) - 1):
        found = b"".join([data async for data in stores.read(uploaded, offset)])
        assert found == CONTENT[offset - 100 :]


@pytest.mark.asyncio
async def test_deleted_fragment_is_reported_and_can_be_deleted_again(tmp_path: Path) -> None:
    url, stores = f"file://{tmp_path}/store/", FragmentStores()
    uploaded = await upload(stores, url, tmp_path, Codec.SNAPPY)
    for _ in range(2):
        await stores.delete(uploaded)
    with pytest.raises(FragmentMissing, match=r"has a/journal/.* no longer"):
        _ = [data async for data in stores.read(uploaded, 100)]


@pytest.mark.asyncio
async def test_read_of_a_pruned_fragment_lists_the_stores_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.persister.LIST_AGAIN_NS", 0)
    folder = tmp_path / "store"
    settings: dict[str, Any] = {"length": 1024, "stores": [f"file://{folder}/"], "retention": "1h"}
    async with brokers(tmp_path, 1, **settings) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"
        for letter in b"ab":
            assert (await http.put(url, data=bytes([letter]) * 2000)).status == 204
        assert (await http.put(url)).status == 204  # completes the second fragment
        replica = nodes[0].server.core.replica("a/journal")
        assert replica is not None
        async with asyncio.timeout(10):
            while replica.completed or not replica.remote.covers(0, 4000):
                await asyncio.sleep(0.01)
        next(iter(folder.glob("a/journal/0000000000000000-*"))).unlink()
        answer = await http.get(url)
        assert answer.status == 503
        assert "no longer; retry in a minute" in await answer.text()
        async with asyncio.timeout(10):
            while (answer := await http.get(url)).status != 206:
                await asyncio.sleep(0.05)
        assert await answer.read() == b"b" * 2000


@pytest.mark.asyncio
async def test_second_upload_changes_nothing(tmp_path: Path) -> None:
    url, stores = f"file://{tmp_path}/store/", FragmentStores()
    first = await upload(stores, url, tmp_path, Codec.GZIP)
    file = tmp_path / "store" / first.path
    before = file.stat().st_mtime_ns
    assert await upload(stores, url, tmp_path, Codec.GZIP) == first
    assert file.stat().st_mtime_ns == before


@pytest.mark.asyncio
async def test_damaged_local_bytes_are_not_persisted(tmp_path: Path) -> None:
    url, stores = f"file://{tmp_path}/store/", FragmentStores()
    with pytest.raises(FragmentStoreError, match="do not have its checksum"):
        await stores.upload(
            url, "a/journal/x", local(Codec.NONE), lambda offset, size: b"x" * size, tmp_path
        )
    assert await stores.list(url, "a/journal") == []


@pytest.mark.asyncio
@pytest.mark.parametrize("codec", IN_FOLDERS)
async def test_truncated_object_is_reported(tmp_path: Path, codec: Codec) -> None:
    url, stores = f"file://{tmp_path}/store/", FragmentStores()
    uploaded = await upload(stores, url, tmp_path, codec)
    file = tmp_path / "store" / uploaded.path
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(FragmentStoreError, match=r"is incomplete|lacks its last 3 bytes"):
        [data async for data in stores.read(uploaded, 100)]


@pytest.mark.asyncio
async def test_folder_refuses_a_codec_that_needs_an_encoding(tmp_path: Path) -> None:
    with pytest.raises(FragmentStoreError, match="use GZIP instead"):
        await upload(
            FragmentStores(), f"file://{tmp_path}/", tmp_path, Codec.GZIP_OFFLOAD_DECOMPRESSION
        )


@pytest.mark.asyncio
async def test_store_with_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(FragmentStoreError, match="has an unknown scheme"):
        await FragmentStores().list("ftp://host/", "a/journal")


@pytest.mark.asyncio
async def test_stores_that_no_specification_names_are_forgotten(tmp_path: Path) -> None:
    named = [f"file://{tmp_path}/named-{number}/" for number in range(2)]
    stores = FragmentStores(lambda: named)
    for url in (*named, *(f"file://{tmp_path}/other-{number}/" for number in range(5 * SPARE))):
        await stores.list(url, "a/journal")
        assert len(stores.urls) <= SPARE + 2 * len(named)
    assert set(named) <= set(stores.urls)


@pytest.mark.asyncio
async def test_check_for_a_client_creates_no_folder(tmp_path: Path) -> None:
    stores, folder = FragmentStores(), tmp_path / "store"
    url = f"file://{folder}/"
    with pytest.raises(FragmentStoreError, match="the folder does not exist; create it"):
        await stores.check(url, creates=False)
    assert not folder.exists()
    folder.mkdir()
    await stores.check(url, "a/b/c/", creates=False)
    assert [path.name for path in folder.iterdir()] == [".test"]
    await stores.check(f"file://{tmp_path}/created/")


# --- brokers --------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_persisted_bytes_are_read_through_any_broker(tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings: dict[str, Any] = {
        "length": 1024,
        "compression_codec": "SNAPPY",
        "stores": [f"file://{store}/"],
    }
    async with brokers(tmp_path, 3, **settings) as nodes, aiohttp.ClientSession() as http:
        content = b""
        for number in range(5):
            line = f"line {number}\n".encode() * 300
            answer = await http.put(f"{nodes[0].url}/a/journal", data=line)
            assert answer.status == 204, await answer.text()
            content += line
        async with asyncio.timeout(20):
            while len(list((store / "a/journal").glob("*.sz"))) < 4:
                await asyncio.sleep(0.05)
            primary = next(node for node in nodes if is_primary(node)).server.core
            while has_completed(primary):
                await asyncio.sleep(0.05)
        for node in nodes:
            answer = await http.get(f"{node.url}/a/journal?offset=5")
            assert await answer.read() == content[5:]


def has_completed(core: Broker) -> bool:
    replica = core.shelf("a/journal")
    assert replica is not None
    return bool(replica.completed)


def is_primary(node: BrokerNode) -> bool:
    replica = node.server.core.replica("a/journal")
    return replica is not None and replica.pipeline is not None
