"""`qsync` and `kubectl qsync`: the table of commands.

Modules of commands import nothing heavy before they run, so that `qsync --help` is quick. Exit
codes: 0 done, 1 it did not happen (one sentence on stderr), 2 wrong usage.
"""

import sys
from typing import Annotated

import typer

from qsync_cli import (
    annotate,
    bench,
    bundle,
    cat,
    explain,
    fence,
    force,
    journal_compaction,
    journal_deletion,
    journal_loss,
    journal_publish,
    promote,
    register,
    replace,
    restore,
    rollbacks,
    runs,
    snapshot,
    status,
    switchover,
    unfence,
)
from qsync_cli import credentials as remote_credentials
from qsync_cli import events as remote_events
from qsync_cli import journals as remote_journals
from qsync_cli import logs as remote_logs
from qsync_cli.failure import Failure
from qsync_cli.local import (
    apply,
    audit,
    audits,
    compact,
    credentials,
    delete,
    events,
    journals,
    logs,
    scale,
)
from qsync_cli.local import status as local_status
from qsync_node import __version__

app = typer.Typer(
    help="Qsync: a quorum-synchronous replicated database.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
local_app = typer.Typer(
    help="Manage clusters of local processes, with the same manifests as on Kubernetes.",
    no_args_is_help=True,
)
app.add_typer(local_app, name="local")


def _example(*lines: str) -> str:
    return "Example: " + " · ".join(lines)


local_app.command("apply", epilog=_example("qsync local apply -f docs/examples/three-nodes.yaml"))(
    apply.apply
)
local_app.command(
    "status", epilog=_example("qsync local status orders", "qsync local status orders -o json")
)(local_status.status)
local_app.command("scale", epilog=_example("qsync local scale orders --replicas 5"))(scale.scale)
local_app.command("credentials", epilog=_example("qsync local credentials orders -o json"))(
    credentials.credentials
)
local_app.command("journals", epilog=_example("qsync local journals events"))(journals.journals)
local_app.command("logs", epilog=_example("qsync local logs orders orders-0 -f"))(logs.logs)
local_app.command("events", epilog=_example("qsync local events orders"))(events.events)
local_app.command(
    "audit",
    epilog=_example("qsync local audit orders", "qsync local audit orders --ledger ledger.jsonl"),
)(audit.audit)
local_app.command(
    "compact",
    epilog=_example(
        "qsync local compact orders", "qsync local compact orders --delete-older-than 30d"
    ),
)(compact.compact)
local_app.command("audits", epilog=_example("qsync local audits orders"))(audits.audits)
local_app.command("report", epilog=_example("qsync local report orders"))(audits.report)
local_app.command(
    "delete",
    epilog=_example("qsync local delete orders --yes", "qsync local delete orders --keep-data"),
)(delete.delete)

app.command(
    "status",
    epilog=_example(
        "qsync status --local orders",
        "qsync status --address 127.0.0.1:20001",
        "kubectl qsync status orders -n shop",
    ),
)(status.status)
app.command("promote", epilog=_example("qsync promote orders-1 --local orders"))(promote.promote)
app.command("switchover", epilog=_example("qsync switchover --local orders"))(switchover.switchover)
app.command("fence", epilog=_example("qsync fence orders-0 --local orders"))(fence.fence)
app.command("unfence", epilog=_example("qsync unfence orders-0 --local orders"))(unfence.unfence)
app.command("register", epilog=_example("qsync register catalogue-reader-0 --local catalogue"))(
    register.register
)
app.command(
    "restore",
    epilog=_example(
        "qsync restore orders-2 --archive s3://bucket/orders --to-time 2026-01-31T12:00:00Z"
    ),
)(restore.restore)
app.command("snapshot", epilog=_example("qsync snapshot --local orders"))(snapshot.snapshot)
app.command("logs", epilog=_example("qsync logs orders-0 -f", "kubectl qsync logs -n shop"))(
    remote_logs.logs
)
app.command("events", epilog=_example("qsync events", "kubectl qsync events -n shop"))(
    remote_events.events
)
app.command("explain", epilog=_example("qsync explain 289", "qsync explain NameTaken"))(
    explain.explain
)
app.command("credentials", epilog=_example("qsync credentials -o json"))(
    remote_credentials.credentials
)
app.command("rollbacks", epilog=_example("qsync rollbacks --local orders", "qsync rollbacks"))(
    rollbacks.rollbacks
)
app.command("pause", epilog=_example("qsync pause --cluster orders"))(annotate.pause)
app.command("resume", epilog=_example("qsync resume --cluster orders"))(annotate.resume)
app.command("restart", epilog=_example("qsync restart --cluster orders"))(annotate.restart)
app.command(
    "replace",
    epilog=_example("qsync replace orders-1 --cluster orders", "kubectl qsync replace orders-1"),
)(replace.replace)
app.command(
    "audit", epilog=_example("qsync audit --cluster orders", "kubectl qsync audit --no-wait")
)(runs.audit)
app.command(
    "compact", epilog=_example("qsync compact --cluster orders", "kubectl qsync compact --dry-run")
)(runs.compact)
app.command("bundle", epilog=_example("qsync bundle --cluster orders"))(bundle.bundle)
app.command("cat", epilog=_example("qsync cat 00000000000000000000.xlog -o json"))(cat.cat)
app.command(
    "force-confirm",
    epilog=_example("qsync force-confirm --lost orders-1 --disks-destroyed --local orders"),
)(force.force_confirm)
app.command(
    "force-rollback",
    epilog=_example("qsync force-rollback --lost orders-1 --disks-destroyed --local orders"),
)(force.force_rollback)
journals_app = typer.Typer(
    help="Read and write journals, through any broker of a cluster.", no_args_is_help=True
)
app.add_typer(journals_app, name="journals")
journals_app.command("list", epilog=_example("qsync journals list --local events"))(
    remote_journals.listing
)
journals_app.command(
    "append", epilog=_example("qsync journals append orders/eu order.json --local events")
)(remote_journals.append)
journals_app.command("read", epilog=_example("qsync journals read orders/eu -f --local events"))(
    remote_journals.read
)
journals_app.command(
    "fragments", epilog=_example("qsync journals fragments orders/eu --local events")
)(remote_journals.fragments)
journals_app.command(
    "edit", epilog=_example("qsync journals edit -l prefix=orders/ --local events")
)(remote_journals.edit)
journals_app.command("delete", epilog=_example("qsync journals delete orders/eu --local events"))(
    journal_deletion.delete
)
journals_app.command(
    "reset-head", epilog=_example("qsync journals reset-head orders/eu --local events")
)(remote_journals.reset_head)
journals_app.command(
    "accept-loss", epilog=_example("qsync journals accept-loss orders/eu --local events")
)(journal_loss.accept_loss)
journals_app.command(
    "publish", epilog=_example("qsync journals publish orders/eu order.json --wait --local events")
)(journal_publish.publish)
journals_app.command("compact", epilog=_example("qsync journals compact --dry-run --local events"))(
    journal_compaction.compact
)
journals_app.command("prune", epilog=_example("qsync journals prune --dry-run --local events"))(
    remote_journals.prune
)
app.command("bench", epilog=_example("qsync bench 127.0.0.1:3301 --password SECRET"))(bench.bench)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"qsync {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Qsync: a quorum-synchronous replicated database."""


def main() -> None:
    try:
        app()
    except Failure as failure:
        sys.stderr.write(f"qsync: {failure} ({failure.reason})\n")
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output is closed
        sys.exit(1)


if __name__ == "__main__":
    main()
