"""Waits until a cluster is Ready, and shows the progress."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import console
from rich import live as rich_live
from rich import spinner as rich_spinner

from qsync_cli import output
from qsync_cli.clusters import ensure_supervisor, is_settled, observe
from qsync_cli.failure import Failure, FailureReason
from qsync_local.supervision import last_words_in
from qsync_operator.views import statusview

if TYPE_CHECKING:
    from collections.abc import Callable

    from qsync_local.store import ClusterFiles
    from qsync_operator.api.cluster import QsyncCluster

POLL_S = 0.1
RESTARTS_MAX = 5
"""Number of restarts of the supervisor after which waiting is useless."""
HOPELESS = frozenset({"SchemaRefused", "FounderLost", "SplitBrain"})
BLOCKED = frozenset({"PortInUse", "BrokerDown"})
"""Reasons that a person has to remove."""
BLOCKED_S = 3.0
"""Time after which a reason of `BLOCKED` is no longer that of the state before the command."""


def wait_ready(store: "ClusterFiles", timeout_s: float, is_quiet: bool) -> "QsyncCluster":
    """Wait until the cluster is Ready. Raises Failure when it is late or never will be."""
    begun_s = time.monotonic()
    deadline_s, restarts = begun_s + timeout_s, 0
    with _display(is_quiet) as show:
        while True:
            cluster = observe(store)
            show(cluster)
            if is_settled(cluster):
                return cluster
            refuse_hopeless(cluster, time.monotonic() - begun_s)
            if time.monotonic() >= deadline_s:
                raise Failure(
                    FailureReason.TIMED_OUT,
                    f"{cluster.name} is not Ready after {timeout_s:g} s: "
                    f"{sentence(cluster)}; check `qsync status {cluster.name}` and "
                    f"`qsync events {cluster.name}`",
                )
            restarts += ensure_supervisor(store)
            if restarts > RESTARTS_MAX:
                log = store.supervisor_log
                cause = last_words_in(log)
                raise Failure(
                    FailureReason.FAILED,
                    f"the supervisor of {cluster.name} ended {restarts} times: {cause}; read {log}",
                )
            time.sleep(POLL_S)


def refuse_hopeless(cluster: "QsyncCluster", waited_s: float) -> None:
    """Fail if waiting longer is useless.

    Args:
        cluster: the cluster with its status.
        waited_s: time since the command began in seconds.

    Raises:
        Failure: the cluster cannot become Ready, or a person has to repair it.
    """
    degraded = cluster.status.condition("Degraded")
    if cluster.status.observed_generation != cluster.metadata.generation:
        return
    reasons = HOPELESS | BLOCKED if waited_s > BLOCKED_S else HOPELESS
    if degraded is not None and degraded.status == "True" and degraded.reason in reasons:
        raise Failure(
            FailureReason.REFUSED, f"{cluster.name} cannot become Ready: {degraded.message}"
        )


def sentence(cluster: "QsyncCluster") -> str:
    if cluster.status.observed_generation != cluster.metadata.generation:
        return "the supervisor has not processed the change yet"
    for kind in ("Ready", "Degraded"):
        condition = cluster.status.condition(kind)
        if condition is not None and condition.message:
            return condition.message
    return "the members are starting"


@contextmanager
def _display(is_quiet: bool) -> Iterator["Callable[[QsyncCluster], None]"]:
    if is_quiet:
        yield lambda cluster: None
    elif sys.stdout.isatty():
        with _live_display() as show:
            yield show
    else:
        yield _told_once()


def _told_once() -> "Callable[[QsyncCluster], None]":
    """Return a function that prints each new message once, for output into a pipe."""
    said = ""

    def show(cluster: "QsyncCluster") -> None:
        nonlocal said
        if is_settled(cluster):
            return
        text = f"{cluster.name}: {sentence(cluster)}"
        if text != said:
            said = text
            output.say(text)
            sys.stdout.flush()

    return show


@contextmanager
def _live_display() -> Iterator["Callable[[QsyncCluster], None]"]:
    spinner = rich_spinner.Spinner("dots")
    with rich_live.Live(console=output.console(), refresh_per_second=12, transient=True) as live:

        def show(cluster: "QsyncCluster") -> None:
            spinner.update(text=f" {cluster.name}: {sentence(cluster)}")
            live.update(console.Group(spinner, output.rich_table(*_table(cluster), statusview.GAP)))

        yield show


def _table(cluster: "QsyncCluster") -> statusview.Table:
    return statusview.table(list(map(statusview.member_row, cluster.status.members)), False)
