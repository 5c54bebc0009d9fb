"""Frames arrive whole however a socket splits them, and malformed ones are refused."""

import contextlib

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import (
    MALFORMED,
    MALFORMED_PER_FEED_MAX,
    Frame,
    FrameDecoder,
    FrameError,
    encode_request,
)
from qsync_node.format.frame import (
    encode_error,
    encode_ok,
    encode_tuples,
)

# A busy machine may delay examples: no test here depends on a duration.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

requests = st.lists(
    st.tuples(
        st.integers(0, 127),
        st.integers(0, 2**64 - 1),
        st.binary(max_size=300),
        st.integers(0, 2**64 - 1),
    ),
    max_size=8,
)


@given(requests, st.lists(st.integers(1, 400), max_size=30))
def test_frames_do_not_depend_on_how_the_bytes_arrive(
    wanted: list[tuple[int, int, bytes, int]], sizes: list[int]
) -> None:
    data = b"".join(
        encode_request(kind, sync, body, stream_id=stream) for kind, sync, body, stream in wanted
    )
    decoder = FrameDecoder()
    frames: list[Frame] = []
    for size in [*sizes, len(data)]:
        frames += decoder.feed(data[:size])
        data = data[size:]
    assert decoder.pending_bytes == 0
    assert [(f[0], f[1], f[3], f[2][10]) for f in frames] == wanted


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_garbage_raises_nothing_but_frame_errors(chunks: list[bytes]) -> None:
    decoder = FrameDecoder(1000)
    fed = taken = 0
    with contextlib.suppress(FrameError):
        for chunk in chunks:
            fed += len(chunk)
            taken += len(decoder.feed(chunk))
    assert taken <= fed
    assert decoder.pending_bytes <= 1000 + 9 + 40


@pytest.mark.parametrize("width", [b"\x03", b"\xcc\x03", b"\xcd\x00\x03", b"\xce\x00\x00\x00\x03"])
def test_any_width_of_length_is_taken(width: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(width + b"\x81\x00\x40") == [(64, 0, {0: 64}, b"")]


def test_good_frames_before_a_bad_length_are_not_lost() -> None:
    ping = encode_request(Type.PING, 1)
    with pytest.raises(FrameError) as caught:
        FrameDecoder().feed(ping + ping + b"\xc0")
    assert [found[0] for found in caught.value.frames] == [64, 64]


def test_the_limit_is_checked_before_the_bytes_are_there() -> None:
    decoder = FrameDecoder(100)
    assert decoder.feed(b"\x64") == []
    with pytest.raises(FrameError, match="too big packet size in the header: 101"):
        FrameDecoder(100).feed(b"\x65")
    with pytest.raises(FrameError):
        FrameDecoder(100).feed(b"\xdb\xff\xff\xff\xff")


def test_a_header_that_reaches_into_the_next_packet_is_malformed() -> None:
    ping = encode_request(Type.PING, 7)
    frames = FrameDecoder().feed(b"\x02\x82\x00" + ping + ping)
    assert frames[0][0] == MALFORMED
    assert [found[:2] for found in frames[1:]] == [(64, 7), (64, 7)]


@pytest.mark.parametrize(
    "header",
    [{0: -1}, {1: True}, {0: 64, 1: 1.5, 5: 0}, {0: 64, 1: 1, 10: "x"}, {0: 64, 1: 2, "a": 1}],
)
def test_a_known_key_with_a_wrong_type_is_malformed(header: dict[object, object]) -> None:
    packed = msgpack.packb(header)
    assert FrameDecoder().feed(bytes([len(packed)]) + packed)[0][0] == MALFORMED


def test_unknown_header_keys_are_skipped() -> None:
    packed = msgpack.packb({0: 64, 1: 5, 0x3F: [1, "x"]})
    assert FrameDecoder().feed(bytes([len(packed)]) + packed)[0][:2] == (64, 5)


def test_a_flood_of_malformed_packets_ends_the_stream() -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(b"\x00" * (MALFORMED_PER_FEED_MAX + 1))


def test_answers_have_tarantools_shape() -> None:
    assert (
        encode_ok(3, 82).hex()
        == "ce00000018" + "8300ce0000000001cf000000000000000305ce00000052" + "80"
    )
    one = encode_tuples(1, 82, [msgpack.packb([1, "a"])])
    assert one.hex() == (
        "ce000000228300ce0000000001cf000000000000000105ce000000528130dd000000019201a161"
    )


def test_a_page_carries_its_position() -> None:
    ((_, _, _, body),) = FrameDecoder().feed(encode_tuples(1, 2, [b"\x01", b"\x02"], b"pos"))
    assert msgpack.unpackb(body, strict_map_key=False) == {Key.DATA: [1, 2], Key.POSITION: b"pos"}


def test_an_error_carries_its_causes() -> None:
    packet = encode_error(9, 2, 216, "quorum", [(40, "disk"), (115, "no space")])
    ((kind, sync, _, raw),) = FrameDecoder().feed(packet)
    body = msgpack.unpackb(raw, strict_map_key=False)
    assert (kind, sync, body[Key.ERROR_24]) == (0x8000 + 216, 9, "quorum")
    assert [(error[5], error[3]) for error in body[Key.ERROR][0]] == [
        (216, "quorum"),
        (40, "disk"),
        (115, "no space"),
    ]
