"""Builds the objects of a cluster in the order in which they are applied.

Objects that members need come first. Auxiliary ones (budgets, policies, monitors, schedules) come
last, so that an API server that refuses one of them does not stop the cluster.
"""

from collections.abc import Collection, Mapping

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import MemberKind
from qsync_operator.resources.brokers import build_broker_secret, has_brokers
from qsync_operator.resources.config import build_config
from qsync_operator.resources.disruption import build_disruption_budget
from qsync_operator.resources.jobs import build_runs
from qsync_operator.resources.labels import KubernetesObject, build, set_name
from qsync_operator.resources.monitoring import build_monitoring
from qsync_operator.resources.network import build_network_policy
from qsync_operator.resources.secrets import build_app_secret
from qsync_operator.resources.services import build_services
from qsync_operator.resources.state import ClusterState
from qsync_operator.resources.statefulset import build_statefulset
from qsync_operator.settings import ANYWHERE, NO_SPARK, Site, SparkSupply

KINDS: tuple[MemberKind, ...] = ("voter", "async", "anonymous")


def build_objects(
    cluster: QsyncCluster,
    state: ClusterState,
    password: str,
    image: str,
    sizes: Mapping[str, str],
    existing: Collection[str] = (),
    authorities: str = "",
    spark: SparkSupply = NO_SPARK,
    site: Site = ANYWHERE,
) -> list[KubernetesObject]:
    """Return all objects except the identity, which is written separately before all others.

    Args:
        cluster: the manifest.
        state: stored state of the cluster.
        password: password of the application's user.
        image: image of the nodes.
        sizes: volume size by name of the existing StatefulSets, because it cannot change in place.
        existing: optional kinds that exist in this Kubernetes cluster.
        authorities: certificates that clients must trust, as PEM.
        spark: image and role of Spark; without an image, no audit or compaction is scheduled.
        site: settings of the operator's installation.
    """
    objects = [
        build_app_secret(cluster, state, password, authorities),
        build(cluster, "v1", "ServiceAccount", cluster.name, automountServiceAccountToken=False),
        build_config(cluster, state),
        *build_services(cluster),
    ]
    if has_brokers(cluster):
        objects.append(build_broker_secret(cluster, state))
    for kind in KINDS:
        name = set_name(cluster.name, kind)
        if not state.of_kind(kind) and name not in sizes:
            continue
        size = sizes.get(name, cluster.spec.storage.size)
        objects.append(build_statefulset(cluster, state, kind, image, size))
    optional = (build_disruption_budget(cluster, state), build_network_policy(cluster, site))
    objects += [document for document in optional if document is not None]
    monitoring = build_monitoring(cluster, existing, state.is_formed, site)
    return objects + monitoring + build_runs(cluster, spark)
