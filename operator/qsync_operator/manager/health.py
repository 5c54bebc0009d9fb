"""Health over HTTP: live while the event loop runs, ready once the API server has answered."""

from collections.abc import Callable

from aiohttp import web


async def serve_health(port: int, is_ready: Callable[[], bool]) -> web.AppRunner:
    """Serve the health pages; the caller must clean up the returned runner.

    Raises:
        OSError: the port is in use.
    """

    async def alive(_: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({"ready": is_ready()}, status=200 if is_ready() else 503)

    application = web.Application()
    application.add_routes([web.get("/healthz", alive), web.get("/readyz", ready)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
