"""Recovery: from the files of a directory to the state that the broker resumes.

Steps
  1. Read the segments of the log. Cut off a torn record at the end of the last one, and make the
     last record durable.
  2. Write the content that records include to the files of its spools.
  3. Delete files of unknown spools: they have no commit, or their deletion was interrupted.
  4. Read each open spool once and compare it with the checksum of each commit. The bytes of a
     record were durable before it, or are part of it. If they do not match, the disk has damaged
     them: set the file aside and report the journal. The state before the last commits is no
     substitute. It has their epoch, so the next synchronisation could choose its end (J3), and
     discard acknowledged bytes at all brokers.
     The same applies to a completed spool whose file is missing or too short. Its journal then has
     no epoch here either, so that the broker counts as one that was away, and copies the bytes. The
     checksums of the journal's other completed spools are compared now. Otherwise, this happens
     when they are read first (`Storage.problem_of`).
  5. Record the losses, so that the next recovery has the same result.
"""

import hashlib
from typing import NamedTuple

from qsync_broker.operations import (
    NO_SUM,
    CompletedSpool,
    Drop,
    HistoryEntry,
    RecoveredSpool,
    RecoveredSpools,
    SpoolKey,
)
from qsync_broker.storage.catalogue import OpenSpool, SpoolCatalogue, journal_of
from qsync_broker.storage.errors import StorageDamaged
from qsync_broker.storage.files import Files, join
from qsync_broker.storage.health import Health
from qsync_broker.storage.log import (
    IN_PROGRESS,
    CommitLog,
    Current,
    OlderSegment,
    create_segment,
    rewrite_tail,
)
from qsync_broker.storage.records import Included, SpoolRecord
from qsync_broker.storage.replay import SpoolReplay, read_log
from qsync_broker.storage.spools import DAMAGED, SpoolFiles, spool_name

READ_BYTES = 1 << 20


class OpenedStorage(NamedTuple):
    """The parts of an open storage.

    Attributes:
        log, catalogue: the log and the state that it records.
        recovered: the state for the broker.
        in_current, in_older: spools with content that only a segment of the log has durably, the
            current one or an older one.
    """

    log: CommitLog
    catalogue: SpoolCatalogue
    recovered: RecoveredSpools
    in_current: dict[SpoolKey, None]
    in_older: dict[SpoolKey, None]


def recover(files: Files, directory: str, spools: SpoolFiles, health: Health) -> OpenedStorage:
    """Open the log and the spools of a directory.

    Args:
        files: the filesystem.
        directory: the directory of the log.
        spools: the files of spools, whose sizes are not known yet.
        health: is set to failed if a flush fails.

    Raises:
        StorageDamaged: the log is damaged before its last record.
        OSError: an operation on a file failed.
    """
    names = _remove_in_progress(files, directory)
    segments = read_log(files, directory, names)
    _find_files(files, spools)
    if not segments:
        if spools.names():
            raise StorageDamaged(directory, 0, "the commit log is missing, but spools exist")
        current, end = create_segment(files, directory, health, 1, SpoolCatalogue())
        log = CommitLog(files, directory, health, current, end)
        return OpenedStorage(log, SpoolCatalogue(), RecoveredSpools([], [], []), {}, {})
    replay = SpoolReplay()
    for segment in segments:
        replay.segment(segment)
    last = segments[-1]
    handle = rewrite_tail(files, last, health)
    log = CommitLog(
        files, directory, health, Current(last.header, last.path, handle, last.state_end), last.end
    )
    log.older = [OlderSegment(one.path, one.end) for one in segments[:-1]]
    catalogue = replay.catalogue
    in_current, in_older = _write_pieces(replay, spools, log.number)
    _remove_unknown(spools, catalogue)
    recovered, records = _verify(catalogue, spools)
    if records:
        log.append(records, ())
    in_current = {key: None for key in in_current if key in catalogue}
    in_older = {key: None for key in in_older if key in catalogue}
    return OpenedStorage(log, catalogue, recovered, in_current, in_older)


def _remove_in_progress(files: Files, directory: str) -> list[str]:
    """Delete the segments that a crash left under a temporary name. Return the other names."""
    names = files.listdir(directory)
    for name in names:
        if name.endswith(IN_PROGRESS):
            files.remove(join(directory, name))
    return [name for name in names if not name.endswith(IN_PROGRESS)]


def _find_files(files: Files, spools: SpoolFiles) -> None:
    for name in files.listdir(spools.directory):
        if not name.endswith(DAMAGED):
            spools.note_size(name, files.size(join(spools.directory, name)))


def _write_pieces(
    replay: SpoolReplay, spools: SpoolFiles, number: int
) -> tuple[dict[SpoolKey, None], dict[SpoolKey, None]]:
    """Write the content of records to its files. Return its spools, by current or older segment."""
    in_current: dict[SpoolKey, None] = {}
    in_older: dict[SpoolKey, None] = {}
    for key, pieces in replay.pieces.items():
        if key not in replay.catalogue:
            continue
        for piece in pieces:
            spools.write(key, piece.offset, [piece.data])
            (in_current if piece.number == number else in_older)[key] = None
    return in_current, in_older


def _remove_unknown(spools: SpoolFiles, catalogue: SpoolCatalogue) -> None:
    known = {spool_name(key) for key in catalogue}
    for name in spools.names():
        if name not in known:
            spools.remove_name(name)


def _verify(
    catalogue: SpoolCatalogue, spools: SpoolFiles
) -> tuple[RecoveredSpools, list[SpoolRecord]]:
    """Verify the open spools. Return all spools, and the records of losses."""
    recovered = RecoveredSpools([], [], [])
    records: list[SpoolRecord] = []
    incomplete = {
        journal_of(completed.key)
        for completed in catalogue.completed.values()
        if spools.size_of(completed.key) < completed.end - completed.key.begin
    }
    for completed in list(catalogue.completed.values()):
        key = completed.key
        # Other files may be damaged, too, and all are copied together.
        reason = problem_of(completed, spools) if journal_of(key) in incomplete else None
        if reason is not None:
            recovered.lost.append((key.journal, f"{reason}; check the disk"))
            spools.set_aside(key)
            records.append(Drop(key))
            del catalogue.completed[key]
            continue
        spools.truncate(key, completed.end)
        recovered.completed.append(completed)
    for spool in list(catalogue.open.values()):
        history = _read_history(spool, spools)
        state = spool.state
        key = state.key
        if len(history) < len(spool.commits):
            recovered.lost.append((key.journal, _reason(spool, history, spools)))
            spools.set_aside(key)
            records.append(Drop(key))
            del catalogue.open[journal_of(key)]
            continue
        spools.truncate(key, state.end)
        commits = spool.commits
        if journal_of(key) in incomplete and state.epoch:
            state = state._replace(epoch=0)
            commits = (*commits[:-1], state)
            records.append(Included(state, 0))
        catalogue.open[journal_of(key)] = OpenSpool(commits, state.end)
        recovered.open.append(RecoveredSpool(state, history))
    return recovered, records


def _reason(spool: OpenSpool, history: tuple[HistoryEntry, ...], spools: SpoolFiles) -> str:
    key = spool.state.key
    size = spools.size_of(key)
    found = f"{size} bytes" if key in spools else "no file"
    good = history[-1].end if history else key.begin
    kept = f", and examine {spools.path_of(key)}{DAMAGED}" if key in spools else ""
    return (
        f"its spool at offset {key.begin} has lost bytes: they were durable up to "
        f"{spool.state.end}, but the checksum is right only up to {good} ({found} on disk); check "
        f"the disk{kept}"
    )


def _read_history(spool: OpenSpool, spools: SpoolFiles) -> tuple[HistoryEntry, ...]:
    """Return the commits whose checksums match the file, up to the first one that does not."""
    key = spool.state.key
    digest = hashlib.sha1(usedforsecurity=False)
    at = key.begin
    history: list[HistoryEntry] = []
    for commit in spool.commits:
        while at < commit.end:
            data = spools.read(key, at, min(READ_BYTES, commit.end - at)) if key in spools else b""
            if not data:
                return tuple(history)
            digest.update(data)
            at += len(data)
        if commit.sum != (NO_SUM if at == key.begin else digest.digest()):
            break
        history.append(HistoryEntry(commit.end, commit.sum, commit.registers, digest.copy()))
    return tuple(history)


def problem_of(completed: CompletedSpool, spools: SpoolFiles) -> str | None:
    """Return why the bytes of a completed spool do not match its checksum; None if they do."""
    digest = hashlib.sha1(usedforsecurity=False)
    key = completed.key
    at = key.begin
    while at < completed.end:
        try:
            data = spools.read(key, at, min(READ_BYTES, completed.end - at))
        except FileNotFoundError:
            data = b""
        if not data:
            return f"{spools.path_of(key)} ends at offset {at} instead of {completed.end}"
        digest.update(data)
        at += len(data)
    if digest.digest() != completed.sum:
        return f"{spools.path_of(key)} does not match its checksum"
    return None
