"""Record a real Tarantool 2.6's answers to every request in engine_answers/answers.bin.

The file holds scenarios, each a list of [user, type, body, answer, is_ok] that starts from an
empty database. An answer is the raw tuples, or [code, text]. To add requests, append them with any
answer and run this script. All users except admin and guest have the password `pw`.
"""

import base64
import hashlib
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import msgpack

from qsync_client.protocol.constants import Key, Type
from qsync_testing.engine_answers import ANSWERS, read_answers

_PORT = 33907
_BOOT = """
box.cfg{{work_dir='{directory}', listen='127.0.0.1:{port}', log='{directory}/log', wal_mode='none'}}
box.schema.user.passwd('admin', 'secret')
require('fiber').create(function() while true do require('fiber').sleep(1) end end)
"""


def _scramble(password: str, salt: bytes) -> bytes:
    one = hashlib.sha1(password.encode()).digest()
    two = hashlib.sha1(salt + hashlib.sha1(one).digest()).digest()
    return bytes(a ^ b for a, b in zip(one, two, strict=True))


class TarantoolSession:
    """One connection of one user."""

    def __init__(self, user: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", _PORT))
        greeting = self._read(128)
        if user != "guest":
            salt = base64.b64decode(greeting[64:108])[:20]
            password = "secret" if user == "admin" else "pw"
            scramble = ["chap-sha1", _scramble(password, salt)]
            answer, is_ok = self.ask(
                Type.AUTH, msgpack.packb({Key.USER_NAME: user, Key.TUPLE: scramble})
            )
            assert is_ok, answer

    def _read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            chunk = self._socket.recv(size - len(received))
            assert chunk, "Tarantool closed the connection"
            received += chunk
        return received

    def ask(self, type_: int, body: bytes) -> tuple[list[Any], bool]:
        packet = msgpack.packb({0: type_, 1: 1}) + body
        self._socket.sendall(b"\xce" + struct.pack(">I", len(packet)) + packet)
        packet = self._read(struct.unpack(">I", self._read(5)[1:])[0])
        unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape")
        unpacker.feed(packet)
        code = unpacker.unpack()[0] & 0x7FFF
        if code:
            return [code, unpacker.unpack()[Key.ERROR_24]], False
        tuples: list[bytes] = []
        if unpacker.read_map_header():
            assert unpacker.unpack() == Key.DATA
            for _ in range(unpacker.read_array_header()):
                start = unpacker.tell()
                unpacker.skip()
                tuples.append(packet[start : unpacker.tell()])
        return tuples, True


def _answer_scenario(requests: list[list[Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "boot.lua"
        script.write_text(_BOOT.format(directory=directory, port=_PORT))
        server = subprocess.Popen(["tarantool", str(script)], stderr=subprocess.DEVNULL)
        try:
            time.sleep(2)
            sessions: dict[str, TarantoolSession] = {}
            for request in requests:
                user, type_, body = request[:3]
                if user not in sessions:
                    sessions[user] = TarantoolSession(user)
                request[3:] = sessions[user].ask(type_, body)
        finally:
            server.kill()
            server.wait()


def main() -> int:
    scenarios = read_answers()
    for _, requests in scenarios:
        _answer_scenario(requests)
    packed = msgpack.packb(scenarios, unicode_errors="surrogateescape")
    ANSWERS.write_bytes(zlib.compress(packed, 9))
    return 0


if __name__ == "__main__":
    sys.exit(main())
