"""Brokers and journals as the web page shows them. All functions are pure."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field

from qsync_operator.api.base import StatusModel
from qsync_operator.api.journals import JournalConditionType, QsyncJournal
from qsync_operator.api.reasons import JournalReason
from qsync_operator.plan.journalstatus import JournalReport, Sight, first_problem, sights
from qsync_web.journals import PageBroker, PageJournal, PageJournals

GAUGES = {
    "assignments": "qsync_broker_assignments",
    "primaries": "qsync_broker_primaries",
    "bytes": "qsync_broker_local_bytes",
    "unpersisted": "qsync_broker_unpersisted_fragments",
    "lease": "qsync_broker_lease_seconds",
    "journals": "qsync_broker_journals",
    "suspended": "qsync_broker_suspended_journals",
    "under_replicated": "qsync_broker_under_replicated_journals",
    "without_primary": "qsync_broker_journals_without_primary",
    "unsynchronised": "qsync_broker_unsynchronised_journals",
    "failing_stores": "qsync_broker_failing_stores",
}
_OF_ALL = ("journals", "suspended", "under_replicated", "without_primary")
"""Counts that every broker makes over all journals."""
_OF_ONE = ("unsynchronised", "failing_stores")
"""Counts of each broker over its own journals."""
_WELL = frozenset(
    {
        JournalReason.WRITABLE,
        JournalReason.READ_ONLY,
        JournalReason.PARTIALLY_SUSPENDED,
        JournalReason.FULLY_SUSPENDED,
    }
)
_BY_GRAVITY: tuple[JournalConditionType, ...] = (
    "HeadKnown",
    "Consistent",
    "StoreHealthy",
    "Writable",
)


class ListedBroker(StatusModel):
    """A broker as every broker of its cluster knows it."""

    name: str
    zone: str
    is_exiting: bool = False


class BrokerOverview(StatusModel):
    """An answer of a broker to /debug/journals with a limit (`qsync_broker.overview`)."""

    revision: int
    journals: list[JournalReport]
    total: int | None = None
    brokers: list[ListedBroker] = Field(default_factory=list)


class BrokerAnswer(NamedTuple):
    """What one broker answered.

    Attributes:
        address: its address.
        gauges: samples of `GAUGES` by name; None if it does not answer.
        overview: None if it does not answer, or wants a token.
        is_refused: whether it wants a token.
    """

    address: str
    gauges: dict[str, float] | None = None
    overview: BrokerOverview | None = None
    is_refused: bool = False


def read_gauges(text: str) -> dict[str, float]:
    """Return the samples of `GAUGES` in a text in Prometheus' format."""
    names = {metric: name for name, metric in GAUGES.items()}
    found = {}
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series in names:
            found[names[series]] = float(value)
    return found


def journals_of(answers: Mapping[str, BrokerAnswer]) -> PageJournals:
    """Return brokers and journals.

    Args:
        answers: the answer of each broker, by its name.
    """
    overviews = {name: one.overview for name, one in answers.items() if one.overview is not None}
    newest = max(overviews.values(), key=lambda one: one.revision, default=None)
    listed = {one.name: one for one in newest.brokers} if newest is not None else {}
    reports = {name: (one.revision, one.journals) for name, one in overviews.items()}
    return PageJournals(
        brokers=[_broker(name, one, listed.get(name)) for name, one in sorted(answers.items())],
        journals=[_journal(sight) for sight in sights(reports).values()],
        total=(newest.total or 0) if newest is not None else 0,
        counts=_counts([one.gauges for one in answers.values() if one.gauges is not None]),
    )


def _broker(name: str, answer: BrokerAnswer, listed: ListedBroker | None) -> PageBroker:
    gauges = answer.gauges
    zone = listed.zone if listed is not None else ""
    if gauges is None:
        return PageBroker(name, "does not answer", zone, address=answer.address)
    state = "ready" if gauges.get("lease", 1) > 0 else "no lease"
    if listed is not None and listed.is_exiting:
        state = "hands over"

    def figure(of: str) -> int | None:
        return int(gauges[of]) if of in gauges else None

    return PageBroker(
        name, state, zone, figure("assignments"), figure("primaries"), figure("bytes"),
        figure("unpersisted"), answer.address,
    )  # fmt: skip


def _counts(gauges: list[dict[str, float]]) -> dict[str, int]:
    most = {name: int(max((one.get(name, 0) for one in gauges), default=0)) for name in _OF_ALL}
    return most | {name: int(sum(one.get(name, 0) for one in gauges)) for name in _OF_ONE}


def _journal(sight: Sight) -> PageJournal:
    route, primary = sight
    reason, sentence = first_problem(sight)
    is_failing = reason not in _WELL
    report = primary or route
    lag = None
    if report.stores and report.write_head is not None and report.persisted is not None:
        lag = max(report.write_head - report.persisted, 0)
    return PageJournal(
        name=route.name,
        state=reason,
        message=sentence if is_failing else "",
        is_failing=is_failing,
        primary=route.primary,
        brokers=tuple(route.brokers),
        replication=route.replication,
        head=report.write_head,
        fragments=report.fragments,
        bytes=report.bytes,
        lag=lag,
        has_store=None if report.stores is None else report.stores > 0,
    )


def declared_journal(journal: QsyncJournal) -> PageJournal:
    """Return a journal by the status of its resource."""
    status = journal.status
    found = {one.type: one for one in status.conditions}
    known = [found[kind] for kind in _BY_GRAVITY if kind in found]
    worst = next((one for one in known if one.status != "True"), None)
    reason = worst.reason if worst is not None else str(JournalReason.WRITABLE)
    is_failing = worst is not None and reason not in (*_WELL, JournalReason.SUSPENDED)
    return PageJournal(
        name=journal.spec.journal,
        state=reason if known else JournalReason.NOT_OBSERVED,
        message=worst.message if worst is not None and is_failing else "",
        is_failing=is_failing or not known,
        primary=status.primary,
        brokers=tuple(status.brokers),
        replication=journal.spec.replication,
        head=status.write_head,
        fragments=status.fragments,
        has_store=bool(journal.spec.fragment.stores),
    )
