"""The protocol between members, stepped by hand: handshake, frames, keep-alive, addresses (P1)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_client.protocol.constants import HelloKey, Key
from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.greeting import encode_greeting
from qsync_node.consensus.membership import LEVEL
from qsync_node.errors import ErrorCode
from qsync_node.format.frame import encode_error, encode_ok
from qsync_node.format.mp import pack, unpack
from qsync_node.format.proofs import certificate_binding, marked_challenge
from qsync_node.peering.addresses import (
    DISCOVERED_MAX,
    FORGET_AFTER_S,
    RETRY_MAX_S,
    RETRY_S,
    AddressBook,
    Redial,
)
from qsync_node.peering.dialling import Attempt, Dialling, superseded
from qsync_node.peering.frames import (
    EMPTY_FRAME,
    FRAME_BYTES_MAX,
    SILENT_TICKS,
    Beat,
    Frames,
    FrameTooLong,
    KeepAlive,
    encode_frames,
)
from qsync_node.peering.handshake import (
    ANSWER_MAX,
    HELLO,
    Established,
    HandshakeFailed,
    HelloRefused,
    Opening,
    PeerIdentity,
    answer_hello,
)

A, B = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "ab")
CLUSTER = "c1000000-0000-4000-8000-000000000000"
SALT = bytes(range(32))
CERTIFICATE = b"the certificate of b"
BINDING = b"its hash"


def member(uuid: str, **changes: Any) -> PeerIdentity:
    return PeerIdentity(
        uuid, CLUSTER, "secret", b"process of " + uuid[:1].encode(), False
    )._replace(**changes)


def opening(me: PeerIdentity) -> Opening:
    return Opening(me, "b", b"nonce" * 4, {"a": "h:1"}, lambda: CERTIFICATE)


def hello_to(me: PeerIdentity, salt: bytes = SALT) -> tuple[Opening, dict[int, Any]]:
    """Return an opening end that has sent HELLO, and the fields of the HELLO."""
    end = opening(me)
    sent, found = end.receive(encode_greeting(B, salt))
    assert found is None
    ((kind, _, _, body),) = FrameDecoder(1 << 20).feed(sent)
    assert kind == HELLO
    return end, unpack(body)


def answer_of(
    fields: dict[int, Any], me: PeerIdentity | None = None, **changes: Any
) -> tuple[Established, bytes]:
    known = {"salt": SALT, "binding": b"", "is_member": False, **changes}
    return answer_hello(me or member(B), {"b": "h:2"}, fields, **known)


# --- handshake ------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 400), max_size=8))
def test_both_ends_know_each_other_however_the_bytes_arrive(cuts: list[int]) -> None:
    end = opening(member(A))
    (hello, _), rest = end.receive(encode_greeting(B, SALT)), b"the first frame"
    ((_, _, _, body),) = FrameDecoder(1 << 20).feed(hello)
    accepted, answer = answer_of(unpack(body))
    assert accepted == Established(A, LEVEL, b"process of a", {"a": "h:1"})
    data, found = encode_ok(1, 1, answer) + rest, None
    received = b""
    for cut in [*cuts, len(data)]:
        part, data = data[:cut], data[cut:]
        if found is not None:
            received += part
        elif part:
            sent, found = end.receive(part)
            assert sent == b""
    assert found is not None
    assert found._replace(rest=b"") == Established(B, LEVEL, b"process of b", {"b": "h:2"})
    assert found.rest + received == rest


def test_greeting_is_awaited_as_a_whole() -> None:
    end, greeting = opening(member(A)), encode_greeting(B, SALT)
    assert end.receive(greeting[:127]) == (b"", None)
    assert end.receive(greeting[127:])[0]


@pytest.mark.parametrize(
    ("greeting", "cause"),
    [
        (b"x" * 128, "b is not a Qsync member"),
        (encode_greeting(A, SALT), "the address leads to the member itself"),
    ],
)
def test_other_greeting_ends_the_handshake(greeting: bytes, cause: str) -> None:
    with pytest.raises(HandshakeFailed, match=cause):
        opening(member(A)).receive(greeting)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (encode_error(1, 1, 42, "not today"), "not today"),
        (encode_ok(1, 1, pack({})), "the proof of the cluster's secret is wrong"),
        (
            encode_ok(1, 1, pack({HelloKey.PROOF: "text"})),
            "the proof of the cluster's secret is wrong",
        ),
        (encode_ok(1, 1, pack([1])), "sends a packet without a map"),
        (encode_ok(1, 1, b"\xc1"), "sends an invalid packet"),
        (encode_ok(1, 1, b"\x81\x01"), "sends an invalid packet"),
        (b"\xce\x00\x00\x00\x05\xc1\xc1\xc1\xc1\xc1", "b"),
        (b"\xce" + (ANSWER_MAX).to_bytes(4, "big"), f"a packet of {ANSWER_MAX + 5} bytes"),
        (b"\xce\xff\xff\xff\xff", "a packet of 4294967300 bytes"),
    ],
)
def test_wrong_answer_ends_the_handshake(answer: bytes, cause: str) -> None:
    end, _ = hello_to(member(A))
    with pytest.raises(HandshakeFailed, match=cause):
        end.receive(answer)


@given(st.binary(max_size=200))
def test_garbage_ends_the_handshake_or_is_waited_for(data: bytes) -> None:
    end, _ = hello_to(member(A))
    try:
        assert end.receive(data) == (b"", None)
    except HandshakeFailed:
        return


def test_invalid_bytes_after_the_greeting_end_the_handshake() -> None:
    with pytest.raises(HandshakeFailed):
        opening(member(A)).receive(encode_greeting(B, SALT) + b"\xc0")


def test_answer_of_another_secret_is_refused() -> None:
    end, fields = hello_to(member(A))
    del fields[HelloKey.PROOF]
    liar = member(B, secret="other")
    _, right = hello_to(member(A, secret="other"))
    _, answer = answer_of(right, liar)
    with pytest.raises(HandshakeFailed, match="the proof of the cluster's secret is wrong"):
        end.receive(encode_ok(1, 1, answer))


@pytest.mark.parametrize(
    ("changes", "me", "code"),
    [
        ({Key.INSTANCE_UUID: 5}, member(B), ErrorCode.PROTOCOL),
        ({HelloKey.NONCE: None}, member(B), ErrorCode.PROTOCOL),
        ({HelloKey.PROOF: None}, member(B), ErrorCode.PROTOCOL),
        ({HelloKey.PROOF: bytes(32)}, member(B), ErrorCode.ACCESS_DENIED),
        ({}, member(B, secret="other"), ErrorCode.ACCESS_DENIED),
        ({}, member(B, has_certificate=True), ErrorCode.ACCESS_DENIED),
        ({Key.REPLICASET_UUID: "other"}, member(B), ErrorCode.REPLICASET_UUID_MISMATCH),
        ({}, member(A), ErrorCode.CONNECTION_TO_SELF),
    ],
)
def test_hello_is_refused(changes: dict[int, Any], me: PeerIdentity, code: ErrorCode) -> None:
    _, fields = hello_to(member(A))
    with pytest.raises(HelloRefused) as refused:
        answer_of({**fields, **changes}, me)
    assert refused.value.code == code


def test_invalid_level_and_incarnation_are_those_of_an_earlier_version() -> None:
    _, fields = hello_to(member(A))
    found, _ = answer_of({**fields, HelloKey.LEVEL: "high", HelloKey.INCARNATION: 7})
    assert (found.level, found.incarnation) == (1, b"")


def test_proofs_over_tls_are_bound_to_the_certificate() -> None:
    me = member(A, has_certificate=True)
    accepting = member(B, has_certificate=True)
    salt = marked_challenge("secret")
    end, fields = hello_to(me, salt)
    assert HelloKey.PROOF not in fields
    binding = certificate_binding(CERTIFICATE)
    _, answer = answer_of(fields, accepting, salt=salt, binding=binding, is_member=True)
    _, found = end.receive(encode_ok(1, 1, answer))
    assert found is not None
    with pytest.raises(HelloRefused):  # a man in the middle has presented another certificate
        answer_of(fields, accepting, salt=salt, binding=BINDING, is_member=True)
    with pytest.raises(HelloRefused):
        answer_of(fields, accepting, salt=salt, binding=binding, is_member=False)


def test_end_of_an_earlier_version_proves_the_secret_without_a_binding() -> None:
    me, accepting = member(A, has_certificate=True), member(B, has_certificate=True)
    end, fields = hello_to(me, SALT)  # the challenge is not marked
    assert HelloKey.BOUND_PROOF not in fields
    _, answer = answer_of(fields, accepting, binding=BINDING, is_member=True)
    assert end.receive(encode_ok(1, 1, answer))[1] is not None


# --- frames ---------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6), st.integers(1, 50))
def test_messages_arrive_as_they_were_sent(messages: list[bytes], size: int) -> None:
    data, frames, found = encode_frames(messages) + EMPTY_FRAME, Frames(), []
    for at in range(0, len(data), size):
        found += frames.feed(data[at : at + size])
    assert found == messages


def test_frame_of_the_greatest_length_is_accepted_and_no_longer_one() -> None:
    frames = Frames()
    assert frames.feed(FRAME_BYTES_MAX.to_bytes(4, "big")) == []
    with pytest.raises(FrameTooLong):
        Frames().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_silent_end_is_noticed_after_some_ticks() -> None:
    keep_alive = KeepAlive()
    beats = [keep_alive.tick() for _ in range(SILENT_TICKS + 1)]
    assert beats == [Beat.SEND] * SILENT_TICKS + [Beat.SILENT]


def test_end_that_sends_is_not_silent_and_one_that_has_sent_needs_no_empty_frame() -> None:
    keep_alive = KeepAlive()
    for _ in range(3 * SILENT_TICKS):
        keep_alive.on_received()
        assert keep_alive.tick() is Beat.SEND
    keep_alive.on_sent()
    assert keep_alive.tick() is Beat.NOTHING
    assert keep_alive.tick() is Beat.SEND


# --- addresses ------------------------------------------------------------------------------------


def test_reported_addresses_are_dialled_once() -> None:
    book, own = AddressBook("a"), {"a": "h:1"}
    book.set_configured({"a": "h:1", "b": "h:2"})
    assert book.targets == {"b": "h:2"}
    assert book.discover({"a": "h:9", "b": "h:3", "c": "h:3", "d": "h:1"}, own) == {"c": "h:3"}
    assert book.discover({"c": "h:3", "e": "h:3"}, own) == {}
    assert book.targets == {"b": "h:2", "c": "h:3"}
    assert book.known(own) == {"a": "h:1", "b": "h:2", "c": "h:3"}
    assert book.is_discovered("c")
    book.forget("c")
    assert book.targets == {"b": "h:2"}


@pytest.mark.parametrize("reported", [None, 5, {5: "h:1"}, {"b": 1}, {"b": "h"}, {"b": ":1"},
                                      {"b": "h:"}, {"b": "h:x"}, {"b": "h:²"}, {"b": "h:0"},
                                      {"b": "h:65536"}, {"b": "h:" + "9" * 5000}])  # fmt: skip
def test_invalid_report_is_ignored(reported: object) -> None:
    book = AddressBook("a")
    assert book.discover(reported, {}) == {}
    assert book.targets == {}


def test_number_of_reported_addresses_is_bounded() -> None:
    book = AddressBook("a")
    assert len(book.discover({f"m{n}": f"h:{n}" for n in range(1, 200)}, {})) == DISCOVERED_MAX


def test_configured_address_replaces_a_reported_one() -> None:
    book = AddressBook("a")
    book.discover({"b": "h:2", "c": "h:3", "d": "h:4"}, {})
    book.set_configured({"b": "h:7", "x": "h:3"})
    assert book.targets == {"b": "h:7", "x": "h:3", "d": "h:4"}


def test_pauses_grow_until_an_attempt_succeeds() -> None:
    redial = Redial(0.0)
    pauses = [redial.on_failed(1.0, is_discovered=False) for _ in range(7)]
    assert pauses[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert pauses[-1] == RETRY_MAX_S
    assert redial.on_lost(2.0) == RETRY_S
    assert redial.on_failed(2.0, is_discovered=False) == RETRY_S


def test_reported_address_is_forgotten_and_a_configured_one_is_not() -> None:
    late = FORGET_AFTER_S + 5.0
    assert Redial(0.0).on_failed(late, is_discovered=False) is not None
    assert Redial(0.0).on_failed(late, is_discovered=True) is None
    reached = Redial(0.0)
    reached.on_lost(late - 1)
    assert reached.on_failed(late, is_discovered=True) is not None


# --- dialling -------------------------------------------------------------------------------------

OWN = {"a": "h:1"}


def dialling(**configured: str) -> Dialling:
    made = Dialling(AddressBook("a"))
    assert made.set_configured({"a": "h:1", **configured}, 0.0) == []
    return made


def names(attempts: list[Attempt]) -> list[str]:
    return [attempt.name for attempt in attempts]


def test_an_address_is_dialled_once_until_its_attempt_ends() -> None:
    made = dialling(b="h:2")
    assert made.next_s == 0.0
    (attempt,) = made.due(0.0)
    assert (attempt.name, attempt.address) == ("b", "h:2")
    assert made.due(99.0) == []
    assert made.next_s is None
    made.on_failed(attempt, 1.0)
    assert made.next_s == 1.0 + RETRY_S
    assert made.due(1.0 + RETRY_S / 2) == []
    assert made.due(1.0 + RETRY_S) == [attempt]
    made.on_failed(attempt, 2.0)
    assert made.next_s == 2.0 + 2 * RETRY_S
    made.due(3.0)
    made.on_lost(attempt, 9.0)
    assert made.next_s == 9.0 + RETRY_S


def test_changed_and_removed_addresses_are_given_up() -> None:
    made = dialling(b="h:2", c="h:3", d="h:4")
    old = {attempt.name: attempt for attempt in made.due(0.0)}
    dropped = made.set_configured({"b": "h:9", "d": "h:4"}, 1.0)
    assert dropped == [old["b"], old["c"]]
    made.on_failed(old["b"], 1.0)  # of an address that is no longer its own
    made.on_lost(old["c"], 1.0)
    assert [(one.name, one.address) for one in made.due(1.0)] == [("b", "h:9")]


def test_reported_addresses_are_dialled_until_they_are_forgotten() -> None:
    made = dialling(b="h:2")
    made.due(0.0)
    assert made.discover({"c": "h:3", "b": "h:7"}, OWN, 1.0) == {"c": "h:3"}
    (attempt,) = made.due(1.0)
    assert attempt.name == "c"
    made.on_failed(attempt, 2.0 + FORGET_AFTER_S)  # no attempt has succeeded
    assert made.next_s is None
    assert names(made.due(1e9)) == []
    assert made.discover({"c": "h:3"}, OWN, 1e9) == {"c": "h:3"}


def test_links_to_earlier_processes_are_superseded() -> None:
    links = [Established("u1", 1, b"old", {}), Established("u1", 1, b"new", {}),
             Established("u2", 1, b"old", {})]  # fmt: skip
    assert superseded(links, Established("u1", 1, b"new", {})) == [links[0]]
