"""The end of some schedules: most voters' disks are destroyed, and a survivor is forced (E11).

All answers have been checked by then. A leader has written a few rows more, and all machines except
a minority of the voters are destroyed. The order goes to the survivor with the longest log, which
keeps the rows that the order keeps. Then new members join, and the cluster must work as any other.
"""

from functools import partial
from random import Random

from qsync_node.consensus import effects as fx
from qsync_node.consensus.entries import EntryKind
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.format.keys import INSERT
from qsync_sim.cluster import ADMIN_SESSION, Cluster, insert_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

KEY = 1_000_000
LAST_ROWS = 4
LEADERLESS_NS = 20 * SECOND
"""Time until the links to the destroyed machines have been closed for their silence."""
WAIT_NS = 30 * SECOND


class Disaster:
    """The loss of a quorum for good, and an order to continue without it."""

    def __init__(self, world: Cluster) -> None:
        self._world = world
        self._rng = Random(f"disaster of {world.seed}")

    def strike(self) -> None:
        """Destroy most voters, force a survivor, and add new members.

        Raises:
            Violation: the survivor kept other rows than ordered, or the cluster does not work.
        """
        world = self._world
        leader = world.leader()
        assert leader is not None
        assert leader.node is not None
        voters = leader.node.context.confirmed_configuration.voters
        shells = [world.shells[member.uuid] for member in voters]
        self._write(leader)
        survivors = self._rng.sample(shells, self._rng.randint(1, max(1, (len(shells) - 1) // 2)))
        lost = [shell for shell in shells if shell not in survivors]
        self._destroy(survivors)
        world.run_for(LEADERLESS_NS)
        if lost:
            self._force(survivors, lost)
        for _ in lost:
            world.add().start()
        count = len(shells)
        gone = {shell.uuid for shell in lost}
        if not world.run_for(WAIT_NS, lambda: len(self._voters() - gone) == count):
            raise InvariantViolation(f"E11: {self._voters()} vote after a forced election")
        if self._voters() & gone:
            raise InvariantViolation(
                f"E11: members of the order still vote: {self._voters() & gone}"
            )
        world.insert(SPACE, [KEY + LAST_ROWS, "after"])

    def _write(self, leader: Shell) -> None:
        """Let the leader write rows that some members may not receive any more."""
        world = self._world
        for number in range(self._rng.randint(1, LAST_ROWS)):
            body = insert_body(SPACE, [KEY + number, "last"])
            world.send(leader, partial(_insert, body))
            world.run_for(self._rng.randrange(MILLISECOND))

    def _destroy(self, survivors: "list[Shell]") -> None:
        """Destroy all instances but the survivors, at about the same time."""
        for shell in self._world.alive():
            if shell not in survivors:
                shell.is_removed = True
                shell.stop(power_loss=True)
                self._world.run_for(self._rng.randrange(MILLISECOND))

    def _force(self, survivors: "list[Shell]", lost: "list[Shell]") -> None:
        world = self._world
        best = max(survivors, key=_position)
        assert best.node is not None
        limbo, tail = best.node.context.limbo, best.node.context.tail
        known, pending = limbo.confirmed_index, _pending(best)
        verb = self._rng.choice(["force-confirm", "force-rollback"])
        kept = tail.last_index if verb == "force-confirm" else known
        # Rows that only the destroyed disks held are lost by the order.
        world.ledger = {index: row for index, row in world.ledger.items() if index <= kept}
        world.confirmed_anywhere = min(world.confirmed_anywhere, kept)
        order = {"lost": [shell.uuid for shell in lost], "disks_destroyed": True}
        answer = world.ask(
            best, lambda sync: fx.Command(ADMIN_SESSION, sync, verb, order), wait_ns=WAIT_NS
        )
        if answer is None or answer.code:
            raise InvariantViolation(
                f"E11: {verb} failed: {answer.reason if answer else 'no answer'}"
            )
        world.count(f"order {verb}")
        world.run_for(WAIT_NS, lambda: limbo.confirmed_index >= tail.history.starts[-1].first_index)
        for index in pending:
            row = world.ledger.get(index)
            is_kept = row is not None and row[3]
            if is_kept != (verb == "force-confirm"):
                raise InvariantViolation(f"E11: {verb} {'kept' if is_kept else 'lost'} row {index}")
        if pending:
            world.count(f"pending rows at {verb}")

    def _voters(self) -> set[str]:
        """Return the voters by which the leader counts."""
        leader = self._world.leader()
        if leader is None or leader.node is None:
            return set()
        return set(leader.node.context.confirmed_configuration.voter_uuids)


def _insert(body: bytes, sync: int) -> fx.Request:
    return fx.Request(ADMIN_SESSION, sync, INSERT, body, 0, "admin", None)


def _position(shell: Shell) -> tuple[int, int]:
    assert shell.node is not None
    tail = shell.node.context.tail
    return tail.last_term, tail.last_index


def _pending(shell: Shell) -> list[int]:
    """Return the indexes of pending rows of clients that no pending decision covers."""
    assert shell.node is not None
    return [
        entry.batch.last_index
        for entry in shell.node.context.limbo.surviving()
        if entry.kind is EntryKind.USER
    ]
