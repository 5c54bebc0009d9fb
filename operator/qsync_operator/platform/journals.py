"""Brokers of journals of a local cluster: one process beside each voter.

The processes run while `spec.journals.enabled` is set. The key space and the brokers' user are
created through the leader before the first broker starts, and declared journals are written to it.
A running broker whose configuration differs from the wanted one is restarted, one broker at a time.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from qsync_node.format.proofs import broker_password, broker_secret
from qsync_operator import journals
from qsync_operator.access import AccessRefused
from qsync_operator.brokerconfig import BrokerPlace, broker_settings
from qsync_operator.iproto import DatabaseError, connect_as_admin
from qsync_operator.models.cluster import QsyncCluster
from qsync_operator.models.reasons import EventReason
from qsync_operator.names import wanted_members
from qsync_operator.platform.brokertls import BrokerCertificates
from qsync_operator.platform.ports import HOST, choose_port, is_free
from qsync_operator.platform.store import BrokerRecord, Secrets, Store, write_whole
from qsync_operator.platform.supervision import Program, Supervision
from qsync_operator.threads import in_thread

TIMEOUT_S = 10.0
AGAIN_S = 1.0
STOP_PATIENCE_S = 40.0
"""Time for a broker to hand its journals over before it is killed."""


class JournalPlatform:
    """The brokers of one local cluster."""

    def __init__(self, store: Store, secrets: Secrets, wake: Callable[[], None]) -> None:
        self._store = store
        self._secrets = secrets
        self._records = store.load_brokers()
        self._certificates = BrokerCertificates(store.broker_certificates)
        self._processes = Supervision(
            store, self._records, self._save, Program(self._command, self._log), wake
        )
        self._declared: tuple[int, int] | None = None
        self._tried_s = 0.0

    def _save(self) -> None:
        self._store.save_brokers(self._records)

    def _directory(self, name: str) -> Any:
        return self._store.directory / "brokers" / name

    def _command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "qsync_broker", str(self._directory(name) / "broker.yaml")]

    def _log(self, name: str) -> Any:
        return self._directory(name) / "broker.log"

    async def keep(
        self, cluster: QsyncCluster, members: dict[str, str], leader: str | None
    ) -> None:
        """Bring brokers and declared journals to the specified state.

        Args:
            cluster: the manifest.
            members: HOST:PORT of the members.
            leader: HOST:PORT of the writable leader, or None if there is none.
        """
        is_enabled = cluster.spec.journals is not None and cluster.spec.journals.enabled
        voters = [
            name
            for name, kind in wanted_members(cluster.name, cluster.spec).items()
            if kind == "voter" and name in members
        ]
        wanted = voters if is_enabled else []
        for name in [name for name in self._records if name not in wanted]:
            await self._remove(name)
        if not wanted or not await self._declare(cluster, leader):
            return
        assert cluster.spec.journals is not None
        if cluster.spec.journals.tls:
            self._certificates.keep(cluster.name)
        for name in wanted:
            if await self._keep_broker(cluster, name, members[name]):
                break  # the others are restarted later

    async def _declare(self, cluster: QsyncCluster, leader: str | None) -> bool:
        """Create the key space and the declared journals; return whether the key space exists.

        Each `qsync local apply` declares the journals again: one may have been deleted meanwhile.
        """
        state = cluster.metadata.generation, self._store.journals_applied_at_ns()
        if self._declared == state:
            return True
        if leader is None or time.monotonic() - self._tried_s < AGAIN_S:
            return self._declared is not None
        self._tried_s = time.monotonic()
        declared = self._store.load_journals()

        refused: list[str] = []

        def declare() -> list[str]:
            changed = []
            with connect_as_admin(leader, self._secrets.cluster, TIMEOUT_S, None) as database:
                journals.enable(database, self._secrets.cluster)
                for journal in declared:
                    try:
                        changed += journals.declare(database, [journal.spec])
                    except journals.JournalRefused as refusal:
                        refused.append(f"QsyncJournal {journal.name} is refused: {refusal}")
            return changed

        try:
            changed = await in_thread(declare)
        except (AccessRefused, DatabaseError) as error:
            self._store.add_event(
                EventReason.JOURNALS_FAILED,
                cluster.name,
                f"journals cannot be declared: {error}",
                True,
            )
            return self._declared is not None
        for name in changed:
            self._store.add_event(EventReason.JOURNAL_CONFIGURED, name, "the journal was declared")
        for sentence in refused:
            self._store.add_event(EventReason.JOURNALS_FAILED, cluster.name, sentence, True)
        self._declared = state
        return True

    async def _keep_broker(self, cluster: QsyncCluster, name: str, node: str) -> bool:
        """Start a broker, or restart it with another configuration; return whether it was."""
        record = self._records.get(name)
        if record is None:
            taken = {port for one in self._records.values() for port in (one.http, one.peer)}
            first = cluster.spec.journals.port if cluster.spec.journals is not None else 0
            place = list(wanted_members(cluster.name, cluster.spec)).index(name)
            http = first + place if first else choose_port(taken)
            record = BrokerRecord(http, choose_port(taken | {http}))
            self._records[name] = record
            self._save()
        is_running = self._processes.look(name)
        if is_running:
            if self._is_configured(self._files(cluster, name, record, node)):
                return False
            await self._processes.stop(name, STOP_PATIENCE_S)
        elif not self._processes.may_start(name):
            return False
        if not is_free(record.peer):
            record.peer = choose_port({record.http})
        for path, text in self._files(cluster, name, record, node).items():
            write_whole(path, text)
        (self._directory(name) / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._processes.start(name)
        return is_running

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
        tls = self._certificates.settings() if cluster.spec.journals.tls else None
        settings = broker_settings(cluster.spec.journals, place, tls)
        return {
            directory / "password": broker_password(self._secrets.cluster) + "\n",
            directory / "secret": broker_secret(self._secrets.cluster) + "\n",
            directory / "broker.yaml": yaml.safe_dump(settings, sort_keys=False),
        }

    async def _remove(self, name: str) -> None:
        await self._processes.stop(name, STOP_PATIENCE_S)
        del self._records[name]
        self._processes.forget(name)
        self._save()

    async def stop_all(self, patience_s: float) -> None:
        """Stop all brokers; their spools stay on disk."""
        await asyncio.gather(*(self._processes.stop(name, patience_s) for name in self._records))
