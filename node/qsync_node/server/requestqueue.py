"""The requests of one client connection and their bytes, without input and output (data path).

    state      event                                                 next state
    WAITING    the budget permits it, and the node receives it       RUNNING
    WAITING    the server answers it without the node                gone
    RUNNING    the node answers it                                   gone
    RUNNING    the node returns it: the reads of a turn have a       RETURNED
               budget
    RETURNED   a later turn: the node receives it again              RUNNING

Their bytes count against the budget of all connections until they are gone.
"""

from collections import deque
from time import monotonic_ns

from qsync_client.protocol.constants import Key
from qsync_client.protocol.frame import Frame
from qsync_node.consensus import effects as fx
from qsync_node.server.admission import RequestBytes
from qsync_node.server.bounds import ConnectionBounds

REQUEST_OVERHEAD_BYTES = 256
_STREAM, _IDEMPOTENCY = int(Key.STREAM_ID), int(Key.IDEMPOTENCY)
_NIL_KEY = ()
"""Stands for an idempotency key that is nil, which is as invalid: None is that of no key."""


class RequestQueue:
    """The requests of one connection.

    Attributes:
        waiting: packets in their order.
        returned: requests that the node has returned.
        running: requests in the node, also returned ones, by the number passed to it.
        size_bytes: size of all of them.
    """

    __slots__ = (
        "_begun",
        "_bounds",
        "_common",
        "_next",
        "_received_ns",
        "returned",
        "running",
        "size_bytes",
        "waiting",
    )

    def __init__(self, common: RequestBytes, bounds: ConnectionBounds) -> None:
        """Begin without requests.

        Args:
            common: the budget of all connections.
            bounds: the bounds of this one.
        """
        self._bounds = bounds
        self.waiting: deque[Frame] = deque()
        self.returned: deque[fx.Request] = deque()
        self.running: dict[int, fx.Request] = {}
        self.size_bytes = 0
        self._common = common
        # The client's number of each running request, and when the node received it first.
        self._begun: dict[int, tuple[int, int]] = {}
        self._next = 1
        self._received_ns = 0  # of the newest packets; older ones wait only if a budget is used up

    def _count(self, size: int) -> None:
        self.size_bytes += size
        self._common.add(size)

    def add(self, frames: list[Frame]) -> None:
        """Queue received packets."""
        self._received_ns = monotonic_ns()
        self.waiting.extend(frames)
        self._count(sum(len(frame[3]) + REQUEST_OVERHEAD_BYTES for frame in frames))

    def run(self, session: int, user: str, frame: Frame) -> fx.Request:
        """Return the request of a packet for the node."""
        kind, sync, header, body = frame
        number = self._next
        self._next += 1
        key = header.get(_IDEMPOTENCY)
        if key is None and _IDEMPOTENCY in header:
            key = _NIL_KEY
        request = fx.Request(session, number, kind, body, header.get(_STREAM, 0), user, key)
        self.running[number] = request
        self._begun[number] = (sync, self._received_ns)
        return request

    def resize(self, received: int, running: int) -> None:
        """Count the body of a request that the node receives in another form than its packet.

        Args:
            received: size of the packet's body in bytes.
            running: size of the request's body, which counts until the answer.
        """
        self._count(running - received)

    def drop(self, frame: Frame) -> None:
        """Stop counting a packet that the node does not receive."""
        self._count(-len(frame[3]) - REQUEST_OVERHEAD_BYTES)

    def finish(self, number: int) -> tuple[fx.Request, int, int]:
        """Remove an answered request.

        Returns:
            the request, the client's number of it, and when the node received it (nanoseconds).
        """
        request = self.running.pop(number)
        self._count(-len(request.body) - REQUEST_OVERHEAD_BYTES)
        sync, begun_ns = self._begun.pop(number)
        return request, sync, begun_ns

    def put_back(self, number: int) -> None:
        """Note that the node has returned a request."""
        self.returned.append(self.running[number])

    def drop_waiting(self) -> None:
        """Remove all packets that wait."""
        for frame in self.waiting:
            self.drop(frame)
        self.waiting.clear()

    def clear(self) -> None:
        """Remove everything: the connection is lost."""
        self.waiting.clear()
        self.returned.clear()
        self._count(-self.size_bytes)

    def is_full(self) -> bool:
        """Return whether no further request may run."""
        return len(self.running) >= self._bounds.in_flight

    def has_room(self) -> bool:
        """Return whether the socket may be read again: half of the budget must be free."""
        return (
            not self.waiting
            and not self.returned
            and len(self.running) < self._bounds.in_flight // 2
            and self.size_bytes < self._bounds.request_bytes // 2
        )
