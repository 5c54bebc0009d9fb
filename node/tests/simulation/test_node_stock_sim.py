"""A Tarantool replica in simulated schedules gets the complete history despite all faults.

The subscriber knows only Tarantool's protocol. It moves from member to member as they die, and
receives rows from memory and from disk. It joins again when a member reports that rows are gone.
In the end its state equals the members' state.
"""

import uuid as uuids
from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_client.protocol.frame import FrameDecoder
from qsync_node.consensus import effects as fx
from qsync_node.consensus.history import History, TermStart
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.engine.database import Database
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.schedule import Schedule
from qsync_sim.shell import Shell
from qsync_sim.world import World
from qsync_testing.raw import KeyT
from qsync_testing.worlds import Driven

JOIN, SUBSCRIBE, FETCH_SNAPSHOT, REGISTER, OK, NOP = 65, 66, 69, 70, 0, 12
UNSUPPORTED, INVALID_MSGPACK, GAP = 5, 20, 219
LIVES_MIN = 6


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
        self.is_by_index = is_by_index
        self.rng = Random(world.seed)
        self.uuid = str(uuids.UUID(int=self.rng.getrandbits(128), version=4))
        self.is_anonymous = is_anonymous
        self.wanted = {Key.SPACES: spaces} if spaces else {}
        self.database = Database()
        self.clock: dict[int, int] = {}
        self.is_joined = False
        self.oks = 0
        self.shell: Shell | None = None
        self.life = 0
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
        if self.shell is not None and self.shell.life != self.life:
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
        self.shell, self.life = shell, shell.life
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

    def say(self, kind: int, fields: Mapping[KeyT, Any]) -> None:
        assert self.shell is not None
        body = msgpack.packb(fields)
        self.feed(fx.StockRequest(self.session, 0, kind, body, "admin"))

    def feed(self, item: object) -> None:
        shell, life = self.shell, self.life

        def arrive() -> None:
            if shell is not None and shell.life == life:
                shell.step([item])

        self.world.after(self.rng.randrange(50_000, 2_000_000), arrive)

    # --- rows -----------------------------------------------------------------------------------

    def on_packets(self, shell: Shell, effect: fx.StockPackets) -> None:
        """Deliver packets that left a member, in order and a moment later."""
        session = effect.session
        self.world.after(100_000, partial(self.take, session, effect))

    def take(self, session: int, effect: fx.StockPackets) -> None:
        if session != self.session or self.shell is None:
            return
        for frame in self.decoder.feed(b"".join(effect.packets)):
            self.take_frame(*frame)
        if effect.is_last:
            self.shell = None
        elif effect.tell_drained:
            self.feed(fx.StockDrained(self.session))
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
        assert lsn == self.clock.get(owner, 0) + 1, "no LSN is left out, none comes twice"
        self.clock[owner] = lsn
        self.rows.append((self.index, kind, body))
        if kind != NOP:
            self.database.apply(kind, body)

    # --- invariants -----------------------------------------------------------------------------

    def check(self) -> int:
        """Compare all rows with the ledger; return how many of them a decision had removed."""
        removed = 0
        for index, kind, body in self.rows:
            seen = self.world.ledger[index]
            is_taken = bool(seen[3])
            if kind != NOP:
                assert is_taken, f"{index} was rolled back"
                assert seen[2] == body or body[:1] == b"\x82"
            removed += not is_taken
        return removed


def tuples_of(database: Database, space: int) -> list[bytes]:
    return [packed for _, packed in database.space(space).indexes[0].entries()]


def live(
    seed: int,
    is_anonymous: bool,
    monkeypatch: pytest.MonkeyPatch,
    spaces: tuple[int, ...] = (),
    is_by_index: bool = False,
) -> tuple[Subscriber, int]:
    """Run one schedule with faults; return the subscriber and its number of reads from disk."""
    schedule = Schedule(seed)
    world = schedule.world
    subscriber = Subscriber(world, is_anonymous, spaces, is_by_index)
    reads = 0
    take = Shell._take

    def seen(shell: Shell, effect: fx.Effect) -> None:
        nonlocal reads
        if type(effect) is fx.StockPackets:
            subscriber.on_packets(shell, effect)
            return
        reads += type(effect) is fx.ReadLog and effect.reader < 0
        take(shell, effect)

    monkeypatch.setattr(Shell, "_take", seen)
    schedule.run()

    def has_everything() -> bool:
        leader = world.leader()
        assert leader is not None
        assert leader.node is not None
        limbo = leader.node.context.limbo
        is_there = subscriber.index == limbo.confirmed_index == limbo.last_index
        return subscriber.is_joined and is_there

    assert world.run_for(60 * SECOND, has_everything), (subscriber.errors[-5:], subscriber.index)
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    for space in (SPACE, ASYNC_SPACE):
        wanted = tuples_of(leader.node.database, space)
        subscriber.compared[space] = len(wanted)
        is_listed = not spaces or space in spaces
        assert tuples_of(subscriber.database, space) == (wanted if is_listed else [])
    return subscriber, reads


@pytest.mark.parametrize("is_anonymous", [True, False])
def test_it_has_the_one_history_whatever_fails(
    is_anonymous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = reads = moves = 0
    compared: Counter[int] = Counter()
    for seed in range(60):
        if seed >= LIVES_MIN and removed and reads and moves:
            break
        with monkeypatch.context() as patch:
            subscriber, from_disk = live(seed, is_anonymous, patch)
        removed += subscriber.check()
        reads += from_disk
        moves += subscriber.connections - subscriber.joins
        compared += subscriber.compared
    assert compared[SPACE]
    assert compared[ASYNC_SPACE]
    assert removed
    assert reads
    assert moves


@pytest.mark.parametrize("spaces", [(SPACE,), (ASYNC_SPACE,), (280,)])
def test_it_gets_the_listed_spaces_and_every_index(
    spaces: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: Counter[int] = Counter()
    for seed in range(LIVES_MIN):
        with monkeypatch.context() as patch:
            compared += live(seed, True, patch, spaces)[0].compared
    assert compared[SPACE]
    assert compared[ASYNC_SPACE]


def test_subscriber_by_index_gets_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = moves = 0
    for seed in range(LIVES_MIN):
        with monkeypatch.context() as patch:
            subscriber, _ = live(seed, True, patch, is_by_index=True)
        removed += subscriber.check()
        moves += subscriber.connections - subscriber.joins
    assert removed
    assert moves


@pytest.mark.parametrize("index", ["1", -1, True])
def test_malformed_index_is_refused(index: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors_of(SUBSCRIBE, {Key.REPLICA_ANON: True, Key.INDEX: index}, monkeypatch) == [
        INVALID_MSGPACK
    ]


@pytest.mark.parametrize("kind", [JOIN, REGISTER, SUBSCRIBE])
def test_registered_replica_cannot_list_spaces(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors_of(kind, {Key.REPLICA_ANON: False, Key.SPACES: [SPACE]}, monkeypatch) == [
        UNSUPPORTED
    ]


@pytest.mark.parametrize("spaces", [7, [[1]], ["orders"], [True]])
def test_malformed_list_is_refused(spaces: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors_of(FETCH_SNAPSHOT, {Key.SPACES: spaces}, monkeypatch) == [INVALID_MSGPACK]


def errors_of(kind: int, fields: Mapping[Key, Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the errors that a member answers to one request."""
    driven = Driven(1)
    packets: list[bytes] = []
    take = Shell._take

    def seen(shell: Shell, effect: fx.Effect) -> None:
        if type(effect) is fx.StockPackets:
            packets.extend(effect.packets)
        else:
            take(shell, effect)

    monkeypatch.setattr(Shell, "_take", seen)
    uuid = str(uuids.uuid4())
    identity = {
        Key.INSTANCE_UUID: uuid,
        Key.REPLICASET_UUID: driven.world.replicaset_uuid,
        Key.VCLOCK: {},
    }
    body = msgpack.packb({**identity, **fields})
    driven.leader().step([fx.StockRequest(1, 0, kind, body, "admin")])
    frames = FrameDecoder().feed(b"".join(packets))
    return [frame[0] & 0x7FFF for frame in frames if frame[0] >= 0x8000]


def test_the_clock_of_an_index_follows_from_the_history_of_terms() -> None:
    history = History([TermStart(1, 1, 1), TermStart(3, 2, 11), TermStart(4, 1, 16)])
    assert history.vclock_at(0) == {}
    assert history.vclock_at(10) == {1: 10}
    assert history.vclock_at(12) == {1: 10, 2: 2}
    assert history.vclock_at(20) == {1: 15, 2: 5}
