"""Access to the brokers of journals of a local cluster: URL, authority, and a token."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qsync_cli.failure import Failure, FailureReason

if TYPE_CHECKING:
    from qsync_operator.platform.store import Store

TOKEN_S = 3600
"""Validity of a token that a command issues for itself."""


class BrokerAccess(NamedTuple):
    """The way to one broker.

    Attributes:
        url: its URL.
        token: token for its requests, or "".
        ca: file with the authorities of its certificate, or None for the usual ones.
    """

    url: str
    token: str = ""
    ca: Path | None = None

    def headers(self) -> dict[str, str]:
        """Return headers of a request by HTTP."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def context(self) -> ssl.SSLContext | None:
        """Return the context of a connection, None for a plain one.

        Raises:
            OSError: the file with the authorities cannot be read.
        """
        if not self.url.startswith("https"):
            return None
        return ssl.create_default_context(cafile=self.ca)


def local_access(store: "Store") -> list[BrokerAccess]:
    """Return the brokers of a local cluster.

    With keys in its manifest, commands issue a token for themselves.

    Raises:
        Failure: the keys cannot be used.
    """
    cluster = store.load_cluster()
    journals = cluster.spec.journals if cluster is not None else None
    has_tls = journals is not None and journals.tls
    scheme = "https" if has_tls else "http"
    token = _token(journals.auth_keys_file) if journals and journals.auth_keys_file else ""
    ca = store.broker_certificates / "ca.crt" if has_tls else None
    return [
        BrokerAccess(f"{scheme}://127.0.0.1:{record.http}", token, ca)
        for record in store.load_brokers().values()
    ]


def _token(path: str) -> str:
    from qsync_broker.auth import Authorizer, Capability

    try:
        authorizer = Authorizer.of_text(Path(path).read_text())
    except (OSError, ValueError) as error:
        text = f"spec.journals.authKeysFile {path} cannot be used: {error}"
        raise Failure(FailureReason.INVALID, text) from None
    return authorizer.sign(Capability.ALL, {}, TOKEN_S) if authorizer.keys else ""
