"""The objects that a cluster needs on Kubernetes, as a pure function of observed inputs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.resources.labels import KubernetesObject
from qsync_operator.resources.objects import build_objects
from qsync_operator.resources.state import ClusterState
from qsync_operator.settings import ANYWHERE, NO_SPARK, Site, SparkSupply


@dataclass(frozen=True)
class ObjectInputs:
    """The inputs of the builders; equal inputs have equal objects.

    Attributes:
        cluster: the manifest.
        state: stored state of the cluster.
        password: password of the application's user.
        image: image of the nodes.
        sizes: volume size by name of the existing StatefulSets, because it cannot change in place.
        existing: optional kinds that exist in this Kubernetes cluster.
        authorities: certificates that clients must trust, as PEM.
        spark: image and role of Spark.
        site: settings of the operator's installation.
    """

    cluster: QsyncCluster
    state: ClusterState
    password: str
    image: str
    sizes: Mapping[str, str]
    existing: Collection[str] = ()
    authorities: str = ""
    spark: SparkSupply = NO_SPARK
    site: Site = ANYWHERE

    @cached_property
    def objects(self) -> list[KubernetesObject]:
        """Return the objects in the order in which they are applied.

        The list is built once: a turn whose inputs are unchanged builds and compares nothing.
        """
        return build_objects(
            self.cluster,
            self.state,
            self.password,
            self.image,
            self.sizes,
            self.existing,
            self.authorities,
            self.spark,
            self.site,
        )
