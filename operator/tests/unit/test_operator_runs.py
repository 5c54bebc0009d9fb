"""Audits and compactions: their Jobs, objects and statuses."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.jobs import AuditStatus, CompactionStatus
from qsync_operator.api.spec import SparkSpec
from qsync_operator.api.status import Condition
from qsync_operator.jobs.reconciler import JobReconciler, audit_overdue_s, refuse_run
from qsync_operator.jobs.results import PROGRESS, VIOLATIONS, judge
from qsync_operator.jobs.schedule import overdue_at
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.dependents import last_run, run_of_cluster
from qsync_operator.kubernetes.reporter import KubernetesReporter
from qsync_operator.resources.jobs import RECORDED, RUN_LABEL, RunKind, build_runs, run_labels
from qsync_operator.settings import SparkSupply
from qsync_spark.pod_main import audit_word
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import cluster_of

KEY = ("ns", "orders")
IMAGE = "qsync-spark:test"
SUPPLY = SparkSupply(IMAGE, "qsync-spark")
ARCHIVE = {"url": "s3://bucket/orders", "credentialsSecret": "archive"}
STARTED, ENDED = "2026-01-01T03:00:00Z", "2026-01-01T03:00:30Z"


class RunStage:
    """The runs of one cluster. The watch immediately reports each document that `put` stores."""

    def __init__(self, **spec: object) -> None:
        self.api, self.cache = FakeApi(), Cache()
        self.cluster = cluster_of(**{"archive": ARCHIVE, **spec})
        reporter = KubernetesReporter(self.api, self.cluster)
        self.keeper = JobReconciler(self.api, self.cache, KEY, reporter)

    def put(self, document: dict[str, Any]) -> dict[str, Any]:
        stored = self.api.put(document)
        kind = stored["kind"]
        seen = run_of_cluster(stored, kind) if kind.startswith("Qsync") else stored
        self.cache.note(kind, seen)
        return stored

    def reconcile(self, image: str = IMAGE) -> None:
        asyncio.run(self.keeper.reconcile(self.cluster, image))

    def status(self, name: str = "by-hand") -> dict[str, Any]:
        return dict(self.api.named("QsyncAudit", name).get("status") or {})


def audit(name: str = "by-hand", **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncAudit",
        "metadata": {"name": name, "namespace": "ns", "generation": 1},
        "spec": {"cluster": "orders", "ttl": "40000d", **spec},
    }


def job(name: str, owner: str = "CronJob", **status: object) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": {"qsync.dev/cluster": "orders", RUN_LABEL: "audit"},
            "ownerReferences": [{"kind": owner, "name": "orders-audit"}],
        },
        "status": status,
    }


def driver(run: str, phase: str = "Running", message: str = "", at: str = STARTED) -> Any:
    state = {"terminated": {"message": message, "exitCode": 0}} if message else {"running": {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{run}-{at[-4:-1]}",
            "namespace": "ns",
            "creationTimestamp": at,
            "labels": {"qsync.dev/cluster": "orders", "batch.kubernetes.io/job-name": run},
            "annotations": {PROGRESS: json.dumps(FAR)},
        },
        "status": {"phase": phase, "containerStatuses": [{"name": "driver", "state": state}]},
    }


def ended(type_: str, **more: object) -> dict[str, Any]:
    condition = {"type": type_, "status": "True", "lastTransitionTime": ENDED, **more}
    return {"startTime": STARTED, "conditions": [condition]}


def said(**result: object) -> str:
    return json.dumps(result)


FAR = {"step": "replaying", "done": 3, "total": 6, "rows": 500, "rows_total": 2000}


def test_a_run_by_hand_gets_a_job_that_goes_with_it() -> None:
    stage = RunStage()
    run = stage.put(audit(deadline="90s", spark={"instances": 3}))
    stage.reconcile()
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


def test_a_run_of_a_cluster_that_is_not_there_is_refused() -> None:
    api = FakeApi()
    run = api.put(audit(cluster="missing"))
    asyncio.run(refuse_run(api, run))
    assert (
        "QsyncCluster missing not found" in api.named("QsyncAudit", "by-hand")["status"]["message"]
    )


def containers(cluster: QsyncCluster) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (specification of the pod, container) of the driver, then of the executors."""
    cron = next(o for o in build_runs(cluster, SUPPLY) if o["kind"] == "CronJob")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    env = {entry["name"]: entry.get("value", "") for entry in pod["containers"][0]["env"]}
    executor = json.loads(env["EXECUTOR_TEMPLATE"])["spec"]
    return [(pod, pod["containers"][0]), (executor, executor["containers"][0])]


def test_drivers_and_executors_are_restricted_and_know_the_archive() -> None:
    cluster = cluster_of(archive=ARCHIVE, audit={"schedule": "@hourly"})
    for pod, container in containers(cluster):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["envFrom"] == [{"secretRef": {"name": "archive"}}]
        assert container["image"] == IMAGE
    executor = containers(cluster)[1][0]
    assert executor["automountServiceAccountToken"] is False


def test_schedules_are_those_of_the_cluster() -> None:
    both = {"audit": {"schedule": "15 * * * *"}, "compaction": {"schedule": "0 3 * * *"}}
    objects = build_runs(cluster_of(archive=ARCHIVE, **both), SUPPLY)
    crons = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "CronJob"}
    assert {name: cron["schedule"] for name, cron in crons.items()} == {
        "orders-audit": "15 * * * *",
        "orders-compaction": "0 3 * * *",
    }
    assert not any(cron["suspend"] for cron in crons.values())
    asleep = build_runs(cluster_of(archive=ARCHIVE, hibernate=True, **both), SUPPLY)
    assert all(o["spec"]["suspend"] for o in asleep if o["kind"] == "CronJob")
    bound = next(o for o in objects if o["kind"] == "RoleBinding")
    assert bound["roleRef"]["name"] == "qsync-spark"
    assert build_runs(cluster_of(), SUPPLY) == []
    assert build_runs(cluster_of(archive=ARCHIVE, **both), SparkSupply()) == []


@pytest.mark.parametrize(
    ("schedule", "zone", "expected"),
    [
        ("15 * * * *", "Etc/UTC", "2026-03-28T12:15:00+00:00"),
        ("@daily", "Etc/UTC", "2026-03-30T00:00:00+00:00"),
        # Summer time begins in Berlin in that night.
        ("0 4 * * *", "Europe/Berlin", "2026-03-30T02:00:00+00:00"),
        ("0 3 * * MON-FRI", "Etc/UTC", "2026-03-31T03:00:00+00:00"),
        ("0 0 30 2 *", "Etc/UTC", None),
        ("0 0 * * *", "Mars/Olympus", None),
    ],
)
def test_an_audit_is_overdue_at_the_second_time_it_is_due(
    schedule: str, zone: str, expected: str | None
) -> None:
    since = datetime(2026, 3, 28, 10, 30, tzinfo=UTC)
    found = overdue_at(schedule, zone, since)
    assert (found and found.astimezone(UTC).isoformat()) == expected


def test_only_a_verdict_puts_off_that_an_audit_is_overdue() -> None:
    stage = RunStage(audit={"schedule": "0 * * * *"})

    def overdue() -> str:
        found_s = audit_overdue_s(stage.cache, KEY, stage.cluster)
        return datetime.fromtimestamp(found_s, UTC).isoformat() if found_s else ""

    assert overdue() == "", "the schedule's object is not made yet"
    made = {"name": "orders-audit", "namespace": "ns", "creationTimestamp": "2026-01-01T00:30:00Z"}
    stage.cache.note("CronJob", {"metadata": {**made, "labels": {"qsync.dev/cluster": "orders"}}})
    assert overdue() == "2026-01-01T02:00:00+00:00"
    for name, verdict, at in (("a", "Passed", "05:30"), ("b", "Incomplete", "06:30")):
        status = {"phase": "Succeeded", "verdict": verdict, "finishedAt": f"2026-01-01T{at}:00Z"}
        stage.put({**audit(name), "status": status})
    assert overdue() == "2026-01-01T07:00:00+00:00"
    stage.cluster = cluster_of(archive=ARCHIVE, audit={"schedule": "0 * * * *", "suspend": True})
    assert overdue() == ""


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


def test_run_made_by_hand_is_deleted_after_its_ttl_and_one_of_the_schedule_is_not() -> None:
    stage = RunStage()
    done = {"phase": "Succeeded", "verdict": "Passed", "finishedAt": ENDED}
    stage.put({**audit("by-hand", ttl="1h"), "status": done})
    scheduled = audit("scheduled", ttl="1h")
    scheduled["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "scheduled", "uid": "j"}]
    stage.put({**scheduled, "status": done})
    stage.put({**audit("kept", ttl="40000d"), "status": done})
    stage.reconcile()
    kept = {name for kind, _, name in stage.api.objects if kind == "QsyncAudit"}
    assert kept == {"scheduled", "kept"}


def test_new_run_with_the_name_of_an_expired_one_is_not_deleted() -> None:
    stage = RunStage()
    done = {"phase": "Succeeded", "verdict": "Passed", "finishedAt": ENDED}
    stage.put({**audit(ttl="1h"), "status": done})
    new = audit()
    new["metadata"]["uid"] = "new"
    stage.api.put(new)  # no watch has shown it yet
    stage.reconcile()
    assert stage.api.named("QsyncAudit", "by-hand")["metadata"]["uid"] == "new"


def test_run_whose_status_another_version_wrote_is_read() -> None:
    stage = RunStage()
    stage.put({**audit(), "status": {"phase": "Paused", "conditions": [{"type": "Odd"}]}})
    stage.reconcile()
    assert ("Job", "ns", "by-hand") in stage.api.objects


def test_an_audit_reads_with_credentials_of_its_own() -> None:
    archive = {
        "url": "s3://b/orders",
        "credentialsSecret": "writing",
        "auditCredentialsSecret": "reading",
    }
    jobs = {name: {"schedule": "0 3 * * *"} for name in ("audit", "compaction")}
    cluster = cluster_of(archive=archive, **jobs)
    for containers, name in (
        (containers_of(cluster, "audit"), "reading"),
        (containers_of(cluster, "compaction"), "writing"),
    ):
        for pod, container in containers:
            assert container["envFrom"] == [{"secretRef": {"name": name}}], pod


def test_only_a_compaction_deletes_data_beyond_the_retention() -> None:
    jobs = {name: {"schedule": "0 3 * * *"} for name in ("audit", "compaction")}
    cluster = cluster_of(archive={**ARCHIVE, "retention": "30d"}, **jobs)
    _, compaction = containers_of(cluster, "compaction")[0]
    at = compaction["args"].index("--delete-older-than")
    assert compaction["args"][at + 1] == "30d"
    _, reading = containers_of(cluster, "audit")[0]
    assert "--delete-older-than" not in reading["args"]


def containers_of(
    cluster: QsyncCluster, kind: RunKind
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (specification of the pod, container) of a schedule's driver, then its executors."""
    found = next(
        o for o in build_runs(cluster, SUPPLY)
        if (o["kind"], o["metadata"]["name"]) == ("CronJob", f"orders-{kind}")
    )  # fmt: skip
    pod = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    driver_container = pod["containers"][0]
    text = next(e["value"] for e in driver_container["env"] if e["name"] == "EXECUTOR_TEMPLATE")
    template = json.loads(text)
    return [(pod, driver_container), (template["spec"], template["spec"]["containers"][0])]


def test_only_sparks_pods_reach_sparks_pods() -> None:
    cluster = cluster_of(archive={"url": "s3://b/orders"}, audit={"schedule": "0 3 * * *"})
    (policy,) = (o for o in build_runs(cluster, SUPPLY) if o["kind"] == "NetworkPolicy")
    wanted = policy["spec"]["podSelector"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": wanted}]}]
    labels = run_labels(cluster, "audit")
    assert wanted["matchLabels"].items() <= labels.items()
    _, driver_container = containers_of(cluster, "audit")[0]
    text = next(e["value"] for e in driver_container["env"] if e["name"] == "EXECUTOR_TEMPLATE")
    assert json.loads(text)["metadata"]["labels"] == wanted["matchLabels"]
    assert "spark.ui.enabled=false" in driver_container["args"]


@pytest.mark.parametrize(
    ("key", "value", "is_allowed"),
    [
        ("spark.executor.memoryOverhead", "x", True),
        ("spark.kubernetes.executor.request.cores", "x", True),
        ("spark.sql.shuffle.partitions", "x", True),
        ("spark.sql.adaptive.coalescePartitions.enabled", "x", True),
        # Keys that choose code.
        ("spark.kubernetes.container.image", "x", False),
        ("spark.jars.packages", "x", False),
        ("spark.plugins", "x", False),
        ("spark.master", "x", False),
        ("spark.driver.extraJavaOptions", "x", False),
        ("spark.executor.extraClassPath", "x", False),
        ("spark.executorEnv.LD_PRELOAD", "x", False),
        ("spark.shuffle.manager", "x", False),
        ("spark.sql.extensions", "x", False),
        ("spark.sql.adaptive.customCostEvaluatorClass", "x", False),
        ("spark.authenticate", "x", False),
        ("spark.kubernetes.executor.podTemplateFile", "x", False),
        # Keys that continue an allowed one.
        ("spark.executor.memoryOverhead.plugins", "x", False),
        ("spark.task.cpusPlugins", "x", False),
        ("spark.speculation=true spark.plugins", "x", False),
        ("spark.rdd.compress\n", "x", False),
        # Values that name a variable.
        ("spark.task.cpus", "2g", True),
        ("spark.task.cpus", "0.4", True),
        ("spark.task.cpus", "true", True),
        ("spark.task.cpus", "${env:AWS_SECRET_ACCESS_KEY}", False),
        ("spark.task.cpus", "$(AWS_SECRET_ACCESS_KEY)", False),
        ("spark.task.cpus", "a b", False),
    ],
)
def test_conf_refuses_keys_that_choose_code_and_values_that_name_variables(
    key: str, value: str, is_allowed: bool
) -> None:
    try:
        SparkSpec(conf={key: value})
    except ValidationError:
        assert not is_allowed
    else:
        assert is_allowed
