"""Names in certificates: whether the peer of a TLS connection belongs to the cluster.

Members connect to addresses that no certificate contains. A certificate is therefore accepted if
one of its subject alternative names is a name of the cluster. Names are compared as text, wildcards
included. Addresses are compared in their shortest form, because the ssl module writes IPv6 without
abbreviation.
"""

import ipaddress
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cryptography import x509

KINDS = ("DNS", "URI", "IP Address")
ANY_CLUSTER = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names that do not identify a cluster: any certificate may have them."""
SERVICE_SUFFIXES = (".svc", ".svc.cluster.local")
"""Pattern of names that contain the namespace of a Service."""


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the DNS names, URIs and addresses of `getpeercert()`, in lower case."""
    found = (certificate or {}).get("subjectAltName", ())
    return cluster_names(str(value) for kind, value in found if kind in KINDS)


def cluster_names(names: Iterable[str]) -> frozenset[str]:
    """Return names in comparable form, without the names that any certificate may have."""
    return frozenset(map(_comparable, names)) - ANY_CLUSTER


def identifying_names(names: Iterable[str]) -> frozenset[str]:
    """Return the names that identify a cluster: each of its certificates must have one of them.

    Clusters of the same name in two Kubernetes namespaces share short names, and one company
    authority may sign for both. If names of Services with a namespace exist, only those count.
    """
    found = cluster_names(names)
    return frozenset(name for name in found if name.endswith(SERVICE_SUFFIXES)) or found


def shared_names(given: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """Return the identifying names of a certificate that are among a cluster's `names`."""
    return identifying_names(given) & cluster_names(names)


def _comparable(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:  # a DNS name or a URI
        return name.lower()


def subject_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names, URIs and addresses of a certificate, grouped by kind.

    Raises:
        ValueError: the names cannot be read.
    """
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(f"cannot read its names: {error}") from error
    return [
        *found.get_values_for_type(x509.DNSName),
        *found.get_values_for_type(x509.UniformResourceIdentifier),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    ]


def trust_only(context: ssl.SSLContext, names: Callable[[], Collection[str]]) -> None:
    """Make a context refuse servers whose certificate has none of `names`.

    The check is part of the handshake, so no data is sent before it. It calls `names` each time.
    """

    def check(connection: ssl.SSLObject | ssl.SSLSocket) -> None:
        found, wanted = names_in(connection.getpeercert()), frozenset(names())
        if not found & wanted:
            raise ssl.SSLCertVerificationError(
                f"the certificate is for {', '.join(sorted(found)) or 'no name'}, but "
                f"none of the cluster's names {', '.join(sorted(wanted))}"
            )

    class CheckedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self)

    class CheckedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self)

    context.sslobject_class = CheckedObject
    context.sslsocket_class = CheckedSocket
