"""Results of audits and compactions, as their drivers report them."""

import json
from typing import Any

import pytest

from qsync_operator.api.jobs import AuditStatus, CompactionStatus
from qsync_operator.jobs.results import PROGRESS, VIOLATIONS, judge
from qsync_spark.pod_main import audit_word
from qsync_testing.operator.runs import ENDED, FAR, driver, ended, job, said


def test_verdict_of_each_proof_is_in_the_status() -> None:
    result = {
        "verdict": "Violated", "counts": {}, "violationCount": 1, "violations": [],
        "incomplete": [], "hosts": ["a"],
        "proofs": {"4": {"proof": "...", "verdict": "Passed"},
                   "5": {"proof": "...", "verdict": "Violated"}},
    }  # fmt: skip
    word = json.dumps(audit_word(result, "s3://bucket/report.html", "app-1"))
    finished = job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED)
    status = judge("audit", AuditStatus(), 1, finished, driver("by-hand", "Succeeded", word))
    assert isinstance(status, AuditStatus)
    shown = [(one.number, one.verdict) for one in status.proofs]
    assert shown == [(4, "Passed"), (5, "Violated")]


@pytest.mark.parametrize(
    ("state", "message", "reason", "sentence"),
    [
        ("Complete", "", "NoResult", "without a result"),
        ("Complete", "not JSON", "NoResult", "without a result"),
        ("Complete", said(error="the archive is empty"), "NoResult", "the archive is empty"),
        ("Failed", "", "DeadlineExceeded", "too long"),
        ("Failed", said(error="the bucket is not there"), "DeadlineExceeded", "the bucket"),
    ],
)
def test_a_run_without_a_result_has_failed_with_a_sentence(
    state: str, message: str, reason: str, sentence: str
) -> None:
    more = (
        {"reason": "DeadlineExceeded", "message": "it took too long"} if state == "Failed" else {}
    )
    finished = job("by-hand", "QsyncAudit", **ended(state, **more))
    status = judge("audit", AuditStatus(), 1, finished, driver("by-hand", "Failed", message))
    assert status.phase == "Failed"
    assert status.conditions[0].reason == reason
    assert sentence in status.message


@pytest.mark.parametrize(
    "word",
    [
        {"verdict": "Uncertain"},
        {"verdict": "Passed", "counts": {"rows": 1.5}},
        {"verdict": "Violated", "violations": {"a": 1}},
        {"verdict": "Passed", "violations": 3},
        {"verdict": "Violated", "violations": ["row 7"], "counts": {"violations": 1}},
        {"verdict": "Passed", "proofs": [{"number": 7, "verdict": "Skipped"}]},
    ],
)
def test_result_that_cannot_be_read_is_none(word: dict[str, Any]) -> None:
    finished = job("by-hand", "QsyncAudit", **ended("Complete"))
    pod = driver("by-hand", "Succeeded", json.dumps(word))
    status = judge("audit", AuditStatus(), 1, finished, pod)
    assert isinstance(status, AuditStatus)
    assert (status.phase, status.verdict) == ("Failed", "")
    assert status.conditions[0].reason == "NoResult"
    assert "cannot read the result of the driver" in status.message


def test_strange_progress_and_list_of_violations_do_not_hide_a_result() -> None:
    finished = job("by-hand", "QsyncAudit", **ended("Complete"))
    pod = driver("by-hand", "Succeeded", said(verdict="Violated", violations=[], counts={}))
    far = json.dumps({**FAR, "rows": float("inf")})
    pod["metadata"]["annotations"] = {PROGRESS: far, VIOLATIONS: '["row 7"]'}
    status = judge("audit", AuditStatus(), 1, finished, pod)
    assert isinstance(status, AuditStatus)
    assert status.verdict == "Violated"


@pytest.mark.parametrize(
    ("snapshot", "sentence"),
    [
        ("compactions/1/1.snap", "snapshot compactions/1/1.snap was published"),
        ("", "nothing to fold"),
    ],
)
def test_a_compaction_reports_its_result(snapshot: str, sentence: str) -> None:
    finished = job("by-hand", "QsyncCompaction", **ended("Complete"), completionTime=ENDED)
    pod = driver("by-hand", "Succeeded", said(snapshot=snapshot))
    status = judge("compaction", CompactionStatus(), 1, finished, pod)
    assert status.phase == "Succeeded"
    assert sentence in status.message
    assert "fragments" not in status.message
    merged = {"mergedFragments": 7, "removedFragments": 3, "fragmentProblems": 1}
    word = said(snapshot=snapshot, counts=merged, incomplete="a/b is damaged")
    status = judge("compaction", CompactionStatus(), 1, finished, driver("x", "Succeeded", word))
    assert status.message.endswith(
        "; 7 fragments of journals were merged, 3 deleted; some fragments are left as they are:"
        " a/b is damaged"
    )


def test_what_is_not_known_is_in_the_status() -> None:
    word = said(verdict="Incomplete", counts={"violations": 0}, incomplete="orders-2 is not there")
    finished = job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED)
    status = judge("audit", AuditStatus(), 1, finished, driver("by-hand", "Succeeded", word))
    assert status.phase == "Succeeded"
    assert status.message.endswith("proofs need: orders-2 is not there")


def test_violations_that_the_message_has_no_room_for_are_in_an_annotation() -> None:
    many = [{"proof": "1", "message": f"row {n} is missing", "location": ""} for n in range(25)]
    word = said(verdict="Violated", counts={"violations": 25}, violations=many[:7])
    finished = job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED)
    for text, shown in ((json.dumps(many), 20), ("[{", 7), ("[]", 7)):
        pod = driver("by-hand", "Succeeded", word)
        pod["metadata"]["annotations"][VIOLATIONS] = text
        status = judge("audit", AuditStatus(), 1, finished, pod)
        assert isinstance(status, AuditStatus)
        assert len(status.violations) == shown
        assert status.counts["violations"] == 25
