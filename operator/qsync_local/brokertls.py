"""Certificates of the brokers of a local cluster: an authority of the cluster, renewed when due.

All brokers of a cluster share one certificate, as the members of a cluster on Kubernetes do. It
names the cluster, by which brokers recognise each other, and this machine, to which clients
connect.
"""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from qsync_local.store import write_whole
from qsync_operator.resources.authority import Bundle, CertificateAuthority, renew

RENEW_CHECK_S = 60.0


def names(cluster: str) -> list[str]:
    """Return the names in the certificate of a cluster's brokers."""
    return [f"{cluster}.brokers.qsync.local", "localhost", "127.0.0.1"]


class BrokerCertificates:
    """The certificates of one cluster."""

    def __init__(self, directory: Path) -> None:
        """Keep certificates in a directory."""
        self.directory = directory
        self._checked_s: float | None = None

    @property
    def authority(self) -> Path:
        """Return the file with the authorities that clients trust."""
        return self.directory / "ca.crt"

    def settings(self) -> dict[str, str]:
        """Return the part of a broker's configuration that names the files."""
        return {
            "cert": str(self.directory / "tls.crt"),
            "key": str(self.directory / "tls.key"),
            "ca": str(self.authority),
        }

    def reconcile(self, cluster: str) -> None:
        """Issue or renew the certificate if that is due.

        Raises:
            OSError: a file cannot be read or written.
            CertificateError: a stored certificate is not PEM.
        """
        now_s = time.monotonic()
        if self._checked_s is not None and now_s - self._checked_s < RENEW_CHECK_S:
            return
        authority, bundle = self._stored()
        wanted = renew(authority, bundle, cluster, names(cluster), datetime.now(UTC))
        if wanted != (authority, bundle):
            self._write(*wanted)
        self._checked_s = now_s

    def _stored(self) -> tuple[CertificateAuthority | None, Bundle | None]:
        authority_file = self.directory / "authority.json"
        if not authority_file.exists():
            return None, None
        authority = CertificateAuthority(**json.loads(authority_file.read_text()))
        files = [self.directory / name for name in ("ca.crt", "tls.crt", "tls.key")]
        if not all(path.exists() for path in files):
            return authority, None
        return authority, Bundle(*(path.read_text() for path in files))

    def _write(self, authority: CertificateAuthority, bundle: Bundle) -> None:
        # The key of the authority comes first: without it, no certificate can be renewed.
        write_whole(self.directory / "authority.json", json.dumps(asdict(authority)))
        write_whole(self.authority, bundle.authorities)
        write_whole(self.directory / "tls.key", bundle.key)
        write_whole(self.directory / "tls.crt", bundle.certificate)
