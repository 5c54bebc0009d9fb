"""Writes or compares the generated parts of reference pages: `python docs/site/pages.py [--write]`.

The pages are in the tree, because people also read them on GitHub. A generated part stands between
the comments `<!-- generated: NAME -->` and `<!-- end: NAME -->`. The text around it is written by
hand. Without `--write`, the program exits with 1 if a page differs from the code.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from qsync_broker.limits import LIMITS as BROKER_LIMITS
from qsync_cli.failure import FAILURES
from qsync_node.explanations import (
    ENGINE_ACTION,
    ENGINE_CODES,
    ENGINE_MEANING,
    EXPLANATIONS,
    ORDER_EXPLANATIONS,
)
from qsync_node.server.limits import LIMITS, Limit
from qsync_operator.api.catalogue.clusters import (
    CLUSTER_CONDITIONS,
    NORMAL_REASONS,
    PROBLEM_REASONS,
    PROGRESS_REASONS,
)
from qsync_operator.api.catalogue.entries import ConditionEntry, ReasonEntry
from qsync_operator.api.catalogue.events import ACTIONS, EVENTS, FAILOVER_REASONS
from qsync_operator.api.catalogue.jobs import RUN_CONDITIONS, RUN_REASONS
from qsync_operator.api.catalogue.journals import JOURNAL_CONDITIONS, JOURNAL_REASONS

DOCS = Path(__file__).resolve().parents[1]
NOTICE = "<!-- `make references` writes this part from {source}: change that, not this page. -->"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    titles = list(titles)
    lines = [_line(titles), _line(["---"] * len(titles)), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    shown = (cell.replace("|", "\\|") for cell in cells)
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in shown)}|"


def code_table() -> str:
    return table(
        ["code", "name", "meaning", "outcome", "action"],
        (
            (str(int(e.code)), ", ".join(filter(None, (e.code.name, e.case))), e.meaning,
             e.outcome, e.action)
            for e in EXPLANATIONS
        ),
    )  # fmt: skip


def engine_code_table() -> str:
    text = f"{ENGINE_MEANING}. The outcome is *refused*. {ENGINE_ACTION}.\n\n"
    return text + table(["code", "name"], ((str(k), v) for k, v in ENGINE_CODES.items()))


def order_table() -> str:
    return table(
        ["HTTP status", "reason", "cause", "action"],
        (
            (str(e.status), f"`{e.reason}`" if e.reason else "", e.meaning, e.action)
            for e in ORDER_EXPLANATIONS
        ),
    )


def failure_table() -> str:
    return table(
        ["reason", "meaning", "action"], ((f"`{e.name}`", e.meaning, e.action) for e in FAILURES)
    )


def limit_table(limits: Iterable[Limit]) -> str:
    return table(
        ["subject", "limit", "setting", "error or effect"],
        ((limit.subject, limit.value, limit.setting, limit.effect) for limit in limits),
    )


def condition_table(entries: Iterable[ConditionEntry]) -> str:
    rows = ((f"`{entry.name}`", entry.meaning) for entry in entries)
    return table(["condition", "is True when"], rows)


def reason_table(entries: Iterable[ReasonEntry]) -> str:
    return table(
        ["reason", "conditions", "meaning", "action"],
        ((f"`{e.name}`", _names(e.conditions), e.meaning, e.action) for e in entries),
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def failover_table() -> str:
    rows = ((f"`{entry.name}`", entry.meaning, entry.action) for entry in FAILOVER_REASONS)
    return table(["reason", "meaning", "action"], rows)


def event_table() -> str:
    return table(
        ["reason", "type", "meaning", "action"],
        ((f"`{e.name}`", e.severity.event_type, e.meaning, e.action) for e in EVENTS),
    )


def action_table() -> str:
    return table(
        ["reason", "after a failure", "meaning", "action after a failure"],
        ((f"`{e.name}`", f"`{e.refused}`", e.meaning, e.remedy) for e in ACTIONS),
    )


CATALOGUE = "operator/qsync_operator/api/catalogue"
NODE_SOURCE = "node/qsync_node/explanations.py"
_CONDITIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "cluster conditions": ("clusters", partial(condition_table, CLUSTER_CONDITIONS)),
    "normal reasons": ("clusters", partial(reason_table, NORMAL_REASONS)),
    "progress reasons": ("clusters", partial(reason_table, PROGRESS_REASONS)),
    "problem reasons": ("clusters", partial(reason_table, PROBLEM_REASONS)),
    "run conditions": ("jobs", partial(condition_table, RUN_CONDITIONS)),
    "run reasons": ("jobs", partial(reason_table, RUN_REASONS)),
    "failover reasons": ("events", failover_table),
    "events": ("events", event_table),
    "action events": ("events", action_table),
    "journal conditions": ("journals", partial(condition_table, JOURNAL_CONDITIONS)),
    "journal reasons": ("journals", partial(reason_table, JOURNAL_REASONS)),
}
PARTS: dict[str, dict[str, tuple[str, Callable[[], str]]]] = {
    "errors.md": {
        "codes": (NODE_SOURCE, code_table),
        "engine codes": (NODE_SOURCE, engine_code_table),
        "orders": (NODE_SOURCE, order_table),
        "failures": ("operator/qsync_cli/failure.py", failure_table),
    },
    "conditions.md": {
        name: (f"{CATALOGUE}/{module}.py", render) for name, (module, render) in _CONDITIONS.items()
    },
    "limits.md": {
        "limits": ("node/qsync_node/server/limits.py", partial(limit_table, LIMITS)),
        "broker limits": ("node/qsync_broker/limits.py", partial(limit_table, BROKER_LIMITS)),
    },
}
"""The generated parts of each page: the file with the data, and the function that renders it."""


def generated(name: str, text: str) -> str:
    """Return a page with its generated parts made from the code.

    Raises:
        ValueError: the page does not have each part exactly once.
    """
    for part, (source, render) in PARTS[name].items():
        begin, end = f"<!-- generated: {part} -->\n", f"<!-- end: {part} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{name}: part {part!r} must begin once and end once")
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        body = f"{NOTICE.format(source=source)}\n\n{render()}\n"
        text = f"{before}{begin}{body}{end}{after}"
    return text


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="docs/site/pages.py", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages")
    is_written = parser.parse_args().write
    differing = []
    for name in PARTS:
        path = DOCS / name
        before = path.read_text()
        after = generated(name, before)
        if after == before:
            continue
        differing.append(name)
        if is_written:
            path.write_text(after)
            sys.stdout.write(f"{path} written\n")
    if differing and not is_written:
        sys.stderr.write(f"{', '.join(differing)} differ from the code: run `make references`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
