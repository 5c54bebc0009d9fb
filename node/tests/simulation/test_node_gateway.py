"""Requests of Tarantool replicas, one by one: refusals, contents of streams, and their ends."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_client.protocol.frame import Frame, FrameDecoder
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.tarantool.gateway import STALLED_NS, Gateway
from qsync_node.tarantool.served_log import ServedLog
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, Driven, node_of, put

OK, JOIN, SUBSCRIBE, FETCH_SNAPSHOT, REGISTER = 0, 65, 66, 69, 70
PRIVILEGES, GUEST_ID, READ = 312, 0, 1
ACCESS_DENIED, UNKNOWN_REPLICA, LOADING, INVALID_MSGPACK = 42, 62, 116, 20
FIRST, SECOND_REPLICA = (str(UUID(int=number, version=4)) for number in (7, 8))


class Wire:
    """Connections of Tarantool replicas to the leader, which take all packets at once."""

    def __init__(self, **settings: int) -> None:
        self.driven = Driven(3, **settings)
        self.leader = self.driven.leader()
        self.frames: dict[int, list[Frame]] = {}
        self.ended: set[int] = set()
        self.is_taking = True
        self._decoders: dict[int, FrameDecoder] = {}
        self.driven.world.take_packets = self._take

    def _take(self, shell: Shell, effect: fx.TarantoolPackets) -> None:
        session = effect.session
        decoder = self._decoders.setdefault(session, FrameDecoder())
        frames = self.frames.setdefault(session, [])
        frames += decoder.feed(b"".join(effect.packets))
        if effect.is_last:
            self.ended.add(session)
        elif effect.tell_drained and self.is_taking:
            drained = fx.TarantoolDrained(session)
            self.driven.world.after(100_000, lambda: shell.step([drained]))

    @property
    def gateway(self) -> Gateway:
        return node_of(self.leader).tarantool

    def request(
        self, session: int, kind: int, fields: Mapping[Key, Any], user: str = "admin"
    ) -> fx.TarantoolRequest:
        known = {Key.REPLICASET_UUID: self.driven.world.replicaset_uuid, Key.VCLOCK: {}}
        identity = {Key.INSTANCE_UUID: FIRST, **known}
        body: bytes = msgpack.packb({**identity, **fields})
        return fx.TarantoolRequest(session, 0, kind, body, user)

    def say(
        self, session: int, kind: int, fields: Mapping[Key, Any] | None = None, user: str = "admin"
    ) -> None:
        self.leader.step([self.request(session, kind, fields or {}, user)])

    def codes(self, session: int) -> list[int]:
        """Return the errors that a connection has got."""
        kinds = [frame[0] for frame in self.frames.get(session, [])]
        return [kind & 0x7FFF for kind in kinds if kind >= 0x8000]

    def clock(self, session: int) -> dict[int, int]:
        """Return the clock of the first view that a connection has got."""
        clock: dict[int, int] = msgpack.unpackb(self.frames[session][0][3], strict_map_key=False)[
            Key.VCLOCK
        ]
        return clock

    def join(self, session: int, uuid: str = FIRST) -> dict[int, int]:
        """Let a replica join, and return the clock of its view."""
        self.say(session, JOIN, {Key.INSTANCE_UUID: uuid})

        def has_joined() -> bool:
            return sum(frame[0] == OK for frame in self.frames.get(session, [])) == 3

        assert self.driven.run(5_000, has_joined), self.codes(session)
        return self.clock(session)

    def write(self, *keys: int) -> None:
        for key in keys:
            assert self.driven.ask(self.leader, REPLACE, put(key, "x")).code == 0

    def grant(self, kind: str, space: int) -> None:
        """Let guests read."""
        grant = [1, GUEST_ID, kind, space, READ]
        body = build_body(PRIVILEGES, tuple=grant)
        assert self.driven.ask(self.leader, REPLACE, body).code == 0


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"\x90", msgpack.packb({Key.VCLOCK: []}), b"\xc1", b"\x81"])
@pytest.mark.parametrize("kind", [JOIN, SUBSCRIBE, FETCH_SNAPSHOT])
def test_malformed_body_is_refused(kind: int, body: bytes) -> None:
    wire = Wire()
    wire.leader.step([fx.TarantoolRequest(1, 0, kind, body, "admin")])
    codes = wire.codes(1)
    assert codes == [INVALID_MSGPACK] or (kind == FETCH_SNAPSHOT and not codes)
    assert wire.leader.is_alive


def test_malformed_clock_is_refused() -> None:
    wire = Wire()
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: []})
    assert wire.codes(1) == [INVALID_MSGPACK]
    assert wire.leader.is_alive


@pytest.mark.parametrize("kind", [JOIN, REGISTER])
def test_user_who_may_only_read_registers_no_replica(kind: int) -> None:
    wire = Wire()
    wire.grant("universe", 0)
    wire.say(1, kind, user="guest")
    assert wire.codes(1) == [ACCESS_DENIED]


@pytest.mark.parametrize("other", [SPACE - 1, SPACE + 1])
@pytest.mark.parametrize("kind", [SUBSCRIBE, FETCH_SNAPSHOT])
def test_user_must_be_able_to_read_each_space_that_it_lists(kind: int, other: int) -> None:
    wire = Wire()
    wire.grant("space", SPACE)
    fields: dict[Key, object] = {Key.REPLICA_ANON: True, Key.SPACES: [SPACE, other]}
    wire.say(1, kind, fields, user="guest")
    assert wire.codes(1) == [ACCESS_DENIED]
    wire.say(2, kind, {**fields, Key.SPACES: [SPACE]}, user="guest")
    wire.driven.run(100)
    assert not wire.codes(2)


def test_user_of_one_space_takes_no_position_of_a_registered_replica() -> None:
    """It would close its stream, and its ACKs would free the log that the replica needs (F4)."""
    wire = Wire()
    wire.grant("space", SPACE)
    wire.join(1)
    wire.say(2, SUBSCRIBE, {Key.REPLICA_ANON: True, Key.SPACES: [SPACE]}, user="guest")
    assert wire.codes(2) == [ACCESS_DENIED]


def test_replica_that_was_removed_is_refused_and_its_stream_ends() -> None:
    wire = Wire()
    clock = wire.join(1)
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.driven.run(500)
    assert not wire.codes(1)
    wire.driven.world.command(wire.leader, "unregister", uuid=FIRST)
    assert wire.driven.run(5_000, lambda: wire.codes(1) == [UNKNOWN_REPLICA])
    wire.say(2, JOIN)
    assert wire.codes(2) == [UNKNOWN_REPLICA]


def test_replica_joins_only_once_the_cluster_is_open() -> None:
    wire = Wire()
    registrar = node_of(wire.leader).registrar
    registrar.is_open = lambda: False  # type: ignore[method-assign]  # as while it is formed
    wire.say(1, JOIN)
    assert wire.codes(1) == [LOADING]


def test_replicas_that_join_at_once_are_registered_one_after_the_other() -> None:
    """One membership change is pending at a time (M2)."""
    wire = Wire()
    uuids = {1: FIRST, 2: SECOND_REPLICA}
    wire.leader.step(
        [wire.request(session, JOIN, {Key.INSTANCE_UUID: uuid}) for session, uuid in uuids.items()]
    )
    configuration = node_of(wire.leader).context
    assert wire.driven.run(
        5_000,
        lambda: all(
            configuration.confirmed_configuration.by_uuid(uuid) is not None
            for uuid in uuids.values()
        ),
    )
    assert wire.leader.is_alive


def test_member_whose_state_diverges_during_a_join_sends_no_view() -> None:
    """The registration is confirmed nevertheless, and the replica can join elsewhere (T7)."""
    wire = Wire()
    node = node_of(wire.leader)
    for follower in wire.driven.followers():
        follower.disk_delay_ns = 50 * MILLISECOND
    wire.say(1, JOIN)
    assert node.context.configuration.by_uuid(FIRST) is not None
    assert node.context.confirmed_configuration.by_uuid(FIRST) is None, "it is pending"
    node.replica.repair.open(node.context.limbo.confirmed_index)
    assert wire.driven.run(5_000, lambda: 1 in wire.ended)
    assert wire.codes(1) == [LOADING]
    assert len(wire.frames[1]) == 1


# --- streams --------------------------------------------------------------------------------------


def test_log_after_a_view_stays_until_its_replica_follows() -> None:
    wire = Wire(retention_ns=60 * SECOND)
    wire.say(1, FETCH_SNAPSHOT)
    assert wire.driven.run(5_000, lambda: len(wire.frames.get(1, [])) > 2)
    wire.driven.run(100)
    clock = wire.clock(1)
    wire.write(1, 2)
    assert wire.gateway.pinned_index() == sum(clock.values()), "it loads the view"
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock, Key.REPLICA_ANON: True})
    wire.driven.run(100)
    assert wire.gateway.pinned_index() is None
    wire.say(2, FETCH_SNAPSHOT, {Key.INSTANCE_UUID: SECOND_REPLICA})
    wire.driven.run(100)
    assert wire.gateway.pinned_index() is not None
    wire.leader.step([fx.SessionClosed(2)])
    assert wire.gateway.pinned_index() is None


def removable_index(wire: Wire) -> int:
    """Return the index up to which the leader removes files after a checkpoint."""
    node = node_of(wire.leader)
    confirmed = node.context.limbo.confirmed_index
    wire.driven.world.command(wire.leader, "snapshot")
    assert wire.driven.run(1_000, lambda: node.checkpoints.index >= confirmed)
    wire.driven.run(500)
    node.checkpoints.collect_garbage()
    (removal,) = (effect for effect in node.context.out if isinstance(effect, fx.RemoveSegments))
    return removal.log_index


def test_checkpoint_removes_no_row_after_a_view_until_its_replica_follows() -> None:
    """The replica would have to fetch a view again, which takes longer each time."""
    wire = Wire(retention_ns=60 * SECOND)
    wire.say(1, FETCH_SNAPSHOT)
    wire.driven.run(500)
    viewed = sum(wire.clock(1).values())
    wire.write(1, 2, 3)
    assert removable_index(wire) == viewed
    wire.leader.step([fx.SessionClosed(1)])
    wire.write(4)
    assert removable_index(wire) > viewed


def test_view_of_a_user_of_one_space_has_its_rows_alone() -> None:
    """Users, grants and other definitions are omitted (F4)."""
    wire = Wire()
    wire.grant("space", SPACE)
    wire.write(1, 2)
    listed = {Key.REPLICA_ANON: True, Key.SPACES: [SPACE]}
    wire.say(1, FETCH_SNAPSHOT, listed, user="guest")
    wire.driven.run(500)
    rows = [frame for frame in wire.frames[1] if frame[0] != OK]
    spaces = [msgpack.unpackb(row[3], strict_map_key=False)[Key.SPACE_ID] for row in rows]
    assert spaces == [SPACE, SPACE]


def test_replica_that_registers_is_answered_after_the_rows_up_to_its_registration() -> None:
    """It reports its position once it has the answer, and would wait for the rows otherwise."""
    wire = Wire(relay_chunk_bytes=100)
    wire.say(1, FETCH_SNAPSHOT)
    wire.driven.run(500)
    assert wire.frames[1][-1][0] == OK
    clock = wire.clock(1)
    wire.write(1, 2, 3)
    seen = len(wire.frames[1])
    wire.say(1, REGISTER, {Key.VCLOCK: clock})
    assert wire.driven.run(5_000, lambda: OK in [frame[0] for frame in wire.frames[1][seen:]])
    *rows, answer = wire.frames[1][seen:]
    assert any(FIRST.encode() in row[3] for row in rows)
    reached = msgpack.unpackb(answer[3], strict_map_key=False)[Key.VCLOCK]
    assert sum(reached.values()) == sum(clock.values()) + len(rows)


def test_pin_of_a_replica_that_never_follows_ends() -> None:
    wire = Wire(retention_ns=5 * SECOND)
    wire.say(1, FETCH_SNAPSHOT)
    wire.driven.run(1_000)
    assert wire.gateway.pinned_index() is not None
    wire.driven.run(6_000)
    assert wire.gateway.pinned_index() is None


def test_acknowledged_rows_are_not_kept_for_a_replica() -> None:
    wire = Wire(retention_ns=60 * SECOND)
    clock = wire.join(1)
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.write(1, 2, 3)
    wire.driven.run(500)
    term = node_of(wire.leader).replica.leader
    assert term is not None
    assert term.retention.floor_index() == sum(clock.values())
    rows = [frame for frame in wire.frames[1] if frame[2].get(3, 0) and frame[0] != OK]
    clock = {**clock, rows[-1][2][2]: rows[-1][2][3]}
    wire.say(1, OK, {Key.VCLOCK: clock})
    assert term.retention.floor_index() == sum(clock.values())


def test_acknowledgement_of_rows_that_were_not_sent_is_ignored() -> None:
    """The member would remove files that the replica still needs (S5)."""
    wire = Wire(retention_ns=60 * SECOND)
    clock = wire.join(1)
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.driven.run(100)
    wire.is_taking = False
    wire.write(1, 2)
    sent = wire.gateway.sessions[1].sent_index
    wire.write(3)
    wire.say(1, OK, {Key.VCLOCK: {1: node_of(wire.leader).context.limbo.confirmed_index}})
    term = node_of(wire.leader).replica.leader
    assert term is not None
    assert term.retention.floor_index() <= sent
    assert wire.gateway.sessions[1].acked_index <= sent


def test_idle_stream_gets_heartbeats() -> None:
    """Tarantool closes a connection that is silent for four seconds."""
    wire = Wire()
    clock = wire.join(1)
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.driven.run(500)
    before = len(wire.frames[1])
    wire.driven.run(3_000)
    beats = [frame[0] for frame in wire.frames[1][before:]]
    assert len(beats) >= 4
    assert set(beats) == {OK}


def test_newer_stream_of_a_replica_replaces_the_older_one() -> None:
    wire = Wire()
    clock = wire.join(1)
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.driven.run(200)
    wire.say(2, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.driven.run(200)
    assert wire.ended == {1}
    assert not wire.codes(1), "an error would stop its replication"


def test_user_of_one_space_ends_no_stream_of_another_user() -> None:
    """With its UUID, a consumer could be interrupted again and again (F4)."""
    wire = Wire()
    wire.grant("space", SPACE)
    listed = {Key.REPLICA_ANON: True, Key.SPACES: [SPACE], Key.INDEX: 1}
    wire.say(1, SUBSCRIBE, listed)
    wire.driven.run(200)
    wire.say(2, SUBSCRIBE, listed, user="guest")
    wire.driven.run(200)
    assert not wire.ended
    wire.say(3, SUBSCRIBE, listed, user="guest")
    wire.driven.run(200)
    assert wire.ended == {2}
    wire.say(4, SUBSCRIBE, listed)
    wire.driven.run(200)
    assert wire.ended == {1, 2, 3}


def test_streams_end_when_the_state_is_replaced() -> None:
    """A replica that reconnects continues, but one that gets an error stops (Q3)."""
    wire = Wire()
    clock = wire.join(1)
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.say(2, FETCH_SNAPSHOT, {Key.INSTANCE_UUID: SECOND_REPLICA})
    node = node_of(wire.leader)
    wire.gateway.on_state_loaded(node.context.limbo.confirmed_index)
    wire.driven.run(200)
    assert wire.ended == {1, 2}
    assert not wire.codes(1) + wire.codes(2)
    assert not wire.gateway.sessions


def test_stream_that_nobody_reads_ends() -> None:
    wire = Wire()
    clock = wire.join(1)
    wire.is_taking = False
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    wire.write(1)
    wire.driven.run(1_000)
    session = wire.gateway.sessions[1]
    assert session.is_blocked
    session.touched_ns -= STALLED_NS
    wire.driven.run(100)
    assert 1 in wire.ended
    assert not wire.gateway.sessions


def test_rows_carry_no_key_of_this_cluster() -> None:
    wire = Wire()
    clock = wire.join(1)
    wire.say(1, SUBSCRIBE, {Key.VCLOCK: clock})
    mark = node_of(wire.leader).context.limbo.confirmed_index
    keyed = wire.driven.ask(wire.leader, REPLACE, put(1, "x"), key=["client", 1, mark])
    assert keyed.code == 0
    wire.driven.run(500)
    (row,) = [frame for frame in wire.frames[1] if frame[0] == REPLACE]
    assert int(Key.TUPLE_META) not in row[2]


# --- the served log -------------------------------------------------------------------------------


def test_rows_from_before_the_state_of_this_run_are_not_served() -> None:
    """The member does not know which of them a decision removed (Q3)."""
    context = node_of(Driven(1).leader()).context
    log = ServedLog(context)
    first = context.tail.first_available_index
    log.restart(first + 100)
    assert log.first_servable() == first + 100


def test_removed_rows_are_known_while_a_file_has_them() -> None:
    driven = Driven(3, synchro_timeout_ns=300 * MILLISECOND)
    leader, followers = driven.leader(), driven.followers()
    driven.mute(followers[0], leader)
    driven.mute(followers[1], leader)
    driven.send(leader, REPLACE, put(1, "removed"))
    log = node_of(leader).tarantool.log
    driven.run(400)
    driven.world.network.heal()
    assert driven.run(5_000, lambda: bool(log._removed_firsts))
    first, last = log._removed_firsts[0], log._removed_lasts[0]
    log.forget_before(last)
    assert log.is_removed(first)
    assert log.is_removed(last)
    log.forget_before(last + 1)
    assert not log.is_removed(last)
