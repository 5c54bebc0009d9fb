"""An object store that serves folders by S3's protocol, and fails on demand.

Each bucket is a folder, so a test can read, change and damage the objects as files. The server
implements GET (with ranges), HEAD, PUT (also of objects that must not exist), DELETE,
DeleteObjects, uploads in parts, and ListObjectsV2 in pages. A folder and an object cannot have
the same name.
"""

import datetime
import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

PAGE = 1000
"""Greatest number of objects on a page of a listing, as S3's own."""
UNFINISHED = ".unfinished-"
"""Prefix of files that are being written."""


@dataclass(frozen=True, slots=True)
class Weakness:
    """Faults of the requests to a store.

    Attributes:
        delay_s: greatest delay of a request in seconds.
        failing: share of requests that are answered with 503, and have no effect.
        unanswered: share of requests that are carried out, while their connection breaks.
        torn: share of bodies that end in their middle, of objects and of listings.
        cut: share of uploads whose connection breaks in the middle, and which have no effect.
    """

    delay_s: float = 0
    failing: float = 0
    unanswered: float = 0
    torn: float = 0
    cut: float = 0


class _Broken(Exception):  # noqa: N818  # a fault, and no error of the server
    """The connection ends without an answer."""


class ObjectServer:
    """The store.

    Attributes:
        port: its port; it stays the same when the server starts again.
        buckets: folder of each bucket by name.
        weakness: the present fault.
        requests: number of requests that met a fault.
    """

    def __init__(
        self,
        buckets: dict[str, Path],
        *,
        port: int = 0,
        rng: random.Random | None = None,
        page: int = PAGE,
    ) -> None:
        self.port = port
        self.page = page
        self.buckets = buckets
        self.weakness = Weakness()
        self.requests = 0
        self.rng = rng or random.Random(0)
        self.lock = threading.Lock()
        self.encodings: dict[Path, str] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self._server: ThreadingHTTPServer | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a process uses the store."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Handler(BaseHTTPRequestHandler):
    """One request; each has a connection of its own, so that none outlives a stopped server."""

    store: ClassVar[ObjectServer]

    def log_message(self, format: str, *arguments: object) -> None: ...

    def _serve(self) -> None:
        store, draw = self.store, self.store.rng.random
        weakness = store.weakness
        if weakness != Weakness():
            store.requests += 1
        with suppress(_Broken, ConnectionError):
            size = int(self.headers.get("Content-Length", 0))
            if self.command == "PUT" and draw() < weakness.cut:
                self.rfile.read(size // 2)
                raise _Broken
            body = self.rfile.read(size)
            if len(body) < size:
                raise _Broken  # the client has gone
            time.sleep(draw() * weakness.delay_s)
            if draw() < weakness.failing:
                self._fail(503, "SlowDown")
                return
            with store.lock:
                status, headers, answer = self._carry_out(body)
            if draw() < weakness.unanswered:
                raise _Broken
            is_torn = draw() < weakness.torn and self.command == "GET" and len(answer) > 1
            self._answer(status, headers, answer, is_torn=is_torn)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815  # http.server's names

    def _carry_out(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
        folder = self.store.buckets.get(bucket)
        if folder is None:
            return _error(404, "NoSuchBucket")
        if "list-type" in query:
            return self._list(folder, query)
        if self.command == "POST" and "delete" in query:
            return self._delete_all(folder, body.decode())
        path = folder / key
        if not key or not path.resolve().is_relative_to(folder.resolve()):
            return _error(400, "InvalidRequest")
        if "uploads" in query or "uploadId" in query:
            return self._upload(path, query, body)
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and path.is_file():
                return _error(412, "PreconditionFailed")
            self._write(path, body, self.headers.get("Content-Encoding", ""))
            return 200, {"ETag": _tag(path)}, b""
        if self.command == "DELETE":
            path.unlink(missing_ok=True)
            return 204, {}, b""
        return self._get(path)

    def _get(self, path: Path) -> tuple[int, dict[str, str], bytes]:
        try:
            content = path.read_bytes()
        except OSError:  # missing, or a folder
            return _error(404, "NoSuchKey")
        at = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
        headers = {
            "ETag": _tag(path),
            "Last-Modified": at.strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "Accept-Ranges": "bytes",
        }
        if encoding := self.store.encodings.get(path):
            headers["Content-Encoding"] = encoding
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, headers, content
        size = len(content)
        if wanted[1]:
            first = int(wanted[1])
            last = min(int(wanted[2]), size - 1) if wanted[2] else size - 1
        else:
            first, last = max(0, size - int(wanted[2])), size - 1
        if first >= size:
            return _error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return 206, headers, content[first : last + 1]

    def _write(self, path: Path, content: bytes, encoding: str) -> None:
        """Write an object so that readers of the folder find all of it or nothing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{UNFINISHED}{threading.get_ident()}")
        unfinished.write_bytes(content)
        unfinished.replace(path)
        self.store.encodings[path] = encoding

    def _upload(
        self, path: Path, query: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Carry out one request of an upload in parts."""
        parts = self.store.parts
        if "uploads" in query:
            name = f"{len(parts)}-{self.headers.get('Content-Encoding', '')}"
            parts[name] = {}
            text = f"<UploadId>{name}</UploadId>"
            return _document("InitiateMultipartUploadResult", text)
        name = query["uploadId"]
        if self.command == "DELETE":
            parts.pop(name, None)
            return 204, {}, b""
        if name not in parts:
            return _error(404, "NoSuchUpload")
        if self.command == "PUT":
            parts[name][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.sha1(body).hexdigest()}"'}, b""
        content = b"".join(data for _, data in sorted(parts.pop(name).items()))
        self._write(path, content, name.partition("-")[2])
        return _document("CompleteMultipartUploadResult", f"<ETag>{_tag(path)}</ETag>")

    def _delete_all(self, folder: Path, text: str) -> tuple[int, dict[str, str], bytes]:
        """Delete the objects that a request of DeleteObjects names."""
        keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", text)]
        for key in keys:
            (folder / key).unlink(missing_ok=True)
        entries = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _document("DeleteResult", entries)

    def _list(self, folder: Path, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Return one page of the objects of a prefix."""
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        after = max(after, query.get("start-after", ""))
        keys = sorted(
            key for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith(UNFINISHED)
            and (key := path.relative_to(folder).as_posix()).startswith(prefix) and key > after
        )  # fmt: skip
        page = keys[: self.store.page]
        is_cut = len(page) < len(keys)
        last = escape(page[-1]) if is_cut else ""
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if is_cut else ""
        entries = "".join(_entry(key, folder / key) for key in page)
        text = (
            f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
            f"{token}{entries}"
        )
        return _document("ListBucketResult", text)

    def _fail(self, status: int, code: str) -> None:
        self._answer(*_error(status, code))

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, is_torn: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if is_torn else body)


def _tag(path: Path) -> str:
    found = path.stat()
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}"'


def _entry(key: str, path: Path) -> str:
    found = path.stat()
    at = datetime.datetime.fromtimestamp(found.st_mtime, datetime.UTC)
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{at:%Y-%m-%dT%H:%M:%S.000Z}"
        f"</LastModified><ETag>{_tag(path)}</ETag><Size>{found.st_size}</Size></Contents>"
    )


def _document(name: str, text: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/xml"}, f"<{name}>{text}</{name}>".encode()


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return status, {"Content-Type": "application/xml"}, text.encode()


@contextmanager
def object_server(**buckets: Path) -> Iterator[ObjectServer]:
    """Run a store with these buckets."""
    server = ObjectServer(buckets)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def used_by_this_process(server: ObjectServer) -> Iterator[None]:
    """Let this process, and those that it starts, use a store."""
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
