"""Derives the status of an audit or compaction from its Job and its driver's pod; pure functions.

The driver's result is its termination message, one JSON object of at most 4,096 bytes. Its fields
are `verdict`, `proofs`, `counts`, `violations`, `incomplete` (a sentence on the missing data, or on
fragments that were not merged), `report`, `applicationId` and `taskHosts`, or only `error`, a
sentence.

While the driver runs, an annotation of its pod holds its progress. Twenty violations may exceed the
size of the message, so another annotation holds all of them. If that could not be written, the few
in the message are shown.
"""

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qsync_operator.api.jobs import (
    AuditStatus,
    CompactionStatus,
    RunCondition,
    RunConditionType,
    RunPhase,
    RunStatus,
    Violation,
)
from qsync_operator.api.mistakes import sentence_of
from qsync_operator.api.reasons import RunReason
from qsync_operator.jobs.schedule import time_of
from qsync_operator.kubernetes.pods import container_of, failure_of
from qsync_operator.resources.jobs import DRIVER, RunKind
from qsync_operator.resources.labels import KubernetesObject

PROGRESS = "qsync.dev/progress"  # a `Step` of the job
VIOLATIONS = "qsync.dev/violations"  # a JSON list
STATUSES: dict[RunKind, type[RunStatus]] = {"audit": AuditStatus, "compaction": CompactionStatus}
VIOLATIONS_SHOWN = 20
_VIOLATION_LIST = TypeAdapter(list[Violation])


def judge(
    kind: RunKind,
    before: RunStatus,
    generation: int,
    job: KubernetesObject,
    driver: KubernetesObject | None,
) -> RunStatus:
    """Return the status of an audit or compaction whose Job exists."""
    status = before.model_copy(deep=True)
    status.observed_generation = generation
    conditions = {c["type"]: c for c in job.get("status", {}).get("conditions") or []}
    said = last_word(driver)
    status.started_at = job.get("status", {}).get("startTime") or status.started_at
    _take_progress(status, driver)
    if _is_true(conditions, "Complete") and "error" not in said and said:
        try:
            _take_result(kind, status, _with_all_violations(said, driver))
        except ValidationError as error:
            # A driver of another version, which must not stop the cluster.
            sentence = (
                f"cannot read the result of the driver: {sentence_of(error, STATUSES[kind])}; use "
                "images of one version for the operator and Spark"
            )
            _end(status, job, "Failed", "Failed", RunReason.NO_RESULT, sentence)
        else:
            why = _sentence(status, said)
            _end(status, job, "Succeeded", "Complete", RunReason.FINISHED, why)
    elif _is_true(conditions, "Complete") and not _may_end_later(driver):
        sentence = said.get("error") or "the driver ended without a result: read the log of its pod"
        _end(status, job, "Failed", "Failed", RunReason.NO_RESULT, str(sentence))
    elif _is_true(conditions, "Failed"):
        why = conditions["Failed"]
        sentence = (
            said.get("error") or why.get("message") or "the Job failed: read the log of its pod"
        )
        reason = why.get("reason") or RunReason.JOB_FAILED
        _end(status, job, "Failed", "Failed", str(reason), str(sentence))
    elif driver is not None and driver.get("status", {}).get("phase") == "Running":
        status.phase = "Running"
        status.message = ""
    else:
        status.phase = "Pending"
        status.message = failure_of(driver, DRIVER)
    return status


def refused(
    before: RunStatus, generation: int, reason: RunReason, sentence: str, now: str
) -> RunStatus:
    """Return the status of an audit or compaction that cannot have a Job."""
    status = before.model_copy(deep=True)
    status.observed_generation = generation
    status.phase, status.finished_at, status.message = "Failed", now, sentence
    status.conditions = [_condition("Failed", "True", reason, sentence, now, generation)]
    return status


def last_word(driver: KubernetesObject | None) -> dict[str, Any]:
    """Return the driver's result, or {} if it is missing or not readable."""
    ended = (container_of(driver, DRIVER).get("state") or {}).get("terminated") or {}
    try:
        said = json.loads(ended.get("message") or "")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _with_all_violations(said: dict[str, Any], driver: KubernetesObject | None) -> dict[str, Any]:
    text = ((driver or {}).get("metadata", {}).get("annotations") or {}).get(VIOLATIONS, "[]")
    try:
        found = _VIOLATION_LIST.validate_python(json.loads(text))
    except ValueError:
        return said
    few = said.get("violations") or []
    is_more = isinstance(few, list) and len(found) > len(few)
    return {**said, "violations": found} if is_more else said


def _take_progress(status: RunStatus, driver: KubernetesObject | None) -> None:
    text = ((driver or {}).get("metadata", {}).get("annotations") or {}).get(PROGRESS, "{}")
    try:
        said = json.loads(text)
        status.step, status.steps_done, status.steps_total, status.rows_done, status.rows_total = (
            str(said["step"]), int(said["done"]), int(said["total"]), int(said["rows"]),
            int(said["rows_total"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, OverflowError):
        return  # the driver has not started to work


def _take_result(kind: RunKind, status: RunStatus, said: dict[str, Any]) -> None:
    """Copy the result into the status; fields that this version does not know are ignored.

    Raises:
        ValidationError: a field has another form; the status is unchanged.
    """
    known = STATUSES[kind].model_fields
    names = {str(field.alias): name for name, field in known.items()}
    taken = {names[key]: value for key, value in said.items() if key in names}
    if isinstance(taken.get("violations"), list):
        taken["violations"] = taken["violations"][:VIOLATIONS_SHOWN]
    fresh = STATUSES[kind].model_validate(
        {**status.model_dump(by_alias=False), **taken}, by_name=True
    )
    for name in taken:
        setattr(status, name, getattr(fresh, name))


def _end(
    status: RunStatus,
    job: KubernetesObject,
    phase: RunPhase,
    type_: RunConditionType,
    reason: str,
    why: str,
) -> None:
    state = job.get("status", {})
    ended = state.get("completionTime") or _last_transition(state)
    status.phase, status.message = phase, why
    status.finished_at = ended
    began_at, ended_at = time_of(status.started_at), time_of(ended)
    if began_at is not None and ended_at is not None:
        took = ended_at - began_at
        status.duration_milliseconds = int(took.total_seconds() * 1000)
    status.conditions = [_condition(type_, "True", reason, why, ended, status.observed_generation)]


def _sentence(status: RunStatus, said: dict[str, Any]) -> str:
    if isinstance(status, CompactionStatus):
        return _sentence_of_compaction(status, said)
    assert isinstance(status, AuditStatus)
    found = status.counts.get("violations", len(status.violations))
    return {
        "Passed": "all proofs hold",
        "Violated": f"{found} violations, the first: "
        + (status.violations[0].message if status.violations else "see the report"),
    }.get(status.verdict, _incomplete(said))


def _sentence_of_compaction(status: CompactionStatus, said: dict[str, Any]) -> str:
    text = f"snapshot {status.snapshot} was published"
    if not status.snapshot:
        text = "nothing to fold: no row was confirmed since the last compaction"
    if "mergedFragments" in status.counts:
        merged, deleted = (status.counts.get(f"{key}Fragments", 0) for key in ("merged", "removed"))
        text += f"; {merged} fragments of journals were merged, {deleted} deleted"
    if said.get("incomplete"):
        text += f"; some fragments are left as they are: {said['incomplete']}"
    return text


def _incomplete(said: dict[str, Any]) -> str:
    why = str(said.get("incomplete") or "see the report")
    return f"the archive lacks data that the proofs need: {why}"


def _may_end_later(driver: KubernetesObject | None) -> bool:
    """Return whether the last known state of the driver precedes its end."""
    return driver is not None and driver.get("status", {}).get("phase") in ("Pending", "Running")


def _is_true(conditions: dict[str, Any], type_: str) -> bool:
    return bool(conditions.get(type_, {}).get("status") == "True")


def _last_transition(state: KubernetesObject) -> str:
    times = [str(c.get("lastTransitionTime") or "") for c in state.get("conditions") or []]
    return max(times, default="")


def _condition(
    type_: Any, status: Any, reason: str, message: str, at: str, generation: int
) -> RunCondition:
    return RunCondition(
        type=type_,
        status=status,
        reason=reason,
        message=message[:1024],
        last_transition_time=at,
        observed_generation=generation,
    )
