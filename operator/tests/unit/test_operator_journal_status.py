"""QsyncJournal: which declarations count, and the status that follows from reports of brokers."""

from typing import Any, get_args

import pytest

from qsync_operator.api.catalogue.journals import JOURNAL_CONDITIONS
from qsync_operator.api.journals import JournalConditionType, JournalStatus, QsyncJournal
from qsync_operator.api.reasons import JournalReason
from qsync_operator.kubernetes.journals import examine
from qsync_operator.plan.journalstatus import (
    TYPES,
    JournalRefusal,
    JournalReport,
    Sight,
    build_journal_status,
    first_problem,
    sights,
)
from qsync_testing.operator.journal_documents import document, report

NOW_S = 1_700_000_000.0


def resource(status: JournalStatus | None = None, **spec: Any) -> QsyncJournal:
    journal = QsyncJournal.model_validate(document(**spec))
    if status is not None:
        journal.status = status
    return journal


def parsed(**changes: object) -> JournalReport:
    return JournalReport.model_validate(report(**changes))


def seen(**changes: object) -> Sight:
    return Sight(parsed(**changes), parsed(**changes))


def conditions_of(status: JournalStatus) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in status.conditions}


def test_a_journal_in_good_order() -> None:
    status = build_journal_status(resource(), None, seen(), NOW_S)
    assert (status.primary, status.brokers) == ("orders-1", ["orders-0", "orders-1"])
    assert (status.write_head, status.fragments) == (100, 3)
    assert conditions_of(status) == {
        "Consistent": ("True", "Synchronised"),
        "Writable": ("True", "Writable"),
        "StoreHealthy": ("True", "StoresAnswer"),
        "HeadKnown": ("True", "HeadKnown"),
        "Suspended": ("False", "NotSuspended"),
    }
    assert {one.observed_generation for one in status.conditions} == {3}


@pytest.mark.parametrize(
    ("changes", "condition", "expected"),
    [
        ({"brokers": ["orders-1"]}, "Consistent", ("False", "TooFewBrokers")),
        ({"brokers": ["orders-1"]}, "Writable", ("False", "TooFewBrokers")),
        ({"append_error": "replication failed"}, "Writable", ("False", "AppendsFail")),
        ({"append_error": "replication failed"}, "Consistent", ("True", "Synchronised")),
        ({"append_error": ""}, "Writable", ("True", "Writable")),
        ({"is_consistent": False}, "Consistent", ("False", "Synchronising")),
        ({"is_ready": False, "is_consistent": False}, "Writable", ("False", "Synchronising")),
        ({"is_ready": False}, "Writable", ("True", "Writable")),
        ({"primary": ""}, "Writable", ("False", "NoPrimary")),
        ({"is_head_known": False}, "Writable", ("False", "HeadUnknown")),
        ({"is_head_known": False}, "HeadKnown", ("False", "HeadUnknown")),
        ({"stores": 0}, "StoreHealthy", ("True", "NoStores")),
        ({"store_error": "no such bucket"}, "StoreHealthy", ("False", "StoreFailing")),
        ({"suspend_level": 1}, "Suspended", ("True", "PartiallySuspended")),
        ({"suspend_level": 2}, "Suspended", ("True", "FullySuspended")),
        ({"suspend_level": 2}, "Writable", ("False", "Suspended")),
    ],
)
def test_each_problem_has_its_reason(
    changes: dict[str, Any], condition: str, expected: tuple[str, str]
) -> None:
    status = build_journal_status(resource(), None, seen(**changes), NOW_S)
    assert conditions_of(status)[condition] == expected


def test_a_journal_that_is_only_read_is_not_writable() -> None:
    status = build_journal_status(resource(flags="O_RDONLY"), None, seen(), NOW_S)
    assert conditions_of(status)["Writable"] == ("False", "ReadOnly")


def test_numbers_are_kept_while_the_primary_does_not_answer() -> None:
    before = build_journal_status(resource(), None, seen(), NOW_S)
    other = parsed(write_head=None, fragments=None)
    status = build_journal_status(resource(before), None, Sight(other, None), NOW_S)
    assert (status.write_head, status.fragments) == (100, 3)
    found = conditions_of(status)
    assert found["Writable"] == found["HeadKnown"] == ("Unknown", "NotObserved")
    assert found["Consistent"] == ("True", "Synchronised")


def test_nothing_is_known_of_a_refused_or_unreported_journal() -> None:
    refusal = JournalRefusal(JournalReason.NO_CLUSTER, "QsyncCluster orders not found")
    for given, reason in ((refusal, "NoCluster"), (None, "NotObserved")):
        status = build_journal_status(resource(), given, None, NOW_S)
        assert conditions_of(status) == dict.fromkeys(TYPES, ("Unknown", reason))


def test_a_condition_keeps_its_time_while_its_value_is_unchanged() -> None:
    before = build_journal_status(resource(), None, seen(), NOW_S)
    after = build_journal_status(resource(before), None, seen(store_error="lost"), NOW_S + 60)
    times = {
        one.type: one.last_transition_time != old.last_transition_time
        for one, old in zip(after.conditions, before.conditions, strict=True)
    }
    assert [kind for kind, is_changed in times.items() if is_changed] == ["StoreHealthy"]


def test_the_newest_route_counts_and_the_state_is_the_primarys() -> None:
    moved = parsed(primary="orders-0")
    found = sights(
        {
            "orders-0": (20, [parsed(primary="orders-0", write_head=120)]),
            "orders-1": (10, [parsed()]),
            "orders-2": (5, []),
        }
    )
    assert found["orders/eu"].route.primary == "orders-0"
    primary = found["orders/eu"].primary
    assert primary is not None
    assert primary.write_head == 120
    assert sights({"orders-1": (30, [moved])})["orders/eu"].primary is None


def test_a_broker_of_an_earlier_version_reports_less() -> None:
    known = ("name", "replication", "brokers", "primary", "is_consistent", "suspend_level")
    earlier = JournalReport.model_validate({key: report()[key] for key in known})
    status = build_journal_status(resource(), None, Sight(earlier, earlier), NOW_S)
    assert conditions_of(status)["HeadKnown"] == ("Unknown", "NotObserved")
    assert conditions_of(status)["Consistent"] == ("True", "Synchronised")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "Writable"),
        ({"replication": 3}, "TooFewBrokers"),
        ({"is_head_known": False}, "HeadUnknown"),
        ({"is_head_known": False, "replication": 3}, "HeadUnknown"),
        ({"is_consistent": False}, "Synchronising"),
        ({"store_error": "the store refuses"}, "StoreFailing"),
        ({"append_error": "a broker hangs"}, "AppendsFail"),
        ({"is_read_only": True}, "ReadOnly"),
        ({"suspend_level": 1, "replication": 1}, "PartiallySuspended"),
    ],
)
def test_first_problem_is_the_gravest(changes: dict[str, Any], reason: str) -> None:
    found, sentence = first_problem(seen(**changes))
    assert found == reason
    assert sentence or reason == "Writable"


def test_first_problem_of_a_journal_without_reports() -> None:
    assert first_problem(Sight(parsed(), None))[0] == "NotObserved"
    assert first_problem(Sight(parsed(primary=""), None))[0] == "NoPrimary"
    assert first_problem(Sight(parsed(replication=3), None))[0] == "TooFewBrokers"
    suspended = parsed(suspend_level=2, replication=0, brokers=[], primary="")
    assert first_problem(Sight(suspended, None))[0] == "FullySuspended"


def test_condition_types_are_those_of_the_model_and_the_catalogue() -> None:
    assert get_args(JournalConditionType) == TYPES
    assert tuple(entry.name for entry in JOURNAL_CONDITIONS) == TYPES


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (document(journal="/orders"), "spec.journal: '/orders' must be a path"),
        (document(replication=9), "spec.replication 9: it must be at most 5"),
        (document(fragment={"stores": ["s3://bucket"]}), "spec.fragment.stores[0]: the path of"),
        (document(fragment={"flushInterval": "5s"}), "spec.fragment.flushInterval: must be 0"),
    ],
)
def test_an_invalid_declaration_is_refused_with_its_field(
    given: dict[str, Any], sentence: str
) -> None:
    usable, refusals = examine([given])
    assert not usable
    assert refusals["orders-eu"].reason is JournalReason.INVALID_SPEC
    assert sentence in refusals["orders-eu"].sentence


def test_of_two_declarations_of_a_journal_the_older_one_counts() -> None:
    def made(name: str, journal: str, at: str) -> dict[str, Any]:
        given = document(name, journal)
        given["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{at}Z"
        return given

    documents = [
        made("a", "orders/eu", "3"),
        made("b", "orders/eu", "1"),
        made("c", "orders/eu/old", "2"),
        made("d", "orders/europe", "4"),
    ]
    usable, refusals = examine(documents)
    assert set(usable) == {"b", "d"}
    assert {name: one.reason for name, one in refusals.items()} == {
        "a": JournalReason.DECLARED_TWICE,
        "c": JournalReason.DECLARED_TWICE,
    }
