"""`python -m qsync_operator.web`: the web page, as the Deployment of the chart runs it.

The page listens on the loopback interface of its pod, so that only `kubectl port-forward` reaches
it, and Kubernetes decides about permissions to do so. Probes have a port of their own.
"""

import asyncio
import logging
import signal
import sys

from qsync_operator.kubernetes.api import ApiError
from qsync_operator.manager.health import serve_health
from qsync_operator.settings import SettingsError, WebSettings, load_web_settings
from qsync_operator.web.source import KubernetesSource, unverified_context
from qsync_web.server import PageServer


async def _serve(settings: WebSettings) -> int:
    from qsync_operator.kubernetes.client import KubernetesApi  # noqa: PLC0415 (loads in 0.7 s, --help needs none)

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    health = await serve_health(settings.health_port, lambda: True)
    api = await KubernetesApi.connect()
    server = PageServer(KubernetesSource(api, settings.namespaces, unverified_context()))
    try:
        await server.listen(settings.port)
        await stopping.wait()
    finally:
        await server.close()
        await api.close()
        await health.cleanup()
    return 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return asyncio.run(_serve(load_web_settings()))
    except (SettingsError, ApiError, OSError) as error:
        sys.stderr.write(f"qsync-operator-web: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
