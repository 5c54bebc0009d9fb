"""Audits and compactions: their Jobs, objects and statuses."""

import asyncio
from typing import Any

import pytest

from qsync_operator.api.status import Condition
from qsync_operator.jobs.reconciler import refuse_run
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.dependents import last_run, run_of_cluster
from qsync_operator.resources.jobs import RECORDED
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.runs import (
    ARCHIVE,
    ENDED,
    IMAGE,
    KEY,
    STARTED,
    RunStage,
    audit,
    driver,
    ended,
    job,
    said,
)


def test_a_run_by_hand_gets_a_job_that_goes_with_it() -> None:
    stage = RunStage()
    run = stage.put(audit(deadline="90s", spark={"instances": 3}))
    stage.reconcile()
    assert stage.status()["phase"] == "Pending"
    stage.reconcile()
    made = stage.api.named("Job", "by-hand")
    assert [write for write in stage.api.writes if write[1] == "Job"] == [
        ("create", "Job", "by-hand")
    ]
    assert made["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    assert made["spec"]["activeDeadlineSeconds"] == 90
    arguments = made["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:5] == ["audit", "--cluster", "orders", "--archive", ARCHIVE["url"]]
    assert "spark.executor.instances=3" in arguments


def test_no_argument_of_a_driver_names_a_variable_of_its_environment() -> None:
    secret = "$(AWS_SECRET_ACCESS_KEY)"
    stage = RunStage(archive={**ARCHIVE, "url": f"s3://bucket/{secret}"})
    stage.put(audit(appendLedgers=[f"file:///{secret}"]))
    stage.reconcile()
    pod = stage.api.named("Job", "by-hand")["spec"]["template"]["spec"]
    found = [word for word in pod["containers"][0]["args"] if secret in word]
    assert found == [f"s3://bucket/${secret}", f"file:///${secret}"]


def test_job_that_no_watch_has_shown_yet_is_not_deleted() -> None:
    stage = RunStage()
    stage.put({**audit(), "status": {"phase": "Running", "observedGeneration": 1}})
    stage.api.put(job("by-hand", "QsyncAudit", startTime=STARTED))
    stage.reconcile()
    assert stage.status()["phase"] == "Running"


def test_result_of_a_driver_that_the_watch_shows_running_is_awaited() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.reconcile()
    stage.put(driver("by-hand"))
    stage.put({**job("by-hand", "QsyncAudit"), "status": ended("Complete")})
    stage.reconcile()
    assert stage.status()["phase"] == "Running"
    stage.put(driver("by-hand", "Succeeded", said(verdict="Violated", violations=[])))
    stage.reconcile()
    assert stage.status()["verdict"] == "Violated"


def test_result_of_a_driver_that_no_watch_has_shown_yet_is_read() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.reconcile()
    stage.api.put(driver("by-hand", "Succeeded", said(verdict="Passed")))
    stage.put({**job("by-hand", "QsyncAudit"), "status": ended("Complete")})
    stage.reconcile()
    assert stage.status()["verdict"] == "Passed"


def test_audit_after_the_loss_of_all_data_cannot_pass() -> None:
    stage = RunStage(audit={"schedule": "15 * * * *"})
    found = {"type": "Degraded", "status": "True", "reason": "DataLost", "message": "all is lost"}
    stage.cluster.status.conditions = [Condition.model_validate(found)]
    stage.put(audit())
    stage.put({**audit("fold"), "kind": "QsyncCompaction"})
    stage.reconcile()

    def arguments(name: str) -> list[str]:
        pod = stage.api.named("Job", name)["spec"]["template"]["spec"]
        words: list[str] = pod["containers"][0]["args"]
        return words

    at = arguments("by-hand").index("--unarchived")
    assert arguments("by-hand")[at + 1] == "all is lost"
    assert "--unarchived" not in arguments("fold")


def test_a_run_of_the_schedule_gets_an_object_once() -> None:
    stage = RunStage(audit={"schedule": "15 * * * *"})
    stage.put(job("orders-audit-1"))
    stage.reconcile()
    run = stage.api.named("QsyncAudit", "orders-audit-1")
    assert run["metadata"]["ownerReferences"][0]["kind"] == "Job"
    # The Job outlives its schedule but not its cluster.
    owners = stage.api.named("Job", "orders-audit-1")["metadata"]["ownerReferences"]
    assert "QsyncCluster" in [owner["kind"] for owner in owners]
    # An object that a user deletes is not recreated.
    stage.cache.note("QsyncAudit", run_of_cluster(run, "QsyncAudit"), is_gone=True)
    del stage.api.objects["QsyncAudit", "ns", "orders-audit-1"]
    stage.reconcile()
    assert ("QsyncAudit", "ns", "orders-audit-1") not in stage.api.objects


def test_recorded_run_whose_object_was_deleted_is_not_recorded_again() -> None:
    stage = RunStage(audit={"schedule": "15 * * * *"})
    recorded = job("orders-audit-1")
    recorded["metadata"]["annotations"] = {RECORDED: "true"}
    stage.put(recorded)
    stage.reconcile()
    assert stage.api.writes == []


def test_a_run_is_followed_to_its_verdict() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.reconcile()
    stage.put(job("by-hand", "QsyncAudit", startTime=STARTED))
    stage.put(driver("by-hand"))
    stage.reconcile()
    status = stage.status()
    assert status["phase"] == "Running"
    assert (status["step"], status["stepsDone"], status["stepsTotal"]) == ("replaying", 3, 6)
    assert (status["rowsDone"], status["rowsTotal"]) == (500, 2000)
    result = said(
        verdict="Violated",
        counts={"violations": 2, "rows": 100},
        violations=[{"proof": "1", "message": "row 7 is missing", "location": "a.xlog:19"}],
        report="s3://bucket/orders/reports/by-hand",
        taskHosts=["10.0.0.1", "10.0.0.2"],
        unknownField=1,
    )
    stage.put(driver("by-hand", "Succeeded", result))
    stage.put(job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED))
    stage.reconcile()
    status = stage.status()
    assert status["phase"] == "Succeeded"
    assert status["verdict"] == "Violated"
    assert status["violations"][0]["location"] == "a.xlog:19"
    assert status["durationMilliseconds"] == 30_000
    assert [(c["type"], c["status"]) for c in status["conditions"]] == [("Complete", "True")]
    assert [event["reason"] for event in stage.api.events] == ["AuditViolated"]
    assert stage.api.events[0]["type"] == "Warning"
    last = last_run(stage.cache, KEY, "audit")
    assert last is not None
    assert (last.name, last.verdict, last.violations) == ("by-hand", "Violated", 2)
    writes = list(stage.api.writes)
    stage.reconcile()
    assert stage.api.writes == writes, "finished runs stay unchanged"


def test_only_what_a_run_by_hand_asks_for_is_passed_on() -> None:
    stage = RunStage()
    ledgers = ["s3://bucket/a.jsonl", "s3://bucket/b.jsonl"]
    stage.put(audit(appendLedgers=ledgers))
    stage.put({**audit("merge", mergeFragments=True), "kind": "QsyncCompaction"})
    stage.put({**audit("dry", dryRun=True), "kind": "QsyncCompaction"})
    stage.put(audit("refused", appendLedgers=["ledger.jsonl"]))
    stage.reconcile()

    def words(name: str) -> list[str]:
        pod = stage.api.named("Job", name)["spec"]["template"]["spec"]
        given: list[str] = pod["containers"][0]["args"]
        return given[5 : given.index("--conf")]

    assert words("by-hand") == ["--appends", ledgers[0], "--appends", ledgers[1]]
    assert words("merge") == ["--merge-fragments"]
    assert words("dry") == ["--dry-run"]
    assert "appendLedgers" in stage.status("refused")["message"]


def test_the_newest_driver_is_the_one_that_counts() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.reconcile()
    stage.put(driver("by-hand", "Failed", said(error="lost"), at="2026-01-01T03:00:01Z"))
    stage.put(driver("by-hand", at="2026-01-01T03:00:09Z"))
    stage.reconcile()
    assert stage.status()["phase"] == "Running"


@pytest.mark.parametrize(
    ("spec", "image", "sentence"),
    [
        ({"archive": None}, IMAGE, "has no archive"),
        ({}, "", "no image with Spark"),
    ],
)
def test_a_run_that_cannot_begin_is_refused(spec: Any, image: str, sentence: str) -> None:
    stage = RunStage(**spec)
    stage.put(audit())
    stage.reconcile(image)
    assert sentence in stage.status()["message"]
    assert stage.status()["conditions"][0]["type"] == "Failed"
    assert not [write for write in stage.api.writes if write[1] == "Job"]


def test_an_invalid_run_is_refused_once() -> None:
    stage = RunStage()
    stage.put(audit(deadline="soon"))
    stage.reconcile()
    assert "deadline" in stage.status()["message"]
    stage.put({**audit(deadline="soon"), "status": stage.status()})
    writes = list(stage.api.writes)
    stage.reconcile()
    assert stage.api.writes == writes


def test_a_running_job_that_is_deleted_ends_its_run() -> None:
    stage = RunStage()
    stage.put({**audit(), "status": {"phase": "Running"}})
    stage.reconcile()
    assert "its Job was deleted" in stage.status()["message"]


def test_run_that_is_being_deleted_gets_no_job_again_and_may_still_end() -> None:
    """Foreground deletion and finalizers keep an object, some of them after its Job."""
    stage = RunStage()
    run = {**audit(), "status": {"phase": "Pending"}}
    run["metadata"]["deletionTimestamp"] = ENDED
    stage.put(run)
    stage.reconcile()
    assert stage.api.writes == []
    stage.put(job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED))
    stage.put(driver("by-hand", "Succeeded", said(verdict="Passed")))
    stage.reconcile()
    assert stage.status()["verdict"] == "Passed"


def test_ended_run_that_a_finalizer_keeps_is_deleted_once() -> None:
    stage = RunStage()
    run = {**audit(ttl="1s"), "status": {"phase": "Succeeded", "finishedAt": ENDED}}
    stage.put({**run, "metadata": {**run["metadata"], "deletionTimestamp": ENDED}})
    stage.reconcile()
    assert stage.api.writes == []


def test_a_run_of_a_cluster_that_is_not_there_is_refused() -> None:
    api = FakeApi()
    run = api.put(audit(cluster="missing"))
    asyncio.run(refuse_run(api, run))
    assert (
        "QsyncCluster missing not found" in api.named("QsyncAudit", "by-hand")["status"]["message"]
    )


def test_refusal_does_not_reach_a_new_run_with_the_name() -> None:
    api = FakeApi()
    run = api.put(audit(cluster="missing"))
    api.put(audit())
    with pytest.raises(ApiError):
        asyncio.run(refuse_run(api, run))
    assert "status" not in api.named("QsyncAudit", "by-hand")


def test_foreign_job_with_the_runs_name_is_an_error() -> None:
    stage = RunStage()
    stage.put(audit())
    metadata = {"name": "by-hand", "namespace": "ns"}
    stage.api.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata})
    stage.reconcile()
    found = stage.status()
    assert (found["phase"], found["conditions"][0]["reason"]) == ("Failed", "NameTaken")
    assert "labels" not in stage.api.named("Job", "by-hand")["metadata"]


def test_run_that_disappeared_blocks_no_other_run() -> None:
    stage = RunStage()
    ghost = stage.put(audit("a-ghost"))
    stage.put(audit("b-here"))
    del stage.api.objects["QsyncAudit", "ns", "a-ghost"]
    stage.cache.note("Job", {**job("a-ghost", **ended("Failed"))})
    stage.api.refusing = {"QsyncAudit/a-ghost": 404}
    stage.reconcile()
    assert ("Job", "ns", "b-here") in stage.api.objects
    assert stage.cache.get(KEY, "QsyncAudit", ghost["metadata"]["name"]) is None


def test_run_whose_status_another_version_wrote_is_read() -> None:
    stage = RunStage()
    stage.put({**audit(), "status": {"phase": "Paused", "conditions": [{"type": "Odd"}]}})
    stage.reconcile()
    assert ("Job", "ns", "by-hand") in stage.api.objects


def test_new_run_waits_for_the_job_of_an_earlier_one_with_its_name() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.put(job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED))
    stage.put(driver("by-hand", "Succeeded", said(verdict="Passed")))
    again = audit()
    again["metadata"]["uid"] = "again"
    stage.put(again)
    stage.reconcile()
    assert stage.status()["phase"] == "Pending"
    assert "an earlier run" in stage.status()["message"]
    stage.cache.note("Job", stage.api.objects.pop(("Job", "ns", "by-hand")), is_gone=True)
    stage.reconcile()
    assert stage.api.named("Job", "by-hand")["metadata"]["ownerReferences"][0]["uid"] == "again"


def test_job_of_an_audit_is_none_of_a_compaction_with_its_name() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.put(job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED))
    stage.put(driver("by-hand", "Succeeded", said(verdict="Passed")))
    stage.put({**audit(), "kind": "QsyncCompaction"})
    stage.reconcile()
    found = stage.api.named("QsyncCompaction", "by-hand")["status"]
    assert (found["phase"], found["conditions"][0]["reason"]) == ("Failed", "NameTaken")
    assert stage.status()["verdict"] == "Passed"


def test_new_run_does_not_get_the_result_of_an_earlier_one_that_the_watch_still_shows() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.put(job("by-hand", "QsyncAudit", **ended("Complete"), completionTime=ENDED))
    stage.put(driver("by-hand", "Succeeded", said(verdict="Passed")))
    again = audit()
    again["metadata"]["uid"] = "again"
    stage.api.put(again)  # no watch has shown it yet
    stage.reconcile()
    assert stage.status() == {}


def test_run_that_ended_is_not_refused_after_its_cluster_was_deleted() -> None:
    api = FakeApi()
    run = api.put({**audit(cluster="missing"), "status": {"phase": "Succeeded"}})
    asyncio.run(refuse_run(api, run))
    assert api.named("QsyncAudit", "by-hand")["status"] == {"phase": "Succeeded"}


def test_refused_job_is_in_the_status_of_its_run_until_it_is_created() -> None:
    stage = RunStage()
    stage.put(audit())
    stage.api.refusing = {"Job": 403}
    for _ in range(3):
        stage.reconcile()
    assert stage.status()["phase"] == "Pending"
    assert stage.status()["message"].startswith("cannot create Job by-hand: ")
    assert [one[0] for one in stage.api.writes] == ["status"]
    stage.api.refusing = {}
    stage.reconcile()
    stage.reconcile()
    assert (stage.status()["phase"], stage.status()["message"]) == ("Pending", "")
