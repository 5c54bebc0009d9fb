"""Files truncated at any byte and with any bit flipped: torn or corrupt (D7)."""

import json
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_node.format.cat import cat_file, record_of
from qsync_node.format.row import LogRow, encode_rows
from qsync_node.format.xlog import (
    BLOCK_HEADER_BYTES,
    EOF_MARKER,
    SECTOR_BYTES,
    XLOG,
    Block,
    BlockDamage,
    EndOfBlocks,
    FileHeader,
    XlogError,
    checksum,
    decode_block_data,
    decode_block_header,
    decode_file_header,
    encode_block,
    encode_file_header,
    read_blocks,
)

HEADER = FileHeader(XLOG, "70dce487-582e-5e56-a3ed-a1541ed73826", {1: 12}, {})


def block_rows(sizes: list[int]) -> list[bytes]:
    """Return one transaction per block, with contents that do not compress."""
    rng = Random(7)
    return [
        encode_rows(
            [
                LogRow(
                    3, 1, lsn, 1.5, b"\x81\x21\xc5" + size.to_bytes(2, "big") + rng.randbytes(size)
                )
            ]
        )
        for lsn, size in enumerate(sizes, 13)
    ]


ROWS = block_rows([20, 700, 2500, 90])
HEAD = encode_file_header(HEADER)
BLOCKS = [encode_block(rows) for rows in ROWS]
DATA = HEAD + b"".join(BLOCKS)
ENDS = [len(HEAD) + sum(map(len, BLOCKS[: number + 1])) for number in range(len(BLOCKS))]


def read_all(data: bytes) -> tuple[list[bytes], BlockDamage | EndOfBlocks | None]:
    """Return the rows of the valid blocks, and the item that ended the reading."""
    items = list(read_blocks(data, len(HEAD)))
    last = items.pop() if items and not isinstance(items[-1], Block) else None
    assert not isinstance(last, Block)
    return [item.data for item in items if isinstance(item, Block)], last


def test_a_file_cut_at_any_byte_is_torn_and_keeps_its_whole_blocks() -> None:
    whole = DATA + EOF_MARKER
    for size in range(len(HEAD), len(whole)):
        rows, last = read_all(whole[:size])
        kept = sum(end <= size for end in ENDS)
        assert rows == ROWS[:kept]
        if size in (len(HEAD), *ENDS):
            assert last is None
        else:
            assert isinstance(last, BlockDamage)
            assert last.is_torn
            assert last.offset == (ENDS[kept - 1] if kept else len(HEAD))
    assert read_all(whole) == (ROWS, EndOfBlocks(len(DATA)))


@pytest.mark.parametrize("has_marker", [False, True])
def test_a_flipped_bit_is_never_torn_and_never_read(has_marker: bool) -> None:
    whole = DATA + EOF_MARKER if has_marker else DATA
    rng = Random(3)
    undetected = 0
    for position in range(len(HEAD), len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << rng.randrange(8)
        rows, last = read_all(bytes(flipped))
        assert rows == ROWS[: len(rows)]
        if len(rows) == len(ROWS) and not isinstance(last, BlockDamage):
            undetected += 1  # padding, or the previous block's checksum, which readers ignore
            continue
        assert isinstance(last, BlockDamage)
        assert not last.is_torn, (position, last)
    assert undetected <= 9 * len(BLOCKS)


@given(st.integers(0, 2**30), st.integers(1, 6000))
def test_lost_sectors_of_the_last_block_are_torn(seed: int, size: int) -> None:
    rng = Random(seed)
    last = encode_block(block_rows([size])[0])
    start, torn = len(DATA), bytearray(DATA + last)
    bounds = [start, *range(start - start % SECTOR_BYTES + SECTOR_BYTES, len(torn), SECTOR_BYTES)]
    lost = rng.choice(bounds)
    end = min(lost - lost % SECTOR_BYTES + SECTOR_BYTES, len(torn))
    torn[lost:end] = bytes(end - lost)
    rows, damage = read_all(bytes(torn))
    assert rows == ROWS
    assert isinstance(damage, BlockDamage)
    assert damage.offset == start
    assert damage.is_torn == (end - lost >= 8 or lost == start)


def test_lost_sectors_before_the_last_block_are_corruption() -> None:
    broken = bytearray(DATA)
    broken[ENDS[1] : ENDS[1] + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    rows, damage = read_all(bytes(broken))
    assert rows == ROWS[:2]
    assert isinstance(damage, BlockDamage)
    assert not damage.is_torn


def test_zeros_to_the_end_are_torn() -> None:
    rows, damage = read_all(DATA + bytes(3))
    assert rows == ROWS
    assert isinstance(damage, BlockDamage)
    assert damage.is_torn


def test_bytes_after_the_end_marker_are_corruption() -> None:
    rows, damage = read_all(DATA + EOF_MARKER + BLOCKS[0])
    assert rows == ROWS
    assert damage == BlockDamage(len(DATA), "bytes follow the end marker", False)


def test_cat_shows_what_is_whole_and_then_the_damage() -> None:
    records = list(cat_file(DATA[:-1]))
    shown = [
        record["HEADER"]["lsn"] for record in records[:-1] if not isinstance(record, BlockDamage)
    ]
    assert shown == [13, 14, 15]
    assert len(records) == 4
    assert isinstance(records[-1], BlockDamage)


def test_cat_shows_a_row_that_nests_deeper_than_it_can_walk() -> None:
    tuple_ = b"\x91" * 900 + b"\x90"
    row = LogRow(2, 1, 1, 0.0, b"\x82\x10\xcd\x02\x00\x21" + tuple_)
    assert "(nested more than 200 levels deep)" in json.dumps(record_of(row))


def test_the_checksum_is_castagnoli_without_inversion() -> None:
    assert checksum(b"") == 0
    assert checksum(b"\x00" * 9) == 0
    assert checksum(b"123456789") == 0x58E3FA20


def test_a_header_with_unknown_lines_is_read() -> None:
    text = b"XLOG\n0.12\nServer: u\nNew: thing\nno colon\nVClock: {1: 5}\n\n"
    header, offset = decode_file_header(text + b"rest")
    assert header == FileHeader(XLOG, "u", {1: 5}, None, "")
    assert offset == len(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"XLOG\n0.13\nInstance: u\nVClock: {}\n",
        b"VYLOG\n0.13\nInstance: u\nVClock: {}\n\n",
        b"XLOG\n0.14\nInstance: u\nVClock: {}\n\n",
        b"XLOG\n0.13\nVClock: {}\n\n",
        b"XLOG\n0.13\nInstance: u\n\n",
        b"XLOG\n0.13\nInstance: u\nVClock: {x}\n\n",
        b"XLOG\n0.13\nInstance: \xff\nVClock: {}\n\n",
        b"XLOG\n" + b"x" * 5000 + b"\n\n",
    ],
)
def test_a_broken_header_is_refused(text: bytes) -> None:
    with pytest.raises(XlogError):
        decode_file_header(text)


@pytest.mark.parametrize("kept", range(1, 19))
@pytest.mark.parametrize("size", [200, 256, 512, 70_000])
def test_a_block_whose_header_is_torn_is_torn(kept: int, size: int) -> None:
    """The rest of the header and all rows are zeros, like a sector that was never written."""
    rng = Random(size)
    room = (-kept - len(HEAD) - BLOCK_HEADER_BYTES) % SECTOR_BYTES + SECTOR_BYTES
    data = HEAD + encode_block(rng.randbytes(room))
    assert (len(data) + kept) % SECTOR_BYTES == 0
    block = encode_block(rng.randbytes(size))
    *sound, last = read_blocks(data + block[:kept] + bytes(len(block) - kept), len(HEAD))
    assert len(sound) == 1
    assert isinstance(last, BlockDamage)
    assert last.is_torn
    assert last.offset == len(data)


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"\xd2\x00\x00\x00\x02\x12\x3c", "1.23"),
        (b"\xce\x00\x00\x00\x01\x12\x3d", "-12.3"),
        (b"\xce\x7f\xff\xff\xff\x1c", "1E-2147483647"),
        (b"\xd2\x80\x00\x00\x00\x1c", "1E2147483648"),
    ],
)
def test_decimals_are_shown_however_their_scale_is_encoded(payload: bytes, shown: str) -> None:
    body = b"\x82\x10\xcd\x02\x00\x21\x91\xc7" + bytes([len(payload), 1]) + payload
    block = encode_block(encode_rows([LogRow(type=2, replica_id=1, lsn=13, body=body)]))
    (record,) = cat_file(HEAD + block + EOF_MARKER)
    assert shown in str(record)


def test_threads_compress_beside_each_other() -> None:
    """Different threads write the log and a checkpoint at the same time."""

    def write(seed: int) -> list[tuple[bytes, bytes]]:
        rng = Random(seed)
        made = [rng.randbytes(rng.randrange(3_000, 200_000)) for _ in range(150)]
        return [(rows, encode_block(rows)) for rows in made]

    with ThreadPoolExecutor(4) as pool:
        for blocks in pool.map(write, range(4)):
            for rows, block in blocks:
                magic, length, crc = decode_block_header(block)
                assert decode_block_data(magic, block[-length:], crc) == rows
