"""The simulated network: each connection is ordered, independently of the others.

Every instance keeps one connection open to every other one it knows, so there are two between a
pair, one opened by each end. Messages of one connection arrive in order after random delays; a cut
holds them back in one direction, until it heals or the connection breaks and loses the messages in
flight. The two ends notice a break at different times.
"""

from typing import TYPE_CHECKING, Any

from qsync_node.core import effects as fx
from qsync_node.core import messages as msg

if TYPE_CHECKING:
    from qsync_sim.shell import Shell
    from qsync_sim.world import World

MILLISECOND = 1_000_000


class Connection:
    """A connection from `ends[0]` to `ends[1]`; `numbers` are the link numbers of both ends."""

    def __init__(self, opener: "Shell", other: "Shell", numbers: tuple[int, int]) -> None:
        self.ends = (opener, other)
        self.lives = (opener.life, other.life)
        self.numbers = numbers
        self.is_up = True
        self.arrives_ns = [0, 0]
        self.held: list[list[Any]] = [[], []]

    def side_of(self, shell: "Shell") -> int:
        return 0 if self.ends[0] is shell else 1


class Network:
    """All connections and the pairs that cannot communicate."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.by_number: dict[tuple[str, int], Connection] = {}
        self.open: dict[tuple[str, str], Connection] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.latency_ns = 200_000
        self._next = 1
        self.wire_check = 0

    # --- connecting ---------------------------------------------------------------------------

    def connect_all(self) -> None:
        """Connect members that have no connection, as their retries do."""
        shells = [shell for shell in self.world.shells.values() if shell.is_alive]
        for opener in shells:
            for other in shells:
                if opener is not other and (opener.uuid, other.uuid) not in self.open:
                    if not self.is_cut(opener, other) and not self.is_cut(other, opener):
                        self._connect(opener, other)

    def is_cut(self, sender: "Shell", receiver: "Shell") -> bool:
        return (sender.uuid, receiver.uuid) in self.cuts

    def _connect(self, opener: "Shell", other: "Shell") -> None:
        numbers = (self._next, self._next + 1)
        self._next += 2
        connection = Connection(opener, other, numbers)
        self.open[opener.uuid, other.uuid] = connection
        self.by_number[opener.uuid, numbers[0]] = connection
        self.by_number[other.uuid, numbers[1]] = connection
        for side in (1, 0):
            peer = connection.ends[1 - side]
            up = fx.LinkUp(numbers[side], peer.uuid, side == 0, 1)
            self._deliver(connection, side, up, self._delay())

    def _delay(self) -> int:
        rng = self.world.rng
        delay = int(self.latency_ns * (0.5 + rng.random()))
        if rng.random() < 0.01:
            delay += rng.randrange(20 * MILLISECOND)
        return delay

    # --- messages -----------------------------------------------------------------------------

    def send(self, shell: "Shell", number: int, message: Any) -> None:
        connection = self.by_number.get((shell.uuid, number))
        if connection is None or not connection.is_up:
            return
        self.wire_check += 1
        if self.wire_check % 16 == 0:
            message = msg.decode(msg.encode(message))
        side = 1 - connection.side_of(shell)
        self.world.onlooker.on_send(shell, connection.ends[side].uuid, message)
        if self.is_cut(shell, connection.ends[side]):
            connection.held[side].append(message)
            return
        item = fx.Received(connection.numbers[side], message)
        self._deliver(connection, side, item, self._delay())

    def _deliver(self, connection: Connection, side: int, item: Any, delay: int) -> None:
        at = max(self.world.now_ns + delay, connection.arrives_ns[side] + 1)
        connection.arrives_ns[side] = at
        shell, life = connection.ends[side], connection.lives[side]

        def arrive() -> None:
            if shell.life == life and connection.is_up:
                shell.step([item])

        self.world.at(at, arrive)

    # --- faults -------------------------------------------------------------------------------

    def cut(self, sender: "Shell", receiver: "Shell") -> None:
        self.cuts.add((sender.uuid, receiver.uuid))

    def heal(self) -> None:
        """End all cuts; held messages arrive in order if their connection still exists."""
        self.cuts.clear()
        for connection in list(self.open.values()):
            for side in (0, 1):
                held, connection.held[side] = connection.held[side], []
                for message in held:
                    item = fx.Received(connection.numbers[side], message)
                    self._deliver(connection, side, item, self._delay())

    def break_link(self, shell: "Shell", number: int) -> None:
        connection = self.by_number.get((shell.uuid, number))
        if connection is not None:
            self.break_connection(connection)

    def break_connection(self, connection: Connection) -> None:
        """Break a connection. Each end notices at its own time, and messages in flight are lost."""
        if not connection.is_up:
            return
        connection.is_up = False
        self.open.pop((connection.ends[0].uuid, connection.ends[1].uuid), None)
        for side in (0, 1):
            shell, life = connection.ends[side], connection.lives[side]
            number = connection.numbers[side]
            self.by_number.pop((shell.uuid, number), None)
            self._tell(shell, life, number, self._delay() * (1 + 5 * side))

    def _tell(self, shell: "Shell", life: int, number: int, delay: int) -> None:
        def gone() -> None:
            if shell.life == life:
                shell.step([fx.LinkDown(number)])

        self.world.after(delay, gone)

    def break_some(self, probability: float) -> None:
        for connection in list(self.open.values()):
            if self.world.rng.random() < probability:
                self.break_connection(connection)

    def break_cut_off(self) -> None:
        """Break all connections with a cut, as TCP does after its timeout."""
        for connection in list(self.open.values()):
            first, second = connection.ends
            if self.is_cut(first, second) or self.is_cut(second, first):
                self.break_connection(connection)

    def on_stopped(self, shell: "Shell", is_silent: bool) -> None:
        """Close the connections of a killed process; those of a dead machine remain for a time."""
        for connection in list(self.open.values()):
            if shell not in connection.ends:
                continue
            if is_silent and self.world.rng.random() < 0.5:
                self._break_later(connection)
            else:
                self.break_connection(connection)

    def _break_later(self, connection: Connection) -> None:
        delay = self.world.rng.randrange(3000 * MILLISECOND)
        self.world.after(delay, lambda: self.break_connection(connection))
