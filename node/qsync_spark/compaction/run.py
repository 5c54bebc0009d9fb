"""One compaction, from an archive to a published state.

    locking     one at a time (lock.py); unpublished files of a killed run are deleted
    folding     the node's own engine, in a child process, folds confirmed rows into a snapshot
    auditing    the auditor's own replay compares that snapshot, and all other data, with the log
    tables      Parquet for each space (tables.py), with its history on request
    publishing  every output is read back; the manifest comes last
    merging     small segments into larger ones (merging.py)
    removing    files that no restore and no audit needs (removal.py)
    fragments   on request: small fragments of journals into larger ones (qsync_spark.journals)

Two implementations must agree on a state before it may replace its rows: the engine folds, the
auditor checks. An archive that is Violated is not compacted, because the evidence must stay. In an
Incomplete one nothing is merged or removed. It is audited for that even if there is nothing new to
fold.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsync_node.archive.compaction import (
    CHANGES_NAME,
    COMPACTION_MANIFEST,
    ChangesFile,
    CompactedFile,
    Compaction,
    Merged,
    encode_changes,
    encode_compaction,
)
from qsync_node.archive.description import describe
from qsync_node.archive.location import ArchiveError, store_of
from qsync_node.archive.manifest import SNAPSHOT, FileEntry
from qsync_node.archive.outputs import delete_all, listed, put_bytes, put_local, verify
from qsync_node.archive.reader import Archive, load_archive
from qsync_node.archive.restore.child import RestoreError, restore_in_child
from qsync_spark.audit.run import LAG_ALLOWED_S, audit
from qsync_spark.compaction.folders import compaction_folders, delete_unfinished
from qsync_spark.compaction.fragments import count_merges, merge_archived
from qsync_spark.compaction.lock import CompactionLock
from qsync_spark.compaction.merging import merge, work_of
from qsync_spark.compaction.preview import after_folding
from qsync_spark.compaction.removal import PASSED, plan_removal
from qsync_spark.durations import GRACE_S
from qsync_spark.journals.compaction import MergeResult as Fragments
from qsync_spark.progress import Progress, StepReporter, silence
from qsync_spark.report.findings import VIOLATED, AuditResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = (
    "locking",
    "folding",
    "auditing",
    "tables",
    "publishing",
    "merging",
    "removing",
    "fragments",
)
PASSES = frozenset({STEPS.index("auditing")})
FREE_BYTES_MIN = 64 << 20


@dataclass(frozen=True, slots=True)
class Wish:
    """The request of a user.

    `delete_older_than_s` None: nothing is deleted. `grace_s` is the age of a merged fragment after
    which its sources are deleted.
    """

    cluster: str = ""
    to_signature: int | None = None
    is_history: bool = False
    is_dry_run: bool = False
    delete_older_than_s: float | None = None
    lag_allowed_s: float = LAG_ALLOWED_S
    run: str = ""
    merges_fragments: bool = False
    grace_s: float = GRACE_S


@dataclass(slots=True)
class CompactionResult:
    """The result. `name` is "" if there was nothing to fold."""

    cluster: str
    archive: str
    name: str = ""
    index: int = 0
    snapshot: str = ""
    verdict: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    merged_files: int = 0
    deleted_files: int = 0
    floor: int = 0
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    is_dry_run: bool = False
    fragments: Fragments | None = None  # None: not requested

    @property
    def fragment_problems(self) -> list[str]:
        """Return sentences about fragments that were left as they are."""
        return self.fragments.problems if self.fragments is not None else []

    def document(self) -> dict[str, Any]:
        return asdict(self)


def compact(
    spark: "SparkSession",
    url: str,
    wish: Wish,
    progress: Progress = silence,
    clock: Callable[[], float] = time.time,
) -> CompactionResult:
    """Compact an archive. `clock` determines ages. Raises ArchiveError with one sentence."""
    started = time.monotonic()
    url = url.rstrip("/")
    outcome = CompactionResult(wish.cluster, url, is_dry_run=wish.is_dry_run)

    archive = load_archive(url)
    if wish.is_dry_run:
        _preview(spark, archive, wish, outcome, clock())
        if wish.merges_fragments:
            outcome.fragments, notes = count_merges(spark, archive, wish.grace_s)
            outcome.notes += notes
        return outcome
    rows = sum(entry.rows for _, entry in archive.segments())
    with (
        StepReporter(spark, progress, STEPS, PASSES, rows) as watch,
        tempfile.TemporaryDirectory() as scratch,
    ):
        step = watch.begin
        step(0)
        with CompactionLock(store_of(url), url, wish.run) as lock:
            archive = load_archive(url)
            delete_unfinished(archive)
            archive, made = _fold(archive, wish, Path(scratch), outcome, step)
            result: AuditResult | None = None
            if made is not None:
                try:
                    result = _publish(spark, archive, made, wish, outcome, lock, step)
                except BaseException:
                    _take_back(archive, made, lock)
                    raise
            elif _has_work(archive, wish, outcome, clock()):
                step(2)
                result = _audit(spark, archive, wish)
                outcome.verdict, outcome.hosts = result.verdict, result.hosts
                _say_what_stays(result, outcome)
            if result is not None and result.verdict == PASSED:
                _merge(spark, url, outcome, lock, step)
                step(6)
                if wish.delete_older_than_s is not None:
                    age_s, until = wish.delete_older_than_s, result.audited_index
                    remove(url, clock(), age_s, until, outcome, lock)
            if wish.merges_fragments:
                step(7)
                outcome.fragments = merge_archived(spark, load_archive(url), wish.grace_s)
    outcome.seconds = round(time.monotonic() - started, 3)
    return outcome


def _has_work(archive: Archive, wish: Wish, outcome: CompactionResult, now_s: float) -> bool:
    """Return whether any file would be merged or removed."""
    if any(work_of(archive, outcome.index)):
        return True
    if wish.delete_older_than_s is None:
        return False
    removal = plan_removal(archive, compaction_folders(archive), now_s, wish.delete_older_than_s)
    return bool(removal.files or removal.folders or removal.changes != archive.changes)


def _preview(
    spark: "SparkSession", archive: Archive, wish: Wish, outcome: CompactionResult, now_s: float
) -> None:
    """Take the decisions of a compaction without its changes.

    Raises:
        ArchiveError: the compaction would fail: the archive is Violated, or cannot be folded.
    """
    with tempfile.TemporaryDirectory() as scratch:
        archive, made = _fold(archive, wish, Path(scratch), outcome, lambda number: None)
    outcome.floor = archive.changes.floor
    if made is not None:
        outcome.index = made.index
        outcome.bytes_before = sum(one.size for one in made.inputs)
    elif not _has_work(archive, wish, outcome, now_s):
        return
    result = _audit(spark, archive, wish)
    outcome.verdict = result.verdict
    if result.verdict != PASSED:
        _say_what_stays(result, outcome)
        return
    later = after_folding(archive, made, list(work_of(archive, outcome.index)))
    merged = later.changes.merged[len(archive.changes.merged) :]
    outcome.merged_files = sum(len(one.replaces) for one in merged)
    if wish.delete_older_than_s is not None:
        folders = compaction_folders(archive) + ([made.folder] if made is not None else [])
        age_s, until = wish.delete_older_than_s, result.audited_index
        removal = plan_removal(later, folders, now_s, age_s, until)
        store = store_of(archive.url)
        outcome.floor = removal.changes.floor
        places = [*(owner.instance_uuid for owner in archive.written), *removal.folders]
        existing = {path for place in places for path in listed(store, place)}
        existing |= {f"{one.member}/{one.entry.name}" for one in merged}
        going = {path for path in existing if path.startswith(tuple(removal.folders))}
        outcome.deleted_files = len(going | existing.intersection(removal.files))


def _audit(spark: "SparkSession", archive: Archive, wish: Wish) -> AuditResult:
    """Audit the archive. Raises ArchiveError if it is Violated."""
    result = audit(spark, archive, wish.cluster, None, wish.lag_allowed_s, appends=None)
    if result.verdict == VIOLATED:
        first = result.violations[0].message
        raise ArchiveError(
            f"the compaction made no change: the archive is Violated ({first}); audit the archive"
        )
    return result


def _say_what_stays(result: AuditResult, outcome: CompactionResult) -> None:
    if result.verdict != PASSED:
        outcome.notes.append(
            "no file is merged or deleted, now or because of this compaction: the audit "
            f"is {result.verdict} ({result.gaps[0].message})"
        )


def _take_back(archive: Archive, made: Compaction, lock: CompactionLock) -> None:
    """Delete the outputs of this run while it holds the lock.

    Otherwise `_clean` of the next run deletes them.
    """
    try:
        lock.check()
        delete_all(archive.url, _manifest_first(archive.url, made.folder))
    except ArchiveError:
        return


def _manifest_first(url: str, folder: str) -> list[str]:
    """Return the files of a compaction: without one of its outputs, a published one is invalid."""
    found = listed(store_of(url), folder)
    return sorted(found, key=lambda path: not path.endswith(f"/{COMPACTION_MANIFEST}"))


# --- folding --------------------------------------------------------------------------------------


def _fold(
    archive: Archive,
    wish: Wish,
    scratch: Path,
    outcome: CompactionResult,
    step: Callable[[int], None],
) -> tuple[Archive, Compaction | None]:
    """Store the snapshot in the archive, unpublished; a dry run only folds it.

    Returns:
        The archive as it is now, with all files up to the snapshot, and the compaction; None if
        there is nothing new.
    """
    step(1)
    snapshots = archive.snapshots()
    first = snapshots[-1][1].last_index if snapshots else 0
    known = archive.compactions[-1].index if archive.compactions else first
    needed = max((entry.size for _, entry in snapshots), default=0)
    if shutil.disk_usage(scratch).free < needed + FREE_BYTES_MIN:
        raise ArchiveError(
            f"{scratch} has no space for a snapshot of {needed} bytes: free space there"
        )
    said = _fold_in_child(archive.url, wish.to_signature, scratch)
    archive = load_archive(archive.url)  # members may have added files, and the child has read them
    has_history = any(
        "history" in table for one in archive.compactions for table in one.tables
        if one.index == known
    )  # fmt: skip
    wants_history = wish.is_history and not has_history and bool(archive.compactions)
    if said["index"] < known or (said["index"] == known and not wants_history):
        outcome.notes.append(f"nothing to fold: no row is confirmed after index {known}")
        outcome.index = known
        return archive, None
    file = Path(said["file"])
    data = file.read_bytes()
    term = max((e.last_term for o in archive.owners() for e in o.files), default=0)
    entry = describe(data, SNAPSHOT, file.name, term)
    name = f"{entry.last_index:020d}-{entry.last_term}-{os.urandom(4).hex()}"
    latest = latest_time(archive, entry.last_index)
    made = Compaction(
        name, archive.replicaset_uuid, entry.last_index, latest, time.time(), "",
        replace(entry, timestamp_max=latest, archived_at=time.time()),
    )  # fmt: skip
    path = f"{made.folder}/{entry.name}"
    if wish.is_dry_run:
        stored = CompactedFile(path, entry.size, entry.sha256)
    else:
        stored = put_local(archive.url, path, file)
    inputs = [
        CompactedFile(f"{manifest.instance_uuid}/{one.name}", one.size, one.sha256)
        for manifest in archive.members
        for one in manifest.files
        if one.last_index <= made.index
    ]
    outcome.notes += said["notes"]
    return archive, replace(made, inputs=inputs, outputs=[stored])


def latest_time(archive: Archive, index: int) -> float:
    """Return the latest time of a row up to `index`; 0 if unknown.

    It may differ from the last row's own time: a leader's clock may be slower than its
    predecessor's, and a point in time before the latest row lies before that row.
    """
    known = [one.time for one in archive.compactions if one.index <= index]
    known += [entry.timestamp_max for _, entry in archive.segments() if entry.after_index < index]
    return max(known, default=0.0)


def _fold_in_child(url: str, to_signature: int | None, folder: Path) -> dict[str, Any]:
    """Run the node's engine in a child process: an auditor does not share its code."""
    words = ["--fold", "--archive", url, "--into", str(folder)]
    if to_signature is not None:
        words += ["--to-signature", str(to_signature)]
    try:
        return restore_in_child(*words)
    except RestoreError as error:
        raise ArchiveError(str(error)) from error


# --- proving and publishing -----------------------------------------------------------------------


def _publish(  # the parts of one action
    spark: "SparkSession",
    archive: Archive,
    made: Compaction,
    wish: Wish,
    outcome: CompactionResult,
    lock: CompactionLock,
    step: Callable[[int], None],
) -> AuditResult:
    step(2)
    whole = replace(archive, compactions=[*archive.compactions, made])
    result = _audit(spark, whole, wish)
    if _is_open(result, made):
        raise ArchiveError(
            "the compaction made no change: cannot verify the state at index "
            f"{made.index} ({result.gaps[0].message}); audit the archive"
        )
    step(3)
    files, tables = _tables(spark, whole, made, wish)
    outputs = [*made.outputs, *(CompactedFile(f["path"], f["size"], f["sha256"]) for f in files)]
    made = replace(made, verdict=result.verdict, outputs=outputs, tables=tables)
    step(4)
    for output in outputs:
        verify(archive.url, output)
    lock.check()
    put_bytes(archive.url, f"{made.folder}/{COMPACTION_MANIFEST}", encode_compaction(made))
    outcome.name, outcome.index, outcome.verdict = made.name, made.index, made.verdict
    outcome.snapshot = f"{archive.url}/{made.folder}/{made.snapshot.name}"
    outcome.bytes_before = sum(one.size for one in made.inputs)
    outcome.bytes_after = sum(one.size for one in made.outputs)
    outcome.tables, outcome.hosts = tables, result.hosts
    _say_what_stays(result, outcome)
    return result


def _is_open(result: AuditResult, made: Compaction) -> bool:
    """Return whether the new snapshot itself was not replayed."""
    return any(
        gap.file.startswith(f"{made.folder}/") for gap in result.gaps
    ) or not result.counts.get("snapshotsReplayed")


def _tables(
    spark: "SparkSession", archive: Archive, made: Compaction, wish: Wish
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of `FILES`, and the manifest's entries of the tables."""
    from qsync_spark.audit.context import build_context
    from qsync_spark.audit.replay import make_reading
    from qsync_spark.compaction.tables import (
        tables_of,
        write_history,
        write_state,
    )

    tables = tables_of(archive, made, False)
    state = write_state(spark, archive, made, tables)
    history: list[dict[str, Any]] = []
    if wish.is_history:
        context = build_context(spark, archive)
        try:
            assert context.snapshot is not None, "the compaction wrote a snapshot"
            reading = make_reading(context)
            history = write_history(spark, archive, made, tables_of(archive, made, True), reading,
                                    context.snapshot)  # fmt: skip
        finally:
            context.facts.unpersist()
    documents = []
    for table in tables.values():
        mine = [one for one in history if one["table"] == table.folder]
        document = {
            **table.document(),
            "folder": f"spaces/{table.folder}",
            "rows": sum(one["rows"] for one in state if one["table"] == table.folder),
        }
        if wish.is_history:
            document["history"] = {
                "folder": f"history/{table.folder}",
                "rows": sum(one["rows"] for one in mine),
                "unknownVersions": sum(one["unknown"] for one in mine),
            }
        documents.append(document)
    return [*state, *history], documents


# --- members' files -------------------------------------------------------------------------------


def _merge(
    spark: "SparkSession",
    url: str,
    outcome: CompactionResult,
    lock: CompactionLock,
    step: Callable[[int], None],
) -> None:
    """Merge files. Merged files count once `changes.json` lists them."""
    step(5)
    archive = load_archive(url)
    work = list(work_of(archive, outcome.index))
    if not work:
        return
    tasks = spark.sparkContext.parallelize(work, len(work))
    merged: list[Merged] = []
    for found in tasks.map(lambda one: _try_to_merge(url, *one)).collect():
        if isinstance(found, Merged):
            merged.append(found)
        else:
            outcome.notes.append(f"some small segments were not merged: {found}")
    if not merged:
        return
    changes = ChangesFile(
        archive.changes.floor, archive.changes.compaction, [*archive.changes.merged, *merged]
    )
    lock.check()
    put_bytes(url, CHANGES_NAME, encode_changes(changes))
    outcome.merged_files = sum(len(one.replaces) for one in merged)


def _try_to_merge(url: str, member: str, group: list[FileEntry]) -> Merged | str:
    """Merge in a task. A file that cannot be merged is left for the audit; return the cause."""
    try:
        return merge(url, member, group)
    except ArchiveError as error:
        return str(error)


def remove(
    url: str,
    now_s: float,
    retention_s: float,
    audited_index: int,
    outcome: CompactionResult,
    lock: CompactionLock,
) -> None:
    """Delete old files after reading back the files that replace them.

    A state after `audited_index`, up to which a quorum has archived, replaces none yet.
    """
    archive = load_archive(url)
    removal = plan_removal(archive, compaction_folders(archive), now_s, retention_s, audited_index)
    outcome.floor = removal.changes.floor
    base = next((c for c in archive.compactions if c.name == removal.changes.compaction), None)
    if base is not None:
        for output in base.outputs:
            verify(url, output)
    going = set(removal.files)
    for one in archive.changes.merged:
        key = f"{one.member}/{one.entry.name}"
        if key not in going and any(f"{one.member}/{name}" in going for name in one.replaces):
            verify(url, CompactedFile(key, one.entry.size, one.entry.sha256))
    lock.check()
    if removal.changes != archive.changes:
        put_bytes(url, CHANGES_NAME, encode_changes(removal.changes))
    paths = [*removal.files]
    for folder in removal.folders:
        paths += _manifest_first(url, folder)
    outcome.deleted_files = delete_all(url, paths)
