"""The address of the web page: its port and its token."""

import asyncio
import socket
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from qsync_cli.web import web
from qsync_local import ports
from qsync_local.page import serve_page
from qsync_local.ports import choose_port
from qsync_local.store import ClusterFiles, PageAddress
from qsync_operator.api.status import ClusterStatus


def served(files: ClusterFiles) -> PageAddress:
    """Return the stored address after the page was served."""

    async def serve() -> None:
        server = await serve_page(files, ClusterStatus)
        assert server is not None
        await server.close()

    asyncio.run(serve())
    address = files.load_page()
    assert address is not None
    return address


def test_address_stays_the_same(tmp_path: Path) -> None:
    files = ClusterFiles(tmp_path)
    address = served(files)
    assert ports.PAGE_PORTS[0] <= address.port <= ports.PAGE_PORTS[1]
    assert len(address.token) >= 32
    assert served(files) == address


def test_program_at_the_port_learns_no_valid_token(tmp_path: Path) -> None:
    """A command that looks for the page sends the token to the stored port."""
    files = ClusterFiles(tmp_path)
    with socket.create_server(("127.0.0.1", choose_port((), ports.PAGE_PORTS))) as program:
        known = PageAddress(program.getsockname()[1], "known-to-the-program")
        files.save_page(known)
        address = served(files)
    assert address.port != known.port
    assert address.token != known.token


class PageOfVersion(BaseHTTPRequestHandler):
    """The page of a supervisor; one of an earlier version has no tickets."""

    ticket = ""

    def do_GET(self) -> None:
        if self.path == "/?token=secret":
            self.send_response(303)
            self.end_headers()
        elif self.path == "/ticket" and self.ticket and "=secret" in self.headers["Cookie"]:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.ticket.encode())
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def page_of(kind: type[PageOfVersion]) -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("ticket", "query"), [("once", "ticket=once"), ("", "token=secret")])
def test_browser_receives_a_ticket_in_place_of_the_token(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ticket: str,
    query: str,
) -> None:
    files, opened = ClusterFiles(tmp_path), list[str]()

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    monkeypatch.setattr("qsync_cli.clusters.open_store", lambda _: files)
    monkeypatch.setattr("qsync_cli.clusters.ensure_supervisor", lambda _: False)
    monkeypatch.setattr("qsync_cli.web.ConnectionTarget.is_on_kubernetes", False)
    monkeypatch.setattr(PageOfVersion, "ticket", ticket)
    with page_of(PageOfVersion) as port:
        files.save_page(PageAddress(port, "secret"))
        web("orders")
    assert opened == [f"http://127.0.0.1:{port}/?{query}"]
    assert capsys.readouterr().out == f"http://127.0.0.1:{port}/?token=secret\n"
