"""Drive a simulated cluster step by step: send requests to members and collect the answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.node import Node
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_sim.world import World

SELECT, INSERT, REPLACE, UPDATE, DELETE, UPSERT = 1, 2, 3, 4, 5, 9
BEGIN, COMMIT, ROLLBACK = 14, 15, 16
LINEARIZABLE = 4


class Driven:
    """A world of `voters` members whose first member leads; `settings` apply to all members."""

    def __init__(self, voters: int, seed: int = 1, **settings: object) -> None:
        self.world = World(seed)
        self.answers: dict[int, fx.Answer] = {}
        self._sync = 1000
        self.world.on_story_answer = self._on_answer
        self.world.bootstrap(voters, **settings)
        self.shells = list(self.world.shells.values())

    def _on_answer(self, answer: fx.Answer) -> None:
        assert answer.sync not in self.answers, "K1: a request is answered exactly once"
        self.answers[answer.sync] = answer

    def leader(self) -> Shell:
        leader = self.world.leader()
        assert leader is not None
        return leader

    def followers(self) -> list[Shell]:
        leader = self.leader()
        return [shell for shell in self.world.alive() if shell is not leader]

    def send(
        self,
        shell: Shell,
        kind: int,
        body: bytes = b"",
        *,
        stream: int = 0,
        key: object = None,
        session: int = 100,
        user: str = "admin",
    ) -> int:
        """Send a request to `shell` and return its number; the answer arrives in `answers`."""
        sync = self.next_sync()
        shell.step([fx.Request(session, sync, kind, body, stream, user, key)])
        return sync

    def next_sync(self) -> int:
        """Return the number of a new request."""
        self._sync += 1
        return self._sync

    def ask(self, shell: Shell, kind: int, body: bytes = b"", **more: Any) -> fx.Answer:
        """Send a request and run the world until it is answered, at most ten seconds."""
        sync = self.send(shell, kind, body, **more)
        self.run(10_000, lambda: sync in self.answers)
        return self.answers[sync]

    def run(self, milliseconds: float, done: Any = None) -> bool:
        return self.world.run_for(int(milliseconds * MILLISECOND), done)

    def mute(self, sender: Shell, *receivers: Shell) -> None:
        """Hold back all messages from `sender` to each receiver."""
        for receiver in receivers:
            self.world.network.cut(sender, receiver)

    def depose_and_return(self, leader: Shell) -> None:
        """Let another member lead while `leader` is cut off, and `leader` again afterwards.

        Its log is truncated meanwhile to that of the other leader.
        """
        assert self.run(10_000, lambda: self.world.leader() not in (None, leader))
        self.world.network.heal()
        tail, last = node_of(leader).context.tail, node_of(self.leader()).context.tail
        assert self.run(10_000, lambda: tail.last_index == last.last_index)
        self.world.command(self.leader(), "switchover", target=leader.uuid)
        assert self.run(10_000, lambda: self.world.leader() is leader)

    def separate(self, shell: Shell, *others: Shell) -> None:
        """Hold back all messages between `shell` and each of the others."""
        for other in others:
            self.mute(shell, other)
            self.mute(other, shell)

    def cut_off(self, shell: Shell) -> None:
        """Hold back all messages to and from `shell`."""
        self.separate(shell, *(other for other in self.world.alive() if other is not shell))


def put(key: int, value: str) -> bytes:
    return build_body(SPACE, tuple=[key, value, 0])


def get(key: int, isolation: int = 0) -> bytes:
    return build_body(SPACE, key=[key], limit=1, isolation=isolation)


def node_of(shell: Shell) -> Node:
    assert shell.node is not None
    return shell.node


@contextmanager
def without_acks(leader: Shell) -> Iterator[None]:
    """Let a leader count no ACK of its followers, which answer its heartbeats."""
    relays = node_of(leader).replica.relays
    on_ack = relays.on_ack
    relays.on_ack = lambda uuid, message: False  # type: ignore[method-assign]  # no ACK counts
    yield
    relays.on_ack = on_ack  # type: ignore[method-assign]  # restored
