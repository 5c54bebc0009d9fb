"""Audits of clusters that were scaled: members leave before they archive their newest rows."""

from pathlib import Path

from qsync_sim.model import SPACE
from qsync_sim.world import World
from qsync_spark.report.findings import PASSED
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.simulated import SimArchive

SECOND = 10**9


def scaled_down(folder: Path, members: int, *, rows_between: int) -> World:
    """Archive a cluster that was scaled to one member; the others archive nothing after that."""
    world = World(7)
    archive = SimArchive(world, folder)
    world.bootstrap(members)
    for number in range(5):
        world.insert(SPACE, [number, "before", 0])
    world.run_for(SECOND)
    archive.ship_all()
    leader = world.leader()
    assert leader is not None
    for shell in [one for one in world.alive() if one is not leader]:
        world.command(leader, "unregister", uuid=shell.uuid)
        world.run_for(SECOND)
        for number in range(rows_between):
            world.insert(SPACE, [100 * int(shell.name[1:]) + number, "between", 0])
    world.run_for(SECOND)
    assert leader.storage is not None
    leader.storage.rotate()
    archive.ship(leader)
    return world


def test_cluster_scaled_to_one_member_passes_with_a_note(tmp_path: Path) -> None:
    scaled_down(tmp_path, 3, rows_between=3)
    result = plain_audit(tmp_path)
    assert result.verdict == PASSED, result.gaps
    assert any("took their copies" in note for note in result.notes), result.notes
