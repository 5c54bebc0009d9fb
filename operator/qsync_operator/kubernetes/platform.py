"""Observes pods and nodes, performs the plan's actions, and maintains objects and role labels.

The platform keeps no essential state in memory: the cluster state is in a Secret, and everything
else can be observed. The operator reaches nodes by pod address, and nodes reach each other by name,
so running nodes need neither the operator nor the API server.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from qsync_operator import metrics
from qsync_operator.api.annotations import is_paused
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.reasons import Reason
from qsync_operator.api.status import ClusterStatus
from qsync_operator.kubernetes import pods
from qsync_operator.kubernetes.absent import AbsentPods
from qsync_operator.kubernetes.addresses import Addresses
from qsync_operator.kubernetes.api import Api, ApiError, name_of
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.certificates import CertificateReconciler
from qsync_operator.kubernetes.configuration import MemberConfiguration
from qsync_operator.kubernetes.dependents import last_run
from qsync_operator.kubernetes.identity import ClusterIdentity
from qsync_operator.kubernetes.journals import JournalReconciler
from qsync_operator.kubernetes.monitoring import MonitoringKinds
from qsync_operator.kubernetes.objects import RESYNC_AFTER_S, ObjectReconciler, trouble_of
from qsync_operator.kubernetes.rolelabels import RoleLabels
from qsync_operator.kubernetes.statuses import Statuses, read_statuses
from qsync_operator.kubernetes.volumes import VolumeReconciler
from qsync_operator.members.iproto import DatabaseError
from qsync_operator.members.links import LinkError, NodeLinks
from qsync_operator.members.livelinks import LiveLinks
from qsync_operator.members.orders import MemberOrders, OrderPlace
from qsync_operator.plan.actions import (
    Action,
    Bootstrap,
    Configure,
    CreateMember,
    CreateSpaces,
    DrainBroker,
    GrantAccess,
    GrowStorage,
    RecordBootstrap,
    RecordFenced,
    RecordFormed,
    RemoveMember,
    Restart,
)
from qsync_operator.plan.objects import ObjectInputs
from qsync_operator.plan.observed import (
    AccessView,
    MemberView,
    Memory,
    NodeStatus,
    Observed,
    SchemaView,
    Trouble,
)
from qsync_operator.plan.transitions import record_of, state_after
from qsync_operator.reconcile.access import AccessReconciler
from qsync_operator.reconcile.brokers import BrokerReconciler
from qsync_operator.reconcile.platform import ActionAwaits, ActionRefused, NameTaken
from qsync_operator.reconcile.spaces import SpaceReconciler
from qsync_operator.resources.brokers import broker_port
from qsync_operator.resources.config import client_address
from qsync_operator.resources.labels import (
    KubernetesObject,
    ports,
    set_name,
    tls_port,
)
from qsync_operator.resources.nodeconfig import Drift
from qsync_operator.resources.pods import restart_inputs
from qsync_operator.resources.secrets import text_of
from qsync_operator.resources.state import ClusterState, MemberState
from qsync_operator.settings import ANYWHERE, NO_SPARK, Site, SparkSupply


class KubernetesPlatform:
    """The Kubernetes platform of one cluster."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        identity: ClusterIdentity,
        password: str,
        certificates: CertificateReconciler,
        cluster: QsyncCluster,
        spark: SparkSupply,
        may_write: Callable[[], bool],
        site: Site,
    ) -> None:
        key, uid = (cluster.metadata.namespace or "", cluster.name), cluster.metadata.uid
        self._may_write = may_write
        self._site = site
        self._api = api
        self._cache = cache
        self._identity = identity
        self._password = password
        self._spark = spark
        self._key = key
        self._wake = asyncio.Event()
        self._links = NodeLinks(identity.state.secret, certificates.context)
        self._certificates = certificates
        self._live = LiveLinks(self._wake.set, certificates.context)
        self._objects = ObjectReconciler(api, cache, key, uid)
        self._volumes = VolumeReconciler(api, cache, self._objects, key)
        self._spaces = SpaceReconciler(identity.state.secret, certificates.context)
        self._access = AccessReconciler(
            identity.state.secret,
            self._read_password,
            self._read_application_password,
            certificates.context,
        )
        self._journals = JournalReconciler(
            api, cache, key, identity.state.secret, certificates.context, self._wake.set
        )
        self._brokers = BrokerReconciler(identity.state.secret, certificates.context)
        self._monitoring = MonitoringKinds(api, key, uid)
        self._absent = AbsentPods(api, key)
        self._cluster = cluster
        self._addresses = Addresses(cache, key, self._live)
        self._orders = MemberOrders(self._links, self._place_of)
        self._configuration = MemberConfiguration(self._orders, self._live)
        self._labels = RoleLabels(api, cache, key)
        self._inputs: ObjectInputs | None = None
        self._aside: asyncio.Task[None] | None = None
        self._resynced_s = 0.0
        self._applied_retention = ""  # retention that the Secrets were last adapted to
        self._listener = self._wake.set
        cache.listen(key, self._listener)

    @classmethod
    async def open(
        cls,
        api: Api,
        cache: Cache,
        cluster: QsyncCluster,
        image: str,
        spark: SparkSupply = NO_SPARK,
        may_write: Callable[[], bool] = lambda: True,
        site: Site = ANYWHERE,
    ) -> "KubernetesPlatform":
        """Prepare the identity and the certificates; without a stored identity nothing runs (M1).

        Raises:
            ApiError: the API server did not perform a request.
            ActionRefused: the identity, a password or a Secret's name cannot be used.
        """
        key = (cluster.metadata.namespace or "", cluster.name)
        identity = await ClusterIdentity.open(api, cluster, image)
        password = await identity.password(cluster)
        uid = cluster.metadata.uid
        certificates = CertificateReconciler(api, key, uid)
        await certificates.observe(cluster)
        if certificates.is_taken and not identity.state.is_formed:
            # Pods would mount a foreign key. A formed cluster stays supervised.
            raise NameTaken(certificates.refusal)
        return cls(api, cache, identity, password, certificates, cluster, spark, may_write, site)

    async def close(self) -> None:
        self._cache.forget(self._key, self._listener)
        if self._aside is not None:
            self._aside.cancel()
            await asyncio.gather(self._aside, return_exceptions=True)
        await self._journals.close()
        await self._live.close()
        await self._links.close()

    def wake(self) -> None:
        self._wake.set()

    async def wait(self, timeout_s: float) -> None:
        # Not `wait_for`: in Python 3.11 it loses a cancellation that coincides with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()

    @property
    def _state(self) -> ClusterState:
        return self._identity.state

    # --- observing ----------------------------------------------------------------------------

    async def observe(
        self, cluster: QsyncCluster, memory: Memory, previous: ClusterStatus
    ) -> Observed:
        self._cluster = cluster
        self._poll_in_background(cluster)
        metrics.EXPIRY.labels(*self._key).set(self._certificates.expires_s)
        self._connect(cluster)
        read = await self._statuses(cluster)
        statuses = read.found
        if self._may_write():
            with contextlib.suppress(ApiError):  # the next observation retries
                await self._identity.save(cluster, read.noted_in(self._state))
            await self._configuration.send_to_new(cluster, self._state, statuses)
        members = tuple(
            self._view(cluster, name, member, statuses.get(name))
            for name, member in self._state.members.items()
        )
        observed = Observed(members, record_of(self._state), SchemaView(), memory, previous)
        leader = observed.writable_leader()
        address = self._addresses.address(leader.name, tls_port(cluster)) if leader else None
        spaces = await self._spaces.observe(cluster, address)
        storage = self._volumes.observe(cluster)
        try:
            access = await self._access.observe(cluster, address)
        except ApiError:  # a Secret is unreadable: the next observation retries
            access = AccessView()
        warnings = self._monitoring.warnings(cluster)
        return Observed(
            members,
            record_of(self._state),
            spaces,
            memory,
            previous,
            storage,
            access,
            warnings,
            self._certificates.refusal,
            last_audit=last_run(self._cache, self._key, "audit"),
            last_compaction=last_run(self._cache, self._key, "compaction"),
            brokers=await self._brokers.observe(cluster, members, address),
            inputs=self._object_inputs(cluster, self._state),
        )

    def _poll_in_background(self, cluster: QsyncCluster) -> None:
        """Poll the API server in the background: a failover must not wait while it hangs."""
        if self._aside is None or self._aside.done():
            self._aside = asyncio.create_task(self._poll(cluster))

    async def _poll(self, cluster: QsyncCluster) -> None:
        with contextlib.suppress(ApiError):  # the certificates read before stay valid for days
            await self._certificates.observe(cluster)
        if time.monotonic() - self._resynced_s > RESYNC_AFTER_S and not is_paused(cluster):
            with contextlib.suppress(ApiError, ActionRefused):
                await self._objects.resync()
                if self._applied_retention == cluster.spec.storage.retention:
                    await self._identity.apply_retention(cluster)
                self._resynced_s = time.monotonic()
        if not is_paused(cluster):
            with contextlib.suppress(ApiError):
                await self._volumes.poll(cluster, self._state)
        if not cluster.spec.hibernate:
            kinds = {name: member.kind for name, member in self._state.members.items()}
            await self._absent.observe(
                {n: k for n, k in kinds.items() if self._addresses.pod(n) is None}
            )

    async def _read_password(self, name: str) -> str | None:
        return text_of(await self._api.get("Secret", self._key[0], name), "password")

    async def _read_application_password(self, cluster: QsyncCluster) -> str:
        """Return the password from the Secret that the manifest names, or else the stored one."""
        given = cluster.spec.auth.password_secret
        found = await self._read_password(given) if given is not None else None
        self._password = found or self._password
        return self._password

    def _admin_addresses(self, cluster: QsyncCluster) -> dict[str, str]:
        port = ports(cluster)[1]
        found = {name: self._addresses.address(name, port) for name in self._state.members}
        return {name: address for name, address in found.items() if address}

    def _broker_urls(self, cluster: QsyncCluster) -> dict[str, str]:
        """Return the URLs of the brokers whose pods have an address."""
        has_tls = cluster.spec.journals is not None and cluster.spec.journals.tls
        scheme, port = "https" if has_tls else "http", broker_port(cluster)
        found = {
            name: self._addresses.pod_address(name, port) for name in self._state.of_kind("voter")
        }
        return {name: f"{scheme}://{address}" for name, address in found.items() if address}

    def _connect(self, cluster: QsyncCluster) -> None:
        port = tls_port(cluster)
        found = {name: self._addresses.pod_address(name, port) for name in self._state.members}
        self._live.set_addresses({name: address for name, address in found.items() if address})

    async def _statuses(self, cluster: QsyncCluster) -> Statuses:
        addresses = {
            name: address
            for name, address in self._admin_addresses(cluster).items()
            if self._addresses.runs(name)
        }
        images = {name: pods.image_of(self._addresses.pod(name)) for name in addresses}
        return await read_statuses(self._links, self._state, addresses, images)

    def _view(
        self, cluster: QsyncCluster, name: str, member: MemberState, said: NodeStatus | None
    ) -> MemberView:
        pod = self._addresses.pod(name)
        runs = self._addresses.runs(name)
        return MemberView(
            name=name,
            kind=member.kind,
            is_running=runs,
            has_process=self._addresses.has_process(name),
            is_leaving=runs and said is not None and (pod is None or pods.is_leaving(pod)),
            status=said if runs else None,
            uuid=member.uuid,
            drift=self._drift(cluster, name, member, pod),
            failure=(pods.failure_of(pod) or self._absent.reason(name)) if said is None else "",
            address=client_address(cluster, name),
            admin_address=self._addresses.address(name, ports(cluster)[1]),
            ended_at_ns=self._live.state(name).ended_at_ns,
        )

    def _drift(
        self, cluster: QsyncCluster, name: str, member: MemberState, pod: KubernetesObject | None
    ) -> Drift:
        if pod is None or pods.is_leaving(pod):
            return "none"
        # Compare with the template that the StatefulSet uses, not with the wanted one. If that
        # template cannot be stored, a deleted pod would come back unchanged.
        live = self._cache.get(self._key, "StatefulSet", set_name(cluster.name, member.kind))
        stored = pods.template_inputs(live)
        if stored != restart_inputs(cluster, self._image(cluster)):
            return "none"
        if pods.inputs_of(pod) != stored:
            return "restart"
        return self._configuration.drift(cluster, name, member)

    def _image(self, cluster: QsyncCluster) -> str:
        return cluster.spec.image or self._state.image

    # --- orders -------------------------------------------------------------------------------

    def _place_of(self, member: str) -> OrderPlace:
        address = self._addresses.address(member, ports(self._cluster)[1])
        return OrderPlace(address, self._state.members[member].uuid)

    # --- keeping ------------------------------------------------------------------------------

    async def reconcile(
        self, cluster: QsyncCluster, observed: Observed, objects: list[KubernetesObject]
    ) -> tuple[Trouble, ...]:
        self._cluster = cluster
        troubles: list[Trouble] = []
        try:
            await self._labels.reconcile(observed)
        except ApiError as error:
            troubles.append(trouble_of("cannot change the role labels of pods", error, False))
            if not error.status:  # each further request would wait for its deadline
                return tuple(troubles)
        if is_paused(cluster):
            return tuple(troubles)
        troubles += await self._apply_objects(cluster, objects)
        if self._certificates.is_taken:
            troubles.append(Trouble(Reason.NAME_TAKEN, self._certificates.refusal))
        leader = observed.writable_leader()
        address = self._addresses.address(leader.name, tls_port(cluster)) if leader else None
        troubles += await self._journals.reconcile(cluster, address, self._broker_urls(cluster))
        return tuple(troubles)

    async def _apply_objects(
        self, cluster: QsyncCluster, objects: list[KubernetesObject]
    ) -> tuple[Trouble, ...]:
        """Apply the objects, and change the ownership of the Secrets in a safe order.

        Kept volumes are useless without the Secrets. Therefore the Secrets lose their owner before
        a StatefulSet retains its volumes, and get one only after it stops retaining them. A cluster
        that is deleted in between loses both or neither.
        """
        retention = cluster.spec.storage.retention
        is_changed = retention != self._applied_retention
        if is_changed and retention == "Retain":
            trouble = await self._apply_retention(cluster)
            if trouble is not None:
                return (trouble,)
        troubles = await self._reconcile_monitoring(cluster)
        troubles += await self._objects.reconcile(objects)
        if is_changed and retention == "Delete" and not any(t.is_essential for t in troubles):
            trouble = await self._apply_retention(cluster)
            troubles += (trouble,) if trouble is not None else ()
        return troubles

    async def _apply_retention(self, cluster: QsyncCluster) -> Trouble | None:
        try:
            await self._identity.apply_retention(cluster)
            await self._identity.apply_password_retention(cluster)
        except ApiError as error:
            return trouble_of("cannot apply storage.retention to the Secrets", error, True)
        except ActionRefused as error:  # it must not end the supervision of the cluster
            return Trouble(error.reason, str(error))
        self._applied_retention = cluster.spec.storage.retention
        return None

    async def _reconcile_monitoring(self, cluster: QsyncCluster) -> tuple[Trouble, ...]:
        try:
            await self._monitoring.observe(cluster)
            for kind in await self._monitoring.remove_unwanted(cluster):
                self._objects.forget(kind, cluster.name)
        except ApiError as error:
            return (trouble_of("cannot read the kinds of the Prometheus operator", error, False),)
        return ()

    # --- acting -------------------------------------------------------------------------------

    async def act(self, cluster: QsyncCluster, action: Action) -> None:
        self._cluster = cluster
        outcome = "refused"
        try:
            await self._act(cluster, action)
            outcome = "done"
        except (LinkError, ApiError, DatabaseError, OSError) as error:
            raise ActionRefused(f"{action}: {error}") from error
        finally:
            metrics.ACTIONS.labels(type(action).__name__, outcome).inc()

    async def _act(self, cluster: QsyncCluster, action: Action) -> None:
        state = self._state
        match action:
            case CreateMember(name):
                if name not in state.members and self._addresses.pod(name) is not None:
                    raise ActionAwaits(
                        f"{action}: waiting for the deletion of the former pod of this name"
                    )
                await self._change(cluster, state_after(state, action))
            case RecordBootstrap() | RecordFormed():
                await self._change(cluster, state_after(state, action))
            case RemoveMember(name):
                await self._change(cluster, state_after(state, action))
                await self._delete_pod(name)
            case RecordFenced():  # no object depends on it
                await self._identity.save(cluster, state_after(state, action))
            case Bootstrap():
                users = {cluster.spec.auth.username: self._password}
                await self._orders.bootstrap(action, users)
            case GrowStorage():
                await self._volumes.grow(cluster, state)
                await self._change(cluster, self._state)
            case Configure(name):
                await self._configuration.change(cluster, name, state.members[name])
            case Restart(name):
                await self._delete_pod(name)
            case GrantAccess(leader):
                await self._access.bring(cluster, self._database(cluster, leader))
            case DrainBroker(leader, name):
                await self._brokers.drain(self._database(cluster, leader), name)
            case CreateSpaces(leader, names):
                await self._spaces.create(cluster, self._database(cluster, leader), names)
                self._access.compare_again()
            case _:
                await self._orders.perform(action)

    def _database(self, cluster: QsyncCluster, leader: str) -> str:
        return self._addresses.address(leader, tls_port(cluster))

    async def _change(self, cluster: QsyncCluster, state: ClusterState) -> None:
        """Store the state first, then apply the objects that follow from it, unless paused."""
        await self._identity.save(cluster, state)
        if is_paused(cluster):
            return
        objects = self._object_inputs(cluster, state).objects
        troubles = await self._apply_objects(cluster, objects)
        essential = [str(trouble) for trouble in troubles if trouble.is_essential]
        if essential:
            raise ActionRefused("; ".join(essential))

    def _object_inputs(self, cluster: QsyncCluster, state: ClusterState) -> ObjectInputs:
        """Return the inputs of the wanted objects; while they are equal, the same instance."""
        inputs = ObjectInputs(
            cluster,
            state,
            self._password,
            self._image(cluster),
            self._volumes.sizes(cluster),
            self._monitoring.existing,
            self._certificates.authorities,
            self._spark,
            self._site,
        )
        if self._inputs is None or self._inputs.cluster is not cluster or self._inputs != inputs:
            self._inputs = inputs
        return self._inputs

    async def _delete_pod(self, name: str) -> None:
        pod = self._addresses.pod(name)
        if pod is not None and not pods.is_leaving(pod):
            uid = pod["metadata"]["uid"]
            await self._api.delete("Pod", self._key[0], name_of(pod), uid)
            # The next observation must not count on this pod before the watch reports the deletion,
            # which may have happened already.
            known = self._addresses.pod(name)
            if known is not None and known["metadata"]["uid"] == uid:
                leaving = {**known["metadata"], "deletionTimestamp": "now"}
                self._cache.note("Pod", {**known, "metadata": leaving})
