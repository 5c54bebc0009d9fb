"""An in-memory object store with the part of S3's protocol that readers and writers use.

It implements GET (with ranges), HEAD, PUT and ListObjectsV2.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

STAMP = "2024-01-01T00:00:00.000Z"


class Handler(BaseHTTPRequestHandler):
    """A request handler over `objects`, whose keys are paths such as `/bucket/folder/name`."""

    objects: ClassVar[dict[str, bytes]]

    def log_message(self, format: str, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if "list-type" in query:
            self._list(unquote(parts.path).strip("/"), query.get("prefix", [""])[0])
            return
        body = self.objects.get(unquote(parts.path))
        if body is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, body)
            return
        first, last = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
        span = f"bytes {first}-{last}/{len(body)}"
        self._answer(206, body[first : last + 1], {"Content-Range": span})

    do_HEAD = do_GET  # noqa: N815  # http.server calls this name

    def do_PUT(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.objects[path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def _list(self, bucket: str, prefix: str) -> None:
        found = sorted(
            (path.removeprefix(f"/{bucket}/"), len(data)) for path, data in self.objects.items()
        )
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{STAMP}</LastModified>"
            f'<ETag>"x"</ETag><Size>{size}</Size></Contents>'
            for key, size in found if key.startswith(prefix)
        )  # fmt: skip
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
        self._answer(200, text.encode())

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def serve(handler: type[Handler], port: int = 0) -> ThreadingHTTPServer:
    """Start the store on a port (0: any free port); `stop` ends it."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def stop(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()


def environment_for(server: ThreadingHTTPServer) -> dict[str, str]:
    """Return the environment variables that a process needs to reach the store."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
        "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-1",
    }  # fmt: skip


@contextmanager
def object_server() -> Iterator[tuple[dict[str, bytes], dict[str, str]]]:
    """Run a store; yield its objects and the environment of a process that uses it."""
    objects: dict[str, bytes] = {}
    server = serve(type("Handler", (Handler,), {"objects": objects}))
    try:
        yield objects, environment_for(server)
    finally:
        stop(server)
