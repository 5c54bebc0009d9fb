"""`qsync explain`: meaning, outcome and action of an error code, condition, reason or Event."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from qsync_cli.failure import FAILURES, Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, say
from qsync_node import explanations
from qsync_operator.api.catalogue import clusters, events, jobs, journals

NameArgument = Annotated[
    str, typer.Argument(help="Error code, condition, reason or Event.", metavar="CODE_OR_REASON")
]


@dataclass(frozen=True, slots=True)
class Topic:
    """One meaning of a name."""

    name: str
    kind: str
    facts: dict[str, str]
    code: int | None = None


def explain(name: NameArgument, output: OutputOption = None) -> None:
    """Explain an error code, or a condition, reason or Event: meaning, outcome and action."""
    found = [topic for topic in topics() if _is_named(topic, name)]
    if not found:
        raise Failure(FailureReason.NOT_FOUND, _unknown(name))
    if output in (Output.json, Output.yaml):
        print_document([_document(topic) for topic in found], output)
        return
    say("\n\n".join(_text(topic) for topic in found))


def topics() -> Iterator[Topic]:
    """Yield everything that can be explained: error codes, then names of the operator."""
    yield from _codes()
    yield from _refusals()
    yield from _conditions()
    yield from _events()
    yield from _failures()


def _codes() -> Iterator[Topic]:
    for entry in explanations.EXPLANATIONS:
        facts = {"meaning": entry.meaning, "outcome": entry.outcome, "action": entry.action}
        kind = "error code" + (f" {entry.case}" if entry.case else "")
        yield Topic(entry.code.name, kind, facts, int(entry.code))
    for code, name in explanations.ENGINE_CODES.items():
        facts = {
            "meaning": explanations.ENGINE_MEANING,
            "outcome": "refused",
            "action": explanations.ENGINE_ACTION,
        }
        yield Topic(name, "error code", facts, code)


def _refusals() -> Iterator[Topic]:
    for entry in explanations.ORDER_EXPLANATIONS:
        if entry.reason is not None:
            kind = f"reason of a refused order, HTTP status {entry.status}"
            facts = {"meaning": entry.meaning, "outcome": "refused", "action": entry.action}
            yield Topic(str(entry.reason), kind, facts)


def _conditions() -> Iterator[Topic]:
    cluster, run, journal = "a QsyncCluster", "a QsyncAudit or QsyncCompaction", "a QsyncJournal"
    conditions = {
        cluster: clusters.CLUSTER_CONDITIONS,
        run: jobs.RUN_CONDITIONS,
        journal: journals.JOURNAL_CONDITIONS,
    }
    reasons = {
        cluster: clusters.CLUSTER_REASONS,
        run: jobs.RUN_REASONS,
        journal: journals.JOURNAL_REASONS,
    }
    for owner, types in conditions.items():
        for one in types:
            yield Topic(one.name, f"condition of {owner}", {"true when": one.meaning})
    for owner, entries in reasons.items():
        for entry in entries:
            facts = {"conditions": ", ".join(entry.conditions)}
            facts |= {
                "severity": entry.severity,
                "meaning": entry.meaning,
                "action": entry.action,
            }
            yield Topic(str(entry.name), f"reason of a condition of {owner}", facts)
    for cause in events.FAILOVER_REASONS:
        facts = {"meaning": cause.meaning, "action": cause.action}
        yield Topic(str(cause.name), "cause of a change of leader", facts)


def _events() -> Iterator[Topic]:
    for event in events.EVENTS:
        kind = f"Event of type {event.severity.event_type}"
        yield Topic(str(event.name), kind, {"meaning": event.meaning, "action": event.action})
    for action in events.ACTIONS:
        yield Topic(
            action.name, "Event of type Normal", {"meaning": action.meaning, "action": "None"}
        )
        failed = f"The action {action.name} failed; the message names the cause"
        facts = {"meaning": failed, "action": action.remedy}
        yield Topic(action.refused, "Event of type Warning", facts)


def _failures() -> Iterator[Topic]:
    for entry in FAILURES:
        facts = {"meaning": entry.meaning, "action": entry.action}
        yield Topic(str(entry.name), "reason of a failed command", facts)


def _is_named(topic: Topic, name: str) -> bool:
    """Return whether `name` is the name of the topic, in any case, or its code."""
    return topic.name.lower() == name.lower() or (
        topic.code is not None and topic.code == _number(name)
    )


def _number(text: str) -> int | None:
    """Return a decimal number, or a hexadecimal one that begins with 0x."""
    try:
        return int(text, 0)
    except ValueError:
        return None


def _unknown(name: str) -> str:
    failed = f"cannot explain {name}: no error code, condition, reason or Event has this name"
    names = {topic.name.lower(): topic.name for topic in topics()}
    close = difflib.get_close_matches(name.lower(), names, n=3)
    if close:
        return f"{failed}; try {' or '.join(names[one] for one in close)}"
    return f"{failed}; docs/errors.md and docs/conditions.md list all names"


def _document(topic: Topic) -> dict[str, str | int]:
    code = {} if topic.code is None else {"code": topic.code}
    facts = {_key(label): _plain(text) for label, text in topic.facts.items()}
    return {**code, "name": topic.name, "kind": topic.kind, **facts}


def _key(label: str) -> str:
    return "trueWhen" if label == "true when" else label


def _text(topic: Topic) -> str:
    title = topic.name if topic.code is None else f"{topic.code} {topic.name}"
    width = max(map(len, topic.facts))
    lines = [f"  {label.ljust(width)}  {_plain(text)}" for label, text in topic.facts.items()]
    return "\n".join([f"{title} ({topic.kind})", *lines])


def _plain(text: str) -> str:
    """Return Markdown as plain text: each link becomes the path of its page."""
    return re.sub(r"\[[^\]]+\]\(([^)]+)\)", r"docs/\1", text).replace("`", "")
