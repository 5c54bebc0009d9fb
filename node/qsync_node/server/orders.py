"""Authorization of orders: signatures over a challenge from this process run.

Theory. A signature covers method, path, a hash of the body, the instance and a challenge. The
secret is never transmitted. The hash is part of the header, so the node authenticates the client
before it reads the body. A challenge holds its creation time, and a code made with a random key of
this process run. Issuing one therefore costs no memory, clocks of two machines are never compared,
and a restart invalidates every earlier order. A challenge is valid once, within `CHALLENGE_S`. The
node remembers only the challenges of accepted orders, until they expire.
"""

import hashlib
import hmac
import os
import time
from collections.abc import Callable

from qsync_node.errors import OrderRefusal
from qsync_node.format.proofs import SignedOrder

CHALLENGE_S = 30.0
TAKEN_MAX = 4096

SENTENCES = {
    OrderRefusal.UNSIGNED: "order refused: it is not signed; sign it with the cluster's secret",
    OrderRefusal.EXPIRED: (
        "order refused: its challenge is too old or from an earlier process run; request "
        "another one from /order-challenge"
    ),
    OrderRefusal.WRONG: "order refused: its signature is wrong; sign it with the cluster's secret",
    OrderRefusal.REPLAYED: (
        "order refused: its challenge was already used; request another one from /order-challenge"
    ),
    OrderRefusal.TOO_MANY: (
        f"order refused: more than {TAKEN_MAX} orders arrived within {CHALLENGE_S:.0f} s; "
        "wait, then retry"
    ),
}


class Orders:
    """The challenges and accepted orders of one process run of one instance."""

    def __init__(
        self, secret: str, instance: str, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._secret = secret
        self._instance = instance
        self._clock_s = clock_s
        self._key = os.urandom(32)
        self._taken: dict[str, float] = {}  # challenge -> time of its expiry

    def challenge(self) -> str:
        given = f"{int(self._clock_s() * 1000):x}-{os.urandom(12).hex()}"
        return f"{given}-{self._code(given)}"

    def refusal_for(
        self, signed: SignedOrder | None, method: str, path: str
    ) -> OrderRefusal | None:
        """Return the reason to refuse an order, or None if it is accepted.

        The caller must also check that the signature `covers` the body. Acceptance consumes the
        challenge, regardless of the body.
        """
        if signed is None:
            return OrderRefusal.UNSIGNED
        challenge = signed.challenge
        expires_s = self._expiry_s(challenge)
        now_s = self._clock_s()
        if expires_s is None or expires_s < now_s:
            return OrderRefusal.EXPIRED
        if not signed.is_by(self._secret, self._instance, method, path):
            return OrderRefusal.WRONG
        if challenge in self._taken:
            return OrderRefusal.REPLAYED
        self._taken = {key: at_s for key, at_s in self._taken.items() if at_s >= now_s}
        if len(self._taken) >= TAKEN_MAX:
            return OrderRefusal.TOO_MANY
        self._taken[challenge] = expires_s
        return None

    def _expiry_s(self, challenge: str) -> float | None:
        """Return the time of expiry, or None if this process run did not issue the challenge."""
        given, _, code = challenge.rpartition("-")
        if not _is_same(code, self._code(given)):
            return None
        return int(given.partition("-")[0], 16) / 1000 + CHALLENGE_S

    def _code(self, given: str) -> str:
        text = given.encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256).hex()[:32]


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
