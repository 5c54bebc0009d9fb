"""Make archives of simulated schedules of a cluster with faults, in a second or two each.

Nodes and files are the real ones; network, disks and clocks are simulated. A member's files are
archived as the archiver does it: after each checkpoint, truncation of the log and installed
snapshot, and at the end.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from qsync_client.protocol.constants import Key
from qsync_node.archive.description import describe
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    SEGMENT,
    Manifest,
    decode_manifest,
    encode_manifest,
    encode_root,
)
from qsync_node.archive.uploads import own_contents, plan_uploads
from qsync_node.consensus import effects as fx
from qsync_node.consensus.history import History
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    Route,
    definitions,
    encode_row,
)
from qsync_node.format.keys import DELETE, REPLACE
from qsync_node.format.mp import pack
from qsync_node.storage.storage import SegmentLimits
from qsync_sim.model import SPACE
from qsync_sim.schedule import Schedule
from qsync_sim.shell import DIRECTORY, Shell
from qsync_sim.world import World

SECOND = 10**9
BROKER = BrokerId("zone", "broker-0")
DAY_MS = 86_400_000


class SimArchive:
    """An archive of the members of one simulated world, in a folder."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.manifests: dict[str, Manifest] = {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ROOT_NAME).write_bytes(encode_root(world.replicaset_uuid))
        world.on_event = self._on_event

    def _on_event(self, shell: Shell, report: fx.Report) -> None:
        if report.event in ("checkpoint", "rewound", "snapshot_installed"):
            self.ship(shell)

    def ship(self, shell: Shell) -> None:
        """Archive all files of one member that can be archived now."""
        if shell.storage is None or shell.node is None or shell.settings.role == "anonymous":
            return
        disk, context = shell.disk, shell.node.context
        manifest = self.manifests.setdefault(
            shell.uuid, Manifest(self.world.replicaset_uuid, shell.uuid, shell.name)
        )
        names = disk.listdir(DIRECTORY)
        rollbacks = [f"{DIRECTORY}/rollback/{n}" for n in disk.listdir(f"{DIRECTORY}/rollback")]
        contents = own_contents(
            shell.storage.segments(),
            [f"{DIRECTORY}/{name}" for name in names],
            [(path, disk.size(path)) for path in rollbacks],
        )
        history = History(context.tail.history.starts)
        confirmed = context.limbo.confirmed_index
        for upload in plan_uploads(contents, confirmed, manifest.files):
            data = disk.read(upload.path)
            term = upload.start_term
            term = history.term_at(upload.after_index) if term is None else term
            entry = describe(data, upload.kind, upload.source, term)
            path = self.folder / shell.uuid / entry.name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            manifest.files.append(replace(entry, archived_at=time.time()))
        (self.folder / shell.uuid).mkdir(exist_ok=True)
        (self.folder / shell.uuid / MANIFEST_NAME).write_bytes(encode_manifest(manifest))

    def ship_all(self) -> None:
        for shell in self.world.alive():
            assert shell.storage is not None
            shell.storage.rotate()
            self.ship(shell)


def archived_run(seed: int, folder: Path, *frequent: Callable[[World], None]) -> World:
    """Run one schedule of the simulation and archive it.

    Args:
        seed: The schedule's seed.
        folder: The archive.
        frequent: Faults that must happen more often than usual.
    """
    schedule = Schedule(seed, frequent=frequent, is_plain=True)
    archive = SimArchive(schedule.world, folder)
    world = schedule.run()
    archive.ship_all()
    return world


def journal_archive(
    folder: Path, journals: dict[str, dict[str, Any]], *, are_spaces_there: bool = True
) -> World:
    """Archive a cluster with journals: their rows, a broker and its assignments.

    Args:
        folder: The archive.
        journals: The specification of each journal, as its row has it.
        are_spaces_there: Whether the cluster has the spaces of journals.

    Returns:
        The cluster, for `change_journals`.
    """
    world = World(7)
    SimArchive(world, folder)
    world.bootstrap(3)
    if are_spaces_there:
        for space, fields in definitions():
            world.insert(space, fields)
        lease = BrokerRow(BROKER, "http://h:1", "h:2", 9, False, DAY_MS, "process", 5, 3, 3)
        world.insert(BROKER_SPACE, encode_row(lease))
    for name in journals:
        assignment = AssignmentRow(name, BROKER, 0, 3, 3)
        world.insert(ASSIGNMENT_SPACE, encode_row(assignment))
    change_journals(world, folder, dict(journals))
    return world


def change_journals(world: World, folder: Path, journals: dict[str, dict[str, Any] | None]) -> None:
    """Replace or delete (None) journals of a cluster, and archive all its rows."""
    for name, spec in journals.items():
        if spec is None:
            world.change(DELETE, pack({Key.SPACE_ID: JOURNAL_SPACE, Key.KEY: [name]}))
        else:
            route = Route((BROKER,), 0)
            row = encode_row(JournalRow(name, spec, 0, 0, 9, 7, route, 3, 4))
            world.change(REPLACE, pack({Key.SPACE_ID: JOURNAL_SPACE, Key.TUPLE: row}))

    def are_equal() -> bool:
        members = [shell.node.context for shell in world.alive() if shell.node is not None]
        ends = {end for one in members for end in (one.tail.last_index, one.limbo.confirmed_index)}
        return len(members) == 3 and len(ends) == 1

    world.run_for(SECOND)  # the last rows are confirmed by a later one
    assert world.run_for(5 * SECOND, are_equal), "the members have different rows"
    archive = SimArchive(world, folder)
    archive.manifests = {
        uuid: decode_manifest(json.dumps(document).encode(), uuid)
        for uuid, document in load_manifests(folder).items()
    }
    archive.ship_all()


def calm_archive(folder: Path, rows: int) -> None:
    """Archive three members without faults: each has one segment, with `rows` inserted rows.

    The second leader writes them, so that each member has all rows of their owner.

    Args:
        folder: The archive.
        rows: The number of rows.
    """
    world = World(7)
    archive = SimArchive(world, folder)
    with mock.patch("qsync_sim.shell.LIMITS", SegmentLimits()):
        world.bootstrap(3, checkpoint_bytes=1 << 40)
        first = world.leader()
        second = next(shell for shell in world.alive() if shell is not first)
        world.command(second, "promote")
        assert world.run_for(5 * SECOND, lambda: world.leader() is second)
        for number in range(rows):
            world.insert(SPACE, [number, "calm", 0])
        world.run_for(SECOND)  # the last rows are confirmed by a later one
        archive.ship_all()


def load_manifests(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        path.parent.name: json.loads(path.read_text()) for path in folder.glob(f"*/{MANIFEST_NAME}")
    }


FIRST_SEED, SEEDS_MAX = 71, 200
"""The first seed, and the number of seeds. In archives of earlier seeds, random damage hits keys of
snapshots and replica ids. There the tests expect one violation, and the audit names several."""


def archived_runs(
    folder: Path,
    is_wanted: Callable[[World, Path], bool],
    count: int,
    *frequent: Callable[[World], None],
) -> Iterator[Path]:
    """Yield archives of the first `count` schedules that satisfy `is_wanted`.

    Tests need certain qualities, not certain seeds: the seeds that qualify change with the node's
    code.

    Args:
        folder: The folder of the archives.
        is_wanted: The condition on a world and its archive.
        count: The number of archives.
        frequent: Faults that must happen more often than usual, for rare conditions.

    Raises:
        AssertionError: Too few of `SEEDS_MAX` schedules qualify.
    """
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        archive = folder / str(seed)
        world = archived_run(seed, archive, *frequent)
        if is_wanted(world, archive):
            yield archive
            count -= 1
        if not count:
            return
    raise AssertionError(f"{count} of the wanted schedules are not among {SEEDS_MAX}")


def has_lost_a_disk(world: World, _: Path) -> bool:
    return bool(world.counters["fault disk lost"])


def _are_long(archive: Path) -> bool:
    """Return whether all members have many segments of several terms, from the beginning."""
    logs = [
        [file for file in manifest["files"] if file["kind"] == SEGMENT]
        for manifest in load_manifests(archive).values()
    ]
    return all(
        len(files) >= 4
        and files[0]["after_index"] <= 1
        and len({file["last_term"] for file in files}) >= 3
        for files in logs
        if files
    )


def is_eventful(world: World, archive: Path) -> bool:
    """Return whether an archive contains the events that an audit must handle.

    These are three or more terms, snapshots at three or more indexes, a truncated tail, and
    many segments of several terms of each member. No disk was lost, and no member lagged when the
    simulation ended.
    """
    tails = list(archive.glob("*/*.rollback.xlog"))
    snapshots = {int(path.name.split("-")[0]) for path in archive.glob("*/*.snap")} - {0}
    return (
        len(world.leaders) >= 3
        and len(snapshots) >= 3
        and bool(tails)
        and _are_long(archive)
        and not has_lost_a_disk(world, archive)
        and not is_behind(archive)
    )


def is_behind(archive: Path) -> bool:
    """Return whether one member's archive ends before another's."""
    ends = [
        max((entry["last_index"] for entry in manifest["files"]), default=0)
        for manifest in load_manifests(archive).values()
    ]
    return len(set(ends)) > 1
