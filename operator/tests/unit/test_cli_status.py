"""The status of a cluster: its problems, one table for both platforms, and watching."""

import json
import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import typer

from qsync_cli import statuses
from qsync_cli.options import Output
from qsync_local import observing
from qsync_operator.api.status import LastFailover
from qsync_operator.plan.observed import DISK_FULL, DISK_LOW, Memory
from qsync_operator.plan.planner import plan
from qsync_operator.views.failovers import failover_sentence, read_failover
from qsync_operator.views.podview import Observation
from qsync_operator.views.podview import view_of as kubernetes_view
from qsync_operator.views.statusview import (
    ClusterHealth,
    View,
    failover_lines,
    health_of,
    table,
    view_of,
)
from qsync_testing.operator.cluster_model import ModelWorld
from qsync_testing.operator.plan_worlds import cluster_of, formed


def view_in(world: ModelWorld, **changes: Any) -> View:
    """Return the view of a cluster after one turn of its operator."""
    observed = replace(world.observe(), **changes)
    cluster = world.cluster.model_copy(deep=True)
    cluster.status = plan(cluster, observed, world.now_ns, 0).status
    return view_of(cluster)


def with_archive(world: ModelWorld, name: str, **fields: Any) -> dict[str, Any]:
    """Return a change of the observation: the archive of one member, as it reports it."""
    members = tuple(
        replace(m, status=replace(m.status, **fields)) if m.name == name and m.status else m
        for m in world.observe().members
    )
    return {"members": members}


def document(**status: object) -> dict[str, Any]:
    """Return a QsyncCluster as the API server returns it."""
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders", "namespace": "ns", "generation": 1},
        "spec": {},
        "status": status,
    }


def pod(name: str) -> dict[str, Any]:
    container = {"name": "node", "ready": True, "state": {"running": {}}}
    return {"metadata": {"name": name}, "status": {"containerStatuses": [container]}}


# --- never Ready when it is not -------------------------------------------------------------------


def test_healthy_cluster_is_ready_and_has_no_problem() -> None:
    view = view_in(formed(cluster_of(3)))
    assert view.lines == ["c: Ready · c-0 leads in term 1 · quorum 2 · confirmed 10"]
    assert view.health is ClusterHealth.HEALTHY


def test_one_fenced_voter_is_named_and_two_of_three_are_degraded() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].is_fenced = True
    view = view_in(world)
    assert view.health is ClusterHealth.HEALTHY
    assert view.lines[1].startswith("warning: c-1 is fenced: it votes but cannot lead")
    assert [row.fenced for row in view.rows] == ["-", "yes", "-"]
    world.incarnations["c-2"].is_fenced = True
    view = view_in(world)
    assert view.health is ClusterHealth.DEGRADED
    assert view.lines[0].startswith("c: Degraded · c-0 leads")
    assert view.lines[1] == "no member can take over from c-0: c-1, c-2 fenced; unfence one"


def test_single_voter_is_not_degraded_by_its_own_fence_or_by_readers() -> None:
    assert view_in(formed(cluster_of(1, 0, 1))).health is ClusterHealth.HEALTHY


@pytest.mark.parametrize("disk", [DISK_FULL, DISK_LOW])
def test_disk_without_space_is_degraded(disk: str) -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].disk = disk
    view = view_in(world)
    assert view.health is ClusterHealth.DEGRADED
    assert f"c-1: {disk}" in view.lines[1]
    assert any("free space, or increase storage.size" in line for line in view.lines)
    members = tuple(replace(m, directory="/data") for m in world.observe().members)
    local = view_in(world, members=members)
    assert any(f"c-1: {disk}; free space on the disk of /data" in line for line in local.lines)
    assert not any("storage.size" in line for line in local.lines)


def test_vanished_data_directory_is_named() -> None:
    world = formed(cluster_of(3))
    members = tuple(
        replace(m, has_disk=False, directory="/data/c-1") if m.name == "c-1" else m
        for m in world.observe().members
    )
    view = view_in(world, members=members)
    assert view.health is not ClusterHealth.HEALTHY
    assert any("c-1: its data directory /data/c-1 is gone" in line for line in view.lines)


def test_cluster_without_any_data_is_unavailable() -> None:
    world = formed(cluster_of(3))
    members = tuple(
        replace(m, has_disk=False, status=None, is_running=False) for m in world.observe().members
    )
    view = view_in(world, members=members)
    assert view.health is ClusterHealth.UNAVAILABLE
    assert view.lines[0] == "c: Unavailable · no leader · quorum 2 · confirmed unknown"
    assert view.lines[1].startswith("all data of the cluster is lost")


def test_cluster_without_quorum_is_unavailable_with_the_way_back() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-1"].is_dead = world.incarnations["c-2"].is_dead = True
    for name in ("c-1", "c-2"):
        world.incarnations[name].is_running = False
    world.leader = ""
    view = view_in(world)
    assert view.lines[0].startswith("c: Unavailable · no leader")
    assert "1 of 3 voters answer and 2 are needed; restore the other voters" in view.lines[1]
    assert view.health is ClusterHealth.UNAVAILABLE


def test_read_only_leader_is_not_reported_as_absent() -> None:
    world = formed(cluster_of(3))
    members = with_archive(world, "c-0", is_writable=False, ro_reason="the disk is full")
    view = view_in(world, **members)
    assert view.lines[0].startswith("c: Unavailable · c-0 leads in term 1 and accepts no writes")
    assert "the disk is full" in view.lines[1]


def test_failing_archive_is_a_warning_and_degrades_once_rows_wait() -> None:
    world = formed(cluster_of(3))
    members = with_archive(world, "c-1", archive_error="403 Forbidden", archive_lag_s=1.0)
    view = view_in(world, **members)
    assert view.health is ClusterHealth.HEALTHY
    assert "warning: c-1 archives nothing: 403 Forbidden; check spec.archive" in view.lines
    members = with_archive(world, "c-1", archive_error="403 Forbidden", archive_lag_s=31.0)
    view = view_in(world, **members)
    assert view.health is ClusterHealth.DEGRADED
    assert view.lines[1] == "c-1 archives nothing: 403 Forbidden; check spec.archive"
    assert len(view.lines) == 2, "the warning repeats nothing"
    members = with_archive(world, "c-1", archive_error="403 Forbidden", archive_lag_s=0.0)
    view = view_in(world, **members)
    assert "warning: c-1 archives nothing: 403 Forbidden; check spec.archive" in view.lines


def test_change_of_the_schema_that_is_refused_again_is_degraded() -> None:
    world = formed(cluster_of(3, spaces=True))
    memory = replace(world.memory, refusal="create or change space s: Duplicate key")
    observed = replace(world.observe(), memory=memory)
    first = plan(world.cluster, observed, world.now_ns, 0).status
    assert first.phase == "Creating", "it may be a passing error"
    other = plan(world.cluster, replace(observed, memory=world.memory), world.now_ns, 0).status
    again = plan(world.cluster, replace(observed, previous=other), world.now_ns, 0).status
    assert again.phase == "Creating", "the status before had another message"
    ready = first.condition("Ready")
    assert ready is not None
    assert ready.message == memory.refusal, "the action is named once"
    second = plan(world.cluster, replace(observed, previous=first), world.now_ns, 0).status
    assert second.phase == "Degraded"
    degraded = second.condition("Degraded")
    assert degraded is not None
    assert (degraded.reason, degraded.message) == ("SchemaRefused", memory.refusal)


def test_live_answers_replace_what_a_supervisor_wrote_before() -> None:
    world = formed(cluster_of(3))
    cluster = world.cluster.model_copy(deep=True)
    saved = plan(cluster, world.observe(), world.now_ns, 0).status
    assert saved.phase == "Ready"
    for incarnation in world.incarnations.values():
        incarnation.is_running = False
    world.leader = ""
    observed = replace(world.observe(), memory=Memory())
    for phase in ("Ready", "Degraded"):
        old = saved.model_copy(update={"phase": phase})
        cluster.status = observing.merge(cluster, observed, old)
        view = view_of(cluster)
        assert view.lines[0] == "c: Unavailable · no leader · quorum 2 · confirmed unknown"
        assert view.health is ClusterHealth.UNAVAILABLE


def test_kubernetes_cluster_is_unavailable_if_no_pod_accepts_writes() -> None:
    written = document(
        phase="Ready", leader="orders-0", observedGeneration=1,
        members=[{"name": "orders-0", "role": "leader", "term": 2}],
    )  # fmt: skip
    running = pod("orders-0")
    now = {
        "role": "follower", "term": 2, "confirmed_index": 7, "replica_id": 1, "uuid": "u",
        "is_fenced": False, "is_writable": False,
    }  # fmt: skip
    leading = {**now, "role": "leader", "is_writable": True}
    view = kubernetes_view(Observation(written, [running], {"orders-0": leading}, {}))
    assert view.health is ClusterHealth.HEALTHY
    view = kubernetes_view(Observation(written, [running], {"orders-0": now}, {}))
    assert view.health is ClusterHealth.UNAVAILABLE
    assert view.lines[0].startswith("orders: Unavailable")
    view = kubernetes_view(Observation(written, [], {}, {}))
    assert view.health is ClusterHealth.UNAVAILABLE, "no pod runs"
    view = kubernetes_view(
        Observation(written, [running], {"orders-0": leading}, {"orders-1": "timeout"})
    )
    assert view.health is ClusterHealth.CHANGING, (
        "a member does not answer: the written phase may be old"
    )
    waiting = {**running, "status": {"containerStatuses": [{"state": {"waiting": {}}}]}}
    view = kubernetes_view(Observation(written, [running, waiting], {"orders-0": leading}, {}))
    assert view.health is ClusterHealth.CHANGING, "a pod is not running"
    view = kubernetes_view(Observation(written, [running], {}, {"orders-0": "forbidden"}))
    assert view.health is ClusterHealth.HEALTHY, "who cannot ask, takes the word of the operator"


# --- one table ------------------------------------------------------------------------------------


def test_both_platforms_have_the_same_columns_within_80() -> None:
    local = view_in(formed(cluster_of(3)))
    remote = kubernetes_view(Observation(document(members=[{"name": "orders-0"}]), [], {}, {}))
    for is_wide in (False, True):
        assert table(local.rows, is_wide)[0] == table(remote.rows, is_wide)[0]
    assert table(local.rows, False)[0][-1] == "LOCATION"
    row = replace(
        local.rows[0], member="orders-0", role="anonymous", term="12", confirmed="123456789",
        lag="123456", location="127.0.0.1:23912",
    )  # fmt: skip
    text = statuses.text_of([replace(local, rows=[row])], False)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("fields", "effect"),
    [
        ({}, []),
        ({"unavailable_milliseconds": 57.2}, ["last failover: writes paused for 57.2 ms"]),
        ({"rolled_back_rows": 3}, ["last failover: 3 rows rolled back"]),
    ],
)
def test_last_failover_has_a_local_time_and_only_effects_that_are_known(
    fields: dict[str, Any], effect: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    at = "2026-11-27T15:47:31.199+00:00"
    last = LastFailover(from_="orders-0", to="orders-1", reason="ProcessEnded", at=at, **fields)
    first, *rest = failover_lines(last)
    monkeypatch.undo()
    time.tzset()
    assert first == "last failover: orders-0 -> orders-1 (ProcessEnded) at 2026-11-28 00:47:31"
    assert len(first) <= 80
    assert rest == effect
    sentence = failover_sentence(last)
    assert ("writes paused" in sentence) is bool(last.unavailable_milliseconds)
    found = read_failover({"time": at, "reason": "Failover", "message": sentence})
    assert found is not None
    assert found.paused_ms == (last.unavailable_milliseconds or None)


@pytest.mark.parametrize(
    ("phase", "health"),
    [
        ("Ready", ClusterHealth.HEALTHY), ("Degraded", ClusterHealth.DEGRADED),
        ("Unavailable", ClusterHealth.UNAVAILABLE), ("Hibernated", ClusterHealth.UNAVAILABLE),
        ("Creating", ClusterHealth.CHANGING), ("", ClusterHealth.CHANGING),
    ],
)  # fmt: skip
def test_exit_code_follows_from_the_phase(phase: str, health: ClusterHealth) -> None:
    assert health_of(phase) is health


def test_check_exits_with_the_worst_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    good = view_in(formed(cluster_of(3)))
    bad = replace(good, health=ClusterHealth.DEGRADED)
    statuses.show(lambda: [good, good], None, is_checking=True)
    with pytest.raises(typer.Exit) as ended:
        statuses.show(lambda: [good, bad, good], None, is_checking=True)
    assert ended.value.exit_code == 5
    assert capsys.readouterr().out.count("c: Ready") == 5


def test_check_of_a_watched_cluster_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="--watch"):
        statuses.show(list, None, is_watching=True, is_checking=True)


# --- watching -------------------------------------------------------------------------------------


class Interrupted:
    """Clusters that change, until Ctrl-C."""

    def __init__(self, *views: View) -> None:
        self.views = list(views)

    def __call__(self) -> list[View]:
        if not self.views:
            raise KeyboardInterrupt
        return [self.views.pop(0)]


@pytest.mark.parametrize("output", [None, Output.json, Output.yaml])
def test_watch_prints_each_change_once(
    output: Output | None, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = view_in(formed(cluster_of(3)))
    world = formed(cluster_of(3))
    world.incarnations["c-1"].disk = DISK_LOW
    low = view_in(world)
    observe = Interrupted(ready, ready, low, low)
    statuses.show(observe, output, is_watching=True, interval_s=0)
    text = capsys.readouterr().out
    if output is Output.json:
        phases = [json.loads(line)["status"]["phase"] for line in text.splitlines()]
        assert phases == ["Ready", "Degraded"]
    elif output is Output.yaml:
        assert text.count("---\n") == 2
    else:
        assert text.count("c: ") == 2


def test_frame_overwrites_the_previous_one_without_clearing_the_screen() -> None:
    text = statuses.frame("a\nb\n", datetime(2026, 1, 1, 12, 34, 56), 80, 24)
    assert text == "\x1b[H12:34:56 · Ctrl-C ends\x1b[K\na\x1b[K\nb\x1b[K\n\x1b[J"


def test_frame_never_scrolls_the_screen() -> None:
    now = datetime(2026, 1, 1)
    text = statuses.frame("\x1b[1m" + "x" * 25 + "\x1b[0m\nshort\nlast\n", now, 10, 6)
    assert "short" in text, "three lines of x, one with the time, one for the cursor"
    assert "last" not in text
