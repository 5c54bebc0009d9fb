"""Schedules of audits and compactions, and objects that outlived their time."""

from datetime import UTC, datetime

import pytest

from qsync_operator.jobs.reconciler import audit_overdue_s
from qsync_operator.jobs.schedule import overdue_at
from qsync_operator.resources.jobs import RUN_LABEL, build_runs
from qsync_operator.settings import SparkSupply
from qsync_testing.operator.platforms import cluster_of
from qsync_testing.operator.runs import ARCHIVE, ENDED, KEY, STARTED, SUPPLY, RunStage, audit, job


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
    audited = {"schedule": "0 * * * *"}
    stage.cluster = cluster_of(archive=ARCHIVE, audit=audited, hibernate=True)
    assert overdue() == ""


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


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_odd_time_in_a_status_stops_no_other_run(text: str) -> None:
    stage = RunStage(audit={"schedule": "0 * * * *"})
    made = {"name": "orders-audit", "namespace": "ns", "creationTimestamp": STARTED}
    stage.cache.note("CronJob", {"metadata": {**made, "labels": {"qsync.dev/cluster": "orders"}}})
    done = {"phase": "Succeeded", "verdict": "Passed", "finishedAt": text}
    stage.put({**audit("a-odd"), "status": done})
    stage.put(audit("b-next"))
    stage.reconcile()
    assert ("Job", "ns", "b-next") in stage.api.objects
    audit_overdue_s(stage.cache, KEY, stage.cluster)


def test_time_without_a_zone_is_in_utc() -> None:
    stage = RunStage()
    done = {"phase": "Succeeded", "verdict": "Passed"}
    stage.put({**audit("ended", ttl="1h"), "status": {**done, "finishedAt": "2026-01-01T03:00:00"}})
    stage.reconcile()
    assert ("QsyncAudit", "ns", "ended") not in stage.api.objects


def test_scheduled_job_that_cannot_be_recorded_blocks_no_other_one() -> None:
    stage = RunStage()
    for name in ("orders-audit-1", "orders-audit-2"):
        stage.put(job(name))
    compaction = job("orders-compaction-1")
    compaction["metadata"]["labels"][RUN_LABEL] = "compaction"
    stage.put(compaction)
    stage.api.refusing = {"QsyncAudit/orders-audit-1": 422, "Job/orders-audit-2": 409}
    stage.reconcile()
    made = {name for kind, _, name in stage.api.objects if kind.startswith("Qsync")}
    assert made == {"orders-audit-2", "orders-compaction-1"}


def test_scheduled_job_that_is_being_deleted_is_not_recorded() -> None:
    stage = RunStage()
    leaving = job("orders-audit-1")
    leaving["metadata"]["deletionTimestamp"] = ENDED
    stage.put(leaving)
    stage.reconcile()
    assert ("QsyncAudit", "ns", "orders-audit-1") not in stage.api.objects
