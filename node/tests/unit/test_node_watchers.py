"""Changes of watched keys reach each client that watches them."""

import io
import itertools
from types import SimpleNamespace
from typing import cast

from qsync_node.node import Node
from qsync_node.server.logs import Log
from qsync_node.server.sessions import ClientSocket, Sessions
from qsync_node.server.watchers import TURNS_PER_CHECK, Watchers
from qsync_node.server.watches import Watches

KEY = "box.schema"


class WatchingClient:
    """A client that counts its events."""

    def __init__(self, bench: "WatchedMember", number: int) -> None:
        self.watches = Watches()
        self.events = 0
        self._bench = bench
        bench.sessions.by_number[number] = self.socket

    @property
    def socket(self) -> ClientSocket:
        return cast(ClientSocket, self)

    def notify(self, key: str, value: bytes | None) -> None:
        self.watches.event(key, value, 1)
        self.events += 1

    def watch(self) -> None:
        """Send a WATCH: the first one, or the acknowledgement of an event."""
        is_first = KEY not in self.watches
        self.watches.watch(KEY, 1)
        self._bench.watchers.watch(self.socket, KEY, is_first=is_first)


class WatchedMember:
    """A member whose schema changes."""

    def __init__(self) -> None:
        self.node = SimpleNamespace(
            schema_version=1,
            context=SimpleNamespace(has_origin=True),
            replica=SimpleNamespace(
                election=SimpleNamespace(role=SimpleNamespace(value="follower"))
            ),
        )
        log = Log("n1", "error", io.StringIO())
        self.sessions = Sessions(itertools.count(1), 100, lambda number: None, lambda: None, log)
        status = {"replica_id": 1, "uuid": "u", "replicaset_uuid": "r", "is_writable": False}
        status |= {"term": 1, "leader_id": 0, "leader_uuid": "", "leader_name": ""}
        self.watchers = Watchers(cast(Node, self.node), lambda: status, self.sessions)

    def change(self) -> None:
        self.node.schema_version += 1

    def compare(self) -> None:
        """Let the member compare the values with the last ones."""
        self.watchers.notify(TURNS_PER_CHECK, 0)


def test_change_before_an_acknowledgement_is_sent_with_it() -> None:
    bench = WatchedMember()
    client = WatchingClient(bench, 1)
    client.watch()
    bench.change()
    bench.compare()
    assert client.events == 1
    client.watch()
    assert client.events == 2
    client.watch()
    bench.compare()
    assert client.events == 2


def test_change_reaches_a_client_although_another_one_begins_to_watch() -> None:
    bench = WatchedMember()
    client, other = WatchingClient(bench, 1), WatchingClient(bench, 2)
    client.watch()
    client.watch()
    bench.change()
    other.watch()
    bench.compare()
    assert client.events == 2
    other.watch()
    bench.compare()
    assert other.events == 1, "it knows the value"


def test_value_that_has_returned_is_not_sent_twice() -> None:
    bench = WatchedMember()
    client = WatchingClient(bench, 1)
    client.watch()
    bench.change()
    bench.node.schema_version = 1
    client.watch()
    bench.compare()
    assert client.events == 1


def test_new_leadership_is_reported_in_its_turn() -> None:
    """Clients write to the member that they consider the leader."""
    bench = WatchedMember()
    client = WatchingClient(bench, 1)
    client.watch()
    client.watch()
    bench.change()
    bench.watchers.notify(1, 0)
    assert client.events == 1, "this turn compares nothing"
    bench.watchers.notify(1, 1)
    assert client.events == 2
