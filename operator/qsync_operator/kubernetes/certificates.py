"""Maintains certificates: those of the operator's own authority, or those of a user's Secret.

Secrets are not watched, so they are checked every `RESYNC_AFTER_S` seconds. That is often enough
for a renewal, which has days, and a deleted Secret is recreated within half a minute.
"""

import ssl
import tempfile
import time
from datetime import UTC, datetime

from qsync_node.certnames import trust_only
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.api import Api
from qsync_operator.kubernetes.cache import ObjectKey
from qsync_operator.kubernetes.ownership import is_ours, taken_sentence
from qsync_operator.reconcile.platform import NameTaken
from qsync_operator.resources.authority import (
    Bundle,
    CertificateError,
    expiry,
    names_of,
    refuse_unusable,
    renew,
)
from qsync_operator.resources.certificates import (
    authority_name,
    authority_of,
    build_authority,
    build_bundle,
    bundle_name,
    bundle_of,
    certificate_names,
)
from qsync_operator.resources.labels import KubernetesObject
from qsync_operator.resources.secrets import decoded

RESYNC_AFTER_S = 30.0


class CertificateReconciler:
    """The certificates of one cluster."""

    def __init__(self, api: Api, key: ObjectKey, uid: str | None) -> None:
        self._api = api
        self._key = key
        self._checked: tuple[str | None, float] = ("", 0.0)  # name of the checked Secret, and when
        self._bundle: Bundle | None = None
        # Trusts no certificate. Until the operator has one of its own, it sends nothing, not even
        # plain text.
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._uid = uid
        self.refusal = ""
        self.is_taken = False  # another owner uses the Secret's name

    @property
    def authorities(self) -> str:
        """The trusted authorities as PEM, for clients; "" before certificates are known."""
        return self._bundle.authorities if self._bundle is not None else ""

    @property
    def expires_s(self) -> float:
        """Expiry as seconds since 1970; 0 before certificates are known."""
        return expiry(self._bundle).timestamp() if self._bundle is not None else 0.0

    def context(self) -> ssl.SSLContext:
        """Return the TLS context with the current trust, for connections to members."""
        return self._context

    async def observe(self, cluster: QsyncCluster) -> None:
        """Create, renew or read the certificates if a check is due.

        Unusable certificates are reported in `refusal`, and the previous ones stay in use.

        Raises:
            ApiError: a Secret cannot be read or stored.
        """
        named, (before, at_s) = cluster.spec.tls.secret_name, self._checked
        if named == before and time.monotonic() - at_s < RESYNC_AFTER_S:
            return
        try:
            found = await (self._read(cluster) if named is not None else self._renew(cluster))
            if found != self._bundle:
                self._context = context_of(found, certificate_names(cluster))
            self.refusal, self.is_taken = "", False
        except (CertificateError, NameTaken) as error:
            self.refusal, self.is_taken = str(error), isinstance(error, NameTaken)
            self._checked = (named, time.monotonic())
            return
        self._bundle = found
        self._checked = (named, time.monotonic())

    async def _read(self, cluster: QsyncCluster) -> Bundle:
        name = bundle_name(cluster)
        bundle = bundle_of(_strings(await self._api.get("Secret", self._key[0], name)))
        if bundle is None:
            raise CertificateError(
                f"Secret {name} of tls.secretName has no ca.crt, tls.crt or tls.key: "
                "create it by hand or with cert-manager"
            )
        try:
            refuse_unusable(bundle, datetime.now(UTC), certificate_names(cluster))
        except CertificateError as error:
            raise CertificateError(
                f"cannot use Secret {name} of tls.secretName: {error}"
            ) from error
        return bundle

    async def _renew(self, cluster: QsyncCluster) -> Bundle:
        namespace, name = self._key
        stored = [
            await self._api.get("Secret", namespace, one)
            for one in (authority_name(name), f"{name}-tls")
        ]
        for secret in stored:
            if secret is not None and not is_ours(secret, name, self._uid):
                raise NameTaken(taken_sentence("Secret", secret, name))
        before = (authority_of(_strings(stored[0])), bundle_of(_strings(stored[1])))
        names = certificate_names(cluster)
        try:
            authority, bundle = renew(*before, name, names, datetime.now(UTC))
        except (CertificateError, ValueError) as error:
            raise CertificateError(
                f"cannot use Secrets {authority_name(name)} and {name}-tls: {error}; restore the "
                "unusable one, or delete it: the operator creates another one"
            ) from error
        # Store the authority first. If it were lost, its certificates could not be renewed.
        if authority != before[0]:
            await self._store(build_authority(cluster, authority), stored[0])
        if bundle != before[1]:
            await self._store(build_bundle(cluster, bundle), stored[1])
        return bundle

    async def _store(self, document: KubernetesObject, before: KubernetesObject | None) -> None:
        """Store a Secret; if two operators renew at the same time, the API server refuses one.

        Raises:
            ApiError: the Secret cannot be stored, or it has changed since it was read.
        """
        if before is None:
            await self._api.create(document)
            return
        document["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        await self._api.apply(document)


def _strings(secret: KubernetesObject | None) -> dict[str, str]:
    if secret is None or "deletionTimestamp" in secret["metadata"]:
        return {}
    try:
        return decoded(secret)
    except ValueError as error:
        raise CertificateError(
            f"Secret {secret['metadata']['name']} does not contain text"
        ) from error


def context_of(bundle: Bundle, names: list[str]) -> ssl.SSLContext:
    """Return a context that trusts this cluster's members and presents the operator's certificate.

    Raises:
        CertificateError: the bundle cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Members are reached by pod addresses, which no certificate names.
    context.check_hostname = False
    expected = names_of(bundle, names)
    trust_only(context, lambda: expected)
    try:
        context.load_verify_locations(cadata=bundle.authorities)
        # The ssl module reads a key only from a file. This one is private and exists for a moment.
        with tempfile.NamedTemporaryFile() as file:
            file.write(f"{bundle.key}\n{bundle.certificate}".encode())
            file.flush()
            context.load_cert_chain(file.name)
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(f"cannot use ca.crt, tls.crt or tls.key: {error}") from error
    return context
