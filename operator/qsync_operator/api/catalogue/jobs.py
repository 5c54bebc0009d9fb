"""Conditions of a QsyncAudit or QsyncCompaction and their reasons."""

from qsync_operator.api.catalogue.entries import NONE, ConditionEntry, ReasonEntry, Severity
from qsync_operator.api.reasons import RunReason

RUN_CONDITIONS = (
    ConditionEntry("Complete", "The job ended with a result. An audit has a verdict"),
    ConditionEntry("Failed", "The job has no result; the reason names the cause"),
)

JOB_REASONS = (
    ReasonEntry(
        "BackoffLimitExceeded",
        ("Failed",),
        "The driver failed twice (set by Kubernetes)",
        "Read the message and the log of the driver's pod",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        "DeadlineExceeded",
        ("Failed",),
        "The job took longer than `spec.deadline` (set by Kubernetes)",
        "Raise `spec.deadline` or the size in `spec.spark`",
        severity=Severity.WARNING,
    ),
)
"""The usual reasons of a failed Job, which the operator copies."""

RUN_REASONS = (
    ReasonEntry(RunReason.FINISHED, ("Complete",), "The job ended with a result", NONE),
    ReasonEntry(
        RunReason.INVALID_SPEC,
        ("Failed",),
        "The operator cannot use the specification",
        "Create another object with the field that the message names corrected",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        RunReason.NO_CLUSTER,
        ("Failed",),
        "The namespace has no QsyncCluster of the name in `spec.cluster`",
        "Create another object that names an existing cluster",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        RunReason.REFUSED,
        ("Failed",),
        "The cluster has no archive, or the operator has no image with Spark",
        "Set `spec.archive` of the cluster, or `sparkImage` in the values of the operator's chart",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        RunReason.NAME_TAKEN,
        ("Failed",),
        "Another Job has the name of this object",
        "Delete that Job, or create the object under another name",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        RunReason.JOB_DELETED,
        ("Failed",),
        "The Job was deleted while it was active",
        "Create the object again",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        RunReason.JOB_FAILED,
        ("Failed",),
        "The Job failed, and Kubernetes gave no reason",
        "Read the message and the log of the driver's pod",
        severity=Severity.WARNING,
    ),
    *JOB_REASONS,
    ReasonEntry(
        RunReason.NO_RESULT,
        ("Failed",),
        "The driver ended without a result, with an error, or with a result of another version",
        "Read the message and the log of the driver's pod",
        severity=Severity.WARNING,
    ),
)
