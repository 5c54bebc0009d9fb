"""Schedules in which a Tarantool replica follows simulated members despite all faults.

python -m qsync_sim.subscriber --seeds 0..19

The replica knows only Tarantool's protocol. It moves from member to member as they die, and
receives rows from memory and from disk. It joins again when a member reports that rows are gone. In
the end its state equals the members' state, and each row that it received was confirmed.

  Q2  It receives each row once, in the order of the log.
  F1  The same holds for one that lists spaces: other rows arrive as NOPs.
  F5  The same holds for one that names the index after which its rows begin.
"""

import sys
import uuid as uuids
from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgpack

from qsync_client.protocol.constants import Key
from qsync_client.protocol.frame import FrameDecoder
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.engine.database import Database
from qsync_sim.journals import seeds
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.schedule import Schedule
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation
from qsync_sim.world import World

JOIN, SUBSCRIBE, FETCH_SNAPSHOT, OK, NOP = 65, 66, 69, 0, 12
GAP = 219
CONVERTED = b"\x82"
"""First byte of a row that a member encodes for Tarantool."""


class Subscriber:
    """One Tarantool replica, registered or anonymous."""

    def __init__(
        self,
        world: World,
        is_anonymous: bool,
        spaces: tuple[int, ...] = (),
        is_by_index: bool = False,
    ) -> None:
        self.world = world
        self.rule = "F5" if is_by_index else "F1" if spaces else "Q2"
        self.is_by_index = is_by_index
        self.rng = Random(world.seed)
        self.uuid = str(uuids.UUID(int=self.rng.getrandbits(128), version=4))
        self.is_anonymous = is_anonymous
        self.spaces = spaces
        self.wanted = {Key.SPACES: spaces} if spaces else {}
        self.database = Database()
        self.clock: dict[int, int] = {}
        self.is_joined = False
        self.oks = 0
        self.shell: Shell | None = None
        self.incarnation = 0
        self.away_until_ns = 0
        self.session = 100_000
        self.decoder = FrameDecoder()
        self.rows: list[tuple[int, int, bytes]] = []
        self.joins = self.connections = 0
        self.errors: list[int] = []
        self.compared: Counter[int] = Counter()  # tuples at the end, by space
        world.after(SECOND, self.act)

    @property
    def index(self) -> int:
        return sum(self.clock.values())

    # --- connecting -----------------------------------------------------------------------------

    def act(self) -> None:
        self.world.after(self.rng.randrange(10, 60) * MILLISECOND, self.act)
        if self.shell is not None and self.shell.incarnation != self.incarnation:
            self.shell = None
        if self.shell is not None and self.rng.random() < 0.01:
            self.shell.step([fx.SessionClosed(self.session)])
            self.shell = None
            self.away_until_ns = self.world.now_ns + self.rng.randrange(2 * SECOND)
        is_back = self.world.now_ns >= self.away_until_ns
        if self.shell is None and is_back and self.world.alive():
            self.connect(self.rng.choice(self.world.alive()))

    def connect(self, shell: Shell) -> None:
        self.connections += 1
        self.session += 1
        self.shell, self.incarnation = shell, shell.incarnation
        self.decoder = FrameDecoder()
        self.oks = 0
        if self.is_joined:
            self.subscribe()
            return
        self.joins += 1
        self.database = Database()
        self.say(
            FETCH_SNAPSHOT if self.is_anonymous else JOIN,
            {Key.INSTANCE_UUID: self.uuid, **self.wanted},
        )

    def subscribe(self) -> None:
        if self.is_by_index:
            wanted = {
                Key.INSTANCE_UUID: self.uuid,
                Key.INDEX: self.index,
                Key.REPLICA_ANON: True,
                **self.wanted,
            }
            self.say(SUBSCRIBE, wanted)
            return
        fields = {
            Key.INSTANCE_UUID: self.uuid,
            Key.REPLICASET_UUID: self.world.replicaset_uuid,
            Key.VCLOCK: self.clock,
        }
        self.say(SUBSCRIBE, {**fields, **self.wanted, Key.REPLICA_ANON: self.is_anonymous})

    def say(self, kind: int, fields: Mapping[Key, Any]) -> None:
        assert self.shell is not None
        body = msgpack.packb(fields)
        self.feed(fx.TarantoolRequest(self.session, 0, kind, body, "admin"))

    def feed(self, item: fx.Input) -> None:
        shell, incarnation = self.shell, self.incarnation

        def arrive() -> None:
            if shell is not None and shell.incarnation == incarnation:
                shell.step([item])

        self.world.after(self.rng.randrange(50_000, 2_000_000), arrive)

    # --- rows -----------------------------------------------------------------------------------

    def on_packets(self, shell: Shell, effect: fx.TarantoolPackets) -> None:
        """Deliver packets that left a member, in order and a moment later."""
        session = effect.session
        self.world.after(100_000, partial(self.take, session, effect))

    def take(self, session: int, effect: fx.TarantoolPackets) -> None:
        if session != self.session or self.shell is None:
            return
        for frame in self.decoder.feed(b"".join(effect.packets)):
            self.take_frame(*frame)
        if effect.is_last:
            self.shell = None
        elif effect.tell_drained:
            self.feed(fx.TarantoolDrained(self.session))
            if self.is_joined:
                self.say(OK, {Key.VCLOCK: self.clock})

    def take_frame(self, kind: int, sync: int, header: dict[int, Any], body: bytes) -> None:
        if kind >= 0x8000:
            self.errors.append(kind & 0x7FFF)
            if kind & 0x7FFF == GAP:
                self.is_joined = False
        elif kind == OK and body and not self.is_joined:
            self.oks += 1
            self.clock = msgpack.unpackb(body, strict_map_key=False)[Key.VCLOCK]
            if self.oks == (2 if self.is_anonymous else 3):
                self.is_joined = True
                self.subscribe()
        elif kind != OK and not self.is_joined:
            self.database.load(body)
        elif kind != OK:
            self.follow(kind, header, body)

    def follow(self, kind: int, header: dict[int, Any], body: bytes) -> None:
        owner, lsn = header[2], header[3]
        expected = self.clock.get(owner, 0) + 1
        if lsn != expected:
            raise InvariantViolation(f"{self.rule}: row {owner}:{lsn} came instead of {expected}")
        self.clock[owner] = lsn
        self.rows.append((self.index, kind, body))
        if kind != NOP:
            self.database.apply(kind, body)

    # --- checks ---------------------------------------------------------------------------------

    def has_everything(self) -> bool:
        leader = self.world.leader()
        if leader is None or leader.node is None:
            return False
        limbo = leader.node.context.limbo
        return self.is_joined and self.index == limbo.confirmed_index == limbo.last_index

    def check_rows(self) -> int:
        """Compare all rows with the ledger; return how many of them a decision had removed.

        Raises:
            InvariantViolation: a row was not confirmed at its index.
        """
        removed = 0
        for index, kind, body in self.rows:
            seen = self.world.ledger.get(index)
            if seen is None or (kind != NOP and not seen[3]):
                raise InvariantViolation(f"{self.rule}: row {index} was not confirmed")
            if kind != NOP and seen[2] != body and body[:1] != CONVERTED:
                raise InvariantViolation(f"{self.rule}: row {index} is another one: {body!r}")
            removed += not seen[3]
        return removed

    def check_state(self) -> None:
        """Compare the state with the leader's.

        Raises:
            InvariantViolation: they differ.
        """
        leader = self.world.leader()
        assert leader is not None
        assert leader.node is not None
        for space in (SPACE, ASYNC_SPACE):
            is_listed = not self.spaces or space in self.spaces
            wanted = tuples_of(leader.node.database, space) if is_listed else []
            if tuples_of(self.database, space) != wanted:
                raise InvariantViolation(f"{self.rule}: space {space} has another state")
            self.compared[space] = len(wanted)


def tuples_of(database: Database, space: int) -> list[bytes]:
    return [packed for _, packed in database.space(space).indexes[0].entries()]


class SubscriberRun(NamedTuple):
    """The end of a schedule.

    Attributes:
        subscriber: the replica.
        removed: rows that arrived as NOPs because a decision had removed them.
        reads: reads from disk for the replica.
    """

    subscriber: Subscriber
    removed: int
    reads: int


def run(
    seed: int,
    is_anonymous: bool = True,
    spaces: tuple[int, ...] = (),
    is_by_index: bool = False,
) -> SubscriberRun:
    """Run a schedule with faults, in which one replica follows the members.

    Args:
        seed: of the schedule.
        is_anonymous: whether the replica never registers.
        spaces: the spaces that it lists; all of them if there is none.
        is_by_index: whether it names the index after which its rows begin (F5).

    Raises:
        InvariantViolation: the replica missed a row, received one twice, or has another state.
    """
    schedule = Schedule(seed)
    world = schedule.world
    subscriber = Subscriber(world, is_anonymous, spaces, is_by_index)
    world.take_packets = subscriber.on_packets
    schedule.run()
    if not world.run_for(60 * SECOND, subscriber.has_everything):
        raise InvariantViolation(
            f"{subscriber.rule}: the replica is at {subscriber.index} a minute after the faults "
            f"ended; its last errors are {subscriber.errors[-5:]}"
        )
    removed = subscriber.check_rows()
    subscriber.check_state()
    return SubscriberRun(subscriber, removed, world.counters["reads for Tarantool replicas"])


def main() -> int:
    """Run schedules in which a replica subscribes by index."""

    def count(seed: int) -> Counter[str]:
        done = run(seed, is_by_index=True)
        moves = done.subscriber.connections - done.subscriber.joins
        return Counter(removed=done.removed, reads=done.reads, moves=moves)

    return seeds.main(__doc__, count)


if __name__ == "__main__":
    sys.exit(main())
