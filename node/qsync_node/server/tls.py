"""TLS between members and for clients.

Members prove themselves twice: with a certificate of the cluster's CA, and with the cluster's
secret (`peers.py`). Names in certificates are not compared, because members are known by uuid and
their addresses come and go. Clients need no certificate; they log in as always.
"""

import ssl

from qsync_node.server.config import ConfigError, TlsConfig


def tls_contexts(config: TlsConfig) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(for who connects to us, for whom we connect to). Raises `ConfigError`."""
    try:
        listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        listening.minimum_version = ssl.TLSVersion.TLSv1_2
        listening.load_cert_chain(config.cert, config.key)
        listening.load_verify_locations(config.ca)
        listening.verify_mode = ssl.CERT_OPTIONAL
        dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        dialling.minimum_version = ssl.TLSVersion.TLSv1_2
        dialling.check_hostname = False
        dialling.load_cert_chain(config.cert, config.key)
        dialling.load_verify_locations(config.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates cannot be used: {error}") from error
    return listening, dialling
