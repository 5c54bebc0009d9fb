"""The simulated network: TCP connections between machines.

A connection has two ends. The data of one end arrives at the other in order, after random delays. A
cut holds everything back in one direction until it heals, as the retransmissions of TCP do. Each
end closes on its own. The other one notices when a packet about it arrives, or after a silence.

    packet              to                        result
    ------------------  ------------------------  --------------------------------------------------
    the first packet    a process that runs       it is accepted; the process sends its greeting
                        no process                refused, once the answer arrives
                        a machine without power   nothing: the attempt times out
    data                an open end               received by the process
                        an end that is gone       the answer closes the sender's end
                        a machine without power   nothing, until the machine has power again

The kernel accepts connections and closes those of a killed process. Everything else waits until the
event loop of the process is free.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from qsync_sim.timeline import Timeline

MILLISECOND = 1_000_000
LATENCY_NS = 200_000
"""Latency of a network without faults."""
RETRANSMISSION_NS = 200 * MILLISECOND
"""Pause before a lost packet is sent again; all that follows it waits."""
LATE_NS = 100 * MILLISECOND
"""Delay of a packet that was lost, at least half of a retransmission."""


class NetworkHost(Protocol):
    """A member on its machine, as the network uses it (shell.py)."""

    name: str
    uuid: str
    has_power: bool
    lag_ns: int

    @property
    def is_alive(self) -> bool: ...
    @property
    def peers(self) -> "NetworkProcess | None": ...

    def run(self, callback: Callable[[], None]) -> None: ...
    def run_in(self, peers: object, callback: Callable[[], None]) -> None: ...


class NetworkProcess(Protocol):
    """A process run, as its connections use it (peers.py)."""

    @property
    def shell(self) -> NetworkHost: ...

    def accept(self, end: "ConnectionEnd") -> None: ...


class ConnectionEnd:
    """One end of a connection.

    Attributes:
        peers: the process of this end.
        other: the other end.
        is_open: whether this end considers the connection open.
        on_data: receives an item that has arrived.
        on_closed: is called once, when the connection is closed by the other end or breaks.
        number: number of the link in the core, 0 before the handshake has ended.
    """

    __slots__ = ("arrives_ns", "held", "is_open", "number", "on_closed", "on_data", "other",
                 "peers")  # fmt: skip

    def __init__(self, peers: NetworkProcess) -> None:
        self.peers = peers
        self.other: ConnectionEnd
        self.is_open = True
        self.on_data: Callable[[Any], None] = _ignore
        self.on_closed: Callable[[], None] = _nothing
        self.number = 0
        self.arrives_ns = 0
        self.held: list[Callable[[], None]] = []

    @property
    def shell(self) -> NetworkHost:
        return self.peers.shell


def _ignore(item: object) -> None:
    """Receive data before the process has accepted the connection."""


def _nothing() -> None:
    """Be closed before the process has accepted the connection."""


class Network:
    """All machines and connections, and the directions that are cut."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.hosts: dict[str, NetworkHost] = {}  # by the UUID of their instance
        self.ends: dict[ConnectionEnd, None] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.latency_ns = LATENCY_NS
        self.loss = 0.0  # probability that a packet is lost
        self.healed_ns = 0  # when cuts ended last
        self._silent: dict[
            NetworkHost, list[ConnectionEnd]
        ] = {}  # ends whose machine has lost power, by machine

        self._by_address: dict[str, NetworkHost] = {}
        self._links = 0

    # --- addresses ----------------------------------------------------------------------------

    def add(self, machine: NetworkHost) -> None:
        """Connect a machine to the network."""
        self.hosts[machine.uuid] = machine
        self._by_address[self.address_of(machine)] = machine

    def address_of(self, machine: NetworkHost) -> str:
        """Return the address at which the machine's process listens."""
        return f"{machine.name}:1"

    def at_address(self, address: str) -> NetworkHost:
        """Return the machine with an address."""
        return self._by_address[address]

    def next_link(self) -> int:
        """Return an unused number for a link."""
        self._links += 1
        return self._links

    # --- connecting ---------------------------------------------------------------------------

    def dial(
        self, peers: NetworkProcess, target: NetworkHost, on_refused: Callable[[], None]
    ) -> ConnectionEnd:
        """Open a connection from a process to a machine.

        Args:
            peers: the process.
            target: the machine.
            on_refused: is called when no process listens there.

        Returns:
            The opener's end, whose `on_data` receives the greeting first.
        """
        end = ConnectionEnd(peers)
        end.other = ConnectionEnd(peers)  # until a process accepts
        end.other.is_open = False
        end.other.other = end
        self.ends[end] = None
        self._travel(end, target, partial(self._on_first_packet, end, target, on_refused))
        return end

    def _on_first_packet(
        self, end: ConnectionEnd, target: NetworkHost, on_refused: Callable[[], None]
    ) -> None:
        if target.peers is not None:
            other = ConnectionEnd(target.peers)
            other.other, end.other = end, other
            other.arrives_ns = self.timeline.now_ns
            self.ends[other] = None
            if not end.is_open:
                self._answer_gone(other)
                return
            target.run(partial(target.peers.accept, other))
        elif target.has_power and end.is_open:
            self._travel_back(end, target, partial(self._refuse, end, on_refused))

    def _refuse(self, end: ConnectionEnd, on_refused: Callable[[], None]) -> None:
        if end.is_open:
            self._forget(end)
            end.shell.run_in(end.peers, on_refused)

    # --- data ---------------------------------------------------------------------------------

    def send(self, end: ConnectionEnd, item: object) -> None:
        """Send an item from an end to the other one."""
        if end.is_open:
            other = end.other
            self._travel(end, other.shell, partial(self._arrive, other, item), other)

    def _arrive(self, end: ConnectionEnd, item: object) -> None:
        if not end.is_open:
            if end.shell.has_power:
                self._answer_gone(end)
            else:
                self._silent.setdefault(end.shell, []).append(end)
            return
        end.shell.run_in(end.peers, partial(self._receive, end, item))

    @staticmethod
    def _receive(end: ConnectionEnd, item: object) -> None:
        if end.is_open:
            end.on_data(item)

    def close(self, end: ConnectionEnd) -> None:
        """Close an end, and let the other one know."""
        if end.is_open:
            self._forget(end)
            self._answer_gone(end)

    def _answer_gone(self, end: ConnectionEnd) -> None:
        """Send the other end the notice that this one is closed."""
        other = end.other
        self._travel(end, other.shell, partial(self._on_gone, other), other)

    def _on_gone(self, end: ConnectionEnd) -> None:
        # The process reads first what arrived before.
        end.shell.run_in(end.peers, partial(self._lose, end))

    def _lose(self, end: ConnectionEnd) -> None:
        if end.is_open:
            self._forget(end)
            end.on_closed()

    def _forget(self, end: ConnectionEnd) -> None:
        end.is_open = False
        self.ends.pop(end, None)
        end.held.clear()

    def _travel(
        self,
        sender: ConnectionEnd,
        receiver: NetworkHost,
        arrive: Callable[[], None],
        end: ConnectionEnd | None = None,
    ) -> None:
        """Let something arrive, in the order of the connection, unless the direction is cut."""
        end = end or sender.other
        if self.is_cut(sender.shell, receiver):
            end.held.append(partial(self._travel_now, end, arrive, 0))
        else:
            self._travel_now(end, arrive, sender.shell.lag_ns)

    def _travel_back(
        self, end: ConnectionEnd, sender: NetworkHost, arrive: Callable[[], None]
    ) -> None:
        if self.is_cut(sender, end.shell):
            end.held.append(partial(self._travel_now, end, arrive, 0))
        else:
            self._travel_now(end, arrive, 0)

    def _travel_now(self, end: ConnectionEnd, arrive: Callable[[], None], lag_ns: int) -> None:
        at_ns = max(self.timeline.now_ns + lag_ns + self._delay(), end.arrives_ns + 1)
        end.arrives_ns = at_ns
        self.timeline.at(at_ns, arrive)

    def _delay(self) -> int:
        rng = self.timeline.rng
        delay = int(self.latency_ns * (0.5 + rng.random()))
        if rng.random() < 0.01:
            delay += rng.randrange(20 * MILLISECOND)
        pause = RETRANSMISSION_NS
        while self.loss and rng.random() < self.loss:
            self.timeline.count("packets lost")
            delay += pause
            pause *= 2
        return delay

    def latest_arrival_ns(self) -> int:
        """Return when the last packet under way arrives, 0 if no connection is open.

        A lost packet is sent again after growing pauses, and delays all that follows it. So it
        arrives long after the network has ceased to lose packets.
        """
        return max((max(end.arrives_ns, end.other.arrives_ns) for end in self.ends), default=0)

    # --- faults -------------------------------------------------------------------------------

    def is_cut(self, sender: NetworkHost, receiver: NetworkHost) -> bool:
        return (sender.uuid, receiver.uuid) in self.cuts

    def cut(self, sender: NetworkHost, receiver: NetworkHost) -> None:
        self.cuts.add((sender.uuid, receiver.uuid))

    def heal(self) -> None:
        """End all cuts; held packets arrive in order if their connection still exists."""
        self.cuts.clear()
        self.healed_ns = self.timeline.now_ns
        for end in [one for pair in list(self.ends) for one in (pair, pair.other)]:
            held, end.held = end.held, []
            for arrive in held:
                arrive()

    def break_end(self, end: ConnectionEnd) -> None:
        """Break a connection. Each end notices at its own time, and data in flight is lost."""
        for one, times in ((end, 1), (end.other, 6)):
            if one.is_open:
                self._forget(one)
                gone = partial(one.shell.run_in, one.peers, one.on_closed)
                self.timeline.after(self._delay() * times, gone)

    def break_some(self, probability: float) -> None:
        for end in list(self.ends):
            if end.is_open and end.number and self.timeline.rng.random() < probability / 2:
                self.break_end(end)

    def break_cut_off(self) -> None:
        """Break all connections with a cut, as TCP does after its timeout."""
        for end in list(self.ends):
            if end.is_open and end.other.is_open:
                first, second = end.shell, end.other.shell
                if self.is_cut(first, second) or self.is_cut(second, first):
                    self.break_end(end)

    def on_stopped(self, peers: NetworkProcess, has_power: bool) -> None:
        """Close the ends of a process that has ended; a machine without power sends nothing."""
        for end in [one for one in self.ends if one.peers is peers]:
            self._forget(end)
            if has_power:
                self._answer_gone(end)
                continue
            end.other.held.clear()  # the machine would have sent them again
            if end.other.is_open:
                self._silent.setdefault(end.shell, []).append(end)

    def on_power(self, shell: NetworkHost) -> None:
        """Answer retransmitted data to connections from before the machine lost power."""
        for end in self._silent.pop(shell, []):
            delay_ns = self.timeline.rng.randrange(1000 * MILLISECOND)
            self.timeline.after(delay_ns, partial(self._answer_gone, end))
