"""Processes of two versions in one cluster: upgrades, downgrades, and the feature level (P2).

The later version supports one feature level more. Instances are upgraded one after the other, in
any order, some of them are downgraded in between, and new instances may be of either version.

  P2   No process continues with a feature level that it does not support. The cluster's level never
       falls, and no member is registered with a level that none of its processes announced. Only a
       process that was downgraded, or an instance that joined with the earlier version, may stop.
  P2   Once all members are of the later version, the cluster has its level.

They are drawn apart from everything else, so that only the schedules that have two versions depend
on them.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from qsync_node.consensus.membership import LEVEL, TARANTOOL_ROLE, Configuration
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim import faults
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_node.node import Node

PART = 0.2
"""The part of the schedules with processes of two versions."""
DOWNGRADES = 0.25
"""The part of the changes that start the earlier version again."""
LATER_MEMBERS = 0.5
"""The part of the new instances that are of the later version."""
WHOLE = 0.7
"""The part of these schedules that upgrade all members at last."""
PAUSES_NS = (50 * MILLISECOND, 1500 * MILLISECOND)
RAISED_NS = 20 * SECOND
"""Time for registering the levels of all members, one after the other."""
LATER = LEVEL + 1


def draw(world: Cluster) -> "Versions | None":
    """Return the versions of a schedule, or None if it has only one."""
    rng = Random(f"versions of {world.seed}")
    return Versions(world, rng) if rng.random() < PART else None


class Versions:
    """The version of each instance, and the observer of the cluster's feature level."""

    def __init__(self, world: Cluster, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._is_forming = True
        self._is_over = False
        self._announced: dict[str, int] = {}  # the highest level of each instance so far
        self._may_stop: set[str] = set()  # instances that a raised level may stop
        self._removed: set[str] = set()
        self._raised_at = 0  # lowest index at which a member confirmed the later level
        self._seen: Configuration | None = None  # the last one that was checked

    # --- upgrades -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Let changes of versions happen until the schedule ends all faults."""
        self._is_forming = False
        self._change_later()

    def level_of_new(self) -> int:
        """Return the level of a new instance.

        A cluster is formed by the earlier version, and the last instances are of the later one.
        """
        if self._is_over:
            return LATER
        is_later = not self._is_forming and self._rng.random() < LATER_MEMBERS
        return LATER if is_later else LEVEL

    def end(self) -> None:
        """Upgrade the processes that have stopped, and in most schedules all others."""
        self._is_over = True
        is_whole = self._rng.random() < WHOLE
        for shell in self._world.shells.values():
            if shell.is_removed or shell.settings.level == LATER:
                continue
            if is_whole or not self._is_registered(shell) or _has_stopped(shell):
                self.start_version(shell, LATER)

    def _change_later(self) -> None:
        self._world.after(self._rng.randrange(*PAUSES_NS), self._change)

    def _change(self) -> None:
        world = self._world
        if not world.has_faults:
            return
        shells = [shell for shell in world.alive() if not shell.is_removed]
        is_downgrade = self._rng.random() < DOWNGRADES
        level = LEVEL if is_downgrade else LATER
        wanted = [shell for shell in shells if shell.settings.level != level]
        if wanted and not (is_downgrade and (self._raised_at or faults.lacks_voter(world))):
            self.start_version(self._rng.choice(wanted), level)
            world.on_fault()
        self._change_later()

    def start_version(self, shell: Shell, level: int) -> None:
        """Replace the process of an instance by one of another version."""
        world = self._world
        if shell.is_alive and not shell.is_paused and self._rng.random() < 0.5:
            shell.stop_cleanly()
        else:
            shell.stop(power_loss=False)
        world.count("version raised" if level == LATER else "version lowered")
        if level == LEVEL:
            self._may_stop.add(shell.uuid)
        shell.settings = replace(shell.settings, level=level)
        world.after(self._rng.randrange(300 * MILLISECOND), partial(world.start_again, shell))

    def _is_registered(self, shell: Shell) -> bool:
        leader = self._world.leader()
        if leader is None or leader.node is None:
            return True
        configuration = leader.node.context.configuration
        return configuration.by_uuid(shell.uuid) is not None

    # --- checks -------------------------------------------------------------------------------

    def on_started(self, shell: Shell) -> None:
        """Note the level that a process announces."""
        known = self._announced.get(shell.uuid, 0)
        self._announced[shell.uuid] = max(known, shell.settings.level)
        if not known and not self._is_forming:
            self._may_stop.add(shell.uuid)

    def on_stopped_by_level(self, shell: Shell) -> None:
        """Check that a process had to stop, and replace it by the later version."""
        if shell.settings.level == LATER:
            raise InvariantViolation(f"P2: {shell.name} stops at a level that it supports")
        is_member = shell.settings.role != "anonymous" and shell.uuid not in self._removed
        if is_member and shell.uuid not in self._may_stop:
            raise InvariantViolation(
                f"P2: {shell.name} never announced the level at which it stops"
            )
        self._world.count("stopped at an unsupported level")
        self._world.after(self._rng.randrange(SECOND), partial(self._upgrade, shell))

    def on_removed(self, uuid: str) -> None:
        """Note that the level no longer has to wait for a member, because it is none any more."""
        self._removed.add(uuid)

    def _upgrade(self, shell: Shell) -> None:
        if _has_stopped(shell):
            self.start_version(shell, LATER)

    def on_step(self, shell: Shell, node: "Node") -> None:
        """Check the levels that a member knows after a step."""
        context = node.context
        limbo = context.limbo
        if limbo.configuration.level > context.settings.level and not context.is_stopped:
            raise InvariantViolation(
                f"P2: {shell.name} continues at level {limbo.configuration.level}"
            )
        confirmed = limbo.confirmed_configuration
        if confirmed is not self._seen and confirmed.level > LEVEL:
            self._seen = confirmed
            self._check_members(shell, confirmed)
        if confirmed.level == LATER:
            index = limbo.confirmed_index
            self._raised_at = min(self._raised_at, index) if self._raised_at else index
        elif self._raised_at and context.has_origin and limbo.confirmed_index >= self._raised_at:
            raise InvariantViolation(
                f"P2: the level is {confirmed.level} again at {limbo.confirmed_index}"
            )

    def _check_members(self, shell: Shell, configuration: Configuration) -> None:
        for member in configuration.members:
            announced = self._announced.get(member.uuid, 0)
            if member.role != TARANTOOL_ROLE and announced < configuration.level:
                raise InvariantViolation(
                    f"P2: {shell.name} confirms level {configuration.level}, "
                    f"and {member.name} announced {announced}"
                )

    def check(self) -> None:
        """Check at the end that the cluster has the level of its members."""
        if not self._world.run_for(RAISED_NS, self._is_settled):
            raise InvariantViolation(
                f"P2: all members support level {LATER}, the cluster does not have it"
            )
        if self._raised_at:
            self._world.count("feature levels raised")

    def _is_settled(self) -> bool:
        leader = self._world.leader()
        if leader is None or leader.node is None:
            return False
        configuration = leader.node.context.confirmed_configuration
        levels = [
            self._world.shells[member.uuid].settings.level
            for member in configuration.members
            if member.role != TARANTOOL_ROLE
        ]
        return configuration.level == min(levels)


def _has_stopped(shell: Shell) -> bool:
    return shell.node is not None and shell.node.context.unsupported_level > 0
