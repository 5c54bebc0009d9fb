"""Access to the brokers of journals of a local cluster: URL, authority, and a token.

Brokers report the UUID of their cluster. A port that the manifest states may be used by a broker of
another cluster: its answers count as none.
"""

import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qsync_broker import auth
from qsync_cli.failure import Failure, FailureReason

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles

TIMEOUT_S = 2.0
TOKEN_S = 3600
"""Validity of a token that a command issues for itself."""


class OtherCluster(OSError):  # noqa: N818  # the request itself succeeded
    """Another program answers at the port of a broker."""


class BrokerAccess(NamedTuple):
    """The way to one broker.

    Attributes:
        url: its URL.
        token: token for its requests, or "".
        ca: file with the authorities of its certificate, or None for the usual ones.
        name: its name, or "" if it is not known.
        cluster: UUID of the cluster that it must belong to, or "" to accept any.
    """

    url: str
    token: str = ""
    ca: Path | None = None
    name: str = ""
    cluster: str = ""

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

    def get(self, path: str) -> bytes:
        """Return the body of an answer.

        Raises:
            OtherCluster: something else answers than a broker of the cluster.
            OSError: the broker does not answer, or refuses the request.
        """
        request = urllib.request.Request(f"{self.url}{path}", headers=self.headers())
        try:
            with urllib.request.urlopen(
                request, timeout=TIMEOUT_S, context=self.context()
            ) as found:
                self._check(found.headers.get(auth.CLUSTER_HEADER))
                body: bytes = found.read()
        except urllib.error.HTTPError as error:
            self._check(error.headers.get(auth.CLUSTER_HEADER))
            raise
        except http.client.HTTPException:  # what answers does not use HTTP
            self._check(None)
            raise OSError(f"the answer of {self.url} is invalid") from None
        return body

    def _check(self, cluster: str | None) -> None:
        if self.cluster and cluster != self.cluster:
            raise OtherCluster(
                f"another program answers at {self.url}, the address of broker {self.name}: stop"
                " it, or change spec.journals.port"
            )


def answering_broker(store: "ClusterFiles") -> BrokerAccess:
    """Return a broker of a local cluster that answers and has its lease.

    Raises:
        Failure: there is none.
    """
    found = local_access(store)
    if not found:
        cause = _known_cause(store) or f"read `qsync local events {store.name}`"
        text = f"no broker of {store.name} has started: {cause}"
        raise Failure(FailureReason.NOT_READY, text)
    causes = []
    for access in found:
        try:
            access.get("/debug/ready")
        except OSError as error:
            causes.append(error)
        else:
            return access
    others = [cause for cause in causes if isinstance(cause, OtherCluster)]
    if others:
        raise Failure(FailureReason.UNREACHABLE, str(others[0]))
    cause = _known_cause(store) or f"{causes[0]}; read `qsync local status {store.name}`"
    raise Failure(FailureReason.UNREACHABLE, f"no broker of {store.name} is ready: {cause}")


def _known_cause(store: "ClusterFiles") -> str:
    """Return why no broker serves, as the manifest and the supervisor's status state it, or ""."""
    cluster = store.load_cluster()
    if cluster is None:
        return ""
    if cluster.spec.journals is None or not cluster.spec.journals.enabled:
        return "spec.journals.enabled is not set; set it to true, and apply the manifest"
    if cluster.spec.hibernate:
        return "the cluster hibernates; set spec.hibernate to false, and apply the manifest"
    degraded = store.load_status().condition("Degraded")
    return degraded.message if degraded is not None and degraded.status == "True" else ""


def local_access(store: "ClusterFiles") -> list[BrokerAccess]:
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
    uuid = store.load_state().replicaset_uuid
    return [
        BrokerAccess(f"{scheme}://127.0.0.1:{record.http}", token, ca, name, uuid)
        for name, record in store.load_brokers().items()
    ]


def unusable_keys(path: str, error: OSError | ValueError) -> Failure:
    """Return the failure of a command for a file of keys that cannot be used."""
    cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return Failure(
        FailureReason.INVALID,
        f"spec.journals.authKeysFile {path} cannot be used: {cause}; write keys in Base64 to this"
        " file, or correct the path",
    )


def _token(path: str) -> str:
    try:
        authorizer = auth.Authorizer.of_text(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise unusable_keys(path, error) from None
    return authorizer.sign(auth.Capability.ALL, {}, TOKEN_S) if authorizer.keys else ""
