"""Signed orders: what a process run obeys, with a clock of the test's."""

import pytest

from qsync_node.format.proofs import admin_password, derive, peer_proof, sign_order
from qsync_node.server import orders
from qsync_node.server.orders import CHALLENGE_S, Orders, Refusal

SECRET, INSTANCE, PATH, BODY = "a secret", "an instance", "/verb/fence", b'{"x": 1}'


class Clock:
    """In seconds."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(clock: Clock) -> Orders:
    return Orders(SECRET, INSTANCE, clock)


def asked(node: Orders, signed: str, path: str = PATH, body: bytes = BODY) -> Refusal | None:
    return node.refusal_for(signed, "POST", path, body)


def signed_for(node: Orders, secret: str = SECRET, instance: str = INSTANCE) -> str:
    return sign_order(secret, node.challenge(), instance, "POST", PATH, BODY)


def test_an_order_is_taken_once(node: Orders) -> None:
    signed = signed_for(node)
    assert asked(node, signed) is None
    assert asked(node, signed) is Refusal.REPLAYED
    assert asked(node, signed_for(node)) is None


@pytest.mark.parametrize(
    ("path", "body"), [("/verb/unfence", BODY), (PATH, b'{"x": 2}'), (PATH, b"")]
)
def test_another_order_than_the_signed_one_is_refused(node: Orders, path: str, body: bytes) -> None:
    signed = signed_for(node)
    assert asked(node, signed, path, body) is Refusal.WRONG
    assert asked(node, signed) is None  # the refusal did not use the challenge up


def test_another_secret_and_another_instance_are_refused(node: Orders) -> None:
    assert asked(node, signed_for(node, secret="another")) is Refusal.WRONG
    assert asked(node, signed_for(node, instance="another")) is Refusal.WRONG


@pytest.mark.parametrize(
    "header", ["", "Bearer a secret", "Qsync-HMAC-SHA256", "Qsync-HMAC-SHA256 x", "\udcff \udcff"]
)
def test_what_is_not_signed_is_refused(node: Orders, header: str) -> None:
    assert asked(node, header) is Refusal.UNSIGNED


@pytest.mark.parametrize("challenge", ["", "-", "3e8-00-00", "x-y-z", "\udcff-\udcff"])
def test_a_challenge_that_was_not_given_is_refused(node: Orders, challenge: str) -> None:
    assert asked(node, f"Qsync-HMAC-SHA256 {challenge}:00") is Refusal.EXPIRED


def test_a_challenge_expires_and_does_not_outlive_its_process(node: Orders, clock: Clock) -> None:
    late, replayed, elsewhere = signed_for(node), signed_for(node), signed_for(node)
    assert asked(node, replayed) is None
    assert asked(Orders(SECRET, INSTANCE, clock), elsewhere) is Refusal.EXPIRED
    clock.now_s += CHALLENGE_S + 1
    assert asked(node, late) is Refusal.EXPIRED
    assert asked(node, replayed) is Refusal.EXPIRED


def test_orders_that_are_remembered_are_bounded(
    node: Orders, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "TAKEN_MAX", 3)
    assert [asked(node, signed_for(node)) for _ in range(4)] == [
        None, None, None, Refusal.TOO_MANY,
    ]  # fmt: skip
    clock.now_s += CHALLENGE_S + 1
    assert asked(node, signed_for(node)) is None


def test_no_proof_of_one_purpose_is_good_for_another() -> None:
    challenge, uuid = bytes(32), "00000000-0000-4000-8000-000000000004"
    found = {
        admin_password(SECRET),
        derive(SECRET, "orders").hex(),
        derive(SECRET, "peers").hex(),
        peer_proof(SECRET, b"dial", challenge, uuid).hex(),
        peer_proof(SECRET, b"accept", challenge, uuid).hex(),
        peer_proof(SECRET, b"dial", challenge, uuid, b"one").hex(),
        peer_proof(SECRET, b"dial", challenge, uuid, b"two").hex(),
        SECRET,
    }
    assert len(found) == 8
