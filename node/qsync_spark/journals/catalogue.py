"""Journals and the listings of their stores.

Specifications come from the rows of an archive (`qsync_spark.audit.specifications`), or from a JSON
document, as `qsync journals list -o json` prints it: Spark reads no live node.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import obstore
from obstore.exceptions import BaseError

from qsync_broker.fragments import parse_path, unknown_extension
from qsync_broker.index import RemoteFragment
from qsync_broker.spec import JournalSpec, name_problem
from qsync_node.archive.location import ArchiveError, first_line, read_range, store_of
from qsync_node.errors import QsyncError
from qsync_spark.places import find_files

LISTERS = 16


class JournalsError(QsyncError):
    """Journals or their stores cannot be read; the text is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """A fragment in a store.

    Attributes:
        journal: name of its journal.
        fragment: offsets, SHA-1, codec and place.
        size: number of bytes of the stored object.
    """

    journal: str
    fragment: RemoteFragment
    size: int


@dataclass(slots=True)
class Listing:
    """The fragments of one journal in all its stores.

    Attributes:
        spec: specification of the journal.
        fragments: its fragments by begin, the longest one first.
        unknown: objects whose names are those of fragments with an unknown codec.
        foreign: other objects in the journal's folder.
        problem: the cause why a store cannot be listed, or "".
    """

    spec: JournalSpec
    fragments: list[StoredFragment] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    problem: str = ""

    def index(self) -> list[StoredFragment]:
        """Return the fragments that are in no other one, so that begins and ends both rise."""
        kept: list[StoredFragment] = []
        for one in self.fragments:
            if one.fragment.begin == one.fragment.end:
                continue
            if not kept or one.fragment.end > kept[-1].fragment.end:
                kept.append(one)
        return kept


def decode_journals(data: bytes, place: str) -> list[JournalSpec]:
    """Return the journals of a list.

    Raises:
        JournalsError: the list is invalid, or states why it could not be made.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JournalsError(
            f"the list of journals {place} is not valid JSON: {first_line(error)}; write it by"
            " `qsync journals list -o json`"
        ) from None
    if isinstance(document, dict) and "error" in document:
        raise JournalsError(f"the journals of the cluster could not be listed: {document['error']}")
    specs = [_spec_of(one) for one in document] if isinstance(document, list) else [None]
    if None in specs:
        raise JournalsError(
            f"the list of journals {place} has no names and specifications: write it by"
            " `qsync journals list -o json`"
        )
    return sorted((spec for spec in specs if spec is not None), key=lambda spec: spec.name)


def _spec_of(document: object) -> JournalSpec | None:
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return None
    name = document.get("name")
    if not isinstance(name, str) or name_problem(name):
        return None
    return JournalSpec.from_row(name, document["spec"])


def load_journals(place: str) -> list[JournalSpec]:
    """Return the journals of a list at a path or URL.

    Raises:
        JournalsError, PlaceError: the list cannot be read.
    """
    (file, *_) = find_files(place, ".json")
    try:
        return decode_journals(read_range(file.url, file.key, 0, file.size), place)
    except OSError as error:
        raise JournalsError(
            f"cannot read the list of journals {place}: {first_line(error)}; check the path or URL"
        ) from error


def list_journals(specs: list[JournalSpec]) -> list[Listing]:
    """List the stores of all journals, several at a time."""
    with ThreadPoolExecutor(LISTERS) as threads:
        return list(threads.map(list_journal, specs))


def list_journal(spec: JournalSpec) -> Listing:
    """List all stores of a journal."""
    found = Listing(spec)
    for url in spec.fragment.stores:
        try:
            for entry in _entries(url, spec.name):
                _add(found, url, entry)
        except (ArchiveError, BaseError, OSError) as error:
            found.problem = f"{spec.name} cannot be listed in {url}: {first_line(error)}"
    found.fragments.sort(key=lambda one: (one.fragment.begin, -one.fragment.end))
    return found


def _entries(url: str, journal: str) -> Iterable[Any]:
    for batch in obstore.list(store_of(url), f"{journal}/"):
        yield from batch


def _add(found: Listing, url: str, entry: Any) -> None:
    path = str(entry["path"])
    mod_time = int(entry["last_modified"].timestamp())
    fragment = parse_path(url, found.spec.name, path, mod_time)
    if fragment is not None:
        found.fragments.append(StoredFragment(found.spec.name, fragment, int(entry["size"])))
    elif unknown_extension(path):
        found.unknown.append(f"{url}{path}")
    else:
        found.foreign.append(f"{url}{path}")


def find_within(begins: list[int], ends: list[int], begin: int, end: int) -> int:
    """Return the number of the fragment that has all of these bytes, or -1.

    Args:
        begins: begins of fragments of which none is in another one, ascending.
        ends: their ends.
        begin: offset of the first byte.
        end: offset after the last one.
    """
    # The last one that begins early enough has the greatest end of those.
    at = bisect_right(begins, begin) - 1
    return at if at >= 0 and ends[at] >= end else -1
