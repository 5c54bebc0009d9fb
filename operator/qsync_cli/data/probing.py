"""Whether the port of a HOST:PORT speaks the protocol that the options state.

A client retries until its deadline, because a member may be about to start. A wrong authority or a
missing `--ca` never heals, so these mistakes are found first.
"""

import contextlib
import socket
import ssl
from pathlib import Path

from qsync_cli.failure import Failure, FailureReason

GREETING_S = 1.0
CONNECT_S = 2.0


def check_port(address: str, context: ssl.SSLContext | None, ca: Path | None) -> None:
    """Refuse a port that does not fit the options. A port that does not answer is accepted.

    Args:
        address: HOST:PORT of a member.
        context: TLS context of the connection; None for a plain one.
        ca: file of the authority, for messages.

    Raises:
        Failure: the port requires TLS or has none, or its certificate has another authority.
    """
    with contextlib.suppress(OSError):
        if context is None:
            _check_plain(address)
        else:
            _check_tls(address, context, ca)


def _check_plain(address: str) -> None:
    with _connected(address) as connection:
        connection.settimeout(GREETING_S)
        try:
            connection.recv(1)  # the greeting: a member sends first
        except TimeoutError:
            pass
        else:
            return
    # Nothing is sent: the handshake only tests the protocol.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _connected(address) as connection, context.wrap_socket(connection):
        raise Failure(
            FailureReason.REFUSED,
            f"cannot connect to {address}: the port requires TLS; specify --ca FILE, which `qsync "
            "credentials` prints",
        )


def _check_tls(address: str, context: ssl.SSLContext, ca: Path | None) -> None:
    try:
        with _connected(address) as connection, context.wrap_socket(connection):
            return
    except ssl.SSLCertVerificationError as error:
        text = (
            f"cannot connect to {address}: its certificate is not signed by an authority in {ca} "
            f"({error.verify_message}); specify the authority of this cluster with --ca"
        )
        raise Failure(FailureReason.REFUSED, text) from error
    except ssl.SSLError as error:
        text = (
            f"cannot connect to {address}: the port has no TLS; omit --ca, or specify the port "
            "for TLS"
        )
        raise Failure(FailureReason.REFUSED, text) from error


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
