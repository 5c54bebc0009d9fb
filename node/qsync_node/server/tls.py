"""TLS between members and for clients.

Members prove themselves twice: with a certificate of the cluster's CA, and with the cluster's
secret (`peers.py`). Names in certificates are not compared, because members are known by uuid and
their addresses come and go. Clients need no certificate; they log in as always.

Files that change are read again, without a restart: whoever connects from then on meets the new
certificate, and connections that stand go on with the old one. An authority that is trusted once
stays trusted until the node ends.
"""

import ssl

from qsync_node.server.config import ConfigError, TlsConfig

RELOAD_CHECK_S = 5.0


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
