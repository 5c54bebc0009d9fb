"""Files of the documentation site that are generated when the site is built.

MkDocs loads this file as its hooks. `on_files` adds pages that are generated from code, and the
program that draws diagrams, so that nothing generated is committed.
"""

import html
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from qsync_broker import metrics as broker
from qsync_node.server import metrics as node
from qsync_operator import metrics as operator

MERMAID = Path(sys.prefix) / "mermaid.min.js"

CLIENT = """# Python client

`qsync_client` retries with an idempotency key until the outcome of a request is known.
[Clients](clients.md) is a guide.

::: qsync_client.client
    options:
      show_root_heading: false
      show_root_toc_entry: false

::: qsync_client.transaction.Transaction

::: qsync_client.sync.SyncClient
    options:
      members: false

::: qsync_client.outcomes
    options:
      members: [Committed, RolledBack, Unknown, Refused]

::: qsync_client.errors

::: qsync_client.schema
    options:
      members: [Row, Schema, Space, Index, Field]
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated files.

    Raises:
        subprocess.CalledProcessError: the command line could not be described.
    """
    files.append(File.generated(config, "commands.md", content=commands()))
    files.append(File.generated(config, "client.md", content=CLIENT))
    files.append(File.generated(config, "metrics.md", content=metrics()))
    files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))
    return files


def commands() -> str:
    """Return the reference of `qsync` and all of its commands as Markdown."""
    described = subprocess.run(
        [sys.executable, "-m", "typer", "qsync_cli.main", "utils", "docs", "--name", "qsync"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    first, _, rest = html.unescape(described).partition("\n")
    assert first == "# `qsync`", "the form that Typer prints"
    return f"# Commands\n\n`kubectl qsync` is the same program.\n{rest}"


def metrics() -> str:
    """Return the reference of all metrics as Markdown."""
    return "\n".join(
        [
            "# Metrics",
            "",
            "Each member serves its metrics at `/metrics` on its admin port, each broker at",
            "`/debug/metrics` on the port of its clients, and the operator on a port of its own.",
            "All use Prometheus' text format. A counter's sample name ends in `_total`.",
            "",
            "## Members",
            "",
            "A member also exports `process_*`: its memory, CPU time and open files. All",
            "histograms have the same buckets.",
            "",
            *_table([*_series(), *_histograms()]),
            "",
            "## Archive of a member",
            "",
            "These series exist only if the cluster has an archive.",
            "",
            *_table((s.name, "gauge", "", s.help) for s in node.ARCHIVE_GAUGES),
            "",
            "## Brokers of journals",
            "",
            "A broker also exports `process_*`: its memory, CPU time and open files.",
            "",
            *_table(_broker_series()),
            "",
            "## Operator",
            "",
            *_table(_operator_series()),
            "",
        ]
    )


def _series() -> Iterable[tuple[str, str, str, str]]:
    for kind, plain, labelled in (
        ("gauge", node.GAUGES, node.LABELLED_GAUGES),
        ("counter", node.COUNTERS, node.LABELLED_COUNTERS),
    ):
        yield from ((s.name, kind, "", s.help) for s in plain)
        yield from ((s.name, kind, f"`{s.label}`", s.help) for s in labelled)


def _histograms() -> Iterable[tuple[str, str, str, str]]:
    yield from ((s.name, "histogram", "", s.help) for s in node.HISTOGRAMS)
    yield from ((s.name, "histogram", f"`{s.label}`", s.help) for s in node.LABELLED_HISTOGRAMS)


def _broker_series() -> Iterable[tuple[str, str, str, str]]:
    yield from ((s.name, "gauge", "", s.help) for s in broker.GAUGES)
    for one in broker.COUNTED:
        yield one.name, one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help


def _operator_series() -> Iterable[tuple[str, str, str, str]]:
    for metric in vars(operator).values():
        if isinstance(metric, operator.Counter | operator.Gauge | operator.Histogram):
            family = next(iter(metric.describe()))
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            yield family.name, family.type, labels, family.documentation


def _table(rows: Iterable[tuple[str, str, str, str]]) -> Iterable[str]:
    yield "| name | type | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, kind, labels, meaning in rows:
        yield f"| `{name}` | {kind} | {labels} | {meaning} |"
