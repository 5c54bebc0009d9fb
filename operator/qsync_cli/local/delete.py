"""`qsync local delete`, and `destroy` for a local cluster: stop it, and keep or delete its data."""

import contextlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qsync_cli import clusters
from qsync_cli.consent import require_consent
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, OutputOption
from qsync_cli.output import counted, done
from qsync_local import processes, supervisor

if TYPE_CHECKING:
    from qsync_cli.options import Output
    from qsync_local.store import ClusterFiles

KeepOption = Annotated[
    bool, typer.Option("--keep-data", help="Keep the data for the next apply of that name.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Delete the cluster and its data without a question.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait.", min=0)]
POLL_S = 0.05
_UNITS = ("B", "kB", "MB", "GB", "TB")


def delete(
    name: NameArgument,
    keep_data: KeepOption = False,
    yes: YesOption = False,
    timeout: TimeoutOption = 60.0,
    output: OutputOption = None,
) -> None:
    """Stop the processes of a cluster, and delete its files unless they are retained.

    `--yes` deletes the data as well. Otherwise the command lists the files, asks at a terminal, and
    keeps them if `storage.retention` is `Retain`, as `qsync destroy` does.
    """
    destroy_local(
        name, deletes_data=yes, keeps_data=keep_data, is_given=yes, timeout=timeout, output=output
    )


def destroy_local(
    name: str,
    *,
    deletes_data: bool,
    keeps_data: bool,
    is_given: bool,
    timeout: float,
    output: "Output | None",
) -> None:
    """Remove a local cluster.

    Args:
        name: name of the cluster.
        deletes_data: whether its data is deleted, also if `storage.retention` is `Retain`.
        keeps_data: whether its data is kept, also if `storage.retention` is `Delete`.
        is_given: whether the command itself gives consent.
        timeout: seconds to wait for the end of the processes.
        output: the format, None for a sentence.

    Raises:
        Failure: there is no such cluster, no consent, or the processes did not end in time.
        BadParameter: both `deletes_data` and `keeps_data`.
    """
    if deletes_data and keeps_data:
        raise typer.BadParameter("the data is either kept or deleted: choose one of the options")
    store = clusters.store_of(name)
    if not store.exists():
        _delete_retained(store, keeps_data=keeps_data, is_given=is_given, output=output)
        return
    retention = clusters.load_cluster(store).spec.storage.retention
    is_kept = keeps_data or (retention == "Retain" and not deletes_data)
    if not keeps_data:
        _ask(store, is_kept=is_kept, is_given=is_given)
    with store.editing():
        cluster = clusters.load_cluster(store)
        cluster.metadata.deletion_timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        if is_kept:
            cluster.metadata.annotations[supervisor.KEEP_DATA] = "true"
        store.save_cluster(cluster)
    _wait(store, timeout)
    text = f'qsynccluster.qsync.dev "{name}" deleted'
    if is_kept:
        text += f", data retained in {store.directory}"
    done(text, output, cluster=name, isDeleted=True, isDataRetained=is_kept)


def _delete_retained(
    store: "ClusterFiles", *, keeps_data: bool, is_given: bool, output: "Output | None"
) -> None:
    """Delete the data that an earlier deletion kept."""
    if keeps_data or not (store.directory / "state.json").exists():
        raise clusters.absence_of(store)
    _ask(store, is_kept=False, is_given=is_given)
    store.forget(keeps_data=False)
    text = f"retained data of {store.name} deleted"
    done(text, output, cluster=store.name, isDeleted=True, isDataRetained=False)


def _wait(store: "ClusterFiles", timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    pid = 0
    while store.exists() or store.is_supervised() or processes.start_time(pid):
        if store.is_supervised():
            pid = store.supervisor_pid() or pid
        if time.monotonic() > deadline_s:
            raise Failure(
                FailureReason.TIMED_OUT,
                f"deletion of {store.name} did not finish in {timeout_s:g} s: read "
                f"{store.supervisor_log}, then retry",
            )
        if store.exists():
            clusters.ensure_supervisor(store)
        time.sleep(POLL_S)


def _ask(store: "ClusterFiles", *, is_kept: bool, is_given: bool) -> None:
    name = store.name
    if is_kept:
        text = f"{name}: all its processes stop. storage.retention is Retain, so its data is kept."
        remedy = (
            f"run `qsync destroy {name} --keep-data` to stop it and keep its data, or "
            f"`qsync destroy {name} --delete-data --yes` to delete both"
        )
        require_consent(name, text, f"Delete {name}, and keep its data?", remedy, is_given=is_given)
        return
    listed = "".join(f"\n  {line}" for line in contents(store))
    text = f"{name}: its rows, and the bytes of its journals, are lost with it.{listed}"
    remedy = "add --yes to delete the cluster, or --keep-data to stop it only"
    question = f"Delete {name} and this data?"
    require_consent(name, text, question, remedy, is_given=is_given)


def contents(store: "ClusterFiles") -> list[str]:
    """Return a line for each part that a deletion of all files deletes."""
    found = [store.directory / "nodes", store.directory / "brokers"]
    folders = [one for folder in found for one in _folders(folder)]
    lines = [f"{one}: {_size(_bytes(one))}" for one in folders]
    for name, noun in (("retired", "disk of a removed member"), ("audits", "report of an audit")):
        count = len(_folders(store.directory / name))
        if count:
            plural = noun.replace("disk", "disks").replace("report", "reports")
            size = _size(_bytes(store.directory / name))
            shown = counted(count, noun) if count == 1 else f"{count} {plural}"
            lines.append(f"{store.directory / name}: {shown}, {size}")
    cluster = store.load_cluster() or store.load_retained()
    if cluster is not None and cluster.spec.archive is not None:
        url = cluster.spec.archive.url
        is_inside = url.startswith(f"file://{store.directory}/")
        lines.append(f"{url}: the archive is {'deleted too' if is_inside else 'kept'}")
    return lines


def _folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def _bytes(folder: Path) -> int:
    """Return the size of the files below a folder; members may delete any of them meanwhile."""
    total = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _size(count: int) -> str:
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
