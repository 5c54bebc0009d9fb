"""Services: one that gives members their names, one that finds the leader, one for reading.

The last two select by the role label, which the operator sets on pods. Any member takes a write
and passes it on, so a label that is late costs a hop and not a request.
"""

from qsync_operator.desired.labels import ROLE_LABEL, Object, build, ports, selector, tls_port
from qsync_operator.models.cluster import QsyncCluster


def build_services(cluster: QsyncCluster) -> list[Object]:
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
            # Members must find each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(cluster),
            "ports": [data_port, admin_port, tls],
        },
    )
    by_role = [
        build(
            cluster,
            "v1",
            "Service",
            f"{cluster.name}-{name}",
            spec={"selector": selector(cluster, **{ROLE_LABEL: role}), "ports": for_clients},
        )
        for name, role in (("leader", "leader"), ("replicas", "replica"))
    ]
    return [headless, *by_role]
