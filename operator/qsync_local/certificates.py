"""Certificates of a local cluster: an authority of the cluster, renewed when due.

All members of a cluster share one certificate, as on Kubernetes. It names the cluster, by which
members recognise each other, and this machine, to which clients connect. Brokers share it if the
members have TLS; otherwise they have an authority of their own.
"""

import json
import os
import ssl
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from qsync_local.store import ClusterFiles, write_whole
from qsync_node.adminport import trusting
from qsync_node.certnames import trust_only
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.resources.authority import (
    Bundle,
    CertificateAuthority,
    CertificateError,
    names_of,
    refuse_unusable,
    renew,
)
from qsync_operator.resources.certificates import bundle_of, certificate_names

RENEW_CHECK_S = 10.0


def names(cluster: str) -> list[str]:
    """Return the names in the certificate of a cluster's brokers."""
    return [f"{cluster}.brokers.qsync.local", "localhost", "127.0.0.1"]


def member_names(cluster: str) -> list[str]:
    """Return the names in the certificate of a cluster's members."""
    return [f"{cluster}.members.qsync.local", *names(cluster)]


class CertificateFiles:
    """The certificate of one directory, issued by the authority that is stored there."""

    def __init__(self, directory: Path) -> None:
        """Keep certificates in a directory."""
        self.directory = directory
        self._checked_s: float | None = None

    @property
    def authority(self) -> Path:
        """Return the file with the authorities that clients trust."""
        return self.directory / "ca.crt"

    def settings(self) -> dict[str, str]:
        """Return the part of a configuration that names the files."""
        return {
            "cert": str(self.directory / "tls.crt"),
            "key": str(self.directory / "tls.key"),
            "ca": str(self.authority),
        }

    def reconcile(self, cluster: str, wanted_names: list[str]) -> None:
        """Issue or renew the certificate if that is due.

        Raises:
            OSError: a file cannot be read or written.
            CertificateError: a stored certificate is not PEM.
        """
        if not self.is_due():
            return
        authority, bundle = self._stored()
        wanted = renew(authority, bundle, cluster, wanted_names, datetime.now(UTC))
        if wanted[0] != authority:
            # The key of the authority comes first: without it, no certificate can be renewed.
            text = json.dumps(asdict(wanted[0]))
            write_whole(self.directory / "authority.json", text)
        if wanted[1] != bundle:
            self.write(wanted[1])
        self._checked_s = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the certificate has not been checked for `RENEW_CHECK_S` seconds."""
        return self._checked_s is None or time.monotonic() - self._checked_s >= RENEW_CHECK_S

    def use(self, given: Bundle, wanted_names: list[str]) -> None:
        """Use a certificate that the cluster did not issue.

        Raises:
            OSError: a file cannot be read or written.
            CertificateError: members could not use it.
        """
        refuse_unusable(given, datetime.now(UTC), wanted_names)
        if given != self.bundle():
            self.write(given)
        self._checked_s = time.monotonic()

    def _stored(self) -> tuple[CertificateAuthority | None, Bundle | None]:
        authority_file = self.directory / "authority.json"
        if not authority_file.exists():
            return None, None
        return CertificateAuthority(**json.loads(authority_file.read_text())), self.bundle()

    def bundle(self) -> Bundle | None:
        """Return the stored certificate, or None before it was issued."""
        files = [self.directory / name for name in ("ca.crt", "tls.crt", "tls.key")]
        if not all(path.exists() for path in files):
            return None
        return Bundle(*(path.read_text() for path in files))

    def write(self, bundle: Bundle) -> None:
        """Replace the files. A reader may see a new key beside an old certificate for a moment."""
        write_whole(self.authority, bundle.authorities)
        write_whole(self.directory / "tls.key", bundle.key)
        write_whole(self.directory / "tls.crt", bundle.certificate)


class MemberCertificates:
    """The certificate of the members of a cluster, if its manifest has `tls`."""

    def __init__(self, store: ClusterFiles) -> None:
        self._store = store
        self._files = CertificateFiles(store.certificates)
        self._context: ssl.SSLContext | None = None
        self._mark = 0
        self._secret: str | None = None
        self.refusal = ""

    def settings(self, listen: str, is_required: bool) -> dict[str, object]:
        """Return `tls` of a member's configuration.

        Args:
            listen: HOST:PORT for members, and for clients that use TLS.
            is_required: whether the other port requires TLS as well.
        """
        return {**self._files.settings(), "listen": listen, "is_required": is_required}

    def reconcile(self, cluster: QsyncCluster) -> None:
        """Issue, renew or read the certificate if that is due.

        An unusable Secret is reported in `refusal`, and the previous certificate stays in use.

        Raises:
            OSError: a file cannot be read or written.
            CertificateError: a certificate of the cluster's own authority is not PEM.
        """
        secret = cluster.spec.tls.secret_name
        if not self._store.has_tls or (self._secret == secret and not self._files.is_due()):
            return
        if secret is None:
            self._files.reconcile(cluster.name, member_names(cluster.name))
            self.refusal = ""
        else:
            self.refusal = self._use(cluster, secret)
        self._secret = secret

    def _use(self, cluster: QsyncCluster, secret: str) -> str:
        """Use the certificate of a Secret. Return why that is not possible, or ""."""
        bundle = bundle_of(self._store.load_manifest_secrets().get(secret, {}))
        if bundle is None:
            return (
                f"Secret {secret} of tls.secretName has no ca.crt, tls.crt or tls.key: add them, "
                "and apply the manifest again"
            )
        try:
            self._files.use(bundle, accepted_names(cluster))
        except CertificateError as error:
            return f"cannot use Secret {secret} of tls.secretName: {error}"
        return ""

    def context(self) -> ssl.SSLContext | None:
        """Return the context of connections to members, or None if they have no TLS."""
        if not self._store.has_tls:
            return None
        mark = _changed_at_ns(self._store.certificates / "tls.crt")
        if self._context is None or mark != self._mark:
            self._context, self._mark = client_context(self._store), mark
        return self._context


def accepted_names(cluster: QsyncCluster) -> list[str]:
    """Return the names of which the certificate of a Secret must have one."""
    hosts = certificate_names(cluster) if cluster.metadata.namespace is not None else []
    return [*member_names(cluster.name), *hosts]


def client_context(store: ClusterFiles) -> ssl.SSLContext | None:
    """Return a context that trusts the members of a cluster alone, or None if they have no TLS.

    Before the first certificate is issued, the context trusts none.
    """
    if not store.has_tls:
        return None
    files, cluster = CertificateFiles(store.certificates), store.load_cluster()
    bundle = files.bundle()
    if bundle is None or cluster is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return context
    context = trusting(files.authority)
    expected = names_of(bundle, accepted_names(cluster))
    trust_only(context, lambda: expected)
    return context


def _changed_at_ns(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
