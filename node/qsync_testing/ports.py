"""Free ports, for tests, campaigns and benchmarks."""

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_LEAST, _MOST = 11_000, 16_000
"""Range below those of outgoing connections, and of ports that local clusters choose.

A connection to a port of the former can be its own peer, and then occupies the port. A test that
states ports would otherwise find them taken by a member of the same cluster.
"""
_random = random.SystemRandom()  # several processes look for ports at the same time
_given: set[int] = set()
_claims: list[int] = []  # the descriptor of the file in which processes claim ports


def free_port(successive: int = 1) -> int:
    """Return the first of some successive ports that are free.

    No earlier call has returned them, neither of this process nor of another one that runs.

    Args:
        successive: number of the ports.
    """
    while True:
        first = _random.randrange(_LEAST, _MOST)
        ports = range(first, first + successive)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)) and _claim(ports):
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


def _claim(ports: range) -> bool:
    """Lock ports until this process ends, and return whether no other process has them.

    Between this call and the start of its server, a port is free: another process may find it, too.
    """
    if not _claims:
        path = Path(tempfile.gettempdir()) / f"qsync-ports-{os.getuid()}"
        _claims.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.lockf(_claims[0], fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
    except OSError:
        return False
    return True
