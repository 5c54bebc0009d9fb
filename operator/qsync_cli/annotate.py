"""`qsync pause`, `resume` and `restart`: annotations that the operator obeys."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qsync_cli import clusters, waiting
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.options import OutputOption, TimeoutOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed, require_kubernetes
from qsync_operator.api import annotations

if TYPE_CHECKING:
    from qsync_cli.options import Output


@aimed
def pause(where: Where, output: OutputOption = None) -> None:
    """Pause the operator for a cluster. Failover continues."""
    require_kubernetes(
        where, "pause", f"stop its members with `qsync stop {where.local}`, if they must not change"
    )
    name = _annotate(where, "paused", "true")
    done(
        f"{name} is paused; `kubectl qsync resume` ends the pause",
        output,
        cluster=name,
        paused=True,
    )


@aimed
def resume(where: Where, output: OutputOption = None) -> None:
    """Resume a paused cluster."""
    require_kubernetes(
        where, "resume", f"start a cluster that is stopped with `qsync start {where.local}`"
    )
    name = _annotate(where, "paused", None)
    done(f"reconciliation of {name} has resumed", output, cluster=name, paused=False)


@aimed
def restart(where: Where, timeout: TimeoutOption = 120.0, output: OutputOption = None) -> None:
    """Restart all members one at a time, the leader last."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    if where.local is not None:
        _restart_local(where.local, now, timeout, output)
        return
    name = _annotate(where, "restartedAt", now)
    done(f"{name} restarts its members, one at a time", output, cluster=name, restartedAt=now)


def _restart_local(name: str, now: str, timeout_s: float, output: "Output | None") -> None:
    store = clusters.open_store(name)
    with store.editing():
        cluster = clusters.load_cluster(store)
        cluster.metadata.annotations[annotations.RESTARTED_AT] = now
        cluster.metadata.generation += 1
        store.save_cluster(cluster)
    clusters.ensure_supervisor(store)
    waiting.wait_ready(store, timeout_s, output is not None)
    done(f"{name} has restarted its members", output, cluster=name, restartedAt=now)


def _annotate(where: Where, key: str, value: str | None) -> str:
    require_kubernetes(where, "restart", "specify CLUSTER")

    async def write(session: kubernetes_session.KubernetesSession) -> str:
        cluster = kubernetes_session.choose(
            await session.clusters(), where, session.namespace, None
        )
        name = str(cluster["metadata"]["name"])
        change: dict[str, Any] = {"metadata": {"annotations": {f"qsync.dev/{key}": value}}}
        await session.api.patch("QsyncCluster", session.namespace, name, change)
        return name

    return kubernetes_session.converse(where, write)
