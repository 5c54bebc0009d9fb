"""Attempts to make an audit report a wrong result.

Rows are lost where files end, members have no archive, files are foreign, and members join and
leave.
"""

import math
import shutil
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from msgpack import ExtType

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.archive import description as describe
from qsync_node.archive.manifest import (
    ROLLBACK,
    SEGMENT,
    SNAPSHOT,
    FileEntry,
    Manifest,
)
from qsync_node.archive.reader import load_archive
from qsync_node.engine.numbers import pack_decimal
from qsync_node.format.keys import RAFT_PROMOTE, Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow
from qsync_spark.audit.catalogue import KeyCatalogue
from qsync_spark.audit.events import EventParameters, log_events, snapshot_events
from qsync_spark.audit.key_values import Unkeyed
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.decode.parts import parts_of
from qsync_spark.facts.walk import walk
from qsync_spark.report.findings import INCOMPLETE, PASSED, VIOLATED
from qsync_testing.archives.archive_copy import Copy, split
from qsync_testing.archives.damage import (
    CLOCKS_AND_TERMS,
    changed_by_another_index,
    false_manifest,
)
from qsync_testing.archives.plain_audit import plain_audit

YEAR_S = 365 * 86400.0


def entry_over(manifest: Manifest, index: int) -> FileEntry:
    """Return the manifest entry of the segment that holds the row at `index`."""
    return next(e for e in manifest.of_kind(SEGMENT) if e.after_index < index <= e.last_index)


def user_index(copy: Copy) -> int:
    """Return the index of a user's single-row transaction in the middle of the log."""
    member = copy.full_members()[0]
    entry, number = copy.pick(member, lambda row: row.type in (2, 3) and row.replica_id > 0)
    return entry.after_index + number + 1


# --- rows that all members lost at the same place -------------------------------------------------


def test_a_row_lost_where_all_members_files_end(copy: Copy) -> None:
    at = user_index(copy)
    for manifest in copy.manifests.values():
        split(copy, manifest, entry_over(manifest, at), at)
    assert plain_audit(copy.folder).verdict == PASSED
    lost: LogRow | None = None
    named = []  # an empty file shows no gap, so its member is not named
    for manifest in copy.manifests.values():
        entry = entry_over(manifest, at)
        rows = copy.rows(manifest, entry)
        lost = rows.pop()
        if rows:
            named.append(manifest.member)
        copy.rewrite(manifest, entry, rows, is_honest=True)
    result = plain_audit(copy.folder)
    assert lost is not None
    assert result.verdict == VIOLATED
    assert [(one.proofs, one.lsn) for one in result.violations] == [([2], lost.lsn)]
    assert result.violations[0].members == sorted(named)
    assert result.violations[0].message.startswith("1 row from row ")


def test_rows_that_all_manifests_claim_and_no_file_holds(copy: Copy) -> None:
    end = max(e.last_index for m in copy.manifests.values() for e in m.of_kind(SEGMENT))
    first = 0
    for manifest in copy.manifests.values():
        entry = manifest.of_kind(SEGMENT)[-1]
        if entry.last_index == end:
            rows = copy.rows(manifest, entry)
            first = rows[-2].lsn
            copy.rewrite(manifest, entry, rows[:-2])
    result = plain_audit(copy.folder)
    assert result.verdict == VIOLATED
    assert [one.lsn for one in result.violations] == [first]
    assert result.violations[0].message.startswith("2 rows from row ")


def test_rows_lost_one_after_another_are_one_finding(copy: Copy) -> None:
    member = copy.full_members()[0]
    entry = next(
        e for e in member.of_kind(SEGMENT) if e.rows > 45 and len({r.replica_id for r in
        copy.rows(member, e)}) == 1
    )  # fmt: skip
    rows = copy.rows(member, entry)
    lost = rows[10:40]
    copy.rewrite(member, entry, rows[:10] + rows[40:])
    result = plain_audit(copy.folder)
    found = [one for one in result.violations if one.problem == "missing row"]
    assert [one.lsn for one in found] == [lost[0].lsn], result.violations
    assert f"{lost[0].lsn} to {lost[-1].lsn}" in found[0].message


# --- members whose archive is incomplete ----------------------------------------------------------


def test_a_lost_archive_is_not_late(copy: Copy) -> None:
    """Without any archive nothing is known of a member, however late it may be."""
    for manifest in list(copy.manifests.values())[:2]:
        shutil.rmtree(copy.folder / manifest.instance_uuid)
    assert plain_audit(copy.folder, YEAR_S).verdict == INCOMPLETE


def test_a_checkpoint_is_no_copy_of_the_rows_before_it(copy: Copy) -> None:
    """Only the first segment, only the last one, or none remains; all snapshots stay."""
    for keeps in (slice(0, 1), slice(-1, None), slice(0, 0)):
        other = Copy(copy.folder, copy.folder.with_name(f"copy{keeps.start}{keeps.stop}"), 1)
        for manifest in other.full_members()[:2]:
            segments = manifest.of_kind(SEGMENT)
            kept = segments[keeps]
            manifest.files = [e for e in manifest.files if e.kind != SEGMENT or e in kept]
            other.save(manifest)
        result = plain_audit(other.folder)
        assert result.verdict == INCOMPLETE, keeps
        assert not result.violations


def test_files_of_another_member_are_no_copies(copy: Copy) -> None:
    members = copy.full_members()
    source = copy.folder / members[0].instance_uuid
    for manifest in members[1:]:
        folder = copy.folder / manifest.instance_uuid
        shutil.rmtree(folder)
        shutil.copytree(source, folder)
        manifest.files = list(members[0].files)
        copy.save(manifest)
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE
    assert any("the file belongs to instance" in gap.message for gap in result.gaps)


@pytest.mark.parametrize("kind", [SEGMENT, ROLLBACK, SNAPSHOT])
def test_a_file_with_fewer_rows_than_its_manifest_states(copy: Copy, kind: str) -> None:
    members = copy.manifests.values()
    member, entry = next((m, e) for m in members for e in m.of_kind(kind) if e.rows)
    rows = copy.rows(member, entry)
    copy.store_rows(member, entry, rows[:-1])
    assert plain_audit(copy.folder).verdict in (INCOMPLETE, VIOLATED)


def test_a_large_file_is_held_against_its_name(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check covers files that are read in parts, although no single part can decide it."""
    member = copy.full_members()[0]
    entry = max(member.of_kind(SEGMENT), key=lambda one: one.size)
    path = copy.folder / member.instance_uuid / entry.name
    monkeypatch.setattr(describe, "MARK_EVERY_BYTES", 1000)
    data = bytearray(path.read_bytes())
    marked = describe.describe(bytes(data), SEGMENT, entry.source, entry.start_term)
    url = f"file://{copy.folder}"
    owners: dict[int, int] = {}

    def facts() -> list[str]:
        parts = list(parts_of(url, member, marked, owners, 2000))
        assert len(parts) > 1
        return [
            row["fact"] for part in parts for batch in walk(part, b"") for row in batch.to_pylist()
        ]

    assert "changed_file" not in facts()
    at = data.index(b"Version: ") + 9
    data[at] ^= 1
    path.write_bytes(bytes(data))
    assert facts().count("changed_file") == 1


@pytest.mark.parametrize("is_repeated", [False, True])
def test_terms_rise_from_file_to_file(copy: Copy, is_repeated: bool) -> None:
    """Each file alone is correct, and its manifest entry names an earlier term as its start."""
    first = copy.full_members()[0]
    *_, before, term = sorted({term for e in first.of_kind(SEGMENT) for term, _, _ in e.terms})
    at = next(i for e in first.of_kind(SEGMENT) for t, _, i in e.terms if t == term)
    lsn = 0
    for manifest in copy.manifests.values():
        entry = entry_over(manifest, at)
        if entry.after_index < at - 1:
            split(copy, manifest, entry, at - 1)
            entry = entry_over(manifest, at)
        rows = copy.rows(manifest, entry)
        assert rows[0].type == RAFT_PROMOTE
        lsn = rows[0].lsn
        rows[0].body = pack(unpack(rows[0].body) | {int(Key.TERM): before - 1 + is_repeated})
        made = copy.store_rows(manifest, entry, rows)
        marks = [mark._replace(term=0) for mark in made.marks]
        changed = replace(made, start_term=0, marks=marks)
        manifest.files[manifest.files.index(made)] = changed
        copy.save(manifest)
    found = [one for one in plain_audit(copy.folder).violations if one.lsn == lsn]
    assert ["term going back" in one.problem for one in found] == [True]


# --- members that join and leave ------------------------------------------------------------------


def members_of(rows: list[LogRow], change: dict[int, Any]) -> None:
    """Append a change of `_cluster` by the leader of the last row."""
    last = rows[-1]
    rows.append(LogRow(change[0], last.replica_id, last.lsn + 1, last.timestamp, pack(change[1])))


def test_more_instances_than_a_mask_has_bits(copy: Copy) -> None:
    """After seventy lost disks, the oldest instances are not compared, and a gap reports that."""
    for manifest in copy.full_members():
        entry = manifest.of_kind(SEGMENT)[-1]
        rows = copy.rows(manifest, entry)
        for number in range(70):
            uuid = f"{number:08}-0000-4000-8000-000000000000"
            members_of(
                rows,
                {
                    0: 2,
                    1: {
                        Key.SPACE_ID: SystemSpace.CLUSTER,
                        Key.TUPLE: [30, uuid, "n30", "voter", True],
                    },
                },
            )
            members_of(rows, {0: 5, 1: {Key.SPACE_ID: SystemSpace.CLUSTER, Key.KEY: [30]}})
        copy.rewrite(manifest, entry, rows, is_honest=True)
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE
    assert not result.violations
    assert any("is not compared" in gap.message for gap in result.gaps)


def test_what_a_removed_member_took_with_it_is_a_note(copy: Copy) -> None:
    """The member was removed a moment after it had joined, and had archived nothing."""
    uuid = "99999999-0000-4000-8000-000000000000"
    for manifest in copy.full_members():
        entry = manifest.of_kind(SEGMENT)[-1]
        rows = copy.rows(manifest, entry)
        members_of(
            rows,
            {
                0: 2,
                1: {Key.SPACE_ID: SystemSpace.CLUSTER, Key.TUPLE: [30, uuid, "n30", "voter", True]},
            },
        )
        members_of(rows, {0: 5, 1: {Key.SPACE_ID: SystemSpace.CLUSTER, Key.KEY: [30]}})
        copy.rewrite(manifest, entry, rows, is_honest=True)
    result = plain_audit(copy.folder)
    assert result.verdict == PASSED, result.gaps
    assert any("n30 was removed" in note for note in result.notes)


def test_a_change_of_which_no_key_is_known_leaves_its_space_open(copy: Copy) -> None:
    """Through a secondary index, any tuple of the space may have changed.

    From there on, the audit does not judge snapshots of that space. It judges other spaces as
    usual.
    """
    space, at = changed_by_another_index(copy)
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE, result.violations
    (gap,) = [gap for gap in result.gaps if gap.proofs == [4]]
    assert gap.message.startswith(f"space {space} is not replayed from index {at}:")
    assert gap.after == at


@pytest.mark.parametrize("field", ["timestamp_max", "lsns", "spaces", *CLOCKS_AND_TERMS])
def test_a_manifest_that_contradicts_its_rows(copy: Copy, field: str) -> None:
    """Readers choose files by the manifest, so a correct name and hash are not enough."""
    manifest = copy.full_members()[0]
    path = false_manifest(copy, manifest, manifest.of_kind(SEGMENT)[-1], field)
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE, result.violations
    assert any("manifest" in gap.message and gap.file == path for gap in result.gaps), result.gaps
    assert {gap.member for gap in result.gaps} == {manifest.member}


@pytest.mark.parametrize("field", ["vclock", "terms", "last_term", "start_vclock"])
def test_a_manifest_that_contradicts_its_snapshot(copy: Copy, field: str) -> None:
    manifest = copy.full_members()[0]
    path = false_manifest(copy, manifest, manifest.of_kind(SNAPSHOT)[-1], field)
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE, result.violations
    assert any("manifest" in gap.message and gap.file == path for gap in result.gaps), result.gaps


def test_a_manifest_that_contradicts_its_rolled_back_rows(copy: Copy) -> None:
    manifest, entry = next(
        (m, e) for m in copy.manifests.values() for e in m.of_kind(ROLLBACK) if e.rows
    )
    path = false_manifest(copy, manifest, entry, "vclock")
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE, result.violations
    assert [gap.file for gap in result.gaps] == [path]


def raise_last_indexes(copy: Copy) -> None:
    """Let each manifest state that its last segment contains 1,000 more rows."""
    for manifest in copy.full_members():
        entry = manifest.of_kind(SEGMENT)[-1]
        changed = replace(entry, last_index=entry.last_index + 1000)
        manifest.files[manifest.files.index(entry)] = changed
        copy.save(manifest)


def test_manifests_that_state_rows_after_the_end_of_their_files(copy: Copy) -> None:
    """The audit must not state that it read up to an index which no file has."""
    true = plain_audit(copy.folder)
    raise_last_indexes(copy)
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE, result.violations
    ends = [gap for gap in result.gaps if "the file ends with index" in gap.message]
    assert len(ends) == len(copy.full_members())
    assert result.audited_index == true.audited_index
    assert result.counts["indexes"] == true.counts["indexes"]


def test_manifests_whose_clocks_also_state_rows_after_the_end_of_their_files(copy: Copy) -> None:
    """Such rows are missing ones. The audit did not read up to them."""
    true = plain_audit(copy.folder)
    for manifest in copy.full_members():
        entry = manifest.of_kind(SEGMENT)[-1]
        clock = {**entry.vclock, max(entry.lsns): entry.vclock[max(entry.lsns)] + 1000}
        changed = replace(entry, last_index=entry.last_index + 1000, vclock=clock)
        manifest.files[manifest.files.index(entry)] = changed
        copy.save(manifest)
    result = plain_audit(copy.folder)
    assert result.verdict == VIOLATED
    assert "1000 rows" in result.violations[0].message
    assert result.audited_index == true.audited_index


def test_false_last_index_of_a_file_with_an_anomaly_is_not_audited(copy: Copy) -> None:
    """The rows of such a file are not held against its manifest."""
    true = plain_audit(copy.folder)
    member = copy.full_members()[0]
    entry = member.of_kind(SEGMENT)[-1]
    rows = copy.rows(member, entry)
    copy.store_rows(member, entry, [*rows[:2], rows[1], *rows[2:]])  # repeats a row
    raise_last_indexes(copy)
    result = plain_audit(copy.folder)
    assert result.verdict == VIOLATED
    assert result.audited_index == true.audited_index


def test_a_row_missing_between_two_files_is_reported_with_the_end_of_the_first(copy: Copy) -> None:
    manifest = copy.full_members()[0]
    entry = next(e for e in manifest.of_kind(SEGMENT)[:-1] if e.rows > 2)
    path = copy.rewrite(manifest, entry, copy.rows(manifest, entry)[:-1], is_honest=True)
    result = plain_audit(copy.folder)
    assert result.verdict == VIOLATED
    (found,) = result.violations
    assert (found.file, found.offset) == (path, (copy.folder / path).stat().st_size)


def test_one_number_is_one_key() -> None:
    """Keys compare as in the engine: 1, 1.0 and the decimal 1.00; one moment in two time zones."""
    catalogue = KeyCatalogue(keys={512: (0,)})
    one, other = (catalogue.key_of_tuple(512, [value, "a"]) for value in (1, 1.0))
    assert one == other != catalogue.key_of_tuple(512, [1.5])
    assert catalogue.key_of_row(5, 512, {Key.KEY: [1.0]}) == one

    def key(value: object) -> bytes:
        return catalogue.key_of_tuple(512, [value])

    def decimal(text: str) -> ExtType:
        return unpack(pack_decimal(Decimal(text)))

    def moment(seconds: int, nanoseconds: int, zone: int) -> ExtType:
        parts = seconds.to_bytes(8, "little", signed=True), nanoseconds.to_bytes(4, "little")
        return ExtType(4, b"".join((*parts, zone.to_bytes(4, "little"))))

    values = [1, -7, 2**64 - 1, 0.5, 1e300, 2.0**70, 0.1]
    shown = ["1.00", "-7", f"{2**64 - 1}.0", "0.50", None, str(2**70), None]
    for value, text in zip(values, shown, strict=True):
        assert text is None or key(decimal(text)) == key(value), value
    texts = ["0.1", "1e30", "12345678901234567890123456789012345678", "-0.3"]
    distinct = {key(value) for value in [*values, *map(decimal, texts), math.inf, math.nan]}
    assert len(distinct) == len(values) + len(texts) + 2
    assert key(decimal("0.10")) == key(decimal("0.1"))
    assert key(decimal("-0")) == key(0) == key(-0.0)
    assert key(moment(500, 0, 60)) == key(moment(500, 0, 0)) != key(moment(500, 1, 0))
    assert key(ExtType(4, (500).to_bytes(8, "little"))) == key(moment(500, 0, 7))
    for broken in (ExtType(1, b"\x00"), ExtType(1, b""), ExtType(4, b"1")):
        with pytest.raises(Unkeyed, match="its primary key is not"):
            key(broken)


@pytest.mark.parametrize("kind", [SEGMENT, SNAPSHOT])
def test_a_file_that_goes_between_two_looks_ends_the_audit(copy: Copy, kind: str) -> None:
    """The first pass read the file: a replay without its rows would reject correct snapshots."""
    archive = load_archive(f"file://{copy.folder}")
    part = parts_of_kind(archive, kind)[0]
    reading = EventParameters({part.member: [(0, part.last_index)]}, [], KeyCatalogue())
    (copy.folder / part.key).unlink()
    with pytest.raises(OSError, match=r"cannot read .* again"):
        list(
            log_events(part, reading)
            if kind == SEGMENT
            else snapshot_events(part, KeyCatalogue(), "")
        )
