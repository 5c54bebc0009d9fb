"""Proofs of the cluster's secret: signed orders, HELLO, and the password of `admin`.

A cluster stores one secret. It is used only as the key of an HMAC: no password, header or body
contains it. Each purpose has its own label, so that a proof for one purpose is invalid for another.

    admin's password   HMAC(secret, "qsync/1 admin"), in hexadecimal
    brokers' password  HMAC(secret, "qsync/1 broker"), in hexadecimal
    brokers' secret    HMAC(secret, "qsync/1 broker peers"), in hexadecimal
    orders             HMAC(HMAC(secret, "qsync/1 orders"), the order and a challenge of its target)
    HELLO without TLS  HMAC(secret, "dial" or "accept", challenge, uuid)
    HELLO over TLS     HMAC(HMAC(secret, "qsync/1 peers"), "dial" or "accept", challenge, uuid,
                       hash of the certificate that the accepting member presented)

The hash binds a HELLO to its TLS connection, like `tls-server-end-point` of RFC 5929: it is SHA-256
for every signature algorithm. A man in the middle presents another certificate, so a forwarded
proof is wrong.

Earlier versions know the unbound proof only. A member that checks bound proofs therefore marks its
challenge, like the downgrade sentinel of TLS 1.3 (RFC 8446, section 4.1.3): 20 random bytes and an
HMAC of them. A member that recognizes the mark neither sends nor accepts an unbound proof. A man in
the middle who removes the mark changes the challenge, so the proof that he receives is valid for
that changed challenge only.
"""

import hashlib
import hmac
import os
from dataclasses import dataclass

ORDER_SCHEME = "Qsync-HMAC-SHA256-2"
"""The number increases with each change of the header. A member accepts only its own scheme."""
CHALLENGE_PATH = "/order-challenge"


def derive(secret: str, label: str) -> bytes:
    """Return the key of one purpose.

    Its label cannot be mistaken for the input of a HELLO without TLS, which begins with no label.
    """
    return hmac.digest(secret.encode(), b"qsync/1 " + label.encode(), hashlib.sha256)


def admin_password(secret: str) -> str:
    return derive(secret, "admin").hex()


def broker_password(secret: str) -> str:
    """Return the password with which brokers of journals log in."""
    return derive(secret, "broker").hex()


def broker_secret(secret: str) -> str:
    """Return the secret that brokers of journals share: it reveals no password."""
    return derive(secret, "broker peers").hex()


def peer_proof(
    secret: str, purpose: bytes, challenge: bytes, uuid: str, binding: bytes = b""
) -> bytes:
    """Prove knowledge of `secret` for one challenge, one identity and one TLS connection."""
    key = derive(secret, "peers") if binding else secret.encode()
    return hmac.digest(key, purpose + challenge + uuid.encode() + binding, hashlib.sha256)


_RANDOM_BYTES, _MARK_BYTES = 20, 12  # a log-in uses the first 20 bytes of a challenge only


def marked_challenge(secret: str) -> bytes:
    """Return a challenge of a member that checks bound proofs."""
    random = os.urandom(_RANDOM_BYTES)
    return random + _mark(secret, random)


def is_marked(secret: str, challenge: bytes) -> bool:
    """Return whether a member that knows `secret` and checks bound proofs made `challenge`."""
    return hmac.compare_digest(challenge[_RANDOM_BYTES:], _mark(secret, challenge[:_RANDOM_BYTES]))


def _mark(secret: str, random: bytes) -> bytes:
    return hmac.digest(derive(secret, "bound"), random, hashlib.sha256)[:_MARK_BYTES]


def certificate_binding(der: bytes) -> bytes:
    return hashlib.sha256(der).digest()


@dataclass(frozen=True, slots=True)
class SignedOrder:
    """The `Authorization` header of an order, which is checked before the body is read."""

    challenge: str
    digest: str  # SHA-256 of the body
    signature: str

    @classmethod
    def from_header(cls, authorization: str) -> "SignedOrder | None":
        """Parse a header; return None if it is not a signature of `ORDER_SCHEME`."""
        scheme, _, rest = authorization.partition(" ")
        parts = rest.split(":")
        return cls(*parts) if scheme == ORDER_SCHEME and len(parts) == 3 else None

    def is_by(self, secret: str, instance: str, method: str, path: str) -> bool:
        """Return whether a client that knows `secret` signed this request."""
        expected = _order_signature(secret, self.challenge, instance, method, path, self.digest)
        return _is_same(self.signature, expected)

    def covers(self, body: bytes) -> bool:
        return _is_same(self.digest, hashlib.sha256(body).hexdigest())


def sign_order(
    secret: str, challenge: str, instance: str, method: str, path: str, body: bytes
) -> str:
    """Return the `Authorization` header of an order to `instance`, which sent `challenge`."""
    digest = hashlib.sha256(body).hexdigest()
    signature = _order_signature(secret, challenge, instance, method, path, digest)
    return f"{ORDER_SCHEME} {challenge}:{digest}:{signature}"


def _order_signature(
    secret: str, challenge: str, instance: str, method: str, path: str, digest: str
) -> str:
    text = "\n".join((method, path, instance, challenge, digest))
    text_bytes = text.encode("utf-8", "surrogateescape")
    return hmac.digest(derive(secret, "orders"), text_bytes, hashlib.sha256).hex()


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
