"""Journals of one cluster: enables them in the database, and brings declared ones there.

A QsyncJournal becomes a specification in the key space. Deleting the resource does not delete the
journal, as removing a user or a space from the manifest does not delete it: that would destroy
data. Its status contains what brokers report.
"""

import logging
import ssl
import time
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from qsync_broker.folders import Folders
from qsync_operator.api.cluster import API_VERSION, QsyncCluster
from qsync_operator.api.journals import JournalStatus, QsyncJournal, QsyncJournalSpec, problem_of
from qsync_operator.api.mistakes import sentence_of
from qsync_operator.api.reasons import JournalReason, Reason
from qsync_operator.kubernetes.api import Api, ApiError, name_of
from qsync_operator.kubernetes.cache import Cache, ObjectKey
from qsync_operator.kubernetes.dependents import run_of_cluster
from qsync_operator.kubernetes.journalreports import JournalReports
from qsync_operator.kubernetes.journaltokens import JournalTokens
from qsync_operator.members import keyspace as journals
from qsync_operator.members.access import AccessRefused
from qsync_operator.members.iproto import DatabaseError, IprotoConnection, connect_as_admin
from qsync_operator.members.threads import in_thread
from qsync_operator.plan.journalstatus import JournalRefusal, build_journal_status
from qsync_operator.plan.observed import Trouble
from qsync_operator.resources.brokers import has_brokers
from qsync_operator.resources.labels import KubernetesObject

KIND = "QsyncJournal"
TIMEOUT_S = 10.0
COMPARE_AGAIN_S = 30.0
TRY_AGAIN_S = 2.0
NUMBERS_EVERY_S = 10.0
"""Time between two statuses of a journal that differ only in numbers."""

log = logging.getLogger(__name__)


class JournalReconciler:
    """Journals of one cluster. Blocking requests run in a thread."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        key: ObjectKey,
        secret: str,
        context: Callable[[], ssl.SSLContext],
        wake: Callable[[], None],
    ) -> None:
        """Prepare the reconciler.

        Args:
            api: the API server.
            cache: watched objects.
            key: namespace and name of the cluster.
            secret: secret of the cluster.
            context: returns the TLS context of connections to members.
            wake: called when something has changed that `reconcile` uses.
        """
        self._api = api
        self._cache = cache
        self._key = key
        self._secret = secret
        self._context = context
        self._reports = JournalReports(context, wake)
        self._tokens = JournalTokens(api, key[0])
        self._compared: tuple[object, float] = (None, 0.0)  # what, and when it is compared again
        self._troubles: tuple[Trouble, ...] = ()
        self._refused: dict[str, str] = {}  # sentence of the database, by journal
        self._published_s: dict[str, float] = {}

    async def close(self) -> None:
        """Close the connections to brokers."""
        await self._reports.close()

    async def reconcile(
        self, cluster: QsyncCluster, leader: str | None, brokers: Mapping[str, str]
    ) -> tuple[Trouble, ...]:
        """Enable journals if the manifest does, declare them, and publish their statuses.

        Args:
            cluster: the manifest.
            leader: address of the writable leader, or None if there is none.
            brokers: URL of each broker whose pod has an address.

        Returns:
            Problems that prevent it.
        """
        found = self._cache.all(self._key, KIND)
        declared, refusals = examine(found)
        await self._tokens.reconcile(cluster)
        if has_brokers(cluster):
            await self._compare(cluster, leader, [one.spec for one in declared.values()])
            if declared:
                names = [one.spec.journal for one in declared.values()]
                self._reports.ask(brokers, names, self._tokens.token)
        else:
            self._compared, self._troubles = (None, 0.0), ()
            sentence = f"spec.journals of QsyncCluster {cluster.name} is not enabled"
            refusals |= dict.fromkeys(
                declared, JournalRefusal(JournalReason.JOURNALS_DISABLED, sentence)
            )
        for document in found:
            try:
                await self._publish(document, refusals.get(name_of(document)))
            except ApiError as error:
                if not error.status:
                    log.warning("journals of %s are waiting: %s", cluster.name, error)
                    break
                log.warning("QsyncJournal %s is waiting: %s", name_of(document), error)
                if error.status == 404:
                    self._cache.note(KIND, document, is_gone=True)
        if has_brokers(cluster) and self._tokens.problem:
            return (*self._troubles, Trouble(Reason.JOURNALS_REFUSED, self._tokens.problem, False))
        return self._troubles

    def _connected(self, leader: str) -> IprotoConnection:
        return connect_as_admin(leader, self._secret, TIMEOUT_S, self._context())

    async def _compare(
        self, cluster: QsyncCluster, leader: str | None, wanted: list[QsyncJournalSpec]
    ) -> None:
        """Bring the database to the declarations if that is due."""
        state = (cluster.metadata.generation, wanted)
        is_due = self._compared[0] != state or time.monotonic() >= self._compared[1]
        if leader is None or not is_due:
            return
        pause_s = COMPARE_AGAIN_S
        try:
            self._refused = await in_thread(self._declare, leader, wanted)
            self._troubles = ()
        except (AccessRefused, DatabaseError) as error:
            if isinstance(error, AccessRefused) or error.code:
                sentence = f"journals cannot be enabled: {error}"
                self._troubles = (Trouble(Reason.JOURNALS_REFUSED, sentence, False),)
            pause_s = TRY_AGAIN_S
        if self._refused:
            pause_s = TRY_AGAIN_S
        self._compared = (state, time.monotonic() + pause_s)

    def _declare(self, leader: str, wanted: list[QsyncJournalSpec]) -> dict[str, str]:
        """Return why the leader refused journals, by name."""
        refused: dict[str, str] = {}
        with self._connected(leader) as database:
            journals.enable(database, self._secret)
            for spec in wanted:
                try:
                    journals.declare(database, spec)
                except DatabaseError as error:
                    if not error.code:
                        raise
                    refused[spec.journal] = str(error)
        return refused

    async def _publish(self, document: KubernetesObject, refusal: JournalRefusal | None) -> None:
        journal = read(document)
        if journal is None:
            generation = int(document["metadata"].get("generation", 0))
            journal = unreadable(document, generation)
        sentence = self._refused.get(journal.spec.journal)
        if refusal is None and sentence is not None:
            refusal = JournalRefusal(JournalReason.REFUSED, sentence)
        sight = self._reports.found.get(journal.spec.journal)
        status = build_journal_status(journal, refusal, sight, time.time())
        if status.stored() == journal.status.stored() and "status" in document:
            return
        is_new = without_numbers(status) != without_numbers(journal.status)
        now_s = time.monotonic()
        if not is_new and now_s - self._published_s.get(journal.name, 0.0) < NUMBERS_EVERY_S:
            return
        self._published_s[journal.name] = now_s
        self._cache.note(KIND, await publish(self._api, document, status))


def read(document: KubernetesObject) -> QsyncJournal | None:
    """Return the journal of a document, or None if its specification is invalid."""
    try:
        return QsyncJournal.model_validate(document)
    except ValidationError:
        return None


def unreadable(document: KubernetesObject, generation: int) -> QsyncJournal:
    """Return a journal with the status of a document whose specification is invalid."""
    spec = {"cluster": "unknown", "journal": "unknown"}
    journal = QsyncJournal.model_validate({**document, "spec": spec})
    journal.metadata.generation = generation
    return journal


def without_numbers(status: JournalStatus) -> JournalStatus:
    return status.model_copy(update={"write_head": 0, "fragments": 0})


def examine(
    documents: list[KubernetesObject],
) -> tuple[dict[str, QsyncJournal], dict[str, JournalRefusal]]:
    """Return usable declarations, and why the others are refused, by name of the resource.

    Of two declarations of one journal, or of a journal and a folder of it, the older one counts.
    """
    usable: dict[str, QsyncJournal] = {}
    refusals: dict[str, JournalRefusal] = {}
    taken: dict[str, str] = {}  # resource by journal
    folders = Folders()
    for document in sorted(documents, key=_age):
        name = name_of(document)
        sentence = _problem(document)
        if sentence:
            refusals[name] = JournalRefusal(JournalReason.INVALID_SPEC, sentence)
            continue
        journal = QsyncJournal.model_validate(document)
        wanted = journal.spec.journal
        other = folders.other(wanted)
        if other:
            sentence = f"QsyncJournal {taken[other]} declares the journal {other} already"
            refusals[name] = JournalRefusal(JournalReason.DECLARED_TWICE, sentence)
            continue
        taken[wanted] = name
        folders.add(wanted)
        usable[name] = journal
    return usable, refusals


def _age(document: KubernetesObject) -> tuple[str, str]:
    return str(document["metadata"].get("creationTimestamp") or ""), name_of(document)


def _problem(document: KubernetesObject) -> str:
    """Return the first violated rule of a specification, or ""."""
    try:
        journal = QsyncJournal.model_validate(document)
    except ValidationError as error:
        return sentence_of(error, QsyncJournal)
    return problem_of(journal.spec)


async def refuse_journal(api: Api, document: KubernetesObject) -> None:
    """Report that the cluster of a journal does not exist.

    Raises:
        ApiError: the status cannot be written.
    """
    generation = int(document["metadata"].get("generation", 0))
    journal = read(document) or unreadable(document, generation)
    sentence = f"QsyncCluster {journal.spec.cluster} not found in this namespace: create it"
    refusal = JournalRefusal(JournalReason.NO_CLUSTER, sentence)
    status = build_journal_status(journal, refusal, None, time.time())
    if status.stored() != journal.status.stored():
        await publish(api, document, status)


async def publish(api: Api, document: KubernetesObject, status: JournalStatus) -> KubernetesObject:
    """Store a status, and return the stored object with the label of its cluster.

    Raises:
        ApiError: the status cannot be written.
    """
    stored = await api.apply(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {key: document["metadata"][key] for key in ("name", "namespace")},
            "status": status.stored(),
        },
        "status",
    )
    return run_of_cluster(stored, KIND)
