"""Bounds of the resources of one client connection (T11, docs/limits.md)."""

from dataclasses import dataclass

IN_FLIGHT_MAX = 4096
REQUEST_BYTES_MAX = 4 << 20
UNREAD_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The bounds of a server's connections.

    Attributes:
        in_flight: requests in the node.
        request_bytes: bytes of requests that await their answer.
        unread_bytes: bytes of answers that the client has not read.
    """

    in_flight: int = IN_FLIGHT_MAX
    request_bytes: int = REQUEST_BYTES_MAX
    unread_bytes: int = UNREAD_BYTES_MAX
