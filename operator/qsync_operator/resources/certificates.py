"""Secrets of certificates: the authority for the operator only, and the bundle for members."""

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.resources.authority import Bundle, CertificateAuthority
from qsync_operator.resources.brokers import brokers_name, has_brokers
from qsync_operator.resources.labels import KubernetesObject, build
from qsync_operator.resources.secrets import encoded

BUNDLE_KEYS = ("ca.crt", "tls.crt", "tls.key")
"""Keys as cert-manager writes them, so that a Secret made by cert-manager can be named instead."""


def authority_name(cluster: str) -> str:
    return f"{cluster}-ca"


def bundle_name(cluster: QsyncCluster) -> str:
    """Return the Secret that members mount: the one in the manifest, or the operator's own."""
    return cluster.spec.tls.secret_name or f"{cluster.name}-tls"


def certificate_names(cluster: QsyncCluster) -> list[str]:
    """Return the host names of the members, for clients within and outside the namespace."""
    name, namespace = cluster.name, cluster.metadata.namespace
    hosts = [f"{name}-leader", f"{name}-primary", f"{name}-replicas", name, f"*.{name}"]
    if has_brokers(cluster) and cluster.spec.journals is not None and cluster.spec.journals.tls:
        hosts.append(brokers_name(name))
    suffixes = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    return [f"{host}{suffix}" for host in hosts for suffix in suffixes] + ["localhost"]


def build_authority(cluster: QsyncCluster, authority: CertificateAuthority) -> KubernetesObject:
    return _secret(
        cluster,
        authority_name(cluster.name),
        "Opaque",
        {
            "ca.crt": authority.certificate,
            "ca.key": authority.key,
            "previous.crt": authority.previous,
        },
    )


def build_bundle(cluster: QsyncCluster, bundle: Bundle) -> KubernetesObject:
    return _secret(
        cluster,
        f"{cluster.name}-tls",
        "kubernetes.io/tls",
        {
            "ca.crt": bundle.authorities,
            "tls.crt": bundle.certificate,
            "tls.key": bundle.key,
        },
    )


def _secret(
    cluster: QsyncCluster, name: str, kind: str, strings: dict[str, str]
) -> KubernetesObject:
    return build(cluster, "v1", "Secret", name, type=kind, data=encoded(strings))


def authority_of(strings: dict[str, str]) -> CertificateAuthority | None:
    if not strings.get("ca.crt") or not strings.get("ca.key"):
        return None
    return CertificateAuthority(
        strings["ca.crt"], strings["ca.key"], strings.get("previous.crt", "")
    )


def bundle_of(strings: dict[str, str]) -> Bundle | None:
    if not all(strings.get(key) for key in BUNDLE_KEYS):
        return None
    return Bundle(*(strings[key] for key in BUNDLE_KEYS))
