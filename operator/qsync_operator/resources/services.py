"""Services: one names the members, one accepts writes, and two follow the role label.

    NAME           headless: a name for each member
    NAME-leader    every ready voter: it accepts any request and forwards writes to the leader
    NAME-primary   the leading member: its reads are the newest
    NAME-replicas  following members, for reads that may be slightly stale
    NAME-journals  the brokers of journals of all ready voters

The first two and the last one select by labels that a StatefulSet gives its pods, so they work
without an operator. The other two select by the role label, which the operator moves.
"""

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.resources.brokers import build_broker_service, has_brokers
from qsync_operator.resources.labels import (
    KIND_LABEL,
    ROLE_LABEL,
    KubernetesObject,
    build,
    ports,
    selector,
    tls_port,
)


def build_services(cluster: QsyncCluster) -> list[KubernetesObject]:
    iproto, admin = ports(cluster)
    data_port = {"name": "iproto", "port": iproto, "targetPort": "iproto", "protocol": "TCP"}
    admin_port = {"name": "admin", "port": admin, "targetPort": "admin", "protocol": "TCP"}
    tls = {"name": "tls", "port": tls_port(cluster), "targetPort": "tls", "protocol": "TCP"}
    for_clients = [data_port] if cluster.spec.tls.clients == "Off" else [data_port, tls]
    headless = build(
        cluster,
        "v1",
        "Service",
        cluster.name,
        spec={
            "clusterIP": "None",
            # Members must find each other before one of them is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(cluster),
            "ports": [data_port, admin_port, tls],
        },
    )
    selectors = {
        "leader": {KIND_LABEL: "voter"},
        "primary": {ROLE_LABEL: "leader"},
        "replicas": {ROLE_LABEL: "replica"},
    }
    by_label = [
        build(
            cluster,
            "v1",
            "Service",
            f"{cluster.name}-{name}",
            spec={"selector": selector(cluster, **labels), "ports": for_clients},
        )
        for name, labels in selectors.items()
    ]
    brokers = [build_broker_service(cluster)] if has_brokers(cluster) else []
    return [headless, *by_label, *brokers]
