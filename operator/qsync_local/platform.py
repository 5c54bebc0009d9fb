"""The local platform: members are processes of this machine, disks are directories.

The platform observes processes (by pid and start time) and the statuses of their nodes, and it
performs the plan's actions.

State that must survive a restart is written to the store before it is used. The ports are written
before the first start, the replica set's uuid before the first member, and the founder before the
bootstrap order.
"""

import asyncio
import contextlib
import ssl
import sys
import uuid
from dataclasses import replace
from typing import Any

from qsync_local.certificates import MemberCertificates
from qsync_local.journals import JournalPlatform
from qsync_local.ports import HOST, NoFreePort, is_free, kept_or_new
from qsync_local.restoration import Restoration
from qsync_local.store import ClusterFiles, MemberRecord, Secrets, SupervisorState, write_whole
from qsync_local.supervision import Program, Supervision
from qsync_operator.api.annotations import restarted_at
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.names import member_name, ordinal_of, wanted_members
from qsync_operator.api.reasons import Reason
from qsync_operator.api.status import ClusterStatus
from qsync_operator.members.iproto import DatabaseError
from qsync_operator.members.links import LinkError, NodeLinks
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
from qsync_operator.plan.observed import (
    MemberView,
    Memory,
    NodeStatus,
    Observed,
    RecordedMember,
    SchemaView,
    Trouble,
)
from qsync_operator.reconcile.access import AccessReconciler
from qsync_operator.reconcile.brokers import BrokerReconciler
from qsync_operator.reconcile.platform import ActionRefused
from qsync_operator.reconcile.spaces import SpaceReconciler
from qsync_operator.resources.authority import CertificateError
from qsync_operator.resources.labels import KubernetesObject
from qsync_operator.resources.nodeconfig import (
    Drift,
    archive_settings,
    drift_of,
    live_changes,
    node_settings,
    render_config,
)

STOP_PATIENCE_S = 8.0
REMOVE_PATIENCE_S = 3.0


def _drift(cluster: QsyncCluster, record: MemberRecord, wanted: dict[str, Any]) -> Drift:
    """Return how a member differs from the specification and from an ordered restart."""
    if not record.applied:
        return "none"
    if record.restarted != restarted_at(cluster):
        return "restart"
    return drift_of(record.applied, wanted)


class PortInUse(NoFreePort):
    """Another program uses a port that the manifest assigns to a member."""


def _refuse_ports_in_use(member: str, ports: dict[str, int]) -> None:
    for field, port in ports.items():
        if port and not is_free(port):
            raise PortInUse(
                f"{member} cannot listen: port {port} is in use; stop the program that uses it, or "
                f"change spec.ports.{field}"
            )


class LocalPlatform:
    """The local platform of one cluster; read-only, it starts, stops and writes nothing."""

    def __init__(self, store: ClusterFiles, secrets: Secrets, is_read_only: bool = False) -> None:
        self._store = store
        self._secrets = secrets
        self._is_read_only = is_read_only
        self._state = store.load_state()
        self._wake = asyncio.Event()
        self.processes = Supervision(
            store,
            self._state.members,
            lambda: store.save_state(self._state),
            Program(
                lambda name: [
                    sys.executable,
                    "-m",
                    "qsync_node",
                    "--config",
                    str(store.node_directory(name) / "node.yaml"),
                ],
                lambda name: store.node_directory(name) / "node.log",
            ),
            self._wake.set,
        )
        self._certificates = MemberCertificates(store)
        context = self._certificates.context
        self.journals = JournalPlatform(store, secrets, self._wake.set, context)
        self._links = NodeLinks(secrets.cluster, context)
        self._orders = MemberOrders(self._links, self._place_of)
        self._pushed: dict[str, tuple[str, dict[str, str]]] = {}
        self._spaces = SpaceReconciler(secrets.cluster, context)
        self._access = AccessReconciler(
            secrets.cluster, self._read_password, self._read_application_password, context
        )
        self._brokers = BrokerReconciler(secrets.cluster, context)
        self._restoration = Restoration(store)
        if not is_read_only and not self._state.replicaset_uuid:
            self._state.replicaset_uuid = str(uuid.uuid4())
            store.save_state(self._state)

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of connections to members, or None if they have no TLS."""
        return self._certificates.context()

    def schema(self) -> SchemaView:
        """Return the last comparison of the spaces with the manifest."""
        return self._spaces.view

    async def close(self) -> None:
        await self._links.close()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()

    # --- observing ----------------------------------------------------------------------------

    async def observe(
        self, cluster: QsyncCluster, memory: Memory, previous: ClusterStatus
    ) -> Observed:
        statuses = await self._statuses()
        members = tuple(
            self._view(cluster, name, statuses.get(name)) for name in self._state.members
        )
        state = self._state
        record = RecordedMember(
            state.replicaset_uuid,
            state.bootstrap_member,
            state.bootstrap_uuid,
            state.is_formed,
            tuple(state.fenced),
        )
        observed = Observed(members, record, SchemaView(), memory, previous)
        if self._is_read_only:
            return observed
        await self._push_peers(statuses)
        leader = observed.writable_leader()
        database = self._database(leader.name) if leader else None
        return Observed(
            members,
            record,
            await self._spaces.observe(cluster, database),
            memory,
            previous,
            access=await self._access.observe(cluster, database),
            certificate_refusal=self._certificates.refusal,
            brokers=await self._brokers.observe(cluster, members, database),
        )

    async def _read_password(self, secret: str) -> str | None:
        return self._store.load_manifest_secrets().get(secret, {}).get("password")

    async def _read_application_password(self, cluster: QsyncCluster) -> str:
        secrets = self._store.load_secrets() or self._secrets
        return secrets.password

    async def _statuses(self) -> dict[str, NodeStatus]:
        addresses = {
            name: f"{HOST}:{record.admin}"
            for name, record in self._state.members.items()
            if self._is_worth_asking(name)
        }
        said = await self._links.statuses(addresses)
        found: dict[str, NodeStatus] = {}
        for name, answer in said.items():
            if isinstance(answer, LinkError):
                continue
            if answer.get("replicaset_uuid") not in ("", self._state.replicaset_uuid):
                continue  # another cluster's node on this port
            if answer.get("name") != name:
                continue
            with contextlib.suppress(KeyError, TypeError, ValueError):  # not the status of a node
                found[name] = NodeStatus.from_json(answer)
                self._note(name, found[name])
        return found

    def _is_worth_asking(self, name: str) -> bool:
        if self._is_read_only:
            return self.processes.is_running(name)
        return self.processes.observe(name)

    async def adopt(self) -> None:
        """Adopt running members whose pid was not stored, because their supervisor was killed."""
        lost = [name for name in self._state.members if not self.processes.observe(name)]
        addresses = {name: f"{HOST}:{self._state.members[name].admin}" for name in lost}
        for name, said in (await self._links.statuses(addresses)).items():
            if isinstance(said, LinkError) or said.get("name") != name:
                continue
            if said.get("replicaset_uuid") in ("", self._state.replicaset_uuid):
                self.processes.adopt(name, int(said["pid"]))

    def _note(self, name: str, said: NodeStatus) -> None:
        """Store the instance on a member's disk, and that an anonymous one was registered.

        A registered instance can never be anonymous again (M5), so it must start in its new role.
        """
        if self._is_read_only:
            return
        record = self._state.members[name]
        if said.uuid and record.uuid != said.uuid:
            record.uuid = said.uuid
            self._store.save_state(self._state)
        if record.kind == "anonymous" and said.replica_id and not record.role:
            record.role = "async"
            record.applied = {**record.applied, "role": record.role}
            self._store.save_state(self._state)

    def _view(self, cluster: QsyncCluster, name: str, said: NodeStatus | None) -> MemberView:
        record = self._state.members[name]
        is_running = self.processes.is_running(name)
        wanted = self._settings(cluster, name, record)
        return MemberView(
            name=name,
            kind=record.kind,  # type: ignore[arg-type]  # read from JSON as a str
            has_disk=self._store.data_directory(name).is_dir(),
            is_running=is_running,
            status=said if is_running else None,
            uuid=record.uuid,
            drift=_drift(cluster, record, wanted),
            failure=self.processes.failure_of(name) if said is None else "",
            address=f"{HOST}:{record.iproto}",
            admin_address=f"{HOST}:{record.admin}",
            ended_at_ns=self.processes.watched(name).ended_at_ns,
            pid=record.pid or None,
            directory=str(self._store.data_directory(name)),
        )

    def _settings(self, cluster: QsyncCluster, name: str, record: MemberRecord) -> dict[str, Any]:
        iproto, admin, tls = self._wanted_ports(cluster, name)
        role = record.role or record.kind
        ports = iproto or record.iproto, admin or record.admin
        settings = node_settings(cluster.spec, role, HOST, *ports) | archive_settings(
            cluster.spec, role
        )
        if self._store.has_tls:
            is_required = cluster.spec.tls.clients == "Require"
            listen = f"{HOST}:{tls or record.tls}"
            settings["tls"] = self._certificates.settings(listen, is_required)
        return settings

    def _wanted_ports(self, cluster: QsyncCluster, name: str) -> tuple[int, int, int]:
        """Return the ports that the manifest assigns to a member: the first ones plus its position.

        A port of 0 is not assigned.
        """
        ports, names = cluster.spec.ports, list(wanted_members(cluster.name, cluster.spec))
        if name not in names:
            return 0, 0, 0
        place = names.index(name)
        if name.startswith(f"{cluster.name}-") and name[len(cluster.name) + 1 :].isdigit():
            place = ordinal_of(name)
        first = (ports.iproto or 0, ports.admin or 0, ports.tls or 0)
        iproto, admin, tls = (port and port + place for port in first)
        return iproto, admin, tls

    def _assigned_ports(self, cluster: QsyncCluster) -> set[int]:
        """Return the ports that the manifest assigns to members, also to those not started yet."""
        names = wanted_members(cluster.name, cluster.spec)
        return {port for name in names for port in self._wanted_ports(cluster, name)}

    # --- addresses ------------------------------------------------------------------------------

    def _peers(self) -> dict[str, str]:
        return {name: self._database(name) for name in self._state.members}

    def _database(self, name: str) -> str:
        """Return the address of a member for other members and for the supervisor."""
        record = self._state.members[name]
        return f"{HOST}:{record.tls if self._store.has_tls else record.iproto}"

    def _broker_nodes(self, cluster: QsyncCluster) -> dict[str, str]:
        """Return the addresses of voters for their brokers."""
        has_tls = cluster.spec.journals is not None and cluster.spec.journals.tls
        return {
            name: self._database(name) if has_tls else f"{HOST}:{record.iproto}"
            for name, record in self._state.members.items()
            if record.kind == "voter"
        }

    async def _push_peers(self, statuses: dict[str, NodeStatus]) -> None:
        """Send the current addresses to running nodes; a starting node reads them from its file."""
        peers = self._peers()
        for name in statuses:
            mark = (self._state.members[name].started, peers)
            if self._pushed.get(name) == mark:
                continue
            with contextlib.suppress(LinkError):
                await self._orders.send(name, "/peers", {"addresses": peers})
                self._pushed[name] = mark

    def _place_of(self, name: str) -> OrderPlace:
        record = self._state.members[name]
        return OrderPlace(f"{HOST}:{record.admin}", record.uuid)

    # --- keeping members running ------------------------------------------------------------------

    async def reconcile(
        self, cluster: QsyncCluster, observed: Observed, objects: list[KubernetesObject]
    ) -> tuple[Trouble, ...]:
        """Start every member that has a disk and no process; stop all members to hibernate."""
        try:
            self._certificates.reconcile(cluster)
            troubles: list[Trouble] = []
            if cluster.spec.hibernate:
                await self.stop_all(STOP_PATIENCE_S)
            else:
                troubles += self._keep_running(cluster)
            leader = observed.writable_leader()
            address = self._database(leader.name) if leader else None
            nodes = self._broker_nodes(cluster)
            return (*troubles, *await self.journals.reconcile(cluster, nodes, address))
        except (OSError, NoFreePort, CertificateError) as error:
            return (Trouble(Reason.START_FAILED, str(error)),)

    def _keep_running(self, cluster: QsyncCluster) -> list[Trouble]:
        """Start members without a process. Return the ports of the manifest that are in use."""
        troubles = []
        for name in list(self._state.members):
            if self.processes.observe(name) or not self._store.data_directory(name).is_dir():
                continue
            if self.processes.may_start(name):
                try:
                    self._start(cluster, name)
                except PortInUse as error:
                    troubles.append(Trouble(Reason.PORT_IN_USE, str(error)))
        return troubles

    def _start(self, cluster: QsyncCluster, name: str) -> None:
        record = self._state.members[name]
        iproto, admin, tls = self._wanted_ports(cluster, name)
        _refuse_ports_in_use(name, {"iproto": iproto, "admin": admin, "tls": tls})
        taken = {p for r in self._state.members.values() for p in (r.iproto, r.admin, r.tls)}
        taken |= self.journals.fixed_ports(cluster) | self._assigned_ports(cluster)
        record.iproto = iproto or kept_or_new(record.iproto, taken)
        record.admin = admin or kept_or_new(record.admin, taken | {record.iproto})
        if self._store.has_tls:
            record.tls = tls or kept_or_new(record.tls, taken | {record.iproto, record.admin})
        settings = self._settings(cluster, name, record)
        record.applied, record.restarted = settings, restarted_at(cluster)
        self._store.save_state(self._state)
        peers = self._peers()
        founder = self._state.bootstrap_member or member_name(cluster.name, "voter", 0)
        text = render_config(
            settings | (self._restoration.settings(cluster, name) if name == founder else {}),
            name,
            self._store.data_directory(name),
            self._state.replicaset_uuid,
            self._secrets.cluster,
            peers,
        )
        write_whole(self._store.node_directory(name) / "node.yaml", text)
        self.processes.start(name)
        self._pushed[name] = (record.started, peers)

    # --- acting -----------------------------------------------------------------------------------

    async def act(self, cluster: QsyncCluster, action: Action) -> None:
        try:
            await self._act(cluster, action)
        except LinkError as error:
            raise ActionRefused(f"{action}: {error}") from error
        except (NoFreePort, DatabaseError, OSError) as error:
            raise ActionRefused(f"{action}: {error}") from error

    async def _act(self, cluster: QsyncCluster, action: Action) -> None:
        match action:
            case CreateMember(name, kind):
                self._create_member(cluster, name, kind)
            case RecordBootstrap(name, instance):
                self._become(replace(self._state, bootstrap_member=name, bootstrap_uuid=instance))
            case Bootstrap(name):
                await self._restoration.make(cluster, name)
                users = {self._secrets.username: self._secrets.password}
                await self._orders.bootstrap(action, users)
            case RecordFormed():
                self._become(replace(self._state, is_formed=True))
                self._restoration.forget(self._state.bootstrap_member)
            case RemoveMember(name):
                await self._remove_member(cluster, name)
            case RecordFenced(names):
                self._become(replace(self._state, fenced=list(names)))
            case GrowStorage():
                pass  # a directory needs no expansion
            case Configure(name):
                await self._configure(cluster, name)
            case Restart(name):
                await self.processes.stop(name, STOP_PATIENCE_S)
                self._start(cluster, name)
            case CreateSpaces(leader, names):
                await self._spaces.create(cluster, self._database(leader), names)
                self._access.compare_again()
            case DrainBroker(leader, name):
                await self._brokers.drain(self._database(leader), name)
            case GrantAccess(leader):
                await self._access.bring(cluster, self._database(leader))
            case _:
                await self._orders.perform(action)

    def _become(self, state: SupervisorState) -> None:
        """Store a state before it is used: if that fails, nothing has changed."""
        self._store.save_state(state)
        self._state = state

    def _create_member(self, cluster: QsyncCluster, name: str, kind: str) -> None:
        record = self._state.members.get(name)
        if record is None:
            record = self._state.members[name] = MemberRecord(kind, 0, 0)
        record.uuid = record.role = ""
        self.processes.forget(name)
        self._store.data_directory(name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.processes.is_running(name):
            self._start(cluster, name)

    async def _remove_member(self, cluster: QsyncCluster, name: str) -> None:
        if name not in self._state.members:
            return
        is_kept = cluster.spec.storage.retention == "Retain"
        await self.journals.remove(name, is_kept)
        await self.processes.stop(name, REMOVE_PATIENCE_S)
        self._store.retire(name, is_kept)
        del self._state.members[name]
        self._store.save_state(self._state)
        self.processes.forget(name)
        self._pushed.pop(name, None)

    async def _configure(self, cluster: QsyncCluster, name: str) -> None:
        record = self._state.members[name]
        wanted = self._settings(cluster, name, record)
        await self._orders.configure(name, live_changes(record.applied, wanted))
        record.applied = wanted
        self._store.save_state(self._state)

    async def stop_all(self, patience_s: float) -> None:
        await self.journals.stop_all(patience_s)
        await asyncio.gather(
            *(self.processes.stop(name, patience_s) for name in self._state.members)
        )
