"""Make the test vectors with a real Tarantool 2.6 (Debian package `tarantool`).

    .venv/bin/python node/tests/make_vectors.py

The script starts an instance in a temporary directory and lets it write a snapshot and logs. It
sends requests over a plain socket, follows the instance as a replica, and writes the results to
`node/tests/vectors`:

    *.xlog *.snap     files that Tarantool wrote; own-keys.xlog is written by Qsync
    *.cat.json        output of `tarantoolctl cat --show-system --format=json` for each file
    wire.json         greeting, requests and answers, bytes in hex
    stream.json       a replica's JOIN and SUBSCRIBE
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from struct import pack
from typing import Any

import msgpack

from qsync_client.protocol.auth import scramble
from qsync_client.protocol.frame import FrameDecoder, encode_request
from qsync_client.protocol.greeting import decode_greeting
from qsync_node.format.keys import Key, Type
from qsync_node.format.row import LogRow, encode_rows
from qsync_node.format.xlog import XLOG, FileHeader, encode_file

VECTORS = Path(__file__).parent / "vectors"
PORT = 33971
SCRIPT = f"""
box.cfg{{listen = '127.0.0.1:{PORT}', instance_uuid = '70dce487-582e-5e56-a3ed-a1541ed73826',
    replicaset_uuid = 'a2743545-241b-490f-bc19-05c8d01f1368', replication_synchro_timeout = 0.3,
    log = 'tarantool.log'}}
box.once('vectors', function()
    box.schema.user.create('alice', {{password = 'secret'}})
    box.schema.user.grant('alice', 'super')
    box.schema.user.grant('guest', 'super')
    local s = box.schema.space.create('sync', {{is_sync = true}})
    s:create_index('pk')
    local a = box.schema.space.create('plain')
    a:create_index('pk')
    a:create_index('second', {{parts = {{2, 'string'}}, unique = false}})
    local l = box.schema.space.create('mine', {{is_local = true}})
    l:create_index('pk')
    box.snapshot()
    s:insert{{1, 'confirmed'}}
    box.begin() s:insert{{2, 'two'}} a:insert{{3, 'rows'}} box.commit()
    box.cfg{{replication_synchro_quorum = 2}}
    pcall(s.insert, s, {{9, 'rolled back'}})
    box.cfg{{replication_synchro_quorum = 1}}
    a:replace{{1, 'b', 1.5, -7, true, box.NULL, {{k = 'v'}}, 2^40, 1e100}}
    a:update(1, {{{{'=', 2, 'c'}}, {{'+', 4, 1}}}})
    a:upsert({{1, 'x'}}, {{{{'=', 2, 'y'}}}})
    a:delete(3)
    l:insert{{1, 'local'}}
    a:insert{{100, string.rep('z', 3000)}}
    a:insert{{101, require('uuid').fromstr('bc19a2e4-7d8f-4c7b-9d35-5f6a1d2e3c4b'):str(),
        require('decimal').new('-12.340')}}
    a:truncate()
end)
"""


def wait_for_port() -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit("Tarantool does not listen")


class RecordingPeer:
    """A blocking connection that returns raw packets."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", PORT))
        self._socket.settimeout(3)
        self._buffer = b""
        self.greeting = self._take(128)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError("closed")
            self._buffer += received
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def packet(self) -> bytes:
        head = self._take(5)
        return head + self._take(int.from_bytes(head[1:], "big"))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, data: bytes) -> bytes:
        self.send(data)
        return self.packet()


def wire_vectors() -> dict[str, object]:
    peer = RecordingPeer()
    salt = decode_greeting(peer.greeting).salt
    body = msgpack.packb
    alice = {Key.USER_NAME: "alice", Key.TUPLE: ["chap-sha1", scramble("secret", salt)]}
    wrong = {Key.USER_NAME: "alice", Key.TUPLE: ["chap-sha1", bytes(20)]}
    requests = {
        "ping": (Type.PING, b""),
        "auth": (Type.AUTH, body(alice)),
        "auth with a wrong password": (Type.AUTH, body(wrong)),
        "insert": (Type.INSERT, body({Key.SPACE_ID: 513, Key.TUPLE: [1, "a"]})),
        "insert of a duplicate key": (Type.INSERT, body({Key.SPACE_ID: 513, Key.TUPLE: [1, "a"]})),
        "replace": (Type.REPLACE, body({Key.SPACE_ID: 513, Key.TUPLE: [2, "b", b"\xff\x00"]})),
        "update": (
            Type.UPDATE,
            body({Key.SPACE_ID: 513, Key.INDEX_ID: 0, Key.KEY: [1], Key.TUPLE: [["=", 1, "c"]]}),
        ),
        "upsert": (
            Type.UPSERT,
            body({Key.SPACE_ID: 513, Key.TUPLE: [2, "x"], Key.OPS: [["=", 1, "y"]]}),
        ),
        "select": (
            Type.SELECT,
            body(
                {
                    Key.SPACE_ID: 513,
                    Key.INDEX_ID: 0,
                    Key.LIMIT: 10,
                    Key.OFFSET: 0,
                    Key.ITERATOR: 2,
                    Key.KEY: [],
                }
            ),
        ),
        "delete": (Type.DELETE, body({Key.SPACE_ID: 513, Key.INDEX_ID: 0, Key.KEY: [2]})),
        "no such space": (Type.INSERT, body({Key.SPACE_ID: 999, Key.TUPLE: [1]})),
        "body is an array": (Type.INSERT, b"\x91\x01"),
        "unknown request": (Type.ID, body({Key.VERSION: 3, Key.FEATURES: [0, 1, 2, 3]})),
        "vote": (Type.VOTE, b""),
    }
    exchanged = []
    for number, (name, (kind, request_body)) in enumerate(requests.items(), 1):
        request = encode_request(kind, number, request_body)
        exchanged.append(
            {"name": name, "request": request.hex(), "answer": peer.ask(request).hex()}
        )
    request = encode_request(Type.PING, 99, schema_version=1)
    exchanged.append(
        {"name": "schema version", "request": request.hex(), "answer": peer.ask(request).hex()}
    )
    for name, raw in (
        ("length is a string", b"\xa1a"),
        ("packet is too long", b"\xcf" + pack(">Q", 1 << 40) + bytes(64)),
        ("header is an array", b"\x03\x92\x00\x40"),
        ("sync is a string", b"\x06\x82\x00\x40\x01\xa1a"),
    ):
        exchanged.append(
            {"name": name, "request": raw.hex(), "answer": RecordingPeer().ask(raw).hex()}
        )
    return {"greeting": peer.greeting.hex(), "exchanged": exchanged}


def stream_vectors() -> dict[str, object]:
    """Return the packets of a JOIN and a SUBSCRIBE without options, in hex."""
    peer = RecordingPeer()
    uuid = "2564c0a3-dd23-551f-a25c-1af767f45a81"
    join = encode_request(Type.JOIN, 1, msgpack.packb({Key.INSTANCE_UUID: uuid}))
    peer.send(join)
    packets, answers = [], 0
    while answers < 3:
        packets.append(peer.packet())
        answers += FrameDecoder().feed(packets[-1])[0][0] == Type.OK
    subscribe = encode_request(
        Type.SUBSCRIBE,
        2,
        msgpack.packb(
            {
                Key.REPLICASET_UUID: "a2743545-241b-490f-bc19-05c8d01f1368",
                Key.INSTANCE_UUID: uuid,
                Key.VCLOCK: {},
                Key.SERVER_VERSION: 132608,
            }
        ),
    )
    peer.send(subscribe)
    stream = [peer.packet() for _ in range(20)]
    return {
        "join": join.hex(),
        "join_answer": [packet.hex() for packet in packets[:12] + packets[-12:]],
        "subscribe": subscribe.hex(),
        "subscribe_answer": [packet.hex() for packet in stream],
    }


def own_keys_file() -> bytes:
    """Return a file of rows with all of Qsync's keys and in forms that Tarantool does not write."""
    body = msgpack.packb
    single = {"timestamp": 1795223441.7593157}
    control = {Key.REPLICA_ID: 1, Key.LSN: 3, Key.INDEX: 1000, Key.INDEX_TERM: 7}
    bodies: list[tuple[int, bytes, dict[str, Any]]] = [
        (Type.RAFT_PROMOTE, body({2: 0, 3: 0, Key.TERM: 7, Key.INDEX: 0, Key.INDEX_TERM: 0}), {}),
        (
            Type.INSERT,
            body({Key.SPACE_ID: 512, Key.TUPLE: [1, "k"]}),
            {"idempotency": ["me", 5], "flags": 6},
        ),
        (
            Type.INSERT,
            body({Key.SPACE_ID: 512, Key.TUPLE: [2]}),
            {"idempotency": b"\x01\xff", "flags": 2},
        ),
        (Type.RAFT_CONFIRM, body(control), {}),
        (Type.RAFT_ROLLBACK, body(control), {"flags": 6}),
        (Type.RAFT_DEMOTE, body({2: 1, 3: 4, Key.TERM: 8}), {}),
        (Type.NOP, b"", {}),
        (
            Type.INSERT,
            body({Key.SPACE_ID: 512, Key.TUPLE: [3, 1.5, 2.0, -1, 2**63, 10**15, 0.1 + 0.2]}),
            {},
        ),
        (
            Type.REPLACE,
            body({Key.SPACE_ID: 512, Key.TUPLE: [4, None, True, {"a": {"b": [1]}}, {}, []]}),
            {},
        ),
        (
            Type.UPDATE,
            body(
                {
                    Key.SPACE_ID: 1,
                    Key.INDEX_ID: 2,
                    Key.INDEX_BASE: 1,
                    Key.KEY: [1],
                    Key.TUPLE: [["+", 1, 1]],
                }
            ),
            {},
        ),
        (
            Type.DELETE,
            body({Key.SPACE_ID: 1, Key.INDEX_ID: 2, Key.KEY: ["k"], Key.IDEMPOTENCY: 1}),
            {},
        ),
        (Type.INSERT, body({Key.INDEX: 4, Key.INDEX_TERM: 5}), {}),
        (Type.RAFT, body({}), {"group_id": 1}),
        (Type.RAFT, body({1: 2, 12: 3}), {"group_id": 1}),
        (Type.RAFT, body({4: "x", 10: "y"}), {"group_id": 1}),
    ]
    rows = [
        LogRow(kind, 1, lsn, single["timestamp"], content, **more)
        for lsn, (kind, content, more) in enumerate(bodies, 1)
    ]
    last = len(rows)
    pair = [
        LogRow(
            Type.REPLACE,
            2,
            5,
            1.0,
            body({Key.SPACE_ID: 512, Key.TUPLE: [5]}),
            tsn=5,
            is_commit=False,
        ),
        LogRow(Type.REPLACE, 2, 6, 1.0, body({Key.SPACE_ID: 512, Key.TUPLE: [6]}), tsn=5, flags=6),
    ]
    pair[1].idempotency = "pair"
    header = FileHeader(XLOG, "70dce487-582e-5e56-a3ed-a1541ed73826", {2: 4}, {})
    blocks = [encode_rows(rows[:4]), encode_rows(rows[4:last]), encode_rows(pair)]
    return encode_file(header, blocks)


def cat(path: Path) -> bytes:
    done = subprocess.run(
        ["tarantoolctl", "cat", str(path), "--show-system", "--format=json"],
        capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout


def main() -> None:
    VECTORS.mkdir(exist_ok=True)
    for old in VECTORS.iterdir():
        old.unlink()
    directory = Path(tempfile.mkdtemp(prefix="qsync-vectors-"))
    (directory / "init.lua").write_text(SCRIPT)
    server = subprocess.Popen(
        ["tarantool", "init.lua"], cwd=directory, stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    try:
        wait_for_port()
        time.sleep(1.5)
        wire, stream = wire_vectors(), stream_vectors()
    finally:
        server.terminate()
        server.wait()
    (VECTORS / "wire.json").write_text(json.dumps(wire, indent=1) + "\n")
    (VECTORS / "stream.json").write_text(json.dumps(stream, indent=1) + "\n")
    for path in sorted(directory.iterdir()):
        if path.suffix == ".xlog" or (path.suffix == ".snap" and path.stem[-2:] != "00"):
            shutil.copy(path, VECTORS / path.name)
    (VECTORS / "own-keys.xlog").write_bytes(own_keys_file())
    for path in sorted(VECTORS.iterdir()):
        if path.suffix in (".xlog", ".snap"):
            Path(f"{path}.cat.json").write_bytes(cat(path))
    shutil.rmtree(directory)
    total = sum(os.path.getsize(path) for path in VECTORS.iterdir())
    sys.stdout.write(f"{total} bytes in {VECTORS}\n")


if __name__ == "__main__":
    main()
