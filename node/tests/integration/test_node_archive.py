"""The archive: selection, time and names of uploads, and failures to upload (S5, S6)."""

import hashlib
import json
import shutil
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import tarantool
import zstandard

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.archive.compaction import ChangesFile, Merged, decode_changes, encode_changes
from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import (
    ROLLBACK,
    SEGMENT,
    SNAPSHOT,
    FileEntry,
    Manifest,
    ManifestError,
    decode_manifest,
    encode_manifest,
)
from qsync_node.archive.store import ArchiveConflictError, ArchiveStore
from qsync_node.archive.uploads import (
    Contents,
    archived_index,
    needed_snapshot,
    plan_uploads,
    still_named,
)
from qsync_node.consensus.history import TermStart
from qsync_node.format.xlog import (
    BLOCK_ROWS_BYTES_MAX,
    ZROW_MAGIC,
    XlogError,
    checksum,
    decode_block_data,
)
from qsync_node.server.archiver import Archiver
from qsync_node.server.config import ArchiveConfig, NodeConfig
from qsync_node.server.disk import Disk
from qsync_node.server.logs import Log
from qsync_node.storage.storage import SegmentRange, Storage
from qsync_testing.archives.segments import SET_UUID, UUID, entry_of, rows_file
from qsync_testing.object_server import Weakness, object_server, used_by_this_process
from qsync_testing.processes import (
    PASSWORD,
    USER,
    NodeProcess,
    ProcessCluster,
    running_cluster,
    wait_until,
)


def test_a_segment_is_known_by_its_name_and_its_last_row() -> None:
    """A member that joins again at the same index writes another file of the same name."""
    archived = [entry_of(rows_file(1, 3))]
    first = SegmentRange("/d/00000000000000000000.xlog", 0, 3)
    longer = SegmentRange("/d/00000000000000000000.xlog", 0, 50)
    last = SegmentRange("/d/00000000000000000050.xlog", 50, 60)
    known = Contents([first, last], [], [])
    assert plan_uploads(known, 60, archived) == []
    assert archived_index(known, archived) == 3
    again = Contents([longer, last], [], [])
    assert [one.path for one in plan_uploads(again, 60, archived)] == [longer.path]
    assert archived_index(again, archived) == 0


def test_a_log_that_begins_again_counts_once_its_snapshot_is_archived() -> None:
    archived = [entry_of(rows_file(1, 3))]
    snapshot = "/d/00000000000000000114.snap"
    segments = [
        SegmentRange("/d/00000000000000000114.xlog", 114, 120),
        SegmentRange("/d/00000000000000000120.xlog", 120, 120),
    ]
    contents = Contents(segments, [snapshot], [])
    assert archived_index(contents, archived) == 3
    assert archived_index(contents, []) == 0
    stored = replace(archived[0], kind=SNAPSHOT, source="00000000000000000114.snap", last_index=114)
    assert archived_index(contents, [*archived, stored]) == 114
    assert archived_index(Contents(segments, [], []), archived) == 114  # retention removed it


def test_a_manifest_forgets_what_compactions_took() -> None:
    """A file that is still in the data directory stays named, or it would be archived again."""
    entries = [
        entry_of(rows_file(first, 10), f"{first - 1:020d}.xlog") for first in (1, 11, 21, 31)
    ]
    merged = Merged(UUID, [entries[2].name], entries[2])
    changes = ChangesFile(20, "compaction", [merged])
    assert still_named(entries, ChangesFile(), []) == entries
    assert still_named(entries, changes, []) == [entries[3]]
    assert still_named(entries, changes, [entries[1].source]) == [entries[1], entries[3]]
    assert decode_changes(encode_changes(changes), "here") == changes


# --- selection of files -----------------------------------------------------------------------


def test_a_segment_leaves_when_sealed_and_confirmed() -> None:
    segments = [
        SegmentRange("/d/00000000000000000000.xlog", 0, 10),
        SegmentRange("/d/00000000000000000010.xlog", 10, 20),
        SegmentRange("/d/00000000000000000020.xlog", 20, 25),
    ]
    contents = Contents(
        segments, ["/d/00000000000000000010.snap"], [("/d/rollback/00000000000000000012.4.xlog", 9)]
    )
    planned = plan_uploads(contents, 19, [])
    assert [(one.kind, one.after_index) for one in planned] == [
        (ROLLBACK, 11), (SEGMENT, 0), (SNAPSHOT, 10),
    ]  # fmt: skip
    assert [one.after_index for one in plan_uploads(contents, 25, []) if one.kind == SEGMENT] == [
        0, 10,
    ]  # fmt: skip
    assert archived_index(contents, []) == 0
    done = [entry_of(rows_file(1, 10))]
    assert archived_index(contents, done) == 10
    assert needed_snapshot(contents, done) == 10  # the remaining segment starts from it
    two = contents._replace(snapshots=[*contents.snapshots, "/d/00000000000000000020.snap"])
    assert needed_snapshot(two, done) == 10


def test_a_manifest_is_read_back_and_an_invalid_one_is_explained() -> None:
    entry = entry_of(rows_file(4, 3))
    assert (entry.rows, entry.after_index, entry.last_index) == (3, 3, 6)
    assert entry.lsns == {1: (4, 6)}
    assert entry.spaces == [512]
    assert (entry.timestamp_min, entry.timestamp_max) == (9.0, 11.0)
    manifest = Manifest(SET_UUID, UUID, "n0", [entry], 1.0)
    assert decode_manifest(encode_manifest(manifest), "m") == manifest
    newer = json.loads(encode_manifest(manifest)) | {"version": 99}
    with pytest.raises(ManifestError, match="use a newer Qsync"):
        decode_manifest(json.dumps(newer).encode(), "m")
    with pytest.raises(ManifestError, match="is not a valid manifest"):
        decode_manifest(b"{", "m")


def test_a_damaged_segment_is_not_described() -> None:
    data = bytearray(rows_file(1, 50))
    data[-40] ^= 1
    with pytest.raises(XlogError, match="damaged at offset"):
        entry_of(bytes(data))


# --- the store --------------------------------------------------------------------------------


def test_a_name_with_other_contents_is_an_error(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    store = ArchiveStore(url, SET_UUID, UUID, "n0")
    assert store.load().files == []
    home = tmp_path / "0.xlog"
    home.write_bytes(rows_file(1, 5))
    entry = entry_of(home.read_bytes())
    store.put_file(entry, str(home))
    store.put_file(entry, str(home))  # repeated, as after a crash
    there = tmp_path / "archive" / UUID / entry.name
    assert hashlib.sha256(there.read_bytes()).hexdigest() == entry.sha256
    there.write_bytes(there.read_bytes()[:-1] + b"?")
    with pytest.raises(ArchiveConflictError, match="different contents"):
        store.put_file(entry, str(home))
    with pytest.raises(ArchiveConflictError, match="belongs to replica set"):
        ArchiveStore(url, UUID, UUID, "n0").load()


def test_an_unwritable_archive_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match="cannot open"):
        ArchiveStore(f"file://{tmp_path}/file/below", SET_UUID, UUID, "n0")
    with pytest.raises(ArchiveError, match="unknown scheme"):
        ArchiveStore("memory://x", SET_UUID, UUID, "n0")


# --- real nodes -------------------------------------------------------------------------------


def connect(cluster: ProcessCluster) -> tarantool.Connection:
    return tarantool.Connection("127.0.0.1", cluster.leader().port, user=USER, password=PASSWORD)


def make_space(connection: tarantool.Connection) -> None:
    connection.insert(SystemSpace.SPACE, [512, 1, "kv", "memtx", 0, {"is_sync": True}, []])
    connection.insert(
        SystemSpace.INDEX, [512, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]
    )


def _has_more_files(node: NodeProcess, count: int) -> bool:
    return int(node.status()["archive"]["files"]) > count


def manifests(folder: Path) -> dict[str, Manifest]:
    found = {}
    for path in folder.glob("*/manifest.json"):
        manifest = decode_manifest(path.read_bytes(), str(path))
        found[manifest.member] = manifest
    return found


def check_files(folder: Path, manifest: Manifest) -> None:
    """Assert that files match the manifest and that each segment continues the previous one."""
    for entry in manifest.files:
        data = (folder / manifest.instance_uuid / entry.name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry.sha256
        assert len(data) == entry.size
    segments = manifest.of_kind(SEGMENT)
    assert all(a.last_index == b.after_index for a, b in pairwise(segments))


def test_three_members_archive_the_same_rows(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    settings: dict[str, Any] = {
        "archive": {"url": f"file://{folder}", "interval": "300ms"},
        "segment_size": "16Ki", "checkpoint_size": "40Ki",
    }  # fmt: skip
    with running_cluster(tmp_path / "nodes", 3, **settings) as cluster:
        connection = connect(cluster)
        make_space(connection)
        for number in range(600):
            connection.replace(512, [number % 100, "v" * 200])
        for node in cluster.nodes:
            status = node.status()
            answer = node.post("/archive", {})["result"]
            assert answer["archived_index"] >= status["confirmed_index"]
        ends = {}
        for name, manifest in manifests(folder).items():
            check_files(folder, manifest)
            segments = manifest.of_kind(SEGMENT)
            assert len(segments) > 3, "sealed by size and by time"
            ends[name] = segments[-1].last_index
            assert manifest.of_kind(SNAPSHOT)
        assert len(ends) == 3
        # The CONFIRM of an archived row is a row too; it is archived in the next interval.
        wait_until("all left", lambda: cluster.nodes[0].status()["archive"]["lag_rows"] == 0)
        assert cluster.nodes[0].status()["archive"]["error"] == ""
        connection.replace(512, [1, "slow"])
        wanted = cluster.nodes[1].status()["last_index"]

        def is_there() -> bool:
            return manifests(folder)["n1"].of_kind(SEGMENT)[-1].last_index >= int(wanted)

        wait_until("an idle cluster archives by the interval", is_there)


def test_nothing_is_removed_before_it_is_archived(tmp_path: Path) -> None:
    """S5: a node keeps its log while the archive fails, and removes the log after the uploads."""
    blocker = tmp_path / "archive"
    blocker.write_text("not a folder")
    settings: dict[str, Any] = {
        "archive": {"url": f"file://{blocker}/inside", "interval": "200ms"},
        "segment_size": "8Ki", "checkpoint_size": "20Ki",
    }  # fmt: skip
    with running_cluster(tmp_path / "nodes", 1, **settings) as cluster:
        node = cluster.nodes[0]
        connection = connect(cluster)
        make_space(connection)
        for number in range(400):
            connection.replace(512, [number % 50, "v" * 200])
        wait_until("a checkpoint", lambda: node.status()["checkpoint_index"] > 0)
        status = node.status()
        assert status["archive"]["lag_rows"] > 300
        wait_until("a look", lambda: node.status()["archive"]["lag_seconds"] > 0)
        assert "archive" in status["archive"]["error"]
        assert (node.folder / "n0" / "00000000000000000000.xlog").exists()
        assert status["first_available_index"] == 1
        assert node.post_status("/archive", {}) == 504
        blocker.unlink()
        wait_until("the log is archived", lambda: node.status()["archive"]["lag_rows"] == 0)
        wait_until("the log is removed", lambda: node.status()["first_available_index"] > 1)
        assert not (node.folder / "n0" / "00000000000000000000.xlog").exists()
        manifest = manifests(blocker / "inside")["n0"]
        check_files(blocker / "inside", manifest)
        assert manifest.of_kind(SEGMENT)[0].after_index == 0


def test_a_killed_node_resumes_from_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    settings: dict[str, Any] = {
        "archive": {"url": f"file://{folder}", "interval": "100ms"}, "segment_size": "8Ki",
    }  # fmt: skip
    with running_cluster(tmp_path / "nodes", 1, **settings) as cluster:
        node = cluster.nodes[0]
        make_space(connect(cluster))
        for _ in range(4):
            connection = connect(cluster)
            for number in range(120):
                connection.replace(512, [number, "v" * 200])
            before = node.status()["archive"]["files"]
            wait_until("an upload", partial(_has_more_files, node, before))
            node.kill()
            # A crash between the upload and the manifest leaves a file without an entry.
            manifest = manifests(folder)["n0"]
            manifest.files.pop()
            path = folder / manifest.instance_uuid / "manifest.json"
            path.write_bytes(encode_manifest(manifest))
            node.start(cluster.peers)
            cluster.leader()
        node.post("/archive", {})
        manifest = manifests(folder)["n0"]
        check_files(folder, manifest)
        names = [entry.name for entry in manifest.files]
        assert len(names) == len(set(names))
        shutil.rmtree(folder / manifest.instance_uuid)


def test_a_server_that_dies_in_mid_upload(tmp_path: Path) -> None:
    """Interrupted HTTP uploads and an unavailable server neither lose nor duplicate a file."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    settings: dict[str, Any] = {
        "archive": {"url": "s3://bucket/orders", "interval": "200ms"}, "segment_size": "8Ki",
    }  # fmt: skip
    with (
        object_server(bucket=bucket) as server,
        used_by_this_process(server),
        running_cluster(tmp_path / "nodes", 1, **settings) as cluster,
    ):
        node = cluster.nodes[0]
        connection = connect(cluster)
        make_space(connection)
        server.weakness = Weakness(cut=1.0)
        for number in range(150):
            connection.replace(512, [number, "v" * 200])
        wait_until("uploads were cut", lambda: server.requests >= 4)
        server.weakness = Weakness()
        wait_until("a file is archived", lambda: bool(list(bucket.rglob("*.xlog"))))
        server.stop()
        for number in range(150):
            connection.replace(512, [number, "w" * 200])
        wait_until("the outage is seen", lambda: bool(node.status()["archive"]["error"]))
        server.start()
        wait_until("all is archived", lambda: node.status()["archive"]["lag_rows"] == 0, 120)
    (path,) = bucket.rglob("manifest.json")
    manifest = decode_manifest(path.read_bytes(), str(path))
    for entry in manifest.files:
        data = (path.parent / entry.name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry.sha256
    segments = manifest.of_kind(SEGMENT)
    assert all(a.last_index == b.after_index for a, b in pairwise(segments))
    assert time.time() - manifest.updated_at < 300


class _SlowStore:
    """An in-memory store whose first upload lasts until `released`."""

    manifest: ClassVar[Manifest | None] = None
    written: ClassVar[list[tuple[int, int]]] = []  # (number of the archiver, files in its manifest)
    started = threading.Event()
    released = threading.Event()
    made: ClassVar[int] = 0

    def __init__(self, *_: object) -> None:
        type(self).made += 1
        self.number = self.made

    def load(self) -> Manifest:
        return replace(self.manifest) if self.manifest else Manifest(SET_UUID, UUID, "n0")

    def changes(self) -> ChangesFile:
        return ChangesFile()

    def put_file(self, entry: FileEntry, path: str) -> None:
        self.started.set()
        if self.number == 1:
            assert self.released.wait(30)

    def put_manifest(self, manifest: Manifest) -> None:
        type(self).manifest = manifest
        self.written.append((self.number, len(manifest.files)))


def test_archiver_that_was_stopped_writes_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_node.server.archiver.ArchiveStore", _SlowStore)
    monkeypatch.setattr("qsync_node.server.archiver.STOP_PATIENCE_S", 0.1)
    data = tmp_path / "data"
    data.mkdir()
    segments = []
    for first, count in ((1, 3), (4, 2), (6, 1)):  # the last one is not sealed
        path = data / f"{first - 1:020d}.xlog"
        path.write_bytes(rows_file(first, count))
        segments.append(SegmentRange(str(path), first - 1, first + count - 1))
    config = NodeConfig(
        directory=data,
        name="n0",
        replicaset_uuid=SET_UUID,
        secret="a long secret",
        archive=ArchiveConfig(url="file:///nowhere"),
    )
    # The parts of storage and disk that an archiver uses.
    storage = cast(Storage, SimpleNamespace(segments=lambda: segments))
    disk = cast(Disk, SimpleNamespace(allow=lambda floor: None, seal=lambda: None))
    silent = Log("n0", "error")

    def archiver() -> Archiver:
        made = Archiver(config, "u", storage, disk, silent)
        made.observe(5, [TermStart(1, 1, 1)])
        return made

    old = archiver()
    assert _SlowStore.started.wait(30)
    old.stop()
    assert old._thread.is_alive()
    new = archiver()
    old._thread.join(0.3)
    assert _SlowStore.written == [], "the new one waits until the old one has ended"
    _SlowStore.released.set()
    wait_until("the new one's manifest", lambda: (2, 2) in _SlowStore.written, 30)
    new.stop()
    assert [number for number, _ in _SlowStore.written] == [2, 2]


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd-{sha}.x",
        "{sha}.xlog",
        "00000000000000000001-1-{sha}.xlog/../../x-{sha}.y",
        "00000000000000000001-1-{sha}.xlog\n",
    ],
)
def test_manifest_names_no_file_outside_its_folder(name: str) -> None:
    entry = entry_of(rows_file(1, 3))
    document = json.loads(encode_manifest(Manifest(SET_UUID, UUID, "n0", [entry])))
    assert decode_manifest(json.dumps(document).encode(), "here").files == [entry]
    document["files"][0]["name"] = name.format(sha=entry.sha256)
    with pytest.raises(ManifestError, match="name"):
        decode_manifest(json.dumps(document).encode(), "here")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("vclock", None, "the field vclock is missing"),
        ("timestamp_min", "noon", "timestamp_min has the invalid value 'noon'"),
        ("vclock", {"one": 1}, "vclock has the invalid value"),
        ("marks", [[1]], "marks has the invalid value"),
        ("lsns", [], "lsns has the invalid value"),
        ("rows", "many", "rows has the invalid value 'many'"),
    ],
)
def test_invalid_field_of_a_manifest_is_named(field: str, value: object, text: str) -> None:
    """No error of Python reaches a person."""
    document = json.loads(
        encode_manifest(Manifest(SET_UUID, UUID, "n0", [entry_of(rows_file(1, 3))]))
    )
    entry = document["files"][0]
    if value is None:
        del entry[field]
    else:
        entry[field] = value
    with pytest.raises(ManifestError, match=f"cannot read here: it is damaged, because {text}"):
        decode_manifest(json.dumps(document).encode(), "here")


@pytest.mark.parametrize(
    ("field", "value"),
    [("updated_at", "noon"), ("files", {}), ("files", [3]), ("updated_at", None)],
)
def test_invalid_manifest_names_the_field(field: str, value: object) -> None:
    document = json.loads(encode_manifest(Manifest(SET_UUID, UUID, "n0")))
    document[field] = value
    with pytest.raises(ManifestError, match=r"cannot read here: .*; restore it from a copy"):
        decode_manifest(json.dumps(document).encode(), "here")


@pytest.mark.parametrize("uuid", ["../other", "", 5, UUID + "/.."])
def test_manifest_names_no_other_folder(uuid: object) -> None:
    document = json.loads(encode_manifest(Manifest(SET_UUID, UUID, "n0")))
    document["instance_uuid"] = uuid
    with pytest.raises(ManifestError, match="uuid"):
        decode_manifest(json.dumps(document).encode(), "here")


@pytest.mark.parametrize("has_size", [True, False])
def test_block_that_stands_for_gigabytes_is_refused(has_size: bool) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=has_size)
    bomb = compressor.compress(bytes(BLOCK_ROWS_BYTES_MAX + 1))
    with pytest.raises(XlogError, match="more than 128 MiB"):
        decode_block_data(ZROW_MAGIC, bomb, checksum(bomb))
    rows = bytes(1 << 20)
    whole = compressor.compress(rows)
    assert decode_block_data(ZROW_MAGIC, whole, checksum(whole)) == rows
