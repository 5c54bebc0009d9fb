"""Journals of a restored cluster: their rows, and copies of their persisted fragments.

Brokers, leases and assignments of the former cluster are removed. A journal keeps its epoch, which
no broker of the new cluster has. Appends therefore fail with INDEX_HAS_GREATER_OFFSET until
`reset-head` accepts that bytes which were not persisted are lost.

Two clusters never write to one store, because an offset could then get two values: the former
cluster may still be running. A journal that had a store gets a store of the new cluster, with
copies of the fragments. A fragment after a gap is copied only if it was persisted some hours ago:
the missing one may still be on its way.
"""

import re
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import BaseError

from qsync_node.archive.location import ArchiveError, first_line, folder_of, open_store, store_of
from qsync_node.engine.database import Database
from qsync_node.errors import QsyncError
from qsync_node.format.body import put_body
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    NO_ROUTE,
    JournalRow,
    decode_row,
    encode_row,
)
from qsync_node.format.keys import DELETE, REPLACE, Key
from qsync_node.format.mp import pack
from qsync_node.transactions.own_rows import rows_of

GAP_S = 6 * 3600
"""Age of a fragment in seconds after which a gap before it is final, as it is for brokers."""
COPIES = 8
"""Number of copies under way."""
CHUNK = 4 << 20
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]{40}(\.[A-Za-z]+)?")


class JournalRestoreError(QsyncError):
    """Journals cannot be restored; the text is one sentence."""


class Former(NamedTuple):
    """A journal of the former cluster, and the stores of its fragments."""

    name: str
    stores: tuple[str, ...]


class Fragment(NamedTuple):
    """A persisted fragment: offsets, place, size in bytes and Unix time of its persistence."""

    begin: int
    end: int
    store: str
    path: str
    size: int
    mod_time: int


# --- rows -----------------------------------------------------------------------------------------


def detach(database: Database, store: str) -> list[Former]:
    """Let journals belong to no broker and to the new store, and return those that had a store.

    Args:
        database: the restored state.
        store: URL of the store of the new cluster, or "".

    Raises:
        JournalsError: a store is needed and missing, or is not the new cluster's own.
    """
    for row in rows_of(database, ASSIGNMENT_SPACE):
        _delete(database, ASSIGNMENT_SPACE, row[:3])
    for row in rows_of(database, BROKER_SPACE):
        _delete(database, BROKER_SPACE, row[:2])
    found = []
    url = store if not store or store.endswith("/") else f"{store}/"
    for fields in rows_of(database, JOURNAL_SPACE):
        journal = decode_row(JOURNAL_SPACE, fields)
        assert isinstance(journal, JournalRow)
        fragment = dict(journal.spec.get("fragment") or {})
        stores = tuple(str(one) for one in fragment.get("stores") or ())
        if stores:
            _check_store(journal.name, stores, url)
            found.append(Former(journal.name, stores))
            fragment["stores"] = [url]
        detached = journal._replace(
            spec={**journal.spec, "fragment": fragment}, route=NO_ROUTE, partial=(), ends=()
        )
        database.apply(REPLACE, put_body(JOURNAL_SPACE, pack(encode_row(detached))))
    return found


def _check_store(journal: str, stores: Iterable[str], url: str) -> None:
    if not url:
        raise JournalRestoreError(
            f"the fragments of {journal} are in a store of the former cluster: name a store of the"
            " new one with --journal-store (fromArchive.journalStore)"
        )
    for one in stores:
        if url.startswith(one) or one.startswith(url):
            raise JournalRestoreError(
                f"the store {url} is that of the former cluster, which has the fragments of"
                f" {journal} in {one}: name another folder or bucket with --journal-store"
            )


def _delete(database: Database, space: int, key: list[Any]) -> None:
    fields = {int(Key.SPACE_ID): space, int(Key.INDEX_ID): 0, int(Key.KEY): key}
    database.apply(DELETE, pack(fields))


# --- fragments ------------------------------------------------------------------------------------


def copy_fragments(former: list[Former], store: str) -> int:
    """Copy the fragments of journals, and return their number.

    A repeated call continues where the former one ended.

    Raises:
        JournalsError: a store failed, or the new one has fragments of another cluster.
    """
    url = store if store.endswith("/") else f"{store}/"
    with ThreadPoolExecutor(COPIES) as threads:
        planned = [one for some in threads.map(lambda one: _plan(one, url), former) for one in some]
        for _ in threads.map(lambda one: _copy(one, url), planned):
            pass
    return len(planned)


def _plan(former: Former, url: str) -> list[Fragment]:
    """Return the fragments of a journal that the new store lacks."""
    try:
        sources = [one for place in former.stores for one in _list(place, former.name)]
        open_store(url)  # creates a folder
        existing = {one.path: one.size for one in _list(url, former.name)}
    except (ArchiveError, BaseError, OSError) as error:
        raise JournalRestoreError(
            f"the fragments of {former.name} cannot be listed: {first_line(error)}; check the URL"
            " and the credentials, then retry"
        ) from error
    sources = final(sources, time.time())
    foreign = sorted(set(existing) - {one.path for one in sources})
    if foreign:
        raise JournalRestoreError(
            f"the store {url} has the fragment {foreign[0]} of another cluster: name an empty"
            " folder with --journal-store"
        )
    return [one for one in sources if existing.get(one.path) != one.size]


def final(fragments: list[Fragment], now_s: float) -> list[Fragment]:
    """Return the fragments up to a gap that may still be filled (pure)."""
    kept: list[Fragment] = []
    end = 0
    for one in sorted(fragments):
        if kept and one.begin > end and one.mod_time > now_s - GAP_S:
            break
        kept.append(one)
        end = max(end, one.end)
    return kept


def _list(url: str, journal: str) -> list[Fragment]:
    if (folder := folder_of(url)) is not None and not folder.is_dir():
        return []
    found = []
    for batch in obstore.list(store_of(url), f"{journal}/"):
        for entry in batch:
            path = str(entry["path"])
            name = _NAME.fullmatch(path.rpartition("/")[2])
            if name is not None:
                mod_time = int(entry["last_modified"].timestamp())
                begin, end = int(name[1], 16), int(name[2], 16)
                found.append(Fragment(begin, end, url, path, int(entry["size"]), mod_time))
    return found


def _copy(fragment: Fragment, url: str) -> None:
    is_offloaded = "." not in fragment.path.rpartition("/")[2]  # compressed, without an extension
    attributes: Any = {"Content-Encoding": "gzip"} if is_offloaded else None
    try:
        # The library cannot read from one store while it writes to another one.
        with tempfile.TemporaryFile() as file:
            for data in obstore.get(store_of(fragment.store), fragment.path).stream(CHUNK):
                file.write(data)
            file.seek(0)
            obstore.put(store_of(url), fragment.path, file, attributes=attributes)
    except (BaseError, OSError) as error:
        raise JournalRestoreError(
            f"the fragment {fragment.path} cannot be copied to {url}: {first_line(error)}; retry"
        ) from error
