"""Clients that send many reads at once and read the answers late, slowly, or in the end only.

Their requests reach the members as bytes, through the session code of production (server.py).

  T11  A member holds a bounded number of bytes for each of them.
  K1   Each request of a connection that stays open is answered exactly once.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from qsync_client.protocol.frame import FrameDecoder, encode_request
from qsync_client.protocol.greeting import GREETING_BYTES
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim.cluster import Cluster
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.server import Socket
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation
from qsync_sim.workloads.base import body_of

if TYPE_CHECKING:
    from qsync_node.server.session import ServerSession

PART = 0.15
"""The part of the schedules that have such clients."""
CLIENTS = 2
BURST = (1, 120)
PAUSES_NS = (20 * MILLISECOND, 1500 * MILLISECOND)
READ_BYTES = (1, 40, 400, 4_000)
SELECT = 1
ANSWERED_NS = 40 * SECOND
"""Time for the answers to all requests at the end: a read waits for its deadline at most."""
CHUNK = 2_048
"""Bytes that one packet of the network carries."""


def start(world: Cluster) -> "list[SlowReader]":
    """Let slow clients begin, if the schedule has any."""
    rng = Random(f"slow readers of {world.seed}")
    if rng.random() >= PART:
        return []
    world.count("slow readers")
    world.has_sockets = True
    for shell in world.alive():
        shell.open_sockets()
    return [SlowReader(world, Random(rng.random())) for _ in range(CLIENTS)]


class SlowReader:
    """One client."""

    def __init__(self, world: Cluster, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._shell: Shell | None = None
        self._incarnation = 0
        self._socket: Socket | None = None
        self._session: ServerSession | None = None
        self._decoder = FrameDecoder(1 << 30)
        self._greeting = GREETING_BYTES  # bytes of it that were not read yet
        self._unsent = b""
        self._is_sending = False
        self._sync = 0
        self._waiting: set[int] = set()
        self.is_stopped = False
        self._later(self._burst)

    def _later(self, action: Callable[[], None]) -> None:
        self._world.after(self._rng.randrange(*PAUSES_NS), action)

    # --- connection ---------------------------------------------------------------------------

    def _is_connected(self) -> bool:
        shell = self._shell
        return (
            shell is not None
            and self._socket is not None
            and shell.incarnation == self._incarnation
        )

    def _connect(self) -> bool:
        alive = [shell for shell in self._world.alive() if shell.server is not None]
        if not alive:
            return False
        shell = self._rng.choice(alive)
        assert shell.server is not None
        self._shell, self._incarnation = shell, shell.incarnation
        self._decoder, self._greeting = FrameDecoder(1 << 30), GREETING_BYTES
        self._unsent, self._waiting = b"", set()
        self._is_sending = False
        self._socket = Socket(self._send, self._on_closed)
        self._session = shell.server.connect(self._socket, "admin")
        self._world.count("slow readers connected")
        return True

    def _on_closed(self) -> None:
        self._socket = None

    # --- requests -----------------------------------------------------------------------------

    def _burst(self) -> None:
        if self.is_stopped:
            return
        if self._is_connected() or self._connect():
            for _ in range(self._rng.randint(*BURST)):
                self._unsent += self._request()
            self._send()
            self._world.after(
                self._rng.randrange(*PAUSES_NS), partial(self._read, self._incarnation)
            )
        self._later(self._burst)

    def _request(self) -> bytes:
        self._sync += 1
        self._waiting.add(self._sync)
        space = self._rng.choice([SPACE, ASYNC_SPACE])
        body = body_of(space=space, index=0, limit=self._rng.choice([1, 3, 10]), offset=0,
                       iterator=2, key=[])  # fmt: skip
        packet: bytes = encode_request(SELECT, self._sync, body)
        return packet

    def _send(self) -> None:
        """Send the next bytes, as long as the server reads them."""
        shell, socket = self._shell, self._socket
        if not self._unsent or self._is_sending or not self._is_connected():
            return
        assert shell is not None
        if socket is None or not socket.is_reading:
            self._world.count("slow readers held back")
            return
        part, self._unsent = self._unsent[:CHUNK], self._unsent[CHUNK:]
        self._is_sending = True
        incarnation = self._incarnation

        def arrive() -> None:
            if shell.incarnation == incarnation and self._socket is socket:
                shell.run(partial(self._received_by, socket, part))

        self._world.after(self._rng.randrange(50_000, 400_000), arrive)

    def _received_by(self, socket: Socket, part: bytes) -> None:
        self._is_sending = False
        if socket.protocol is not None and not socket.is_closing():
            socket.protocol.data_received(part)
            self._send()

    # --- answers ------------------------------------------------------------------------------

    def _read(self, incarnation: int) -> None:
        """Read some of the answers, and more of them later."""
        if not self._is_connected() or incarnation != self._incarnation:
            return
        self._take(self._rng.choice(READ_BYTES))
        if self._rng.random() < 0.9:
            self._world.after(
                self._rng.randrange(5 * MILLISECOND), partial(self._read, incarnation)
            )

    def _take(self, most: int) -> None:
        shell, socket = self._shell, self._socket
        assert shell is not None
        assert socket is not None
        shell.run(partial(self._take_from, socket, most))

    def _take_from(self, socket: Socket, most: int) -> None:
        data = socket.read(most)
        skipped = min(self._greeting, len(data))
        self._greeting -= skipped
        for _, sync, _, _ in self._decoder.feed(data[skipped:]):
            if sync not in self._waiting:
                raise InvariantViolation(f"K1: request {sync} of a slow reader is answered twice")
            self._waiting.remove(sync)
            self._world.count("answers to slow readers")

    def finish(self) -> None:
        """Read everything, and check that each request is answered."""
        self.is_stopped = True
        if not self._is_connected():
            return

        def is_done() -> bool:
            if self._is_connected():
                self._take(1 << 20)
            return not self._waiting or not self._is_connected()

        if not self._world.run_for(ANSWERED_NS, is_done):
            raise InvariantViolation(
                f"K1: {len(self._waiting)} requests of a slow reader have no answer"
            )
