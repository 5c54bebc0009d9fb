"""`qsync local delete`: stops everything that it started, and nothing else."""

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from qsync_cli import clusters
from qsync_cli.consent import require_consent
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument
from qsync_cli.output import say
from qsync_local import processes, supervisor

KeepOption = Annotated[
    bool, typer.Option("--keep-data", help="Keep the data for the next apply of that name.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Delete without a question, in a script.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait.", min=0)]
POLL_S = 0.05


def delete(
    name: NameArgument,
    keep_data: KeepOption = False,
    yes: YesOption = False,
    timeout: TimeoutOption = 60.0,
) -> None:
    """Stop the processes of a cluster and delete its files.

    The command asks, unless the data are kept.
    """
    store = clusters.store_of(name)
    if not store.exists():
        if keep_data or not (store.directory / "state.json").exists():
            raise clusters.absence_of(store)
        _ask(name, is_given=yes)
        store.forget(keeps_data=False)
        say(f"retained data of {name} deleted")
        return
    if not keep_data:
        _ask(name, is_given=yes)
    with store.editing():
        cluster = clusters.load_cluster(store)
        cluster.metadata.deletion_timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        if keep_data:
            cluster.metadata.annotations[supervisor.KEEP_DATA] = "true"
        store.save_cluster(cluster)
    deadline_s = time.monotonic() + timeout
    pid = 0
    while store.exists() or store.is_supervised() or processes.start_time(pid):
        if store.is_supervised():
            pid = store.supervisor_pid() or pid
        if time.monotonic() > deadline_s:
            raise Failure(
                FailureReason.TIMED_OUT,
                f"deletion of {name} did not finish in {timeout:g} s: read "
                f"{store.supervisor_log}, then retry",
            )
        if store.exists():
            clusters.ensure_supervisor(store)
        time.sleep(POLL_S)
    say(f'qsynccluster.qsync.dev "{name}" deleted' + (", data retained" if keep_data else ""))


def _ask(name: str, *, is_given: bool) -> None:
    text = f"{name}: its rows, and the bytes of its journals, are lost with it."
    remedy = "add --yes to delete the cluster, or --keep-data to stop it only"
    require_consent(name, text, f"Delete {name}?", remedy, is_given=is_given)
