"""Free ports, for tests, campaigns and benchmarks."""

import contextlib
import random
import socket

_LEAST, _MOST = 11_000, 16_000
"""Range below those of outgoing connections, and of ports that local clusters choose.

A connection to a port of the former can be its own peer, and then occupies the port. A test that
states ports would otherwise find them taken by a member of the same cluster.
"""
_random = random.SystemRandom()  # several processes look for ports at the same time
_given: set[int] = set()


def free_port(successive: int = 1) -> int:
    """Return the first of some successive ports that are free, and that no earlier call returned.

    Args:
        successive: number of the ports.
    """
    while True:
        first = _random.randrange(_LEAST, _MOST)
        ports = range(first, first + successive)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return first


def free_ports(count: int) -> list[int]:
    """Return ports that are free, and that no earlier call returned."""
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
