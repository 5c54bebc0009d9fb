"""Signed orders: the orders that a process run obeys, with a clock that the test controls."""

import hashlib

import pytest

from qsync_node.errors import OrderRefusal
from qsync_node.format.proofs import (
    ORDER_SCHEME,
    SignedOrder,
    admin_password,
    derive,
    peer_proof,
    sign_order,
)
from qsync_node.server import orders
from qsync_node.server.orders import CHALLENGE_S, Orders

SECRET, INSTANCE, PATH, BODY = "a secret", "an instance", "/verb/fence", b'{"x": 1}'


class OrderClock:
    """A clock that the test sets, in seconds."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> OrderClock:
    return OrderClock()


@pytest.fixture
def node(clock: OrderClock) -> Orders:
    return Orders(SECRET, INSTANCE, clock)


def asked(node: Orders, signed: str, path: str = PATH, body: bytes = BODY) -> OrderRefusal | None:
    order = SignedOrder.from_header(signed)
    refusal = node.refusal_for(order, "POST", path)
    if refusal is None and order is not None and not order.covers(body):
        return OrderRefusal.WRONG
    return refusal


def signed_for(node: Orders, secret: str = SECRET, instance: str = INSTANCE) -> str:
    return sign_order(secret, node.challenge(), instance, "POST", PATH, BODY)


def test_an_order_is_taken_once(node: Orders) -> None:
    signed = signed_for(node)
    assert asked(node, signed) is None
    assert asked(node, signed) is OrderRefusal.REPLAYED
    assert asked(node, signed_for(node)) is None


def test_an_order_is_remembered_until_its_challenge_expires(
    node: Orders, clock: OrderClock
) -> None:
    signed = signed_for(node)
    assert asked(node, signed) is None
    clock.now_s += CHALLENGE_S / 2
    assert asked(node, signed_for(node)) is None
    assert asked(node, signed) is OrderRefusal.REPLAYED


def test_another_path_than_the_signed_one_is_refused(node: Orders) -> None:
    signed = signed_for(node)
    assert asked(node, signed, "/verb/unfence") is OrderRefusal.WRONG
    assert asked(node, signed) is None  # the refusal did not consume the challenge


@pytest.mark.parametrize("body", [b'{"x": 2}', b""])
def test_another_body_than_the_signed_one_is_refused(node: Orders, body: bytes) -> None:
    signed = signed_for(node)
    assert asked(node, signed, PATH, body) is OrderRefusal.WRONG
    # The challenge is consumed, so a recorded header cannot make the member read another body.
    assert asked(node, signed) is OrderRefusal.REPLAYED


def test_another_hash_than_the_signed_one_is_refused_before_the_body_is_read(node: Orders) -> None:
    scheme, challenge, _, signature = signed_for(node).replace(" ", ":").split(":")
    digest = hashlib.sha256(b"another").hexdigest()
    signed = SignedOrder.from_header(f"{scheme} {challenge}:{digest}:{signature}")
    assert node.refusal_for(signed, "POST", PATH) is OrderRefusal.WRONG


def test_another_secret_and_another_instance_are_refused(node: Orders) -> None:
    assert asked(node, signed_for(node, secret="another")) is OrderRefusal.WRONG
    assert asked(node, signed_for(node, instance="another")) is OrderRefusal.WRONG


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer a secret",
        ORDER_SCHEME,
        f"{ORDER_SCHEME} x",
        f"{ORDER_SCHEME} x:y",
        f"{ORDER_SCHEME} x:y:z:z",
        "Qsync-HMAC-SHA256 x:y:z",
        "\udcff \udcff",
    ],
)
def test_what_is_not_signed_is_refused(node: Orders, header: str) -> None:
    assert asked(node, header) is OrderRefusal.UNSIGNED


@pytest.mark.parametrize("challenge", ["", "-", "3e8-00-00", "x-y-z", "\udcff-\udcff"])
def test_a_challenge_that_was_not_given_is_refused(node: Orders, challenge: str) -> None:
    assert asked(node, f"{ORDER_SCHEME} {challenge}:00:00") is OrderRefusal.EXPIRED


def test_a_challenge_expires_and_does_not_outlive_its_process(
    node: Orders, clock: OrderClock
) -> None:
    late, replayed, elsewhere = signed_for(node), signed_for(node), signed_for(node)
    assert asked(node, replayed) is None
    assert asked(Orders(SECRET, INSTANCE, clock), elsewhere) is OrderRefusal.EXPIRED
    clock.now_s += CHALLENGE_S + 1
    assert asked(node, late) is OrderRefusal.EXPIRED
    assert asked(node, replayed) is OrderRefusal.EXPIRED


def test_orders_that_are_remembered_are_bounded(
    node: Orders, clock: OrderClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "TAKEN_MAX", 3)
    assert [asked(node, signed_for(node)) for _ in range(4)] == [
        None, None, None, OrderRefusal.TOO_MANY,
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
