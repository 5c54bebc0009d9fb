"""The catalogue of conditions, reasons and Events has exactly those that the code emits."""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest

import qsync_local
import qsync_operator
from qsync_operator.api.catalogue import clusters, events, jobs
from qsync_operator.api.catalogue.alerts import ALERTS
from qsync_operator.api.catalogue.entries import ReasonEntry
from qsync_operator.api.catalogue.journals import JOURNAL_REASONS
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.jobs import AuditStatus, RunConditionType
from qsync_operator.api.reasons import (
    EventReason,
    FailoverReason,
    JournalReason,
    Reason,
    RunReason,
)
from qsync_operator.api.status import ClusterStatus, Condition
from qsync_operator.plan import status as status_module
from qsync_operator.plan.actions import Action
from qsync_operator.plan.observed import Memory, Observed, RecordedMember, Trouble
from qsync_operator.plan.refusal import refusal_now, with_refusal
from qsync_operator.plan.status import RESTING, ClusterFinding, build_status

PACKAGES = [Path(package.__path__[0]) for package in (qsync_operator, qsync_local)]
CATALOGUES = [PACKAGES[0] / "api/reasons.py", *(PACKAGES[0] / "api/catalogue").glob("*.py")]
ENUMS = {
    enum.__name__: enum for enum in (Reason, RunReason, FailoverReason, EventReason, JournalReason)
}
POSITIONS = {
    "Finding": 0,
    "Trouble": 0,
    "report": 0,
    "_report": 0,
    "add_event": 0,
    "refusal_now": 2,
    "refused": 2,
    "_end": 4,
    "_report_wait": 1,
}
"""Position of the reason in the arguments of each function that takes one."""
BUILT = {
    "f'{reason}Refused'",
    "f'Phase{status.phase}'",
    "f'{what}{verdict or status.phase}'",
}
"""Reasons of Events that are built from an action, a phase or a verdict; tests below list them."""
NAME = re.compile(r"[A-Z][A-Za-z]+")


def reason_expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield each expression that becomes a reason.

    These are arguments in the positions above, arguments and variables named `reason`, and
    variables and fields with a type of the catalogue.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), arguments):
                if name in POSITIONS and len(arguments) > POSITIONS[name]:
                    yield arguments[POSITIONS[name]]
                yield from (k.value for k in node.keywords if k.arg == "reason")
            case ast.Assign([ast.Name("reason")], value):
                yield value
            case ast.AnnAssign(ast.Name(), _, ast.expr() as value):
                if ast.unparse(node.annotation).partition(" |")[0] in ENUMS:
                    yield value


def emitted_in(text: str) -> set[str]:
    """Return the reasons that a module emits: names of the catalogue, and literal text."""
    tree = ast.parse(text)
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(enum), name) if enum in ENUMS:
                found.add(f"{enum}.{name}")
    for expression in reason_expressions(tree):
        if isinstance(expression, ast.JoinedStr):
            found.add(ast.unparse(expression))
            continue
        texts = [n.value for n in ast.walk(expression) if isinstance(n, ast.Constant)]
        found |= {text for text in texts if isinstance(text, str) and NAME.fullmatch(text)}
    return found


def emitted() -> set[str]:
    files = {path for package in PACKAGES for path in package.rglob("*.py")} - {*CATALOGUES}
    return set().union(*(emitted_in(path.read_text()) for path in files))


def phases() -> set[str]:
    """Return the phases that `_phase` can return."""
    tree = ast.parse(Path(status_module.__file__).read_text())
    (function,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_phase"
    )
    texts = [n.value for n in ast.walk(function) if isinstance(n, ast.Constant)]
    return {text for text in texts if isinstance(text, str) and NAME.fullmatch(text)} | set(
        status_module._PHASES.values()
    )


def test_code_emits_only_names_of_the_catalogue_and_every_one_of_them() -> None:
    named = {f"{enum}.{member.name}" for enum, members in ENUMS.items() for member in members}
    assert emitted() == named | BUILT


@pytest.mark.parametrize(
    "line",
    [
        'Finding("Planted", "a sentence")',
        'voice.report("Planted", name, "a sentence")',
        'reason = "Planted" if is_refused else Reason.SCALING',
        'Memory(reason="Planted")',
    ],
)
def test_name_that_the_catalogue_lacks_is_found(line: str) -> None:
    assert "Planted" in emitted_in(line)


@pytest.mark.parametrize(
    ("enum", "entries"),
    [
        (Reason, clusters.CLUSTER_REASONS),
        (RunReason, jobs.RUN_REASONS),
        (FailoverReason, events.FAILOVER_REASONS),
        (EventReason, events.EVENTS),
        (JournalReason, JOURNAL_REASONS),
    ],
)
def test_every_name_has_one_entry(enum: type[Reason], entries: tuple[ReasonEntry, ...]) -> None:
    names = [str(entry.name) for entry in entries]
    assert len(set(names)) == len(names)
    assert {str(member) for member in enum} <= set(names)


def test_condition_types_are_those_of_the_models() -> None:
    types = get_args(Condition.model_fields["type"].annotation)
    assert {entry.name for entry in clusters.CLUSTER_CONDITIONS} == set(types)
    assert {entry.name for entry in jobs.RUN_CONDITIONS} == set(get_args(RunConditionType))


def test_actions_are_those_of_the_operator_in_their_order() -> None:
    assert [entry.name for entry in events.ACTIONS] == [a.__name__ for a in get_args(Action)]


def test_events_are_those_that_the_operator_records() -> None:
    verdicts = [v for v in get_args(AuditStatus.model_fields["verdict"].annotation) if v]
    recorded = {
        *EventReason,
        *(f"Phase{phase}" for phase in phases()),
        *(f"Audit{verdict}" for verdict in (*verdicts, "Failed")),
        *(f"Compaction{phase}" for phase in ("Succeeded", "Failed")),
        # Problems with objects, and reasons why a cluster is not reconciled.
        *(entry.name for entry in clusters.PROBLEM_REASONS if "Stalled" in entry.conditions),
        *(entry.name for entry in clusters.PROBLEM_REASONS if "Reconciled" in entry.conditions),
    }
    assert {str(entry.name) for entry in events.EVENTS} == {str(name) for name in recorded}


def test_each_event_has_one_entry() -> None:
    names = [str(entry.name) for entry in events.EVENTS]
    names += chain.from_iterable((entry.name, entry.refused) for entry in events.ACTIONS)
    assert len(set(names)) == len(names)


def conditions_with(reason: Reason) -> set[str]:
    """Return the types of the conditions with `reason`, for each way in which it can arise."""
    cluster = QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "c"},
            "spec": {},
        }
    )
    entry = next(entry for entry in clusters.CLUSTER_REASONS if entry.name is reason)
    findings = [ClusterFinding("", "")]
    if entry in clusters.PROGRESS_REASONS or reason in RESTING:
        findings.append(ClusterFinding(reason, "a sentence"))
    if "Degraded" in entry.conditions and "Ready" in entry.conditions:
        findings.append(ClusterFinding(reason, "a sentence", is_degraded=True))
    if reason is Reason.DIVERGED:
        findings.append(ClusterFinding(Reason.SPLIT_BRAIN, "a sentence", is_degraded=True))
    troubles = (Trouble(reason, "a sentence"),) if "Reconciled" in entry.conditions else ()
    found: set[str] = set()
    for finding in findings:
        observed = Observed((), RecordedMember("uuid"), memory=Memory(), troubles=troubles)
        status = build_status(cluster, observed, {}, finding, 0.0)
        if "Stalled" in entry.conditions:
            status = with_refusal(status, refusal_now("a sentence", 1, reason))
            found |= {c.type for c in status.conditions if c.reason == reason}
            status = build_status(cluster, observed, {}, finding, 0.0)
        found |= {c.type for c in status.conditions if c.reason == reason}
    return found


@pytest.mark.parametrize(
    "entry",
    [
        entry
        for entry in clusters.CLUSTER_REASONS
        # These reasons need members, which the clusters of this test do not have.
        if entry.name
        not in (
            Reason.READY,
            Reason.AVAILABLE,
            Reason.RECONCILED,
            Reason.MEMBER_DOWN,
            Reason.VOTERS_FENCED,
            Reason.DISK_LOW,
            Reason.ARCHIVE_FAILING,
        )
    ],
    ids=lambda entry: str(entry.name),
)
def test_reason_appears_in_the_conditions_of_its_entry(entry: ReasonEntry) -> None:
    assert conditions_with(Reason(entry.name)) == set(entry.conditions)


def test_status_holds_reasons_as_plain_text() -> None:
    condition = Condition(type="Ready", reason=Reason.FORMING)
    assert type(condition.reason) is str
    assert type(ClusterStatus(conditions=[condition]).conditions[0].reason) is str


def test_every_runbook_of_the_catalogue_is_the_page_of_an_alert() -> None:
    reasons: tuple[ReasonEntry, ...]
    reasons = (*clusters.CLUSTER_REASONS, *jobs.RUN_REASONS, *JOURNAL_REASONS)
    pages = [entry.runbook for entry in reasons] + [event.runbook for event in events.EVENTS]
    named = {page for page in pages if page}
    assert "QsyncSplitBrain" in named
    assert named <= set(ALERTS)


def test_type_of_an_event_follows_from_its_reason() -> None:
    for entry in events.EVENTS:
        assert events.event_type(entry.name) == entry.severity.event_type
    assert events.event_type("Restart") == "Normal"
    assert events.event_type("RestartRefused") == events.event_type("Planted") == "Warning"
    normal = {entry.name for entry in clusters.CLUSTER_REASONS if entry.severity == "info"}
    problems = {entry.name for entry in clusters.PROBLEM_REASONS}
    assert not normal & problems
