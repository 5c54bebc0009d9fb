"""The object store of tests and campaigns serves brokers and jobs, and fails on demand."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from qsync_broker.index import RemoteFragment
from qsync_broker.stores import FragmentStoreError, FragmentStores
from qsync_node.archive.location import open_store
from qsync_testing.object_server import ObjectServer, Weakness, object_server, used_by_this_process

URL = "s3://fragments/"
CONTENT = bytes(range(250)) * 40
PATH = f"a/b c/{0:016x}-{len(CONTENT):016x}-{'0' * 40}.raw"
FRAGMENT = RemoteFragment(0, len(CONTENT), bytes(20), 1, URL, PATH, 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectServer]:
    with object_server(fragments=tmp_path) as running, used_by_this_process(running):
        yield running


def content(offset: int) -> bytes:
    async def read() -> bytes:
        return b"".join([data async for data in FragmentStores().read(FRAGMENT, offset)])

    return asyncio.run(read())


@pytest.mark.usefixtures("server")
def test_broker_checks_lists_and_reads_objects() -> None:
    async def main() -> list[RemoteFragment]:
        stores = FragmentStores()
        await stores.check(URL, "a/b c/")
        await open_store(URL).put_async(PATH, CONTENT)
        return await stores.list(URL, "a/b c")

    (listed,) = asyncio.run(main())
    assert listed._replace(mod_time=0) == FRAGMENT
    assert content(0) == CONTENT
    assert content(777) == CONTENT[777:]


@pytest.mark.parametrize("fault", ["failing", "torn", "unanswered"])
def test_requests_fail_while_the_store_does(
    server: ObjectServer, tmp_path: Path, fault: str
) -> None:
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_bytes(CONTENT)
    server.weakness = Weakness(**{fault: 1.0})
    with pytest.raises(FragmentStoreError):
        content(0)
    assert server.requests
    server.weakness = Weakness()
    assert content(0) == CONTENT


@pytest.mark.parametrize(("fault", "is_carried_out"), [("unanswered", True), ("cut", False)])
def test_unanswered_upload_has_an_effect_and_a_cut_one_has_none(
    server: ObjectServer, tmp_path: Path, fault: str, is_carried_out: bool
) -> None:
    server.weakness = Weakness(**{fault: 1.0})
    with pytest.raises(FragmentStoreError):
        asyncio.run(FragmentStores().check(URL))
    assert (tmp_path / ".test" / "health-check").exists() == is_carried_out


def test_objects_are_listed_in_pages_and_deleted(server: ObjectServer, tmp_path: Path) -> None:
    server.page = 3
    store = open_store(URL)
    paths = [f"a & b/{number}" for number in range(10)]
    for path in paths:
        obstore.put(store, path, b"x")
    assert [entry["path"] for page in obstore.list(store, "a & b/") for entry in page] == paths
    obstore.delete(store, paths[:7])
    obstore.delete(store, paths[7])
    assert sorted(one.name for one in tmp_path.rglob("?") if one.is_file()) == ["8", "9"]
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, paths[8], b"y", mode="create")


@pytest.mark.usefixtures("server")
def test_upload_in_parts_keeps_content_and_encoding(tmp_path: Path) -> None:
    store = open_store(URL)
    whole = CONTENT * 1400  # 14 MB, of which the library sends 5 MiB at a time
    with tempfile.TemporaryFile() as file:
        file.write(whole)
        file.seek(0)
        obstore.put(store, "large", file, attributes={"Content-Encoding": "gzip"})
    assert (tmp_path / "large").read_bytes() == whole
    found = obstore.get(store, "large")
    assert dict(found.attributes)["Content-Encoding"] == "gzip"
    assert bytes(found.bytes()) == whole
