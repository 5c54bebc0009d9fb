"""The gRPC server of a broker, on a local socket behind `qsync_broker.front`."""

import shutil
import tempfile
from pathlib import Path

import grpc

from qsync_broker.auth import Authorizer
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc.service import JournalService
from qsync_broker.server import BrokerServer

RECEIVED_MAX = 4 << 20
"""Maximum size of a client's message in bytes."""
PREFIX = "qsync-"
"""Begin of the name of the socket's folder."""
HANDSHAKE_MS = 15_000
"""Time in which a connection must send its settings after the preface."""
IDLE_MS = 600_000
"""Time without a request after which a connection ends."""
STREAMS_MAX = 1024
"""Maximum number of requests under way on one connection."""
WINDOW = 512 << 10
"""Bytes that a request may send before the broker reads its next message."""
METADATA_MAX = 32 << 10
"""Maximum size of the metadata of a request in bytes."""
REQUESTS_MAX = 8192
"""Maximum number of requests under way; one more is refused with RESOURCE_EXHAUSTED."""


def _socket_folder(data_dir: Path) -> Path:
    """Create the folder of the socket, and remove that of a process that was killed.

    It is outside of the broker's directory: paths of sockets are short, and the directory may be
    deep. A file in the directory names it.
    """
    folder, note = Path(tempfile.mkdtemp(prefix=PREFIX)), data_dir / "socket-folder"
    if note.exists():
        former = Path(note.read_text())
        if former.parent == folder.parent and former.name.startswith(PREFIX):
            shutil.rmtree(former, ignore_errors=True)
    note.write_text(str(folder))
    return folder


class RpcServer:
    """The gRPC server of one broker.

    Attributes:
        socket_path: its socket.
    """

    def __init__(self, server: BrokerServer, authorizer: Authorizer) -> None:
        """Prepare the server; `start` opens its socket."""
        self._folder = _socket_folder(server.config.data_dir)
        self.socket_path = str(self._folder / "rpc")
        self.service = JournalService(server, authorizer)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", RECEIVED_MAX),
                ("grpc.max_send_message_length", -1),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.max_concurrent_streams", STREAMS_MAX),
                # Otherwise, gRPC adapts the window to the client: up to 16 MiB for each request.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", WINDOW),
                ("grpc.absolute_max_metadata_size", METADATA_MAX),
                ("grpc.max_metadata_size", METADATA_MAX),
            ],
            maximum_concurrent_rpcs=REQUESTS_MAX,
        )
        pb_grpc.add_JournalServicer_to_server(self.service, self._server)
        self._server.add_insecure_port(f"unix:{self.socket_path}")

    async def start(self) -> None:
        """Serve requests."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, and end those under way after some time."""
        await self._server.stop(grace_s)
        await self.service.close()
        shutil.rmtree(self._folder, ignore_errors=True)
