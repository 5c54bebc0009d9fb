"""Files of an archive: their flushes, and the times in their entries."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import obstore
import pytest
from obstore.store import ObjectStore

from qsync_node.archive.compaction import (
    CHANGES_NAME,
    COMPACTION_MANIFEST,
    ChangesFile,
    Compaction,
    Merged,
    encode_changes,
    encode_compaction,
)
from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    VERSION,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from qsync_node.archive.reader import load_archive
from qsync_node.archive.store import ArchiveStore
from qsync_node.format.row import LogRow, encode_row
from qsync_node.format.xlog import XLOG, FileHeader, encode_file
from qsync_testing.archives.segments import SET_UUID, UUID, entry_of, rows_file


def test_files_in_a_folder_are_flushed_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member removes its own copy of a file that counts as archived (S5)."""
    flushed: set[Path] = set()
    fsync = os.fsync

    def record(descriptor: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    folder = tmp_path / "archive"
    store = ArchiveStore(f"file://{folder}", SET_UUID, UUID, "n0")
    manifest = store.load()
    assert folder in flushed
    home = tmp_path / "local"
    home.write_bytes(rows_file(1, 3))
    entry = entry_of(home.read_bytes())
    for _ in range(2):  # the second time, the file may be from before a crash
        flushed.clear()
        store.put_file(entry, str(home))
        assert flushed == {folder, folder / UUID, folder / UUID / entry.name}
    flushed.clear()
    store.put_manifest(manifest)
    assert folder / UUID in flushed
    assert any(path.parent == folder / UUID for path in flushed)


def test_manifest_is_encoded_file_by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the encoder holds the interpreter lock, and a lease may end meanwhile (G1)."""
    entry = entry_of(rows_file(1, 3))
    manifest = Manifest(SET_UUID, UUID, "n0", [entry] * 500, 7.5)
    wanted = json.dumps({"version": VERSION, **asdict(manifest)}, separators=(",", ":")).encode()
    sizes: list[int] = []
    encode = json.JSONEncoder.encode

    def record(encoder: json.JSONEncoder, value: object) -> str:
        text = encode(encoder, value)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(json.JSONEncoder, "encode", record)
    assert encode_manifest(manifest) == wanted
    assert max(sizes) < 2_000
    monkeypatch.undo()
    assert decode_manifest(wanted, "here") == manifest


def test_times_of_a_file_are_the_least_and_the_greatest() -> None:
    """The clock of a leader may be behind the one before it."""
    body = b"\x82\x10\xcd\x02\x00\x21\x91\x01"
    times = enumerate([9.0, 11.0, 8.0, 10.0], 1)
    rows = b"".join(encode_row(LogRow(2, 1, lsn, moment, body)) for lsn, moment in times)
    entry = entry_of(encode_file(FileHeader(XLOG, UUID, {}), [rows]))
    assert (entry.timestamp_min, entry.timestamp_max) == (8.0, 11.0)


@pytest.mark.parametrize("is_first", [False, True])
def test_files_that_are_merged_while_an_archive_is_read_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The member no longer lists them then: a restore would stop at the gap (S6)."""
    small = [entry_of(rows_file(first, 3)) for first in (1, 4)]
    manifest = Manifest(SET_UUID, UUID, "n0", small)
    store = ArchiveStore(f"file://{tmp_path}", SET_UUID, UUID, "n0")
    store.load()
    store.put_manifest(manifest)
    record = tmp_path / CHANGES_NAME
    record.parent.mkdir()
    if not is_first:
        record.write_bytes(encode_changes(ChangesFile()))
    merged = Merged(UUID, [entry.name for entry in small], entry_of(rows_file(1, 6)))
    raced = {CHANGES_NAME, f"{UUID}/{MANIFEST_NAME}"}
    get = obstore.get

    def merge() -> None:
        raced.clear()
        record.write_bytes(encode_changes(ChangesFile(0, "", [merged])))
        store.put_manifest(Manifest(SET_UUID, UUID, "n0", []))

    def get_and_merge(place: ObjectStore, path: str) -> SimpleNamespace:
        """Read a document. The merge follows the listing, or the first of the two documents."""
        if is_first:
            merge()
        data = bytes(get(place, path).bytes())
        if path in raced:
            merge()
        return SimpleNamespace(bytes=lambda: data)

    monkeypatch.setattr(obstore, "get", get_and_merge)
    archive = load_archive(f"file://{tmp_path}")
    assert not raced
    assert [entry.name for _, entry in archive.segments()] == [merged.entry.name]


def test_compaction_that_is_published_while_an_archive_is_read_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces files after the listing; the error would order to restore it from a copy."""
    entry = entry_of(rows_file(1, 3))
    store = ArchiveStore(f"file://{tmp_path}", SET_UUID, UUID, "n0")
    store.load()
    store.put_manifest(Manifest(SET_UUID, UUID, "n0", [entry]))
    made = Compaction(f"{3:020d}-1-0a1b2c3d", SET_UUID, 3, 1.0, 1.0, "Passed", entry)
    get = obstore.get

    def publish_and_get(place: ObjectStore, path: str) -> SimpleNamespace:
        folder = tmp_path / made.folder
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / COMPACTION_MANIFEST).write_bytes(encode_compaction(made))
            (tmp_path / CHANGES_NAME).write_bytes(encode_changes(ChangesFile(3, made.name)))
        data = bytes(get(place, path).bytes())
        return SimpleNamespace(bytes=lambda: data)

    monkeypatch.setattr(obstore, "get", publish_and_get)
    archive = load_archive(f"file://{tmp_path}")
    assert archive.base == made
    assert archive.segments() == []


def test_compaction_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """A restore would begin with the state of that cluster (S6)."""
    entry = entry_of(rows_file(1, 3))
    store = ArchiveStore(f"file://{tmp_path}", SET_UUID, UUID, "n0")
    store.load()
    store.put_manifest(Manifest(SET_UUID, UUID, "n0", [entry]))
    made = Compaction(f"{3:020d}-1-0a1b2c3d", UUID, 3, 1.0, 1.0, "Passed", entry)
    (tmp_path / made.folder).mkdir(parents=True)
    (tmp_path / made.folder / COMPACTION_MANIFEST).write_bytes(encode_compaction(made))
    with pytest.raises(ArchiveError, match=f"belongs to replica set {UUID}"):
        load_archive(f"file://{tmp_path}")
