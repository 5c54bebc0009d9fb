"""Stores of persisted fragments: object stores and folders, by URL.

An upload compresses the fragment into a temporary file in a worker thread, and then writes the
object as a whole: an object store shows it when it is complete, and a folder after a rename.
"""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import obstore
from obstore.exceptions import BaseError

from qsync_broker.codecs import Codec, CodecError, compressor, decompressor
from qsync_broker.fragments import attributes_of, parse_path
from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_node.archive.location import ArchiveError, folder_of, open_store
from qsync_node.errors import QsyncError

TIMEOUT_S = 300.0
LIST_TIMEOUT_S = 60.0
CHUNK = 1 << 20
HEALTH_PATH = ".test/health-check"
HEALTH_CONTENT = b"qsync"
SPARE = 16
"""Open stores beyond which those that no specification names are forgotten."""


class FragmentStoreError(QsyncError):
    """A store is unavailable or holds a damaged fragment; the text states the cause."""


class FragmentMissing(FragmentStoreError):  # noqa: N818  # a fact about the store
    """The store has the fragment no longer."""


class FragmentStores:
    """The stores of all journals of a broker."""

    def __init__(self, named: Callable[[], Iterable[str]] = lambda: ()) -> None:
        """Begin without open stores.

        Args:
            named: returns the URLs that specifications name. Others may be forgotten.
        """
        self._named = named
        self._stores: dict[str, Any] = {}
        self._limit = SPARE

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the URLs of the open stores: at most `SPARE`, or twice the named ones."""
        return tuple(self._stores)

    async def _open(self, url: str) -> Any:
        store = self._stores.get(url)
        if store is None:
            try:
                store = await asyncio.to_thread(open_store, url)
            except ArchiveError as error:
                raise FragmentStoreError(str(error)) from None
            if len(self._stores) >= self._limit:
                named = set(self._named())
                self._stores = {one: kept for one, kept in self._stores.items() if one in named}
                self._limit = 2 * len(self._stores) + SPARE
            self._stores[url] = store
        return store

    async def list(self, url: str, journal: str) -> list[RemoteFragment]:
        """Return the fragments of a journal in a store.

        Raises:
            StoreError: the store cannot be listed.
        """
        store = await self._open(url)
        found = []
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                async for entries in obstore.list(store, f"{journal}/"):
                    for entry in entries:
                        mod_time = int(entry["last_modified"].timestamp())
                        fragment = parse_path(url, journal, entry["path"], mod_time)
                        if fragment is not None:
                            found.append(fragment)
        except (BaseError, OSError, TimeoutError) as error:
            raise FragmentStoreError(
                f"listing {journal} in {url} failed: {_cause(error)}"
            ) from None
        return found

    async def upload(
        self,
        url: str,
        path: str,
        fragment: LocalFragment,
        read: Callable[[int, int], bytes],
        directory: Path,
    ) -> RemoteFragment:
        """Persist a fragment, unless the store has it.

        Args:
            url: URL of the store.
            path: path of the fragment below the URL.
            fragment: the completed fragment.
            read: returns bytes at an offset of the journal, given the offset and a size.
            directory: directory for the compressed file.

        Raises:
            StoreError: the store is unavailable, or the local bytes are damaged.
        """
        is_offloaded = fragment.codec == Codec.GZIP_OFFLOAD_DECOMPRESSION
        if is_offloaded and url.startswith("file:"):
            raise FragmentStoreError(
                f"{url} cannot state the encoding of an object: use GZIP instead of"
                " GZIP_OFFLOAD_DECOMPRESSION"
            )
        store = await self._open(url)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                mod_time = await self._mod_time(store, path)
                if mod_time is None:
                    with tempfile.TemporaryFile(dir=directory) as file:
                        await asyncio.to_thread(_compress, fragment, read, file)
                        await obstore.put_async(
                            store, path, file, attributes=attributes_of(fragment.codec)
                        )
                    mod_time = await self._mod_time(store, path)
        except (BaseError, OSError, TimeoutError, ValueError) as error:
            raise FragmentStoreError(
                f"persisting {path} to {url} failed: {_cause(error)}"
            ) from None
        begin, end, checksum, codec, _ = fragment
        return RemoteFragment(begin, end, checksum, codec, url, path, mod_time or 0)

    async def url(self, fragment: RemoteFragment, duration_s: int) -> str:
        """Return a URL from which a client reads a fragment without a broker.

        It is signed for an object store, and names the file in a folder.

        Args:
            fragment: the persisted fragment.
            duration_s: duration of its validity in seconds.

        Returns:
            The URL, or "" if the store cannot sign.
        """
        if fragment.store.startswith("file:"):
            return fragment.store + fragment.path
        try:
            store = await self._open(fragment.store)
            expires = timedelta(seconds=duration_s)
            return str(await obstore.sign_async(store, "GET", fragment.path, expires))
        except (FragmentStoreError, BaseError, OSError, TypeError, ValueError):
            return ""

    async def delete(self, fragment: RemoteFragment) -> None:
        """Delete a persisted fragment, unless it is deleted already.

        Raises:
            StoreError: the store is unavailable.
        """
        store = await self._open(fragment.store)
        try:
            await obstore.delete_async(store, fragment.path)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise FragmentStoreError(
                f"deleting {fragment.path} in {fragment.store} failed: {_cause(error)}"
            ) from None

    async def check(
        self, url: str, delete_prefix: str | None = None, *, creates: bool = True
    ) -> None:
        """Write, read and list an object of a store.

        Args:
            url: URL of the store.
            delete_prefix: begin of the name of an object that is also written and deleted, or None.
                In a folder, its name begins with `.test/`, so that no further folder is created.
            creates: whether a missing folder is created.

        Raises:
            StoreError: one of these failed.
        """
        folder_path = folder_of(url)
        if folder_path is not None and not creates:
            if not await asyncio.to_thread(folder_path.is_dir):
                raise FragmentStoreError(
                    f"checking {url} failed: the folder does not exist; create it"
                )
        if folder_path is not None and delete_prefix is not None:
            delete_prefix = ".test/"
        store = await self._open(url)
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                await obstore.put_async(store, HEALTH_PATH, HEALTH_CONTENT)
                found = await (await obstore.get_async(store, HEALTH_PATH)).bytes_async()
                if bytes(found) != HEALTH_CONTENT:
                    raise FragmentStoreError(
                        f"{HEALTH_PATH} in {url} has other content than was written"
                    )
                folder = HEALTH_PATH.rpartition("/")[0] + "/"
                listed = [
                    entry["path"]
                    async for entries in obstore.list(store, folder)
                    for entry in entries
                ]
                if HEALTH_PATH not in listed:
                    raise FragmentStoreError(f"a listing of {url} does not contain {HEALTH_PATH}")
                if delete_prefix is not None:
                    probe = f"{delete_prefix}.gazette-delete-probe"
                    await obstore.put_async(store, probe, HEALTH_CONTENT)
                    await obstore.delete_async(store, probe)
        except (BaseError, OSError, TimeoutError, ValueError) as error:
            raise FragmentStoreError(f"checking {url} failed: {_cause(error)}") from None

    @staticmethod
    async def _mod_time(store: Any, path: str) -> int | None:
        try:
            found = await obstore.head_async(store, path)
        except FileNotFoundError:
            return None
        return int(found["last_modified"].timestamp())

    async def read(self, fragment: RemoteFragment, offset: int) -> AsyncIterator[bytes]:
        """Return the bytes of a fragment from an offset of the journal on.

        Raises:
            FragmentMissing: the store has the object no longer.
            StoreError: it is damaged or incomplete, or the store is unavailable.
        """
        store = await self._open(fragment.store)
        skip, left = offset - fragment.begin, fragment.end - offset
        reader = decompressor(fragment.codec)
        is_plain = fragment.codec == Codec.NONE
        options: Any = {"range": {"offset": skip}} if is_plain and skip else {}
        skip = 0 if is_plain else skip
        try:
            result = await obstore.get_async(store, fragment.path, options=options)
            async for data in result.stream(min_chunk_size=CHUNK):
                for piece in reader.feed(bytes(data)):
                    kept = piece[skip:][:left]
                    skip = max(0, skip - len(piece))
                    left -= len(kept)
                    if kept:
                        yield kept
            reader.finish()
        except FileNotFoundError:
            raise FragmentMissing(f"{fragment.store} has {fragment.path} no longer") from None
        except (BaseError, OSError, CodecError) as error:
            raise FragmentStoreError(
                f"reading {fragment.path} from {fragment.store} failed: {_cause(error)}"
            ) from None
        if left:
            raise FragmentStoreError(
                f"{fragment.path} in {fragment.store} lacks its last {left} bytes"
            )


def _compress(fragment: LocalFragment, read: Callable[[int, int], bytes], file: IO[bytes]) -> None:
    """Write the compressed fragment into a file. Raises ValueError if its bytes are damaged."""
    writer, hashed, offset = compressor(fragment.codec), hashlib.sha1(), fragment.begin
    while offset < fragment.end:
        data = read(offset, min(CHUNK, fragment.end - offset))
        if not data:
            raise ValueError(f"the local fragment ends at {offset}")
        hashed.update(data)
        file.write(writer.feed(data))
        offset += len(data)
    if hashed.digest() != fragment.sum:
        raise ValueError("the bytes of the local fragment do not have its checksum")
    file.write(writer.finish())
    file.seek(0)


def _cause(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
