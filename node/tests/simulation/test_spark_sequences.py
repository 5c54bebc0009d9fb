"""The values of sequences and the schema version: the node's engine against the audit's replay.

The engine executes random statements; the resulting log and snapshots are archived.
"""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qsync_node.archive import description as describe_module
from qsync_node.archive.description import TERM_SPACE, describe
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    SEGMENT,
    SNAPSHOT,
    FileEntry,
    Manifest,
    encode_manifest,
    encode_root,
)
from qsync_node.archive.reader import load_archive
from qsync_node.consensus.entries import control_body
from qsync_node.consensus.membership import ClusterMember
from qsync_node.engine.database import Database
from qsync_node.engine.requests import Select, decode_request
from qsync_node.engine.statements import execute_write
from qsync_node.errors import ClientError
from qsync_node.format.keys import DELETE, INSERT, RAFT_CONFIRM, RAFT_PROMOTE, REPLACE, UPDATE, Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow, encode_row
from qsync_node.format.walk import space_of
from qsync_node.format.xlog import SNAP, XLOG, FileHeader, encode_file, file_name
from qsync_node.node import Node
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.decode import runs as runs_module
from qsync_spark.report.findings import INCOMPLETE, PASSED, VIOLATED
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.plain_audit import plain_audit

SET = "22222222-2222-4222-8222-222222222222"
MEMBERS = [f"{number}1111111-1111-4111-8111-111111111111" for number in (1, 2, 3)]
SPACES = {600: 1, 601: 2, 602: 3}
"""Each space's sequence: ascending, descending, and cyclic."""
COUNTINGS = {1: (1, 1, 2**63 - 1, 1, False), 2: (-3, -1000, 10, 10, False), 3: (2, 1, 9, 3, True)}
"""Each sequence's step, minimum, maximum, start, and whether it is cyclic."""
SEQUENCE, SEQUENCE_DATA, PRIV, SPACE_SEQUENCE = 284, 285, 312, 340
BLOCK_ROWS = 17


def definitions() -> Iterator[tuple[int, int, list[Any]]]:
    """Yield the initial rows as (type, space, tuple)."""
    for number, uuid in enumerate(MEMBERS[1:], 2):
        member = ClusterMember(number, uuid, f"n{number}", "voter", True)
        yield REPLACE, 320, list(member.as_tuple())
    for sequence, (step, least, greatest, start, is_cyclic) in COUNTINGS.items():
        fields = [sequence, 1, f"s{sequence}", step, least, greatest, start, 0, is_cyclic]
        yield INSERT, SEQUENCE, fields
    for space, sequence in SPACES.items():
        yield INSERT, 280, [space, 1, f"space{space}", "memtx", 0, {}, []]
        parts = [[1, "string"], [0, "integer"]]
        yield INSERT, 288, [space, 0, "primary", "tree", {"unique": True}, parts]
        yield INSERT, SPACE_SEQUENCE, [space, sequence, True, 0, ""]


def statement(rng: Random) -> tuple[int, dict[int, Any]]:
    """Return a client's statement, which the engine may refuse."""
    space = rng.choice(list(SPACES))
    sequence = SPACES[space]
    name = rng.choice("abc")
    at = rng.random()
    if at < 0.6:
        return INSERT, {Key.SPACE_ID: space, Key.TUPLE: [None, name, "drawn"]}
    if at < 0.8:
        value = rng.randrange(-20, 60)
        return REPLACE, {Key.SPACE_ID: space, Key.TUPLE: [value, name, "given"]}
    if at < 0.86:
        return DELETE, {Key.SPACE_ID: space, Key.KEY: [name, rng.randrange(20)]}
    if at < 0.89:
        _, least, greatest, _, _ = COUNTINGS[sequence]
        value = rng.randrange(max(least, -20), min(greatest, 100) + 1)
        return REPLACE, {Key.SPACE_ID: SEQUENCE_DATA, Key.TUPLE: [sequence, value]}
    if at < 0.91:
        return DELETE, {Key.SPACE_ID: SEQUENCE_DATA, Key.KEY: [sequence]}
    if at < 0.94:
        return DELETE, {Key.SPACE_ID: SPACE_SEQUENCE, Key.KEY: [space]}
    if at < 0.97:
        return INSERT, {Key.SPACE_ID: SPACE_SEQUENCE, Key.TUPLE: [space, sequence, True, 0, ""]}
    if at < 0.98:
        _, least, greatest, start, is_cyclic = COUNTINGS[sequence]
        step = rng.choice((1, 2, -1))
        fields = [sequence, 1, f"s{sequence}", step, least, greatest, start, 0, is_cyclic]
        return REPLACE, {Key.SPACE_ID: SEQUENCE, Key.TUPLE: fields}
    return REPLACE, {Key.SPACE_ID: PRIV, Key.TUPLE: [1, 0, "space", space, rng.randrange(1, 8)]}


class SequenceHistory:
    """A leader's log, and the snapshots that were taken while it grew."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        bodies = Node.bootstrap_bodies(MEMBERS[0], "n1", SET, 3)
        self.rows: list[LogRow] = []
        self.snapshots: list[tuple[int, list[bytes]]] = [(0, bodies)]
        self.database = Database()
        for body in bodies:
            self.database.load(body)
        self._log(RAFT_PROMOTE, control_body(1, 1, 0, 0, 0))
        for row_type, space, fields in definitions():
            self._execute(row_type, {Key.SPACE_ID: space, Key.TUPLE: fields})
        for _ in range(self.rng.randrange(200, 400)):
            try:
                self._execute(*statement(self.rng))
            except ClientError:
                continue  # the engine refused it and changed nothing
            if self.rng.random() < 0.04:
                self._take_snapshot()
        self._take_snapshot()

    def _log(self, row_type: int, body: bytes) -> None:
        lsn = len(self.rows) + 1
        self.rows.append(LogRow(row_type, 1, lsn, 1000.0 + lsn, body, tsn=lsn, is_commit=True))

    def _execute(self, row_type: int, body: dict[int, Any]) -> None:
        request = decode_request(row_type, pack(body))
        assert not isinstance(request, Select)
        outcome = execute_write(self.database, self.database.space(body[Key.SPACE_ID]), request)
        for change in outcome.changes:
            self.database.take(change)
        for logged_type, logged in outcome.rows:
            self._log(logged_type, logged)

    def _take_snapshot(self) -> None:
        last = len(self.rows)
        self._log(RAFT_CONFIRM, control_body(1, 1, last, last, 1))
        term = b"\x82\x10\xce" + TERM_SPACE.to_bytes(4, "big") + b"\x21" + pack([1, 1, 1])
        bodies = [*self.database.snapshot_bodies(), term]
        self.snapshots.append((len(self.rows), bodies))

    def archive(self, folder: Path) -> Path:
        """Archive the log of three members, each with its own segments, and some snapshots."""
        shutil.rmtree(folder, ignore_errors=True)
        for number, uuid in enumerate(MEMBERS, 1):
            place = folder / uuid
            place.mkdir(parents=True)
            files = []
            segments = self._cut(uuid)
            snapshots = [s for s in self.snapshots if s[0] or number == 1]
            for entry, data in [*segments, *(self._snapshot(uuid, *one) for one in snapshots)]:
                (place / entry.name).write_bytes(data)
                files.append(replace(entry, archived_at=entry.timestamp_max))
            manifest = Manifest(SET, uuid, f"n{number}", files)
            (place / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
        (folder / ROOT_NAME).write_bytes(encode_root(SET))
        return folder

    def _cut(self, uuid: str) -> list[tuple[FileEntry, bytes]]:
        found: list[tuple[FileEntry, bytes]] = []
        after = 0
        while after < len(self.rows):
            size = min(self.rng.randrange(50, 200), len(self.rows) - after)
            rows = self.rows[after : after + size]
            blocks = [
                b"".join(map(encode_row, rows[at : at + BLOCK_ROWS]))
                for at in range(0, size, BLOCK_ROWS)
            ]
            clock = {1: after} if after else {}
            data = encode_file(FileHeader(XLOG, uuid, clock), blocks)
            name, term = file_name(after, "xlog"), 1 if after else 0
            found.append((describe(data, SEGMENT, name, term), data))
            after += size
        return found

    @staticmethod
    def _snapshot(uuid: str, index: int, bodies: list[bytes]) -> tuple[FileEntry, bytes]:
        rows = [encode_row(LogRow(INSERT, 0, n, 0.0, body)) for n, body in enumerate(bodies)]
        blocks = [b"".join(rows[at : at + 50]) for at in range(0, len(rows), 50)]
        data = encode_file(FileHeader(SNAP, uuid, {1: index} if index else {}), blocks)
        entry = describe(data, SNAPSHOT, file_name(index, "snap"), 1 if index else 0)
        assert hashlib.sha256(data).hexdigest() == entry.sha256
        return entry, data


@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_sequences_are_replayed_as_the_engine_moves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_by_row: bool
) -> None:
    if is_by_row:
        monkeypatch.setattr(runs_module, "columns_of", lambda _: None)
    history = SequenceHistory(seed)
    moved = [row for row in history.rows if row.type == INSERT and space_of(row.body) in SPACES]
    assert len(moved) > 20
    result = plain_audit(history.archive(tmp_path / "archive"))
    assert result.verdict == PASSED, (result.violations[:3], result.gaps[:3])
    assert result.counts["snapshotsReplayed"] >= 6


def test_files_of_many_parts_are_judged_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs and snapshots are split into parts, and each part is a task of its own."""
    whole = plain_audit(SequenceHistory(3).archive(tmp_path / "whole"))
    monkeypatch.setattr(describe_module, "MARK_EVERY_BYTES", 500)
    defaults = parts_of_kind.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "part_bytes", 1000)
    folder = SequenceHistory(3).archive(tmp_path / "cut")
    for kind in (SEGMENT, SNAPSHOT):
        parts = parts_of_kind(load_archive(f"file://{folder}"), kind)
        assert len(parts) > 1.5 * len({part.key for part in parts}), kind
    result = plain_audit(folder)
    assert (result.verdict, result.violations, result.gaps) == (PASSED, [], [])
    assert result.counts["snapshotsReplayed"] == whole.counts["snapshotsReplayed"]
    assert result.counts["memberRows"] == whole.counts["memberRows"]


@pytest.mark.parametrize("space", [SEQUENCE_DATA, TERM_SPACE, 272, PRIV, 600])
def test_a_snapshot_that_is_off_by_one_in_any_space(tmp_path: Path, space: int) -> None:
    """The audit reports a missing or changed tuple with its file, and nothing else."""
    source = SequenceHistory(1).archive(tmp_path / "archive")
    for seed, is_lacking in enumerate((False, True) * 3):
        copy = Copy(source, tmp_path / f"{seed}", seed)
        places = [
            (member, entry, number)
            for member in copy.manifests.values()
            for entry in member.of_kind(SNAPSHOT)
            for number, row in enumerate(copy.rows(member, entry))
            if space_of(row.body) == space
        ]
        member, entry, number = copy.rng.choice(places)
        rows = copy.rows(member, entry)
        body = unpack(rows[number].body)
        last = body[Key.TUPLE][-1]
        body[Key.TUPLE][-1] = last + 1 if isinstance(last, int) else f"{last}x"
        rows[number].body = pack(body)
        if is_lacking:
            del rows[number]
        path = copy.rewrite(member, entry, rows)
        result = plain_audit(copy.folder)
        assert result.verdict == VIOLATED, body
        assert [(one.proofs, one.file) for one in result.violations] == [([4], path)]
        assert not result.gaps


def test_a_sequence_that_was_changed_in_part_is_not_replayed(tmp_path: Path) -> None:
    history = SequenceHistory(2)
    history._execute(
        UPDATE, {Key.SPACE_ID: SEQUENCE, Key.KEY: [1], Key.TUPLE: [["=", 3, 5]], Key.INDEX_BASE: 0}
    )
    history._take_snapshot()
    result = plain_audit(history.archive(tmp_path / "archive"))
    assert result.verdict == INCOMPLETE
    assert not result.violations
    assert any("space 285 is not replayed" in gap.message for gap in result.gaps)
