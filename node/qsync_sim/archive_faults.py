"""Faults of the archive: a store that refuses everything, or is slow."""

from collections.abc import Callable

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim.archiving import DELAY_NS
from qsync_sim.cluster import Cluster


def refuse(world: Cluster) -> None:
    """Let the store refuse everything for some time."""
    archive = world.archive
    if archive is None:
        return
    world.count("fault archive unavailable")
    archive.is_available = False

    def end() -> None:
        archive.is_available = True

    world.after(world.rng.randrange(4 * SECOND), end)


def delay(world: Cluster) -> None:
    """Let the operations of the store take long for some time."""
    archive = world.archive
    if archive is None:
        return
    world.count("fault archive slow")
    archive.delay_ns = world.rng.randrange(20, 2000) * MILLISECOND

    def end() -> None:
        archive.delay_ns = DELAY_NS

    world.after(world.rng.randrange(4 * SECOND), end)


def end_all(world: Cluster) -> None:
    """Let the store work again."""
    if world.archive is not None:
        world.archive.is_available = True
        world.archive.delay_ns = DELAY_NS


ALL: list[tuple[int, Callable[[Cluster], None]]] = [(20, refuse), (12, delay)]
