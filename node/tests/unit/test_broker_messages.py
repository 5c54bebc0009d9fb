"""Messages between brokers, their frames, and the handshake."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_broker import messages as msg
from qsync_broker.handshake import Handshake, HandshakeError
from qsync_broker.messages import Decoder, Message, MessageError, encode
from qsync_node.format.journals import BrokerId

A, B = BrokerId("zone", "broker-a"), BrokerId("zone", "broker-b")
MESSAGES: list[Message] = [
    msg.Prepare("a/journal", 7, (("zone", "broker-a"), ("zone", "broker-b")), 1, 40, 41),
    msg.Adopt(41, 30, 1 << 40, b"registers", 3, True, ((30, 9), (41, 1 << 40))),
    msg.Content(12, b"content"),
    msg.Content(0, b""),
    msg.Propose(3, 1 << 62, bytes(range(20)), b"", 17),
    msg.Abort(),
    msg.Confirm(17),
    msg.Begin(17, 1),
    msg.Close(),
    msg.Promised(30, 0, 9, bytes(20), b"", 1),
    msg.PeerRefused(44, 0),
    msg.Acked(3),
    msg.Failed("no space left"),
]


def frames(*messages: Message) -> bytes:
    return b"".join(bytes(part) for one in messages for part in encode(5, one))


@given(st.lists(st.integers(0, len(MESSAGES) - 1), max_size=8), st.integers(1, 40))
def test_messages_arrive_as_they_were_sent_however_they_are_cut(
    chosen: list[int], size: int
) -> None:
    sent = [MESSAGES[number] for number in chosen]
    data, decoder, received = frames(*sent), Decoder(), []
    for at in range(0, len(data), size):
        received += list(decoder.feed(data[at : at + size]))
    assert [message for _, message in received] == sent
    assert all(stream == 5 for stream, _ in received)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x01\x00",  # too short
        b"\x7f\xff\xff\xff\x02" + bytes(4),  # too long
        b"\x00\x00\x00\x05\x63" + bytes(4),  # unknown kind
        b"\x00\x00\x00\x06\x02" + bytes(5),  # content without its offset
        b"\x00\x00\x00\x06\x0b" + bytes(4) + b"\xc1",  # no MessagePack
        b"\x00\x00\x00\x07\x05" + bytes(4) + b"\x91\xa0",  # a string instead of an integer
        b"\x00\x00\x00\x07\x05" + bytes(4) + b"\x91\xff",  # a negative integer
        b"\x00\x00\x00\x08\x05" + bytes(4) + b"\x92\x01\x01",  # too many fields
    ],
)
def test_invalid_frame_is_refused(data: bytes) -> None:
    decoder = Decoder()
    with pytest.raises(MessageError):
        list(decoder.feed(data + bytes(8)))


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_another_error(data: bytes) -> None:
    with contextlib.suppress(MessageError):
        list(Decoder().feed(data))


# --- handshake ------------------------------------------------------------------------------------


def shake(primary: Handshake, peer: Handshake, rest: bytes = b"") -> None:
    challenge = peer.feed(primary.start())
    peer.feed(primary.feed(challenge) + rest)


def test_both_sides_prove_that_they_know_the_secret() -> None:
    primary, peer = Handshake(A, b"secret", B), Handshake(B, b"secret", None)
    shake(primary, peer, b"frames")
    assert (primary.is_done, peer.is_done, peer.peer) == (True, True, A)
    assert peer.rest == b"frames"


def test_primary_refuses_a_peer_with_another_secret() -> None:
    with pytest.raises(HandshakeError, match="the peer does not know the secret"):
        shake(Handshake(A, b"secret", B), Handshake(B, b"other", None))


def test_peer_refuses_a_primary_with_another_secret() -> None:
    peer = Handshake(B, b"secret", None)
    challenge = peer.feed(Handshake(A, b"other", B).start())
    with pytest.raises(HandshakeError, match="the broker does not know the secret"):
        peer.feed(b"\x00\x20" + challenge[-32:])


def test_broker_at_a_reused_address_refuses_a_primary_of_another_one() -> None:
    with pytest.raises(HandshakeError, match="wants to reach"):
        shake(Handshake(A, b"secret", B), Handshake(A, b"secret", None))


def test_peer_does_not_know_the_primary_before_its_proof() -> None:
    peer = Handshake(B, b"secret", None)
    peer.feed(Handshake(A, b"secret", B).start())
    assert (peer.is_done, peer.peer) == (False, None)


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x00\x03abc", b"GET / HTTP/1.1\r\n\r\n"])
def test_stranger_is_refused(data: bytes) -> None:
    with pytest.raises(HandshakeError):
        Handshake(B, b"secret", None).feed(data)


def test_answer_of_another_connection_is_refused() -> None:
    first, second = Handshake(A, b"secret", B), Handshake(A, b"secret", B)
    peer = Handshake(B, b"secret", None)
    challenge = peer.feed(first.start())
    second.start()
    with pytest.raises(HandshakeError):
        second.feed(challenge)


@pytest.mark.parametrize("ends", [7, ((1,),), ((1, "x"),), (1, 2)])
def test_ends_of_another_form_are_refused(ends: object) -> None:
    adopt = msg.Adopt(41, 30, 9, b"", 3, True)._replace(ends=ends)  # type: ignore[arg-type]  # malformed
    data = b"".join(encode(1, adopt))
    with pytest.raises(MessageError, match="field ends"):
        list(Decoder().feed(data))
