"""Brokers of journals of a local cluster: one process beside each voter.

The processes run while `spec.journals.enabled` is set. The key space and the brokers' user are
created through the leader before the first broker starts, and declared journals are written to it.
A running broker whose configuration differs from the wanted one is restarted, one broker at a time.
"""

import asyncio
import shutil
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from qsync_local import certificates
from qsync_local.ports import HOST, NoFreePort, is_free, kept_or_new
from qsync_local.store import BrokerRecord, ClusterFiles, Declaration, Secrets, write_whole
from qsync_local.supervision import Program, Supervision
from qsync_node.format.proofs import broker_password, broker_secret
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.journals import QsyncJournal
from qsync_operator.api.names import wanted_members
from qsync_operator.api.reasons import EventReason, Reason
from qsync_operator.members import keyspace as journals
from qsync_operator.members.access import AccessRefused
from qsync_operator.members.iproto import DatabaseError, IprotoConnection, connect_as_admin
from qsync_operator.members.threads import in_thread
from qsync_operator.plan.observed import Trouble
from qsync_operator.resources.brokerconfig import BrokerPlace, broker_settings

TIMEOUT_S = 10.0
AGAIN_S = 1.0
STOP_PATIENCE_S = 40.0
"""Time for a broker to hand its journals over before it is killed."""


class JournalPlatform:
    """The brokers of one local cluster."""

    def __init__(
        self,
        store: ClusterFiles,
        secrets: Secrets,
        wake: Callable[[], None],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Prepare the brokers.

        Args:
            store: files of the cluster.
            secrets: passwords of the cluster.
            wake: called when a broker ends.
            context: returns the TLS context of connections to members.
        """
        self._store = store
        self._secrets = secrets
        self._records = store.load_brokers()
        self._context = context
        self._certificates = certificates.CertificateFiles(store.own_broker_certificates)
        self._processes = Supervision(
            store, self._records, self._save, Program(self._command, self._log), wake
        )
        self._has_key_space = False
        self._declared: tuple[int, int] | None = None
        self._tried_s = 0.0

    def _save(self) -> None:
        self._store.save_brokers(self._records)

    def _directory(self, name: str) -> Path:
        return self._store.directory / "brokers" / name

    def _command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "qsync_broker", str(self._directory(name) / "broker.yaml")]

    def _log(self, name: str) -> Path:
        return self._directory(name) / "broker.log"

    async def reconcile(
        self, cluster: QsyncCluster, members: dict[str, str], leader: str | None
    ) -> tuple[Trouble, ...]:
        """Bring brokers and declared journals to the specified state.

        Args:
            cluster: the manifest.
            members: HOST:PORT of the voters, with TLS if members and brokers use it.
            leader: HOST:PORT of the writable leader, with TLS if members use it, or None if there
                is none.

        Returns:
            Brokers that do not run, and why.
        """
        is_enabled = cluster.spec.journals is not None and cluster.spec.journals.enabled
        voters = [
            name
            for name, kind in wanted_members(cluster.name, cluster.spec).items()
            if kind == "voter" and name in members
        ]
        # A broker that leaves hands its journals over, until its member is removed.
        leaving = [name for name in members if name not in voters]
        wanted = voters + leaving if is_enabled else []
        for name in [name for name in self._records if name not in wanted]:
            await self.remove(name)
        if not wanted or not await self._declare(cluster, leader):
            return ()
        assert cluster.spec.journals is not None
        if cluster.spec.journals.tls:
            self._renew_certificates(cluster.name)
        troubles = []
        may_restart = True
        for name in wanted:
            try:
                if await self._keep_broker(cluster, name, members[name], may_restart):
                    may_restart = False  # the others are restarted later
            except NoFreePort as error:
                troubles.append(Trouble(Reason.PORT_IN_USE, str(error), False))
                continue
            failure = self._processes.failure_of(name)
            if failure:
                text = f"the broker of {name} does not run: {failure}; read {self._log(name)}"
                troubles.append(Trouble(Reason.BROKER_DOWN, text, False))
        return tuple(troubles)

    def _renew_certificates(self, cluster: str) -> None:
        """Renew the brokers' own certificate, unless they share the one of the members."""
        if not self._store.has_tls:
            self._certificates.reconcile(cluster, certificates.names(cluster))

    async def _declare(self, cluster: QsyncCluster, leader: str | None) -> bool:
        """Create the key space and the journals of the last apply.

        Journals of earlier ones were declared then. They are not declared again, because they may
        have been deleted since.

        Returns:
            Whether the key space exists.
        """
        state = cluster.metadata.generation, self._store.journals_changed_at_ns()
        if self._declared == state:
            return True
        if leader is None or time.monotonic() - self._tried_s < AGAIN_S:
            return self._has_key_space
        self._tried_s = time.monotonic()
        try:
            declared = await in_thread(self._declare_pending, leader)
        except (AccessRefused, DatabaseError) as error:
            self._store.add_event(
                EventReason.JOURNALS_FAILED,
                cluster.name,
                f"journals cannot be declared: {error}",
            )
            return self._has_key_space
        self._has_key_space = True
        for one in declared:
            if one.refusal:
                text = f"QsyncJournal {one.journal.name} is refused: {one.refusal}"
                self._store.add_event(EventReason.JOURNALS_FAILED, cluster.name, text)
            elif one.result != "unchanged":
                journal = one.journal.spec.journal
                text = f"the journal was {one.result} as declared"
                self._store.add_event(EventReason.JOURNAL_CONFIGURED, journal, text)
        if not declared:
            self._declared = state
        return True

    def _declare_pending(self, leader: str) -> list[Declaration]:
        """Declare the journals of the last apply, store the results, and return them.

        Raises:
            AccessRefused, DatabaseError: the leader refused the key space, or does not answer.
        """
        done = {}
        secret, context = self._secrets.cluster, self._context()
        with connect_as_admin(leader, secret, TIMEOUT_S, context) as database:
            journals.enable(database, secret)
            for one in self._store.load_journals():
                if one.is_pending:
                    done[one.journal.name] = self._result(database, one.journal)
        if done:
            with self._store.editing():
                self._store.save_journals(
                    [
                        # A newer apply may have replaced the declaration meanwhile.
                        done[name] if name in done and done[name].journal == one.journal else one
                        for one in self._store.load_journals()
                        for name in [one.journal.name]
                    ]
                )
        return list(done.values())

    @staticmethod
    def _result(database: IprotoConnection, journal: QsyncJournal) -> Declaration:
        try:
            return Declaration(journal, journals.declare(database, journal.spec))
        except journals.JournalRefused as refusal:
            return Declaration(journal, "refused", str(refusal))

    async def _keep_broker(
        self, cluster: QsyncCluster, name: str, node: str, may_restart: bool
    ) -> bool:
        """Start a broker, or restart it with another configuration if it may be restarted now.

        Returns:
            Whether it was restarted.

        Raises:
            NoFreePort: another program uses its port.
        """
        record = self._records.setdefault(name, BrokerRecord(0, 0))
        is_running = self._processes.observe(name)
        if is_running and not may_restart:
            return False
        fixed = self._fixed_port(cluster, name)
        record.http = fixed or record.http
        if is_running:
            if self._is_configured(self._files(cluster, name, record, node)):
                return False
            await self._processes.stop(name, STOP_PATIENCE_S)
        elif not self._processes.may_start(name):
            return False
        if fixed and not is_free(fixed):
            raise NoFreePort(
                f"the broker of {name} cannot listen: port {fixed} is in use; stop the program that"
                " uses it, or change spec.journals.port"
            )
        taken = self._taken_ports(cluster)
        record.http = fixed or kept_or_new(record.http, taken)
        record.peer = kept_or_new(record.peer, taken | {record.http})
        self._save()
        for path, text in self._files(cluster, name, record, node).items():
            write_whole(path, text)
        (self._directory(name) / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._processes.start(name)
        return is_running

    @staticmethod
    def _fixed_port(cluster: QsyncCluster, name: str) -> int:
        """Return the port of a broker's clients that the manifest states, or 0."""
        first = cluster.spec.journals.port if cluster.spec.journals is not None else 0
        names = list(wanted_members(cluster.name, cluster.spec))
        return first + names.index(name) if first and name in names else 0

    def fixed_ports(self, cluster: QsyncCluster) -> set[int]:
        """Return the ports that the manifest states, which nothing else may take."""
        return {
            self._fixed_port(cluster, name) for name in wanted_members(cluster.name, cluster.spec)
        }

    def _taken_ports(self, cluster: QsyncCluster) -> set[int]:
        """Return the ports of all brokers, also of those that have not started yet."""
        used = {port for one in self._records.values() for port in (one.http, one.peer)}
        return used | self.fixed_ports(cluster)

    @staticmethod
    def _is_configured(files: dict[Path, str]) -> bool:
        return all(path.exists() and path.read_text() == text for path, text in files.items())

    def _files(
        self, cluster: QsyncCluster, name: str, record: BrokerRecord, node: str
    ) -> dict[Path, str]:
        """Return the files that configure a broker."""
        directory = self._directory(name)
        assert cluster.spec.journals is not None
        place = BrokerPlace(
            name=name,
            data=str(directory / "data"),
            listen=f"{HOST}:{record.http}",
            peer_listen=f"{HOST}:{record.peer}",
            address=f"{HOST}:{record.http}",
            peer_address=f"{HOST}:{record.peer}",
            node=node,
            password=str(directory / "password"),
            secret=str(directory / "secret"),
        )
        files = certificates.CertificateFiles(self._store.broker_certificates)
        tls = files.settings() if cluster.spec.journals.tls else None
        settings = broker_settings(cluster.spec.journals, place, tls)
        if tls is not None and self._store.has_tls:
            settings["is_node_tls"] = True
        return {
            directory / "password": broker_password(self._secrets.cluster) + "\n",
            directory / "secret": broker_secret(self._secrets.cluster) + "\n",
            directory / "broker.yaml": yaml.safe_dump(settings, sort_keys=False),
        }

    async def remove(self, name: str, is_kept: bool = True) -> None:
        """Stop a broker, if there is one, and delete its spools unless they are kept."""
        if name in self._records:
            await self._processes.stop(name, STOP_PATIENCE_S)
            del self._records[name]
            self._processes.forget(name)
            self._save()
        if not is_kept:
            shutil.rmtree(self._directory(name), ignore_errors=True)

    async def stop_all(self, patience_s: float) -> None:
        """Stop all brokers; their spools stay on disk."""
        await asyncio.gather(*(self._processes.stop(name, patience_s) for name in self._records))
