"""Compaction of small fragments: contiguous ones become one of about `fragment.length`.

    step                                  state of the store if the job ends after it
    -----------------------------------   ---------------------------------------------------------
    write the merged fragment             its bytes are stored twice, in fragments that agree
    read it back and compare its SHA-1    the same; a fragment that differs is deleted at once
    wait for the grace period             the same; a later job continues here
    delete the fragments inside of it     its bytes are stored once

The job keeps no record: each step follows from a listing. An incomplete job is thus continued by
the next one, and two jobs at a time do no harm, because equal content has equal names. Brokers and
readers pass over a fragment inside of another one as soon as they list the store again. A fragment
is therefore deleted only if the greater one is older than the grace period, and than two refresh
intervals of the journal.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import obstore
from obstore.exceptions import BaseError

from qsync_broker.codecs import compressor
from qsync_broker.fragments import attributes_of, content_name
from qsync_broker.index import RemoteFragment
from qsync_node.archive.location import first_line, store_of
from qsync_node.errors import QsyncError
from qsync_spark.durations import GRACE_S
from qsync_spark.journals.catalogue import Listing
from qsync_spark.journals.checks import OVERLAP, Check, check_of
from qsync_spark.journals.content import FragmentDamagedError, StoreUnavailableError, pieces_of


class Merge(NamedTuple):
    """Contiguous fragments of one store, folder and codec that become one."""

    journal: str
    sources: tuple[RemoteFragment, ...]

    @property
    def size(self) -> int:
        """Return the number of bytes of content."""
        return self.sources[-1].end - self.sources[0].begin

    def encode(self) -> str:
        """Return the merge as text."""
        sources = [[*one[:2], one.sum.hex(), *one[3:]] for one in self.sources]
        return json.dumps([self.journal, sources])

    @classmethod
    def decode(cls, text: str) -> "Merge":
        """Return the merge of a text."""
        journal, sources = json.loads(text)
        return cls(
            journal,
            tuple(
                RemoteFragment(begin, end, bytes.fromhex(checksum), *rest)
                for begin, end, checksum, *rest in sources
            ),
        )


@dataclass(frozen=True, slots=True)
class Inner:
    """Fragments of which all bytes are in `outer`, too."""

    journal: str
    outer: RemoteFragment
    fragments: tuple[RemoteFragment, ...]


class MergeError(QsyncError):
    """Fragments were not merged; the text states the cause."""


# --- plans ----------------------------------------------------------------------------------------


def plan_merges(listing: Listing, length: int = 0) -> list[Merge]:
    """Return the merges of a journal.

    Fragments of at least half of the length stay as they are, so that each byte is written again
    a few times at most.

    Args:
        listing: the journal's fragments.
        length: greatest content length of a merged fragment, 0 for the journal's own.
    """
    length = length or listing.spec.fragment.length
    merges: list[Merge] = []
    run: list[RemoteFragment] = []

    def close() -> None:
        if len(run) > 1:
            merges.append(Merge(listing.spec.name, tuple(run)))
        run.clear()

    for stored in listing.index():
        one = stored.fragment
        if one.end - one.begin >= length / 2:
            close()
            continue
        if run and (not _is_followed(run[-1], one) or one.end - run[0].begin > length):
            close()
        run.append(one)
    close()
    return merges


def _is_followed(one: RemoteFragment, following: RemoteFragment) -> bool:
    """Return whether two fragments are contiguous and stored alike."""
    return (
        one.end == following.begin
        and (one.codec, one.store) == (following.codec, following.store)
        and one.path.rpartition("/")[0] == following.path.rpartition("/")[0]
    )


def plan_removals(listing: Listing, now_s: float, grace_s: float = GRACE_S) -> list[Inner]:
    """Return the fragments inside of others that have been persisted for the grace period."""
    settled_s = now_s - max(grace_s, 2 * listing.spec.fragment.refresh_ns / 1e9)
    found: dict[str, tuple[RemoteFragment, list[RemoteFragment]]] = {}
    outer: RemoteFragment | None = None
    for stored in listing.fragments:
        one = stored.fragment
        if outer is not None and one.end <= outer.end:
            is_greater = one.end - one.begin < outer.end - outer.begin
            if is_greater and outer.mod_time < settled_s:
                found.setdefault(outer.place, (outer, []))[1].append(one)
            continue
        outer = one
    return [Inner(listing.spec.name, one, tuple(some)) for one, some in found.values()]


def checks_of(removals: Iterable[Inner]) -> Iterator[Check]:
    """Yield the checks that must precede removals: of the greater fragment, and of its parts."""
    for number, inner in enumerate(removals):
        yield check_of(number, inner.outer)
        for line, one in enumerate(inner.fragments):
            yield number, 1, one.begin, one.end, OVERLAP, None, line, ""


# --- effects --------------------------------------------------------------------------------------


def merge(plan: Merge) -> RemoteFragment:
    """Write the merged fragment, and read it back.

    Raises:
        MergeError: a source is damaged, or the store failed.
    """
    first, last = plan.sources[0], plan.sources[-1]
    store = store_of(first.store)
    try:
        with tempfile.TemporaryFile() as file:
            writer, whole = compressor(first.codec), hashlib.sha1()
            for source in plan.sources:
                for piece in _sound_pieces_of(source):
                    whole.update(piece)
                    file.write(writer.feed(piece))
            file.write(writer.finish())
            file.seek(0)
            name = content_name(first.begin, last.end, whole.digest(), first.codec)
            path = f"{first.path.rpartition('/')[0]}/{name}"
            made = RemoteFragment(
                first.begin, last.end, whole.digest(), first.codec, first.store, path, 0
            )
            obstore.put(store, path, file, attributes=attributes_of(first.codec))
        try:
            for _ in _sound_pieces_of(made):
                pass
        except FragmentDamagedError:
            obstore.delete(store, path)
            raise
    except (FragmentDamagedError, StoreUnavailableError, BaseError, OSError) as error:
        text = f"{plan.journal}: the fragments {first.begin} to {last.end} are not merged"
        raise MergeError(f"{text}: {first_line(error)}") from None
    return made


def _sound_pieces_of(fragment: RemoteFragment) -> Iterator[bytes]:
    """Yield the content. Raises FragmentDamagedError if it does not have the SHA-1 of its name."""
    hashed, size = hashlib.sha1(), 0
    for piece in pieces_of(fragment):
        hashed.update(piece)
        size += len(piece)
        yield piece
    if hashed.digest() != fragment.sum or size != fragment.end - fragment.begin:
        raise FragmentDamagedError(f"{fragment.place} does not have the SHA-1 of its name")


def remove(inner: Inner, sums: dict[int, bytes]) -> tuple[int, list[str]]:
    """Delete the fragments whose bytes the greater one has.

    Args:
        inner: the fragments. The greater one is sound.
        sums: SHA-1 of the bytes that the greater one has in place of each of them.

    Returns:
        The number of deleted fragments, and sentences about the others.

    Raises:
        MergeError: the store failed.
    """
    count, problems = 0, []
    for line, one in enumerate(inner.fragments):
        if sums.get(line) != one.sum:
            problems.append(f"{one.place} differs from {inner.outer.place}: audit the journal")
            continue
        try:
            obstore.delete(store_of(one.store), one.path)
        except FileNotFoundError:
            continue  # by another job
        except (QsyncError, BaseError, OSError) as error:
            raise MergeError(f"{one.place} cannot be deleted: {first_line(error)}") from None
        count += 1
    return count, problems
