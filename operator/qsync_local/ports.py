"""Free ports for members, chosen once and kept.

Pages have a range of their own, so that no page has a port that a manifest assigns to a member. The
ports lie below the range of ephemeral ports, so no outgoing connection takes the port of a
member that restarts.
"""

import random
import socket
from collections.abc import Container

FIRST_PORT = 20000
LAST_PORT = 31999
PAGE_PORTS = (18000, 18999)
HOST = "127.0.0.1"


class NoFreePort(Exception):  # noqa: N818  # shown to the user as it is
    """No port is available; the text states the ports and the reason."""


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def kept_or_new(port: int, taken: Container[int]) -> int:
    """Return the same port, or a new one outside `taken` if another process uses it.

    Raises:
        NoFreePort: none was found.
    """
    return port if port and is_free(port) else choose_port(taken)


def choose_port(taken: Container[int], between: tuple[int, int] = (FIRST_PORT, LAST_PORT)) -> int:
    """Return a free port outside `taken`.

    Raises:
        NoFreePort: none was found.
    """
    for _ in range(1000):
        port = random.randint(*between)
        if port not in taken and is_free(port):
            return port
    first, last = between
    raise NoFreePort(f"all ports between {first} and {last} are in use: stop another cluster")
