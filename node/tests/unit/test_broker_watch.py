"""The watch of the key space, from bytes to changes, and the copy that a broker keeps of it."""

import msgpack

from qsync_broker.events import Watched
from qsync_broker.keyspace import Deleted, KeySpace, Written
from qsync_broker.watch import WatchSession
from qsync_client.protocol.greeting import encode_greeting
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    encode_row,
)
from qsync_node.format.keys import DELETE, FLAG_COMMIT, REPLACE, Key, Type

CLUSTER = "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11"
A, B = BrokerId("z", "broker-a"), BrokerId("z", "broker-b")


def packet(kind: int, body: dict[int, object] | None = None, **header: int) -> bytes:
    """Return a packet of the member; `header` has the names of its keys."""
    fields = {int(Key[name.upper()]): value for name, value in header.items()}
    packed = msgpack.packb({int(Key.REQUEST_TYPE): kind, **fields})
    packed += msgpack.packb(body or {})
    return bytes(msgpack.packb(len(packed)) + packed)


def subscribed() -> WatchSession:
    """Return a session whose snapshot was empty, at revision 3."""
    session = WatchSession("user", "password", "")
    clock: dict[int, object] = {int(Key.VCLOCK): {1: 3}}
    session.feed(encode_greeting(CLUSTER, b"s" * 32))
    session.feed(packet(Type.OK, sync=1))
    changes, _ = session.feed(packet(Type.OK, clock) + packet(Type.OK, clock))
    assert changes == [Watched(3, [], True)]
    session.feed(packet(Type.OK, {int(Key.REPLICASET_UUID): CLUSTER}))
    assert session.is_current
    return session


def row(lsn: int, name: str, **header: int) -> bytes:
    """Return a replaced row of a broker."""
    body = {int(Key.SPACE_ID): BROKER_SPACE, int(Key.TUPLE): [name]}
    return packet(REPLACE, body, replica_id=1, lsn=lsn, **header)


def test_rows_of_a_transaction_arrive_together() -> None:
    """The key space would otherwise be as it has never been, for example without a primary."""
    session = subscribed()
    assert session.feed(row(4, "first", tsn=4))[0] == []
    assert session.feed(row(5, "second", tsn=4))[0] == []
    changes, _ = session.feed(row(6, "third", tsn=4, flags=FLAG_COMMIT) + row(7, "lone"))
    names = ("first", "second", "third", "lone")
    assert changes == [Watched(7, [Written(BROKER_SPACE, [name]) for name in names])]


def test_deleted_row_is_known_by_its_key() -> None:
    session = subscribed()
    body = {int(Key.SPACE_ID): BROKER_SPACE, int(Key.KEY): list(A)}
    changes, _ = session.feed(packet(DELETE, body, replica_id=1, lsn=4))
    assert changes == [Watched(4, [Deleted(BROKER_SPACE, list(A))])]


def test_loads_are_those_of_the_last_snapshot() -> None:
    """The allocator spreads primaries by these numbers."""
    keys = KeySpace()
    rows = [AssignmentRow("a/journal", A, 0, 5, 5), AssignmentRow("a/journal", B, 1, 5, 5)]
    brokers = [BrokerRow(one, "http://x", "x:1", 9, False, 1000, "p", 1, 1, 1) for one in (A, B)]
    for _ in range(2):
        keys.clear()
        for broker in brokers:
            keys.apply(Written(BROKER_SPACE, encode_row(broker)))
        for assignment in rows:
            keys.apply(Written(ASSIGNMENT_SPACE, encode_row(assignment)))
        assert [keys.load(one) for one in (A, B)] == [1, 1]
        assert [keys.primaries(one) for one in (A, B)] == [1, 0]
    keys.clear()
    assert [(keys.load(one), keys.primaries(one)) for one in (A, B)] == [(0, 0), (0, 0)]
