"""The status of a QsyncJournal, built from the reports of brokers; all functions are pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from qsync_operator.api.base import StatusModel
from qsync_operator.api.journals import (
    JournalCondition,
    JournalConditionType,
    JournalStatus,
    QsyncJournal,
)
from qsync_operator.api.reasons import JournalReason

Value = Literal["True", "False", "Unknown"]
JournalFinding = tuple[Value, JournalReason, str]
TYPES: tuple[JournalConditionType, ...] = (
    "Consistent",
    "Writable",
    "StoreHealthy",
    "HeadKnown",
    "Suspended",
)
_UNSEEN: JournalFinding = (
    "Unknown",
    JournalReason.NOT_OBSERVED,
    "the primary of the journal does not answer",
)


class JournalReport(StatusModel):
    """Description of one journal by a broker (`qsync_broker.description`).

    Fields that a broker of an earlier version lacks, or cannot know, are None.
    """

    name: str
    replication: int
    brokers: list[str]
    primary: str
    is_consistent: bool
    suspend_level: int
    is_ready: bool = False
    write_head: int | None = None
    fragments: int | None = None
    bytes: int | None = None
    persisted: int | None = None
    stores: int | None = None
    store_error: str | None = None
    append_error: str | None = None
    is_head_known: bool | None = None
    is_read_only: bool = False


class JournalRefusal(NamedTuple):
    """Why a declaration has no effect."""

    reason: JournalReason
    sentence: str


class Sight(NamedTuple):
    """What brokers report about one journal.

    Attributes:
        route: the newest report.
        primary: the report of the primary, or None if it does not answer.
    """

    route: JournalReport
    primary: JournalReport | None


def sights(reports: Mapping[str, tuple[int, Iterable[JournalReport]]]) -> dict[str, Sight]:
    """Return the newest known state of each reported journal.

    Args:
        reports: revision and reports, by broker.
    """
    newest: dict[str, tuple[int, JournalReport]] = {}
    own: dict[tuple[str, str], JournalReport] = {}
    for broker, (revision, journals) in reports.items():
        for report in journals:
            name = report.name
            own[broker, name] = report
            if name not in newest or revision > newest[name][0]:
                newest[name] = revision, report
    return {
        name: Sight(report, own.get((report.primary, name))) for name, (_, report) in newest.items()
    }


def build_journal_status(
    journal: QsyncJournal, refusal: JournalRefusal | None, sight: Sight | None, wall_s: float
) -> JournalStatus:
    """Return the status of a journal.

    Args:
        journal: the resource with its previous status.
        refusal: why the declaration has no effect, or None.
        sight: reports of brokers, or None if no broker has reported the journal.
        wall_s: seconds since 1970.
    """
    before = journal.status
    status = before.model_copy()
    if sight is not None:
        route, primary = sight
        status = JournalStatus(
            primary=route.primary,
            brokers=route.brokers,
            write_head=_known(primary.write_head if primary else None, before.write_head),
            fragments=_known(primary.fragments if primary else None, before.fragments),
        )
    now = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds")
    findings = _findings(refusal, sight, journal.spec.flags == "O_RDONLY")
    status.conditions = [
        _condition(journal, kind, finding, now)
        for kind, finding in zip(TYPES, findings, strict=True)
    ]
    return status


def _known(found: int | None, before: int) -> int:
    """Return a number of the primary, or the last known one while no broker reports it."""
    return found if found is not None else before


def _condition(
    journal: QsyncJournal, kind: JournalConditionType, finding: JournalFinding, now: str
) -> JournalCondition:
    value, reason, message = finding
    old = next((one for one in journal.status.conditions if one.type == kind), None)
    since = old.last_transition_time if old is not None and old.status == value else now
    return JournalCondition(
        type=kind,
        status=value,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=journal.metadata.generation,
    )


def first_problem(sight: Sight) -> tuple[JournalReason, str]:
    """Return the gravest problem of a journal and a sentence about it.

    The reason is `Writable`, `ReadOnly` or the suspension if there is no problem.
    """
    found = dict(zip(TYPES, _findings(None, sight, sight.route.is_read_only), strict=True))
    if sight.route.suspend_level > 1:
        return found["Suspended"][1:]  # no broker knows more
    known = [found[kind] for kind in ("HeadKnown", "Consistent", "StoreHealthy")]
    if not sight.route.primary and not sight.route.suspend_level:
        known.append(found["Writable"])
    for wanted in ("False", "Unknown"):  # a cause first: without a primary, nothing else is known
        for value, reason, sentence in known:
            if value == wanted:
                return reason, sentence
    return found["Suspended" if sight.route.suspend_level else "Writable"][1:]


def _findings(
    refusal: JournalRefusal | None, sight: Sight | None, is_read_only: bool
) -> tuple[JournalFinding, ...]:
    """Return the conditions in the order of `TYPES`."""
    if refusal is not None:
        return (("Unknown", refusal.reason, refusal.sentence),) * len(TYPES)
    if sight is None:
        sentence = "no broker of the cluster has reported the journal"
        return (("Unknown", JournalReason.NOT_OBSERVED, sentence),) * len(TYPES)
    route, primary = sight
    level = route.suspend_level
    suspended: JournalFinding = ("False", JournalReason.NOT_SUSPENDED, "")
    if level == 1:
        suspended = ("True", JournalReason.PARTIALLY_SUSPENDED, "an append resumes the journal")
    elif level:
        suspended = ("True", JournalReason.FULLY_SUSPENDED, "an append resumes the journal")
    consistent = _consistent(route)
    return (
        consistent,
        _writable(is_read_only, route, primary, consistent),
        _store_healthy(primary),
        _head_known(primary),
        suspended,
    )


def _consistent(route: JournalReport) -> JournalFinding:
    brokers, replication = len(route.brokers), route.replication
    if brokers < replication:
        sentence = f"the journal has {brokers} of {replication} brokers"
        return "False", JournalReason.TOO_FEW_BROKERS, sentence
    if not route.is_consistent:
        return "False", JournalReason.SYNCHRONISING, "the brokers are being synchronised"
    return "True", JournalReason.SYNCHRONISED, ""


def _writable(
    is_read_only: bool,
    route: JournalReport,
    primary: JournalReport | None,
    consistent: JournalFinding,
) -> JournalFinding:
    if is_read_only:
        return "False", JournalReason.READ_ONLY, "spec.flags is O_RDONLY"
    if route.suspend_level:
        return "False", JournalReason.SUSPENDED, "an append resumes the journal"
    if not route.primary:
        return "False", JournalReason.NO_PRIMARY, "no broker is the primary of the journal"
    if consistent[1] is JournalReason.TOO_FEW_BROKERS:
        return consistent
    if primary is None:
        return _UNSEEN
    if primary.is_head_known is False:
        return _head_known(primary)
    # The next append opens a pipeline that was lost while the journal was idle.
    if not primary.is_ready and consistent[0] != "True":
        sentence = f"{route.primary} synchronises the brokers of the journal"
        return "False", JournalReason.SYNCHRONISING, sentence
    if primary.append_error:
        sentence = f"{route.primary} accepts no appends: {primary.append_error}"
        return "False", JournalReason.APPENDS_FAIL, sentence
    return "True", JournalReason.WRITABLE, f"{route.primary} accepts appends"


def _store_healthy(primary: JournalReport | None) -> JournalFinding:
    if primary is None or primary.stores is None:
        return _UNSEEN
    if not primary.stores:
        return "True", JournalReason.NO_STORES, "fragments stay on the disks of the brokers"
    if primary.store_error:
        return "False", JournalReason.STORE_FAILING, primary.store_error
    return "True", JournalReason.STORES_ANSWER, ""


def _head_known(primary: JournalReport | None) -> JournalFinding:
    if primary is None or primary.is_head_known is None:
        return _UNSEEN
    if primary.is_head_known:
        return "True", JournalReason.HEAD_KNOWN, ""
    sentence = (
        "no broker of the journal has all acknowledged bytes: restore the missing brokers, or"
        " accept the loss with `qsync journals reset-head` (`accept-loss` without a store)"
    )
    return "False", JournalReason.HEAD_UNKNOWN, sentence
