"""TLS between members and for clients.

Members prove themselves twice: with a certificate, and with the cluster's secret (`peers.py`). Each
end of a HELLO wants a certificate that `ca` signed and that names the cluster: it has one of
`tls.names`, or of the names in this node's own certificate. Names are not compared with addresses,
which come and go. Clients need no certificate; they log in as always.

Files that change are read again, without a restart: whoever connects from then on meets the new
certificate, and connections that stand go on with the old one. An authority that is trusted once
stays trusted until the node ends.
"""

import asyncio
import contextlib
import re
import ssl

from qsync_node.certnames import names_in, trust_only
from qsync_node.format.proofs import certificate_binding
from qsync_node.server.config import ConfigError, TlsConfig

RELOAD_CHECK_S = 5.0
HANDSHAKE_TURNS = 4
NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the ssl module does not name
_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Certificates:
    """The contexts of one node: `listening` for who connects to us, `dialling` for our part."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises `ConfigError`."""
        self._config = config
        self.listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.listening.minimum_version = ssl.TLSVersion.TLSv1_2
        self.listening.verify_mode = ssl.CERT_OPTIONAL
        self.dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.dialling.minimum_version = ssl.TLSVersion.TLSv1_2
        self.dialling.check_hostname = False
        self.names: frozenset[str] = frozenset()
        self.binding = b""
        trust_only(self.dialling, lambda: self.names)
        self._read = self._contents()
        self._load()

    def reload(self) -> bool:
        """Whether the files were other ones and are used now. Raises `ConfigError` where they
        cannot be used: what was read before stays in use."""
        found = self._contents()
        if found == self._read:
            return False
        self._read = found
        # A pair that does not belong together must not reach the contexts in use.
        Certificates(self._config)
        self._load()
        return True

    def _contents(self) -> tuple[bytes, ...]:
        config = self._config
        try:
            return tuple(path.read_bytes() for path in (config.cert, config.key, config.ca))
        except OSError as error:
            raise ConfigError(f"the certificates cannot be read: {error}") from error

    def _load(self) -> None:
        try:
            for context in (self.listening, self.dialling):
                context.load_cert_chain(self._config.cert, self._config.key)
                context.load_verify_locations(self._config.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificates cannot be used: {error}") from error
        self.binding = certificate_binding(self._own_der())
        self.names = self._expected_names()

    def is_member(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the other end showed a certificate of the cluster."""
        connection = transport.get_extra_info("ssl_object")
        if connection is None:
            return False
        return bool(names_in(connection.getpeercert()) & self.names)

    def _own_der(self) -> bytes:
        match = _FIRST.search(self._read[0].decode("ascii", "replace"))
        if match is None:
            raise ConfigError(f"tls.cert: {self._config.cert} holds no PEM certificate")
        return ssl.PEM_cert_to_DER_cert(match.group())

    def _expected_names(self) -> frozenset[str]:
        given = frozenset(name.lower() for name in self._config.names)
        found = given or self._own_names()
        if not found:
            raise ConfigError(
                f"tls.cert: {self._config.cert} has no subject alternative name of the cluster;"
                " issue one that has, or set tls.names"
            )
        return found

    def _own_names(self) -> frozenset[str]:
        """The names in our own certificate, by a handshake of this node with itself.

        The ssl module parses only certificates that the other end showed and that it verified, so
        this one is trusted for it, expired or not.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            context.load_verify_locations(self._config.cert)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
            client = context.wrap_bio(to_client, to_server)
            server = self.listening.wrap_bio(to_server, to_client, server_side=True)
            for _ in range(HANDSHAKE_TURNS):
                for end in (client, server):
                    with contextlib.suppress(ssl.SSLWantReadError):
                        end.do_handshake()
            return names_in(client.getpeercert())
        except (OSError, ValueError) as error:
            raise ConfigError(f"tls.cert: {self._config.cert} cannot be read: {error}") from error
