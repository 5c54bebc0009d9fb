"""The address of the web page: its port and its token."""

import asyncio
import socket
from pathlib import Path

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
