"""The NetworkPolicy: clients may connect from anywhere, and access to the admin port is restricted.

The data ports require a password, so they are open to all, apart from the TLS port if clients may
not use it. The port of journals is open to all as well. Brokers connect to each other at a port
that only members may use. The admin port serves the status without a password. Only members, the
operator, its web page if that is installed, and, if a PodMonitor exists, Prometheus may use it.
"""

from typing import Any

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.ports import PEER_PORT
from qsync_operator.resources.brokers import broker_port, has_brokers
from qsync_operator.resources.labels import KubernetesObject, build, ports, selector, tls_port
from qsync_operator.settings import ANYWHERE, Site

OPERATOR = {
    "app.kubernetes.io/name": "qsync-operator",
    "app.kubernetes.io/component": "operator",
}
WEB_PAGE = {**OPERATOR, "app.kubernetes.io/component": "web"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


def build_network_policy(cluster: QsyncCluster, site: Site = ANYWHERE) -> KubernetesObject | None:
    """Return the policy, or None if the manifest disables it."""
    if not cluster.spec.network_policy.enabled:
        return None
    iproto, admin, tls = (
        {"protocol": "TCP", "port": port} for port in (*ports(cluster), tls_port(cluster))
    )
    trusted: list[dict[str, Any]] = [
        {"podSelector": {"matchLabels": selector(cluster)}},
        _pods_of(site.namespace, OPERATOR),
    ]
    if site.has_web_page:
        trusted.append(_pods_of(site.namespace, WEB_PAGE))
    if cluster.spec.monitoring.pod_monitor:
        trusted.append(_pods_of(site.prometheus_namespace, PROMETHEUS))
    for_clients = [iproto] if cluster.spec.tls.clients == "Off" else [iproto, tls]
    ingress: list[dict[str, Any]] = [
        {"ports": for_clients},
        {"from": trusted, "ports": [admin, tls]},
    ]
    if has_brokers(cluster):
        for_clients.append({"protocol": "TCP", "port": broker_port(cluster)})
        peers = [{"protocol": "TCP", "port": PEER_PORT}]
        ingress.append({"from": trusted[:1], "ports": peers})
    return build(
        cluster,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        cluster.name,
        spec={
            "podSelector": {"matchLabels": selector(cluster)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def _pods_of(namespace: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return a peer with these labels and, if given, this namespace.

    Labels alone protect little: anyone who can create pods in any namespace can set them.
    """
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}} if namespace else {}
    return {"namespaceSelector": selector, "podSelector": {"matchLabels": labels}}
