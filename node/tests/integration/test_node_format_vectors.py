"""Files and packets of a real Tarantool 2.6 are decoded and encoded again (see make_vectors.py)."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qsync_client.protocol import auth
from qsync_client.protocol import frame as decoding
from qsync_client.protocol.constants import Key
from qsync_client.protocol.frame import FrameDecoder, FrameError, encode_request
from qsync_client.protocol.greeting import decode_greeting, encode_greeting
from qsync_node.format import frame
from qsync_node.format.cat import cat_file, to_json
from qsync_node.format.row import (
    LogRow,
    decode_rows,
    encode_rows,
    row_from_header,
)
from qsync_node.format.xlog import (
    ZROW_MAGIC,
    Block,
    BlockDamage,
    EndOfBlocks,
    decode_block_header,
    decode_file_header,
    encode_block,
    encode_file_header,
    read_blocks,
)
from qsync_testing.paths import VECTORS

FILES = sorted(path for path in VECTORS.iterdir() if path.suffix in (".xlog", ".snap"))
WIRE: dict[str, Any] = json.loads((VECTORS / "wire.json").read_text())
STREAM: dict[str, Any] = json.loads((VECTORS / "stream.json").read_text())
EXCHANGED = {
    item["name"]: (bytes.fromhex(item["request"]), bytes.fromhex(item["answer"]))
    for item in WIRE["exchanged"]
}


def test_there_are_vectors_of_each_kind() -> None:
    assert len(FILES) >= 4
    assert {path.suffix for path in FILES} == {".xlog", ".snap"}
    assert len(EXCHANGED) >= 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_read_and_written_again_byte_for_byte(path: Path) -> None:
    data = path.read_bytes()
    header, offset = decode_file_header(data)
    assert encode_file_header(header) == data[:offset]
    items = list(read_blocks(data, offset))
    assert isinstance(items.pop(), EndOfBlocks)
    for block in items:
        assert isinstance(block, Block)
        rows = decode_rows(block.data)
        assert rows
        assert encode_rows(rows) == block.data
        stored = data[block.offset : block.end]
        again = encode_block(block.data)
        if stored.startswith(ZROW_MAGIC):
            assert decode_block_header(again)[0] == ZROW_MAGIC
            again_block = next(read_blocks(again, 0))
            assert isinstance(again_block, Block)
            assert again_block.data == block.data
        else:
            assert again == stored


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_cat_shows_what_tarantoolctl_shows(path: Path) -> None:
    printed = Path(f"{path}.cat.json").read_text(encoding="utf-8", errors="surrogateescape")
    expected = [json.loads(line) for line in printed.splitlines()]
    records = list(cat_file(path.read_bytes()))
    assert records == expected
    shown = [to_json(record) for record in records if not isinstance(record, BlockDamage)]
    assert [json.loads(line) for line in shown] == expected


def test_tarantoolctl_reads_the_own_keys_today(tmp_path: Path) -> None:
    """This runs the tool itself, not its recorded output: it shows every row of Qsync's file."""
    source = VECTORS / "own-keys.xlog"
    copy = Path(shutil.copy(source, tmp_path))
    done = subprocess.run(
        ["tarantoolctl", "cat", str(copy), "--show-system", "--format=json"],
        capture_output=True, check=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == list(cat_file(source.read_bytes()))
    assert len(rows) == 17


def test_own_keys_survive() -> None:
    data = (VECTORS / "own-keys.xlog").read_bytes()
    _, offset = decode_file_header(data)
    rows: list[LogRow] = []
    for item in read_blocks(data, offset):
        if isinstance(item, Block):
            rows += decode_rows(item.data)
    assert [row.idempotency for row in rows if row.idempotency is not None] == [
        ["me", 5],
        b"\x01\xff",
        "pair",
    ]
    assert [row.flags for row in rows[:3]] == [0, 6, 2]
    assert rows[-1].is_commit
    assert not rows[-2].is_commit
    assert msgpack.unpackb(rows[3].body, strict_map_key=False) == {
        2: 1,
        3: 3,
        Key.INDEX: 1000,
        Key.INDEX_TERM: 7,
    }


def test_the_greeting_comes_back() -> None:
    data = bytes.fromhex(WIRE["greeting"])
    greeting = decode_greeting(data)
    assert greeting.version == "2.6.0"
    assert greeting.instance_uuid == "70dce487-582e-5e56-a3ed-a1541ed73826"
    assert len(data) == 128
    again = encode_greeting(greeting.instance_uuid, greeting.salt, greeting.version)
    assert decode_greeting(again) == greeting


def test_the_scramble_that_tarantool_took_is_valid() -> None:
    salt = decode_greeting(bytes.fromhex(WIRE["greeting"])).salt
    request, answer = EXCHANGED["auth"]
    ((kind, _, _, body),) = FrameDecoder().feed(request)
    assert kind == 7
    sent = msgpack.unpackb(body, strict_map_key=False)[Key.TUPLE][1]
    assert FrameDecoder().feed(answer)[0][0] == 0
    assert auth.is_valid(sent, salt, auth.stored_hash("secret"))
    assert not auth.is_valid(sent, salt, auth.stored_hash("Secret"))


@pytest.mark.parametrize("name", sorted(EXCHANGED))
def test_an_answer_is_encoded_as_tarantool_does(name: str) -> None:
    _, answer = EXCHANGED[name]
    ((kind, sync, header, raw),) = FrameDecoder().feed(answer)
    version = header[5]
    body = msgpack.unpackb(raw, strict_map_key=False)
    if kind >= 0x8000:
        again = frame.encode_error(sync, version, kind - 0x8000, body[Key.ERROR_24])
        ((_, _, _, own),) = FrameDecoder().feed(again)
        mine = msgpack.unpackb(own, strict_map_key=False)
        theirs = body[Key.ERROR][0][0]
        assert list(mine) == list(body) == [Key.ERROR_24, Key.ERROR]
        assert mine[Key.ERROR_24] == body[Key.ERROR_24]
        assert set(mine[Key.ERROR][0][0]) == set(theirs)
        assert {key: mine[Key.ERROR][0][0][key] for key in (0, 3, 4, 5)} == {
            key: theirs[key] for key in (0, 3, 4, 5)
        }
    elif Key.DATA in body:
        tuples = [msgpack.packb(item) for item in body[Key.DATA]]
        assert frame.encode_tuples(sync, version, tuples) == answer
    else:
        assert frame.encode_ok(sync, version, raw) == answer


@pytest.mark.parametrize("name", ["length is a string", "packet is too long"])
def test_a_bad_length_ends_the_stream_with_tarantools_words(name: str) -> None:
    request, answer = EXCHANGED[name]
    ((kind, _, _, body),) = FrameDecoder().feed(answer)
    with pytest.raises(FrameError) as caught:
        FrameDecoder().feed(request)
    assert caught.value.code == kind - 0x8000 == 20
    assert caught.value.why == msgpack.unpackb(body, strict_map_key=False)[Key.ERROR_24]


@pytest.mark.parametrize("name", ["header is an array", "sync is a string"])
def test_a_bad_header_is_answered_and_the_stream_continues(name: str) -> None:
    request, answer = EXCHANGED[name]
    ((kind, sync, _, body),) = FrameDecoder().feed(answer)
    ping, _ = EXCHANGED["ping"]
    frames = FrameDecoder().feed(request + ping)
    assert [found[0] for found in frames] == [decoding.MALFORMED, 64]
    assert (kind, sync) == (0x8014, 0)
    assert (
        msgpack.unpackb(body, strict_map_key=False)[Key.ERROR_24]
        == decoding.MALFORMED_HEADER_MESSAGE
    )


def test_a_replication_stream_is_read_and_written_again() -> None:
    """Rows of JOIN and SUBSCRIBE keep all bytes except for the sync, which a row does not store."""
    dml = 0
    for packet in STREAM["join_answer"] + STREAM["subscribe_answer"]:
        ((kind, sync, header, body),) = FrameDecoder().feed(bytes.fromhex(packet))
        if kind in (2, 3, 4, 5, 9, 40, 41):
            row = row_from_header(header, body)
            assert frame.encode_replication_row(row, sync).hex() == packet
            dml += 1
    assert dml > 30
    for name in ("join", "subscribe"):
        request = bytes.fromhex(STREAM[name])
        ((kind, sync, _, body),) = FrameDecoder().feed(request)
        assert encode_request(kind, sync, body) == request
