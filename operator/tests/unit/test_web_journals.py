"""Brokers and journals of the web page: their data, from answers of brokers and from resources."""

import json
from typing import Any

import pytest

from qsync_operator.api.journals import QsyncJournal
from qsync_operator.plan.journalview import (
    GAUGES,
    BrokerAnswer,
    BrokerOverview,
    declared_journal,
    journals_of,
    read_gauges,
)
from qsync_web.journals import (
    BROKERS_MAX,
    JOURNALS_MAX,
    PageBroker,
    PageJournal,
    PageJournals,
    journals_document,
)
from qsync_web.page import TEXT_MAX

HOSTILE = "</script><img src=x onerror=alert(1)>"


def report(name: str, **fields: object) -> dict[str, object]:
    found: dict[str, object] = {
        "name": name, "replication": 3, "brokers": ["b-0", "b-1", "b-2"], "primary": "b-0",
        "is_consistent": True, "suspend_level": 0, "is_ready": True, "write_head": 100,
        "fragments": 2, "bytes": 90, "persisted": 60, "stores": 1, "store_error": "",
        "append_error": "", "is_head_known": True,
    }  # fmt: skip
    return {**found, **fields}


def answer(
    *reports: dict[str, object], revision: int = 7, is_exiting: bool = False, **gauges: float
) -> BrokerAnswer:
    brokers = [{"name": "b-0", "zone": "east", "is_exiting": is_exiting}]
    overview = {
        "revision": revision, "journals": list(reports), "total": 3000, "brokers": brokers
    }  # fmt: skip
    return BrokerAnswer(
        "127.0.0.1:8080",
        {"lease": 2.0, "assignments": 9.0, "primaries": 3.0, "bytes": 70.0, **gauges},
        BrokerOverview.model_validate(overview),
    )


def document(found: PageJournals) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(journals_document(found)))
    return read


def test_journal_has_the_state_that_its_primary_reports() -> None:
    others = report("a", write_head=50, persisted=0)
    found = document(journals_of({"b-0": answer(report("a")), "b-1": answer(others)}))
    (journal,) = found["journals"]
    assert (journal["head"], journal["bytes"], journal["lag"]) == (100, 90, 40)
    assert (journal["state"], journal["is_failing"], journal["message"]) == ("Writable", False, "")
    assert journal["brokers"] == ["b-0", "b-1", "b-2"]
    assert found["total"] == 3000


@pytest.mark.parametrize(
    ("fields", "state", "words"),
    [
        ({"primary": "", "brokers": []}, "TooFewBrokers", "0 of 3 brokers"),
        ({"primary": ""}, "NoPrimary", "no broker is the primary"),
        ({"is_consistent": False}, "Synchronising", "being synchronised"),
        ({"store_error": "no such bucket"}, "StoreFailing", "no such bucket"),
        ({"append_error": "its disk is full"}, "AppendsFail", "its disk is full"),
    ],
)
def test_problem_of_a_journal_is_explained_and_comes_first(
    fields: dict[str, object], state: str, words: str
) -> None:
    found = document(journals_of({"b-0": answer(report("a"), report("z", **fields))}))
    first, second = found["journals"]
    if not fields.get("primary", "b-0"):
        assert first["primary"] == ""
    assert (first["name"], first["state"], first["is_failing"]) == ("z", state, True)
    assert words in first["message"]
    assert second["name"] == "a"


def test_suspended_journal_is_no_problem_and_one_without_a_store_has_no_lag() -> None:
    reports = [report("a", suspend_level=2), report("b", stores=0, persisted=0)]
    found = document(journals_of({"b-0": answer(*reports)}))
    suspended, without_store = found["journals"]
    assert (suspended["state"], suspended["is_failing"]) == ("FullySuspended", False)
    assert (without_store["has_store"], without_store["lag"]) == (False, None)


def test_state_of_a_broker() -> None:
    answers = {
        "b-0": answer(is_exiting=True),
        "b-1": answer(lease=0.0),
        "b-2": answer(),
        "b-3": BrokerAnswer(""),
    }
    answers["b-0"] = answers["b-0"]._replace(
        overview=BrokerOverview.model_validate(
            {**answers["b-0"].overview.model_dump(), "revision": 9}
        )
        if answers["b-0"].overview
        else None
    )
    found = {one["name"]: one for one in document(journals_of(answers))["brokers"]}
    assert {name: one["state"] for name, one in found.items()} == {
        "b-0": "hands over", "b-1": "no lease", "b-2": "ready", "b-3": "does not answer",
    }  # fmt: skip
    assert found["b-0"]["zone"] == "east"
    assert (found["b-2"]["assignments"], found["b-2"]["primaries"], found["b-2"]["bytes"]) == (
        9,
        3,
        70,
    )
    assert found["b-3"]["assignments"] is None


def test_counts_of_all_journals_are_not_added_and_those_of_each_broker_are() -> None:
    one = answer(journals=40.0, without_primary=2.0, failing_stores=3.0)
    found = document(journals_of({"b-0": one, "b-1": one}))
    counts = found["counts"]
    assert (counts["journals"], counts["without_primary"], counts["failing_stores"]) == (40, 2, 6)


def test_lists_are_bounded_and_texts_are_shortened() -> None:
    brokers = [PageBroker(str(number), "ready") for number in range(5000)]
    journals = [
        PageJournal(f"{HOSTILE}{number:9}" + "x" * 5000, "Writable") for number in range(5000)
    ]
    found = document(PageJournals(brokers, journals, 4))
    assert (len(found["brokers"]), len(found["journals"])) == (BROKERS_MAX, JOURNALS_MAX)
    assert found["total"] == 5000
    assert found["journals"][0]["name"].startswith(HOSTILE)
    assert len(found["journals"][0]["name"]) == TEXT_MAX


def test_gauges_are_read_from_prometheus_format() -> None:
    text = "# HELP qsync_broker_primaries x\nqsync_broker_primaries 7.0\nother 3\n"
    assert read_gauges(text) == {"primaries": 7.0}
    assert read_gauges("") == {}
    assert len(set(GAUGES.values())) == len(GAUGES)


def declared(**conditions: tuple[str, str]) -> QsyncJournal:
    found = [
        {
            "type": kind, "status": status, "reason": reason, "message": f"{reason} it is",
            "lastTransitionTime": "2026-01-31T12:00:00+00:00", "observedGeneration": 1,
        }
        for kind, (status, reason) in conditions.items()
    ]  # fmt: skip
    return QsyncJournal.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncJournal",
            "metadata": {"name": "a", "namespace": "shop"},
            "spec": {"cluster": "orders", "journal": "orders/eu"},
            "status": {"primary": "b-0", "brokers": ["b-0"], "writeHead": 5, "conditions": found},
        }
    )


def test_declared_journal_has_the_gravest_condition() -> None:
    well = {"Consistent": ("True", "Synchronised"), "Writable": ("True", "Writable")}
    found = declared_journal(declared(**well))
    assert (found.state, found.is_failing, found.head, found.primary) == (
        "Writable",
        False,
        5,
        "b-0",
    )
    found = declared_journal(declared(**{**well, "HeadKnown": ("False", "HeadUnknown")}))
    assert (found.state, found.is_failing, found.message) == (
        "HeadUnknown",
        True,
        "HeadUnknown it is",
    )
    found = declared_journal(declared(**{**well, "Writable": ("False", "Suspended")}))
    assert (found.state, found.is_failing) == ("Suspended", False)
    assert declared_journal(declared()).is_failing
