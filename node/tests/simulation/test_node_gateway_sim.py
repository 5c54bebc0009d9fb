"""A Tarantool replica in simulated schedules gets the complete history despite all faults."""

import uuid as uuids
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_client.protocol.frame import FrameDecoder
from qsync_node.consensus import effects as fx
from qsync_node.consensus.history import History, TermStart
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.shell import Shell
from qsync_sim.subscriber import FETCH_SNAPSHOT, JOIN, SUBSCRIBE, run
from qsync_testing.worlds import Driven

REGISTER = 70
UNSUPPORTED, INVALID_MSGPACK = 5, 20
SCHEDULES_MIN = 6


@pytest.mark.parametrize("is_anonymous", [True, False])
def test_it_has_the_one_history_whatever_fails(is_anonymous: bool) -> None:
    removed = reads = moves = 0
    compared: Counter[int] = Counter()
    for seed in range(60):
        if seed >= SCHEDULES_MIN and removed and reads and moves:
            break
        done = run(seed, is_anonymous)
        removed += done.removed
        reads += done.reads
        moves += done.subscriber.connections - done.subscriber.joins
        compared += done.subscriber.compared
    assert compared[SPACE]
    assert compared[ASYNC_SPACE]
    assert removed
    assert reads
    assert moves


@pytest.mark.parametrize("spaces", [(SPACE,), (ASYNC_SPACE,), (280,)])
def test_it_gets_the_listed_spaces_and_every_index(spaces: tuple[int, ...]) -> None:
    joins = sum(run(seed, spaces=spaces).subscriber.joins for seed in range(SCHEDULES_MIN))
    assert joins >= SCHEDULES_MIN


def test_subscriber_by_index_gets_each_row_once() -> None:
    removed = moves = 0
    for seed in range(SCHEDULES_MIN):
        done = run(seed, is_by_index=True)
        removed += done.removed
        moves += done.subscriber.connections - done.subscriber.joins
    assert removed
    assert moves


@pytest.mark.parametrize("index", ["1", -1, True])
def test_malformed_index_is_refused(index: object) -> None:
    assert errors_of(SUBSCRIBE, {Key.REPLICA_ANON: True, Key.INDEX: index}) == [INVALID_MSGPACK]


@pytest.mark.parametrize("kind", [JOIN, REGISTER, SUBSCRIBE])
def test_registered_replica_cannot_list_spaces(kind: int) -> None:
    assert errors_of(kind, {Key.REPLICA_ANON: False, Key.SPACES: [SPACE]}) == [UNSUPPORTED]


@pytest.mark.parametrize("spaces", [7, [[1]], ["orders"], [True]])
def test_malformed_list_is_refused(spaces: object) -> None:
    assert errors_of(FETCH_SNAPSHOT, {Key.SPACES: spaces}) == [INVALID_MSGPACK]


def errors_of(kind: int, fields: Mapping[Key, Any]) -> list[int]:
    """Return the errors that a member answers to one request."""
    driven = Driven(1)
    packets: list[bytes] = []

    def take(shell: Shell, effect: fx.TarantoolPackets) -> None:
        packets.extend(effect.packets)

    driven.world.take_packets = take
    uuid = str(uuids.uuid4())
    identity = {
        Key.INSTANCE_UUID: uuid,
        Key.REPLICASET_UUID: driven.world.replicaset_uuid,
        Key.VCLOCK: {},
    }
    body = msgpack.packb({**identity, **fields})
    driven.leader().step([fx.TarantoolRequest(1, 0, kind, body, "admin")])
    frames = FrameDecoder().feed(b"".join(packets))
    return [frame[0] & 0x7FFF for frame in frames if frame[0] >= 0x8000]


def test_the_clock_of_an_index_follows_from_the_history_of_terms() -> None:
    history = History([TermStart(1, 1, 1), TermStart(3, 2, 11), TermStart(4, 1, 16)])
    assert history.vclock_at(0) == {}
    assert history.vclock_at(10) == {1: 10}
    assert history.vclock_at(12) == {1: 10, 2: 2}
    assert history.vclock_at(20) == {1: 15, 2: 5}
