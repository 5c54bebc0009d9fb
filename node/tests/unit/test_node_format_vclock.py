"""Vclocks as text and in order, greetings, and proofs of passwords."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qsync_client.protocol import auth
from qsync_client.protocol.greeting import GreetingError, decode_greeting, encode_greeting
from qsync_node.format.vclock import (
    format_vclock,
    is_equal,
    normalised,
    parse,
    signature,
)

# A busy machine may delay examples: no test here depends on a duration.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

vclocks = st.dictionaries(st.integers(0, 31), st.integers(0, 2**63 - 1), max_size=6)
UUID = "70dce487-582e-5e56-a3ed-a1541ed73826"


@given(vclocks)
def test_text_comes_back_without_zeros(vclock: dict[int, int]) -> None:
    assert parse(format_vclock(vclock)) == normalised(vclock)
    assert signature(parse(format_vclock(vclock))) == sum(vclock.values())


def test_text_is_tarantools() -> None:
    assert format_vclock({2: 3, 1: 12}) == "{1: 12, 2: 3}"
    assert format_vclock({1: 10}) == "{1: 10}"
    assert format_vclock({1: 0}) == "{}"
    assert parse(" { 0 : 1,1:13 } ") == {0: 1, 1: 13}


@pytest.mark.parametrize(
    "text", ["", "{", "1: 2", "{1}", "{1: -1}", "{32: 1}", "{1: 1, 1: 2}", "{,}"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="vclock"):
        parse(text)


@given(vclocks, vclocks)
def test_components_of_zero_do_not_count(left: dict[int, int], right: dict[int, int]) -> None:
    is_same = all(left.get(number, 0) == right.get(number, 0) for number in {*left, *right})
    assert is_equal(left, right) == is_same
    assert is_equal(left, {number: left.get(number, 0) for number in range(32)})


def test_a_greeting_has_two_lines_of_64_bytes() -> None:
    data = encode_greeting(UUID, bytes(range(32)))
    assert len(data) == 128
    assert data[63:64] == data[127:] == b"\n"
    assert decode_greeting(data).version == "2.11.0"
    assert decode_greeting(data).salt == bytes(range(32))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(128),
        b"HTTP/1.1 400 Bad Request\r\n".ljust(128),
        encode_greeting(UUID, bytes(32))[:-1],
        encode_greeting(UUID, bytes(32)).replace(b"Binary", b"Lua co"),
        encode_greeting(UUID, bytes(32)).replace(b"AAAA", b"A*AA"),
    ],
)
def test_anything_else_is_no_greeting(data: bytes) -> None:
    with pytest.raises(GreetingError):
        decode_greeting(data)


@given(st.text(max_size=20), st.binary(min_size=32, max_size=32))
def test_a_scramble_is_valid_for_its_password_and_salt_only(password: str, salt: bytes) -> None:
    stored = auth.stored_hash(password)
    answer = auth.scramble(password, salt)
    assert auth.is_valid(answer, salt, stored)
    assert auth.is_valid(answer.decode("utf-8", "surrogateescape"), salt, stored)
    assert not auth.is_valid(answer, bytes(32) if any(salt) else b"\x01" * 32, stored)
    assert not auth.is_valid(auth.scramble(password + "x", salt), salt, stored)


@pytest.mark.parametrize("answer", [None, b"", b"x" * 19, 5, ["a"], "é" * 20])
def test_a_malformed_answer_is_not_valid(answer: object) -> None:
    assert not auth.is_valid(answer, bytes(32), auth.stored_hash("secret"))
    assert not auth.is_valid(bytes(20), bytes(32), "not base64!")
