"""Restore: the archive of a schedule gives the state of its members, and founds a new cluster.

The archive is written to a folder, because the restore reads real files. The restored state must
equal that of the leader. A new cluster begins with it, as an ordered bootstrap does (M1): it must
form, keep all rows of users, and accept writes.
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from qsync_node.archive.manifest import MANIFEST_NAME, ROOT_NAME, encode_root
from qsync_node.archive.restore.origin import restored_bodies
from qsync_node.archive.restore.point import Point
from qsync_node.archive.restore.run import fold
from qsync_node.consensus.membership import LEVEL
from qsync_node.consensus.settings import SECOND
from qsync_node.errors import QsyncError
from qsync_node.format.body import FIRST_USER_SPACE
from qsync_node.format.keys import RAFT_CONFIRM
from qsync_node.format.walk import space_of
from qsync_node.storage.checkpoint import Snapshot, open_snapshot
from qsync_node.storage.files import OsFileSystem
from qsync_node.transactions.own_rows import read_term_body
from qsync_sim.model import SPACE
from qsync_sim.versions import LATER
from qsync_sim.violation import InvariantViolation
from qsync_sim.world import World

if TYPE_CHECKING:
    from qsync_sim.archiving import ArchiveModel

PART = 0.5
"""The part of the schedules with an archive in which it is restored."""
FORM_NS = 60 * SECOND
KEY = 2_000_000


def check_restore(world: World) -> None:
    """Restore the archive to its end, and found a cluster with the result.

    Args:
        world: the schedule, whose archives have reached the confirmed index.

    Raises:
        Violation: the state differs, or the new cluster does not work.
    """
    archive, leader = world.archive, world.leader()
    if archive is None or Random(f"restore of {world.seed}").random() >= PART:
        return
    assert leader is not None
    assert leader.node is not None
    with TemporaryDirectory(prefix="qsync-archive-") as directory:
        _write(archive, Path(directory))
        try:
            done = fold(f"file://{directory}", Point(None, None), Path(directory, "restored"))
        except QsyncError as error:
            raise InvariantViolation(f"S6: the archive cannot be restored: {error}") from error
        snapshot = open_snapshot(OsFileSystem(), done.file)
        bodies = list(snapshot.bodies())
    view = leader.node.snapshot_view()
    # The last CONFIRM row changes nothing, and no row proves that it is confirmed itself.
    missing = {world.ledger[at][4] for at in range(snapshot.index + 1, view.index + 1)}
    if missing - {RAFT_CONFIRM} or sorted(bodies) != sorted(view.bodies()):
        raise InvariantViolation(
            f"S6: the state restored to {snapshot.index} is not that of the leader at {view.index}"
        )
    world.count("archives restored")
    _found(world, snapshot, bodies)


def _write(archive: "ArchiveModel", folder: Path) -> None:
    """Write the archive to a folder."""
    (folder / ROOT_NAME).write_bytes(encode_root(archive.replicaset_uuid))
    for (uuid, name), data in archive.files.items():
        (folder / uuid).mkdir(exist_ok=True)
        (folder / uuid / name).write_bytes(data)
    for uuid, data in archive.manifests.items():
        (folder / uuid / MANIFEST_NAME).write_bytes(data)


def _found(world: World, snapshot: Snapshot, bodies: list[bytes]) -> None:
    """Found a cluster of three voters with a restored state."""
    level = LEVEL if world.versions is None else LATER
    made = World(world.seed)
    shells = [made.add(level=level) for _ in range(3)]
    first = shells[0]
    identity = first.uuid, first.name, made.replicaset_uuid
    rows = restored_bodies(bodies, snapshot.index, *identity, len(shells), supported=level)
    term = max((start.term for body in bodies if (start := read_term_body(body))), default=0)
    first.install_origin(dict(snapshot.vclock), rows, term)
    for shell in shells:
        shell.start()
    if not made.run_for(FORM_NS, lambda: made.all_vote(len(shells))):
        raise InvariantViolation("liveness: the restored cluster did not form")
    leader = made.leader()
    assert leader is not None
    assert leader.node is not None
    if _of_users(leader.node.database.snapshot_bodies()) != _of_users(bodies):
        raise InvariantViolation("S6: the new cluster has other rows than the restored state")
    made.insert(SPACE, [KEY, "restored"])
    world.count("clusters founded with a restored state")


def _of_users(bodies: Iterable[bytes]) -> list[bytes]:
    """Return the rows in spaces of users."""
    return sorted(body for body in bodies if space_of(body) >= FIRST_USER_SPACE)
