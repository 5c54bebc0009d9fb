"""Compares ledgers of appends and reads with the bytes of journals. It imports no code of Qsync.

Each append is one record: `#ID LENGTH SHA1\\n`, a payload of LENGTH bytes, and `\\n`. An ID belongs
to one attempt. A ledger has one JSON object per line: an append with its outcome, or a read with
the SHA-1 of the bytes that it returned.

    outcome        meaning
    ------------   --------------------------------------------------------------------------
    acknowledged   the record is in the journal from `begin` to `end`
    unknown        the record is in the journal at most once
    refused        the record is not in the journal: an answer states it, or nothing was sent
    broken         the same: the client broke off before the end of the content
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

HEADER = re.compile(rb"#([a-z0-9-]+) (\d+) ([0-9a-f]{40})\n")
OUTCOMES = ("acknowledged", "unknown", "refused", "broken")


class AppendRecord(NamedTuple):
    """One append, as it was found in a journal."""

    name: str
    begin: int
    end: int


def record_of(name: str, payload: bytes) -> bytes:
    """Return the content of an append."""
    digest = hashlib.sha1(payload).hexdigest()
    return b"#%s %d %s\n%s\n" % (name.encode(), len(payload), digest.encode(), payload)


def parse(content: bytes) -> tuple[list[AppendRecord], str]:
    """Return the records of a journal, and a sentence about the first byte that fits none."""
    records: list[AppendRecord] = []
    at = 0
    while at < len(content):
        header = HEADER.match(content, at)
        if header is None:
            return records, f"no append begins at offset {at}: {content[at : at + 40]!r}"
        name, length, digest = header[1].decode(), int(header[2]), header[3].decode()
        end = header.end() + length + 1
        payload = content[header.end() : end - 1]
        if len(content) < end or content[end - 1 : end] != b"\n":
            return records, f"a part of append {name} is at offset {at}"
        if hashlib.sha1(payload).hexdigest() != digest:
            return records, f"append {name} at offset {at} has other bytes"
        records.append(AppendRecord(name, at, end))
        at = end
    return records, ""


def read_ledgers(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return all entries of ledgers; the last line of a killed writer may be incomplete."""
    return [
        json.loads(line)
        for path in paths
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def ends_of(entries: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the offset after the last acknowledged append of each journal."""
    ends: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "append" and entry["outcome"] == "acknowledged":
            ends[entry["journal"]] = max(ends.get(entry["journal"], 0), entry["end"])
    return ends


def check(entries: list[dict[str, Any]], contents: dict[str, dict[str, bytes]]) -> list[str]:
    """Return the violations.

    Args:
        entries: the ledgers' entries.
        contents: the bytes of each journal, as each broker returned them from offset 0.
    """
    found: list[str] = []
    for journal, versions in sorted(contents.items()):
        content = max(versions.values(), key=len)
        for broker, other in sorted(versions.items()):
            if other != content:
                at = _first_difference(content, other)
                found.append(f"{journal}: broker {broker} has other bytes at offset {at}")
        own = [entry for entry in entries if entry["journal"] == journal]
        appends = [entry for entry in own if entry["kind"] == "append"]
        records, problem = parse(content)
        if problem:
            found.append(f"{journal}: {problem}")
        texts = _check_appends(appends, records, len(content))
        texts += _check_order(appends)
        texts += _check_reads([entry for entry in own if entry["kind"] == "read"], content, records)
        found += [f"{journal}: {text}" for text in texts]
    return found


def _first_difference(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(at for at in range(length) if one[at] != other[at])


def _check_appends(
    appends: list[dict[str, Any]], records: list[AppendRecord], end: int
) -> list[str]:
    """Check each append against the records, which end at the offset `end`."""
    found: list[str] = []
    after: list[int] = []  # begins of acknowledged appends that no broker returns
    places: dict[str, AppendRecord] = {}
    for record in records:
        if record.name in places:
            found.append(f"append {record.name} is there twice: {places[record.name]}, {record}")
        places[record.name] = record
    known = set()
    for append in appends:
        name, outcome = append["id"], append["outcome"]
        assert outcome in OUTCOMES, append
        if name in known:
            found.append(f"the ledger has append {name} twice")
        known.add(name)
        place = places.get(name)
        if outcome == "acknowledged":
            if place is None and append["begin"] >= end:
                after.append(append["begin"])
            elif place is None:
                found.append(f"acknowledged append {name} at {append['begin']} is lost")
            elif (place.begin, place.end) != (append["begin"], append["end"]):
                found.append(f"append {name} was acknowledged at {append['begin']}: {place}")
        elif outcome != "unknown" and place is not None:
            found.append(f"{outcome} append {name} took effect: {place}")
    if after:
        found.append(
            f"brokers return no byte after {end}, but {len(after)} acknowledged appends begin at"
            f" {min(after)} to {max(after)}: they cannot be read yet, or are lost"
        )
    found += [f"no writer has appended {name}: {places[name]}" for name in places.keys() - known]
    return found


def _check_order(appends: list[dict[str, Any]]) -> list[str]:
    """Check that an append that began after another one was acknowledged follows it."""
    found: list[str] = []
    acknowledged = [one for one in appends if one["outcome"] == "acknowledged"]
    ended = sorted(acknowledged, key=lambda one: one["ended"])
    times = [one["ended"] for one in ended]
    greatest: list[int] = []
    for one in ended:
        greatest.append(max(one["end"], greatest[-1] if greatest else 0))
    for one in acknowledged:
        count = bisect_right(times, one["started"])
        if count and greatest[count - 1] > one["begin"]:
            found.append(f"append {one['id']} at {one['begin']} is before one that it follows")
    return found


def _check_reads(
    reads: list[dict[str, Any]], content: bytes, records: list[AppendRecord]
) -> list[str]:
    found: list[str] = []
    ends = {0, *(record.end for record in records)}
    for read in reads:
        begin, end = read["begin"], read["begin"] + read["length"]
        what = f"a read of broker {read['broker']} from {begin} to {end}"
        if begin != read["offset"]:
            found.append(f"{what} should begin at {read['offset']}")
        if hashlib.sha1(content[begin:end]).hexdigest() != read["sha1"]:
            problem = "had bytes that are lost" if end > len(content) else "had other bytes"
            found.append(f"{what} {problem}")
        elif read["is_whole"] and end not in ends:
            found.append(f"{what} ended within an append")
    return found
