"""`python -m qsync_operator`: the operator, as its pod runs it.

The process exits with 0 after a stop signal. It exits with 1 if another operator took its Lease or
if the custom resource definitions are missing. While the API server is unavailable, it waits
without a time limit.
"""

import asyncio
import contextlib
import logging
import signal
import sys
import time

from qsync_operator import metrics
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.leased import LeasedApi
from qsync_operator.manager.clusters import Clusters
from qsync_operator.manager.health import serve_health
from qsync_operator.manager.lease import OperatorLease
from qsync_operator.manager.resync import RESYNC_S, resync
from qsync_operator.settings import ProcessSettings, SettingsError, load_settings

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 10.0

log = logging.getLogger(__name__)


async def _operate(settings: ProcessSettings) -> int:
    from qsync_operator.kubernetes.client import KubernetesApi  # noqa: PLC0415  # 0.7 s

    stopping = asyncio.Event()
    _handle_signals(stopping)
    is_reached = asyncio.Event()
    health = await serve_health(settings.health_port, is_reached.is_set)
    api = await KubernetesApi.connect()
    try:
        namespace = (*settings.namespaces, settings.own_namespace)[0]
        refusal = await wait_for_api(api, namespace, stopping)
        if refusal:
            sys.stderr.write(f"qsync-operator: {refusal}\n")
            return 1
        if stopping.is_set():
            return 0
        is_reached.set()
        metrics.serve(settings.metrics_port)
        return await _supervise(settings, api, stopping)
    finally:
        await api.close()
        await health.cleanup()


def _handle_signals(stopping: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


async def wait_for_api(api: Api, namespace: str, stopping: asyncio.Event) -> str:
    """Wait until QsyncClusters can be listed.

    Return "" then or when `stopping` is set, and otherwise the reason why a retry cannot help.
    """
    pause_s = PAUSE_FIRST_S
    while not stopping.is_set():
        try:
            await api.find("QsyncCluster", namespace)
        except ApiError as error:
            if error.status in (403, 404):
                return (
                    f"cannot list QsyncClusters: {error}; install the definitions and the "
                    "role of the chart"
                )
            log.warning("waiting for the API server: %s", error)
            await _rest(stopping, pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
        else:
            return ""
    return ""


async def _rest(stopping: asyncio.Event, pause_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await stopping.wait()


async def _supervise(settings: ProcessSettings, api: Api, stopping: asyncio.Event) -> int:
    cache = Cache()
    lease = OperatorLease(api, settings.own_namespace, settings.own_name)
    leased = LeasedApi(api, lease.is_held)
    clusters = Clusters(
        leased, cache, settings.node_image, settings.spark, lease.is_held, settings.site
    )
    leading = asyncio.create_task(_lead(lease, clusters))
    watching = asyncio.create_task(_watch(settings, clusters, cache, stopping))
    resyncing = asyncio.create_task(_resync(settings, api, clusters, cache, stopping))
    stopped = asyncio.create_task(stopping.wait())
    try:
        # Without the Lease this process has nothing left to do.
        done, _ = await asyncio.wait({stopped, leading, watching, resyncing},
                                     return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        for task in done:
            task.result()
    finally:
        # Stop the acting tasks first. The next operator need not wait until the watches have ended.
        leading.cancel()
        resyncing.cancel()
        await clusters.close()
        await lease.release()
        watching.cancel()
        await asyncio.gather(leading, watching, resyncing, return_exceptions=True)
    return 0 if stopping.is_set() else 1


async def _lead(lease: OperatorLease, clusters: Clusters) -> None:
    await lease.acquire()
    metrics.ACTING.set_function(lambda: float(lease.is_held()))
    # Renew the Lease while clusters are taken over: many clusters take long.
    async with asyncio.TaskGroup() as group:
        begun = group.create_task(clusters.begin())
        await lease.hold()
        begun.cancel()


async def _watch(
    settings: ProcessSettings, clusters: Clusters, cache: Cache, stopping: asyncio.Event
) -> None:
    """Watch until `stopping` is set; restart watches that ended for any reason."""
    from qsync_operator.manager.kopf_app import watch  # noqa: PLC0415  # 0.7 s, not for `--help`

    pause_s = PAUSE_FIRST_S
    while not stopping.is_set():
        started_s = time.monotonic()
        try:
            await watch(settings, clusters, cache, stopping)
            stopping.set()  # kopf replaced the signal handler, so only kopf received the signal
        except Exception:  # a failed watch is restarted after any error
            log.exception("watches ended and restart")
            _handle_signals(stopping)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
            if time.monotonic() - started_s > PAUSE_MAX_S:
                pause_s = PAUSE_FIRST_S
            await _rest(stopping, pause_s)


async def _resync(
    settings: ProcessSettings, api: Api, clusters: Clusters, cache: Cache, stopping: asyncio.Event
) -> None:
    while not stopping.is_set():
        await _rest(stopping, RESYNC_S)
        try:
            await resync(api, cache, clusters, settings.namespaces)
        except ApiError as error:
            log.warning("cannot list objects again: %s", error)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("kopf", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings = load_settings()
    except SettingsError as error:
        sys.stderr.write(f"qsync-operator: {error}\n")
        return 2
    return asyncio.run(_operate(settings))


if __name__ == "__main__":
    sys.exit(main())
