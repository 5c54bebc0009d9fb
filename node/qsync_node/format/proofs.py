"""Proofs of the cluster's secret: signed orders, HELLO, and the password of `admin`.

A cluster stores one secret. It is only ever used as the key of an HMAC: no password, header or body
holds it. Each purpose has a label of its own, so nothing that is made for one is good for another.

    admin's password   HMAC(secret, "qsync/1 admin"), in hexadecimal
    orders             HMAC(HMAC(secret, "qsync/1 orders"), the order and a challenge of its target)
    HELLO without TLS  HMAC(secret, "dial" or "accept", challenge, uuid)
    HELLO over TLS     HMAC(HMAC(secret, "qsync/1 peers"), "dial" or "accept", challenge, uuid,
                       hash of the certificate that the accepting member showed)

The hash binds a HELLO to its TLS connection, like `tls-server-end-point` of RFC 5929: it is SHA-256
whatever signed the certificate. A man in the middle shows another certificate, so a proof that he
passes on is wrong.

Earlier versions know the unbound proof only. A member that checks bound proofs therefore marks its
challenge, like the downgrade sentinel of TLS 1.3 (RFC 8446, section 4.1.3): 20 random bytes and an
HMAC of them. A member that reads the mark sends no unbound proof, and takes none. A man in the
middle who removes the mark changes the challenge, so what he is sent then is a proof for himself.
"""

import hashlib
import hmac
import os

ORDER_SCHEME = "Qsync-HMAC-SHA256"
CHALLENGE_PATH = "/order-challenge"


def derive(secret: str, label: str) -> bytes:
    """The key of one purpose. What HELLO hashes without TLS begins otherwise than any label."""
    return hmac.digest(secret.encode(), b"qsync/1 " + label.encode(), hashlib.sha256)


def admin_password(secret: str) -> str:
    return derive(secret, "admin").hex()


def peer_proof(
    secret: str, purpose: bytes, challenge: bytes, uuid: str, binding: bytes = b""
) -> bytes:
    """That the sender knows `secret`, for one challenge, one identity and one TLS connection."""
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


def sign_order(
    secret: str, challenge: str, instance: str, method: str, path: str, body: bytes
) -> str:
    """The header `Authorization` of an order to `instance`, which gave `challenge`."""
    signature = order_signature(secret, challenge, instance, method, path, body)
    return f"{ORDER_SCHEME} {challenge}:{signature}"


def order_signature(
    secret: str, challenge: str, instance: str, method: str, path: str, body: bytes
) -> str:
    parts = (method, path, instance, challenge, hashlib.sha256(body).hexdigest())
    text = "\n".join(parts).encode()
    return hmac.digest(derive(secret, "orders"), text, hashlib.sha256).hex()
