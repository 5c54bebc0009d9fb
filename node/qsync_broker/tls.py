"""TLS of a broker: for its clients, between brokers, and to the cluster's members.

Brokers authenticate twice, as members do: with a certificate that names the cluster, and with the
secret that they share (`handshake.py`). Clients need no certificate; they send a token.

    connection               presents        accepts
    ----------------------   -------------   ---------------------------------------------------
    from a client            the server's    clients with or without a certificate
    between two brokers      both            certificates of `ca` with a name of the cluster
    to a broker's service    the server's    certificates of `ca` with a name of the cluster
    to the cluster           both            certificates of `ca` with a name of the cluster

Changed files are reloaded without a restart. New connections use the new certificate, and open
connections keep the old one.
"""

import asyncio
import logging
import ssl

import grpc

from qsync_node.server.config import ConfigError as UnusableFiles
from qsync_node.server.tls import RELOAD_CHECK_S, Certificates
from qsync_node.server.tlsconfig import TlsConfig

log = logging.getLogger("qsync.broker")

ALPN = ["http/1.1", "h2"]
"""In this order: a client that offers both, as curl does, wants HTTP and not gRPC."""


class BrokerTls:
    """The contexts of one broker.

    Attributes:
        serving: context for clients.
        accepting: context for other brokers that connect.
        calling: context for connections to other brokers and to members.
        generation: number that changes with the files.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Load the files.

        Raises:
            ValueError: they cannot be used.
        """
        self._config = config
        self.generation = 0
        try:
            self._certificates = Certificates(config)
        except UnusableFiles as error:
            raise ValueError(str(error)) from None
        self.accepting = self._certificates.listening
        self.accepting.verify_mode = ssl.CERT_REQUIRED
        self.calling = self._certificates.dialling
        self.serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.serving.minimum_version = ssl.TLSVersion.TLSv1_2
        self.serving.set_alpn_protocols(ALPN)
        self.serving.load_cert_chain(config.cert, config.key)

    def is_broker(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the other end presented a certificate of the cluster."""
        return self._certificates.is_member(transport)

    def credentials(self) -> tuple[grpc.ChannelCredentials, list[tuple[str, str]]]:
        """Return credentials and options of channels to other brokers.

        Addresses change, so that the name of the cluster is compared instead of the host.
        """
        names = sorted(name for name in self._certificates.names if "*" not in name)
        roots = self._config.ca.read_bytes()
        options = [("grpc.ssl_target_name_override", names[0])] if names else []
        return grpc.ssl_channel_credentials(roots), options

    async def keep_current(self) -> None:
        """Reload changed files until the task is cancelled."""
        while True:
            await asyncio.sleep(RELOAD_CHECK_S)
            self.reload()

    def reload(self) -> None:
        """Reload changed files. Unusable ones are reported, and the earlier ones stay in use."""
        try:
            if not self._certificates.reload():
                return
        except UnusableFiles as error:
            log.error("renewed certificates cannot be used: %s", error)
            return
        self.serving.load_cert_chain(self._config.cert, self._config.key)
        self.generation += 1
        log.info("renewed certificates are in use")
