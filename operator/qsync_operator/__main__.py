"""`python -m qsync_operator`: the operator, as its pod runs it.

It ends with 0 when it is told to stop, and with 1 when it can watch no longer: the next one begins
with everything looked up again.
"""

import asyncio
import logging
import signal
import sys

from qsync_operator import metrics
from qsync_operator.clusters import Clusters
from qsync_operator.lease import Lease
from qsync_operator.platform.kubernetes.api import ApiError
from qsync_operator.platform.kubernetes.cache import Cache
from qsync_operator.settings import Settings, SettingsError, load_settings


async def _operate(settings: Settings) -> int:
    from qsync_operator.kopf_app import watch  # noqa: PLC0415 - 0.7 s, not for `--help`
    from qsync_operator.platform.kubernetes.client import KubernetesApi  # noqa: PLC0415

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    api = await KubernetesApi.connect()
    try:
        await api.find("QsyncCluster", (*settings.namespaces, settings.own_namespace)[0])
    except ApiError as error:
        await api.close()
        sys.stderr.write(
            f"qsync-operator: QsyncClusters cannot be listed ({error}): install the definitions"
            " and the role of the chart\n"
        )
        return 1
    metrics.serve(settings.metrics_port)
    cache = Cache()
    clusters = Clusters(api, cache, settings.node_image, settings.spark)
    lease = Lease(api, settings.own_namespace, settings.own_name)
    leading = asyncio.create_task(_lead(lease, clusters))
    watching = asyncio.create_task(watch(settings, clusters, cache, stopping))
    told = asyncio.create_task(stopping.wait())
    try:
        # Without the Lease, or without the watches, there is nothing left to do here.
        ends = {told, leading, watching}
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        # What acts ends first, and the next operator need not wait for our watches to end.
        leading.cancel()
        await clusters.close()
        await lease.release()
        watching.cancel()
        await asyncio.gather(leading, watching, return_exceptions=True)
        await api.close()
    return 0 if stopping.is_set() else 1


async def _lead(lease: Lease, clusters: Clusters) -> None:
    await lease.acquire()
    metrics.ACTING.set(1)
    await clusters.begin()
    await lease.hold()


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
