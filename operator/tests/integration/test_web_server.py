"""The server of the web page: access, and the rights of browsers over its answers."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from qsync_operator.api.status import ClusterStatus
from qsync_operator.views.live import LiveSample
from qsync_operator.views.statusview import ClusterHealth
from qsync_web.journals import PART_MAX, PageBroker, PageJournal, PageJournals
from qsync_web.page import ClusterObservation
from qsync_web.server import CONNECTIONS_MAX, FILES, PENDING_MAX, PageServer, is_local
from qsync_web.watching import (
    JOURNALS_S,
    SELECTIONS_MAX,
    WATCHED_MAX,
    ListedCluster,
    PageError,
    Watching,
)

pytestmark = pytest.mark.asyncio
TOKEN = "a-token"


class CountingSource:
    """A platform with one cluster. `observations` counts how often it was observed."""

    interval_s = 0.5
    hint = "run `qsync web orders`"

    def __init__(self) -> None:
        self.observations = 0
        self.selections: list[str] = []

    async def close(self) -> None:
        pass

    async def clusters(self) -> list[ListedCluster]:
        return [ListedCluster("orders", "orders", "Ready", "orders-0")]

    async def observe(self, key: str) -> ClusterObservation:
        if not key.startswith("orders"):
            raise PageError(f"cluster {key} not found")
        self.observations += 1
        await asyncio.sleep(0.05)
        sample = LiveSample(float(self.observations), "12:00:00", ["orders: Ready"], [])
        status = ClusterStatus(phase="Ready")
        return ClusterObservation(
            "2026-01-31T12:00:00+00:00", sample, status, ClusterHealth.HEALTHY
        )

    async def journals(self, key: str, part: str) -> PageJournals:
        if not key.startswith("orders"):
            raise PageError(f"cluster {key} not found")
        self.selections.append(part)
        await asyncio.sleep(0.05)
        return PageJournals([PageBroker("orders-0", "ready")], [PageJournal(part, "Writable")], 1)

    async def report(self, key: str, audit: str) -> bytes | None:
        return b"<script>alert(1)</script>" if (key, audit) == ("orders", "one") else None


@pytest_asyncio.fixture
async def server() -> AsyncIterator[PageServer]:
    server = PageServer(CountingSource(), TOKEN, "run `qsync web orders`")
    await server.listen(0)
    yield server
    await server.close()


@pytest_asyncio.fixture
async def browser(server: PageServer) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client that keeps cookies, and that has opened the address with the token."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", cookie_jar=jar) as session:
        async with session.get("/", params={"token": TOKEN}) as answer:
            assert answer.status == 200
            assert "token" not in str(answer.url)
        yield session


@pytest.mark.parametrize(
    "path", ["/", *FILES, "/api/clusters", "/api/cluster", "/api/journals", "/report", "/x"]
)
async def test_request_without_the_token_is_refused(server: PageServer, path: str) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        for query in ({}, {"token": "another"}):
            async with session.get(path, params=query) as answer:
                assert answer.status == 403
                assert "qsync web orders" in await answer.text()


async def test_token_that_is_no_text_is_refused(server: PageServer) -> None:
    for path, cookie in (("/", b"\xff"), ("/?token=%FF", b"b"), ("/page.js", b"\xed\xa0\x80")):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nCookie: qsync-{server.port}=".encode()
            + cookie
            + b"\r\n\r\n"
        )
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()


async def test_page_of_a_rebound_domain_is_refused_even_with_the_token(
    browser: aiohttp.ClientSession,
) -> None:
    for host in ("evil.example", "evil.example:18000", "127.0.0.1.evil.example", "x@[", ""):
        async with browser.get("/api/cluster", headers={"Host": host}) as answer:
            assert answer.status == 421, host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8083", "[::1]:80", "LOCALHOST"])
async def test_names_of_this_machine_are_local_at_any_port(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_nothing_can_be_changed(browser: aiohttp.ClientSession, method: str) -> None:
    async with browser.request(method, "/api/cluster") as answer:
        assert answer.status == 405


async def test_answers_allow_no_foreign_script_and_no_frame(browser: aiohttp.ClientSession) -> None:
    for path in ("/", *FILES, "/api/clusters", "/api/cluster?cluster=orders", "/x"):
        async with browser.get(path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"


async def test_page_has_no_inline_script_and_no_external_host(
    browser: aiohttp.ClientSession,
) -> None:
    for path in ("/", *FILES):
        async with browser.get(path) as answer:
            text = (await answer.text()).replace("http://www.w3.org/", "")
            assert "://" not in text
            assert "<script>" not in text
            assert "innerHTML" not in text


async def test_report_runs_no_script(browser: aiohttp.ClientSession) -> None:
    async with browser.get("/report?cluster=orders&audit=one") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "script-src" not in policy
        assert "default-src 'none'" in policy
        assert "sandbox" in policy
    async with browser.get("/report?cluster=orders&audit=../secrets.json") as answer:
        assert answer.status == 404


async def test_cause_of_a_failed_observation_is_answered(browser: aiohttp.ClientSession) -> None:
    async with browser.get("/api/cluster?cluster=other") as answer:
        assert answer.status == 502
        assert await answer.json() == {"error": "cluster other not found"}


async def test_number_of_served_requests_is_bounded(
    browser: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, released = asyncio.Event(), asyncio.Event()
    begun = 0

    async def wait(_: CountingSource) -> list[ListedCluster]:
        nonlocal begun
        begun += 1
        if begun == PENDING_MAX:
            waiting.set()
        await released.wait()
        return []

    async def status() -> int:
        async with browser.get("/api/clusters") as answer:
            return answer.status

    with monkeypatch.context() as patch:
        patch.setattr(CountingSource, "clusters", wait)
        served = [asyncio.create_task(status()) for _ in range(PENDING_MAX)]
        await asyncio.wait_for(waiting.wait(), 30)
        assert await asyncio.wait_for(status(), 10) == 503
        released.set()
        assert set(await asyncio.gather(*served)) == {200}
    assert await status() == 200, "ended requests are not counted"


async def test_scripts_cannot_read_the_token(server: PageServer) -> None:
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
        session.get(f"/?token={TOKEN}", allow_redirects=False) as answer,
    ):
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.cookies[f"qsync-{server.port}"]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionResetError:
        return True


async def test_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qsync_web.server.IDLE_S", 0.2)

    class SlowSource(CountingSource):
        async def clusters(self) -> list[ListedCluster]:
            await asyncio.sleep(0.6)
            return []

    server = PageServer(SlowSource())
    await server.listen(0)
    slow, sender = await asyncio.open_connection("127.0.0.1", server.port)
    sender.write(b"GET /api/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for begin in (b"", b"GET / HTTP/1.1\r\nHost"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(begin)
        assert await ended(reader)
        writer.close()
    assert b"200" in await slow.readline(), "a request that is being served is not disturbed"
    sender.close()
    await server.close()


async def test_number_of_connections_is_bounded(server: PageServer) -> None:
    streams = [
        await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)
    ]
    reader, refused = await asyncio.open_connection("127.0.0.1", server.port)
    assert await ended(reader)
    _, first = streams[0]
    first.close()
    await first.wait_closed()
    while len(server.connections) == CONNECTIONS_MAX:
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert b"403" in await asyncio.wait_for(reader.readline(), 5)
    for one in (refused, writer, *(sender for _, sender in streams)):
        one.close()


async def test_ticket_opens_the_page_once(
    server: PageServer, browser: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users of the machine see the arguments of a browser, so these lack the token."""
    base = f"http://127.0.0.1:{server.port}"
    async with browser.get("/ticket") as answer:
        ticket = await answer.text()
    assert TOKEN not in ticket
    async with aiohttp.ClientSession(base, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def status(path: str) -> int:
            async with session.get(path, allow_redirects=False) as answer:
                return answer.status

        assert await status("/ticket") == 403
        assert await status("/?ticket=") == 403
        assert await status(f"/api/clusters?ticket={ticket}") == 403
        assert await status(f"/?ticket={ticket}") == 303
        assert await status(f"/?ticket={ticket}") == 403, "it was used"
        first, *_, last = [await (await browser.get("/ticket")).text() for _ in range(100)]
        assert await status(f"/?ticket={first}") == 403, "the number of tickets is bounded"
        assert await status(f"/?ticket={last}") == 303
        monkeypatch.setattr("qsync_web.server.TICKET_S", -1.0)
        late = await (await browser.get("/ticket")).text()
        assert await status(f"/?ticket={late}") == 403


async def test_viewers_share_observations() -> None:
    source = CountingSource()
    watching = Watching(source)
    await asyncio.gather(*(watching.document("orders") for _ in range(50)))
    assert source.observations == 1
    await watching.document("orders")
    assert source.observations == 1, "the last observation is recent"
    await asyncio.sleep(source.interval_s)
    impatient = asyncio.create_task(watching.document("orders"))
    await asyncio.sleep(0.01)
    impatient.cancel()
    await watching.document("orders")
    assert source.observations == 2, "the viewer that left did not end the observation"


async def test_journals_of_a_part_of_a_name_are_answered(browser: aiohttp.ClientSession) -> None:
    query = {"cluster": "orders", "part": "x" * 5000}
    async with browser.get("/api/journals", params=query) as answer:
        found = await answer.json()
    assert [one["name"] for one in found["journals"]] == ["x" * PART_MAX]
    assert [one["state"] for one in found["brokers"]] == ["ready"]
    async with browser.get("/api/journals?cluster=other") as answer:
        assert answer.status == 502
        assert await answer.json() == {"error": "cluster other not found"}


async def test_viewers_of_the_same_journals_share_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    source = CountingSource()
    watching = Watching(source)
    await asyncio.gather(*(watching.journals("orders", "a") for _ in range(50)))
    await watching.journals("orders", "a")
    await watching.journals("orders", "b")
    assert source.selections == ["a", "b"]
    monkeypatch.setattr("qsync_web.watching.JOURNALS_S", JOURNALS_S / 100)
    await asyncio.sleep(JOURNALS_S / 50)
    await watching.journals("orders", "a")
    assert source.selections == ["a", "b", "a"]


async def test_number_of_kept_selections_is_bounded() -> None:
    watching = Watching(CountingSource())
    await asyncio.gather(*(watching.journals("orders", str(n)) for n in range(3 * SELECTIONS_MAX)))
    assert len(watching._journals) == SELECTIONS_MAX


async def test_number_of_histories_is_bounded() -> None:
    watching = Watching(CountingSource())
    for number in range(2 * WATCHED_MAX):
        await watching.document(f"orders{number}")
        with pytest.raises(PageError):
            await watching.document(f"x{number}")
    assert len(watching._watches) == WATCHED_MAX
