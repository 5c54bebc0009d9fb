"""An object store in memory that a campaign slows down or lets fail. It speaks a part of S3."""

import asyncio
import datetime
import hashlib
import random
import re
from dataclasses import dataclass
from xml.sax.saxutils import escape, unescape

from aiohttp import web

BUCKET = "fragments"
BODY_MAX = 64 << 20


@dataclass
class Weakness:
    """Faults of the requests to a store.

    Attributes:
        delay_s: greatest delay of a request in seconds.
        failing: share of requests that are answered with 503, and have no effect.
        unanswered: share of requests that are carried out, while their connection breaks.
        torn: share of bodies that end in their middle.
    """

    delay_s: float = 0
    failing: float = 0
    unanswered: float = 0
    torn: float = 0


class FaultyStore:
    """The store, with one bucket.

    Attributes:
        weakness: its present fault.
        requests: number of requests that met a fault.
    """

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port = port
        self.weakness = Weakness()
        self.requests = 0
        self._rng = rng
        self._objects: dict[str, tuple[bytes, datetime.datetime]] = {}
        self._runner: web.AppRunner | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a process uses the store."""
        return {
            "AWS_ACCESS_KEY_ID": "chaos",
            "AWS_SECRET_ACCESS_KEY": "a campaign's secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    async def start(self) -> None:
        application = web.Application(client_max_size=BODY_MAX)
        application.router.add_route("*", f"/{BUCKET}{{path:.*}}", self._serve)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        weakness, draw = self.weakness, self._rng.random
        if weakness != Weakness():
            self.requests += 1
        body = await request.read()
        await asyncio.sleep(draw() * weakness.delay_s)
        if draw() < weakness.failing:
            return _error(503, "SlowDown")
        answer = self._carry_out(request, body)
        if draw() < weakness.unanswered and request.transport is not None:
            request.transport.abort()
        if draw() < weakness.torn and request.method == "GET":
            return await self._tear(request, answer)
        return answer

    async def _tear(self, request: web.Request, answer: web.Response) -> web.StreamResponse:
        body = answer.body
        assert isinstance(body, bytes)
        torn = web.StreamResponse(status=answer.status, headers=answer.headers)
        torn.content_length = len(body)
        await torn.prepare(request)
        await torn.write(body[: len(body) // 2])
        if request.transport is not None:
            request.transport.abort()
        return torn

    def _carry_out(self, request: web.Request, body: bytes) -> web.Response:
        key = request.match_info["path"].lstrip("/")
        if request.method == "PUT":
            self._objects[key] = body, datetime.datetime.now(datetime.UTC)
            return web.Response(headers={"ETag": _tag(body)})
        if request.method == "POST":
            return self._delete(body.decode())
        if not key:
            return self._list(request.query.get("prefix", ""))
        if key not in self._objects:
            return _error(404, "NoSuchKey")
        content, at = self._objects[key]
        headers = {
            "ETag": _tag(content),
            "Last-Modified": at.strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "Accept-Ranges": "bytes",
        }
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(len(content))})
        wanted = request.http_range
        if wanted.start is None and wanted.stop is None:
            return web.Response(body=content, headers=headers)
        part = content[wanted]
        start = wanted.indices(len(content))[0]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        return web.Response(status=206, body=part, headers=headers)

    def _delete(self, text: str) -> web.Response:
        """Delete the objects that a request of DeleteObjects names."""
        keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", text)]
        for key in keys:
            self._objects.pop(key, None)
        entries = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        answer = f"<DeleteResult>{entries}</DeleteResult>"
        return web.Response(text=answer, content_type="application/xml")

    def _list(self, prefix: str) -> web.Response:
        """Return all objects of a prefix on one page."""
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
            f"<LastModified>{at:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{_tag(content)}</ETag></Contents>"
            for key, (content, at) in sorted(self._objects.items())
            if key.startswith(prefix)
        )
        text = (
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<IsTruncated>false</IsTruncated>{entries}"
            "</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _error(status: int, code: str) -> web.Response:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")
