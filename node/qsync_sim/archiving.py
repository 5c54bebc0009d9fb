"""Archives in the simulation: the decisions of production, and a simulated store.

A process takes note of the node's state twice a second, as the server does. A thread then performs
one operation of `archive/uploader.py` at a time. The store may be slow or refuse everything. A
refused operation, or one under way when the process ends, may still have been carried out.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Protocol

from qsync_node.archive.compaction import ChangesFile
from qsync_node.archive.description import describe
from qsync_node.archive.manifest import FileEntry, Manifest, decode_manifest, encode_manifest
from qsync_node.archive.uploader import (
    ArchiveView,
    Describe,
    ListFiles,
    LoadManifest,
    PutFile,
    PutManifest,
    Sealing,
    Shipping,
    UploadOperation,
)
from qsync_node.archive.uploads import Contents, own_contents
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.format.xlog import XlogError
from qsync_node.node import Node
from qsync_node.storage.rewind import ROLLBACK_DIRECTORY
from qsync_node.storage.scheduler import ArchiveFloor
from qsync_node.storage.storage import Storage
from qsync_sim.disk import SimDisk
from qsync_sim.timeline import Timeline
from qsync_sim.violation import InvariantViolation

DELAY_NS = 60 * MILLISECOND
"""Longest time of an operation of a healthy store."""
POLL_NS = 500 * MILLISECOND
SEAL_NS = 800 * MILLISECOND


class Archived(Protocol):
    """An instance, as the archiver of its process uses it (shell.py)."""

    name: str
    uuid: str
    incarnation: int
    disk: SimDisk
    node: Node | None
    storage: Storage | None

    @property
    def directory(self) -> str: ...
    @property
    def peers(self) -> object | None: ...

    def run_in(self, peers: object, callback: Callable[[], None]) -> None: ...
    def seal(self) -> None: ...
    def allow(self, floor: ArchiveFloor) -> None: ...


class SimStoreError(Exception):
    """The store is not available, or a file cannot be read."""


class ArchiveModel:
    """The archive of all members, in memory.

    Attributes:
        files: content of each stored file, by instance and name.
        manifests: the manifest of each instance, as stored.
        reported: the greatest index that each instance has reported as archived.
        is_available: whether operations succeed.
        delay_ns: the longest time of an operation.
    """

    def __init__(self, timeline: Timeline, replicaset_uuid: str) -> None:
        self.timeline = timeline
        self.replicaset_uuid = replicaset_uuid
        self.files: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.reported: dict[str, int] = {}
        self.is_available = True
        self.delay_ns = DELAY_NS

    def manifest_of(self, shell: Archived) -> Manifest:
        """Return the stored manifest of an instance, or a new one."""
        data = self.manifests.get(shell.uuid)
        if data is None:
            return Manifest(self.replicaset_uuid, shell.uuid, shell.name)
        return decode_manifest(data, shell.name)

    def put(self, shell: Archived, operation: UploadOperation) -> None:
        """Carry out an operation that stores something."""
        if isinstance(operation, PutFile):
            data = shell.disk.read(operation.path)
            if hashlib.sha256(data).hexdigest() != operation.entry.sha256:
                raise InvariantViolation(
                    f"S6: {shell.name} archives {operation.path} after it has changed"
                )
            self.files[shell.uuid, operation.entry.name] = data
        elif isinstance(operation, PutManifest):
            self.manifests[shell.uuid] = encode_manifest(operation.manifest)

    def report(self, shell: Archived, index: int) -> None:
        """Take note of an index that an instance reports as archived."""
        self.reported[shell.uuid] = max(self.reported.get(shell.uuid, 0), index)


class SimArchiver:
    """The archiver of one process run."""

    def __init__(self, archive: ArchiveModel, shell: Archived, peers: object) -> None:
        """Begin to archive.

        Args:
            archive: the store.
            shell: the instance.
            peers: the process run, which the archiver ends with.
        """
        self._archive = archive
        self._timeline = archive.timeline
        self._shell = shell
        self._peers = peers
        self._rng = Random(f"archiver {shell.name} {shell.incarnation} of {archive.timeline.seed}")
        self._shipping = Shipping()
        self._sealing = Sealing(SEAL_NS)
        self._under_way: UploadOperation | None = None
        self._observe_later()

    @property
    def archived_index(self) -> int:
        """The last index that this run has reported as archived."""
        return self._shipping.archived_index

    # --- the event loop -----------------------------------------------------------------------

    def _observe_later(self) -> None:
        self._timeline.after(POLL_NS, partial(self._shell.run_in, self._peers, self._observe))

    def _observe(self) -> None:
        shell = self._shell
        assert shell.node is not None
        assert shell.storage is not None
        context = shell.node.context
        if context.has_origin and not shell.storage.failed:
            segments = shell.storage.segments()
            if self._sealing.is_due(segments[-1], self._timeline.now_ns, 0):
                shell.seal()
            starts = list(context.tail.history.starts)
            self._shipping.observe(ArchiveView(segments, context.limbo.confirmed_index, starts))
            self._continue()
        self._observe_later()

    # --- the thread ---------------------------------------------------------------------------

    def _continue(self) -> None:
        """Begin the next operation, unless one is under way."""
        if self._under_way is not None:
            return
        self._under_way = self._shipping.next_operation(self._timeline.now_ns / 1e9)
        if self._under_way is not None:
            delay_ns = self._rng.randrange(self._archive.delay_ns)
            self._timeline.after(delay_ns, self._perform)

    def _perform(self) -> None:
        operation = self._under_way
        if operation is None or self._shell.peers is not self._peers:
            return
        now_s = self._timeline.now_ns / 1e9
        try:
            result = self._result_of(operation)
        except (SimStoreError, XlogError, FileNotFoundError):
            self._timeline.count("archive operations failed")
            self._shipping.on_failed(now_s)
        else:
            self._shipping.on_done(operation, result, now_s, now_s)
            if self._shipping.floor is not None:
                self._shell.allow(self._shipping.floor)
            self._archive.report(self._shell, self._shipping.archived_index)
        self._under_way = None
        self._continue()

    def _result_of(self, operation: UploadOperation) -> Any:
        archive, shell = self._archive, self._shell
        if isinstance(operation, ListFiles):
            return _contents(shell, operation)
        if isinstance(operation, Describe):
            return _describe(shell, operation)
        is_lost = not archive.is_available
        if not is_lost or self._rng.random() < 0.5:
            archive.put(shell, operation)
        if is_lost:
            raise SimStoreError
        if isinstance(operation, LoadManifest):
            return archive.manifest_of(shell)
        if isinstance(operation, (PutFile, PutManifest)):
            self._timeline.count(f"archive {type(operation).__name__}")
            return None
        return ChangesFile()

    def on_stopped(self) -> None:
        """End with the process: the store may still receive a file."""
        if isinstance(self._under_way, (PutFile, PutManifest)) and self._rng.random() < 0.5:
            self._timeline.count("archive operations interrupted")
            if self._archive.is_available:
                # As in `_perform`: a file that nothing needs may have been removed meanwhile.
                with suppress(FileNotFoundError):
                    self._archive.put(self._shell, self._under_way)
        self._under_way = None


def _contents(shell: Archived, operation: ListFiles) -> Contents:
    disk, directory = shell.disk, shell.directory
    folder = f"{directory}/{ROLLBACK_DIRECTORY}"
    rollbacks = [f"{folder}/{name}" for name in disk.listdir(folder)]
    return own_contents(
        operation.segments,
        [f"{directory}/{name}" for name in disk.listdir(directory)],
        [(path, disk.size(path)) for path in rollbacks],
    )


def _describe(shell: Archived, operation: Describe) -> FileEntry | None:
    upload = operation.upload
    if not shell.disk.exists(upload.path):
        return None
    return describe(shell.disk.read(upload.path), upload.kind, upload.source, operation.start_term)
