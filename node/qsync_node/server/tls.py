"""TLS between members and for clients.

Members authenticate twice: with a certificate, and with the cluster's secret (`peers.py`). Each end
of a HELLO requires a certificate that `ca` signed and that names the cluster: it has one of
`tls.names`, or of the identifying names in this node's own certificate (`certnames.py`). Names are
not compared with addresses, which change. Clients need no certificate; they log in with a password.

Changed files are reloaded without a restart: new connections use the new certificate, and open
connections keep the old one. A trusted authority stays trusted until the node ends.
"""

import asyncio
import ssl

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from qsync_node.certnames import (
    cluster_names,
    identifying_names,
    names_in,
    subject_names,
    trust_only,
)
from qsync_node.format.proofs import certificate_binding
from qsync_node.server.config import ConfigError
from qsync_node.server.tlsconfig import TlsConfig

RELOAD_CHECK_S = 5.0


class Certificates:
    """The TLS contexts of one node: `listening` for accepted connections, `dialling` for opened."""

    def __init__(self, config: TlsConfig) -> None:
        """Load the files. Raises ConfigError if they are unusable."""
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
        """Return whether changed files were loaded.

        Raises:
            ConfigError: the files are unusable, and the earlier ones stay in use.
        """
        found = self._contents()
        if found == self._read:
            return False
        self._read = found
        # Try new contexts first: a key that does not fit its certificate must not be used.
        Certificates(self._config)
        self._load()
        return True

    def _contents(self) -> tuple[bytes, ...]:
        config = self._config
        try:
            return tuple(path.read_bytes() for path in (config.cert, config.key, config.ca))
        except OSError as error:
            raise ConfigError(f"cannot read the certificates: {error}") from error

    def _load(self) -> None:
        try:
            for context in (self.listening, self.dialling):
                context.load_cert_chain(self._config.cert, self._config.key)
                context.load_verify_locations(self._config.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"cannot use the certificates: {error}") from error
        own = self._own_certificate()
        self.binding = certificate_binding(own.public_bytes(Encoding.DER))
        self.names = self._expected_names(own)

    def is_member(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the peer presented a certificate of the cluster."""
        connection = transport.get_extra_info("ssl_object")
        if connection is None:
            return False
        return bool(names_in(connection.getpeercert()) & self.names)

    def _own_certificate(self) -> x509.Certificate:
        """Return the first certificate of the file. Certificates of its issuers may follow it."""
        try:
            return x509.load_pem_x509_certificates(self._read[0])[0]
        except ValueError as error:
            raise ConfigError(f"tls.cert: cannot read {self._config.cert}: {error}") from error

    def _expected_names(self, own: x509.Certificate) -> frozenset[str]:
        try:
            given = cluster_names(self._config.names)
            found = given or identifying_names(subject_names(own))
        except ValueError as error:
            raise ConfigError(f"tls.cert: cannot read {self._config.cert}: {error}") from error
        if not found:
            raise ConfigError(
                f"tls.cert: {self._config.cert} has no subject alternative name of the "
                "cluster; issue a certificate with one, or set tls.names"
            )
        return found
