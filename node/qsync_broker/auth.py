"""Authorization of clients by signed tokens (JWT), with the keys and claims of Gazette.

Keys are given as a list of Base64 texts. The first one signs, and all of them verify. The key
`AA==` permits requests without a token. A token has the claims

    cap     bits of the permitted operations
    sel     selector of the journals, as JSON of a `LabelSelector`
    iat     Unix time of its issue
    exp     Unix time of its end

Journals that the selector does not select do not exist for the client.
"""

import base64
import binascii
import time
from enum import IntFlag
from types import ModuleType
from typing import Any, Final, NamedTuple

from qsync_broker.labels import LabelSelector, LabelSet, Wanted, selector_of_journals

CLUSTER_HEADER: Final = "X-Qsync-Cluster"
"""Header of answers below /debug: the UUID of the broker's cluster. Clients check it, because the
port of a broker may be used by one of another cluster."""
PERMITS_ALL = bytes(1)
"""The key that permits requests without a token."""
_ALGORITHMS = ["HS256", "HS384"]
_LEEWAY_S = 5
EXPIRED = "the token has expired: send a new one"


class AuthError(Exception):
    """The request is not permitted; the text states the cause."""


class Capability(IntFlag):
    """Operations that a token permits; the bits are Gazette's."""

    LIST = 1 << 1
    APPLY = 1 << 2
    READ = 1 << 3
    APPEND = 1 << 4
    ALL = LIST | APPLY | READ | APPEND


class Claims(NamedTuple):
    """Permissions of a request.

    Attributes:
        selector: selector of the journals.
        expires_s: Unix time of the token's end, or None without a token.
    """

    selector: LabelSelector = LabelSelector()
    expires_s: int | None = None

    def remaining_s(self) -> float | None:
        """Return the time until the token ends, or None if there is none."""
        return None if self.expires_s is None else self.expires_s + _LEEWAY_S - time.time()

    def permits(self, labels: LabelSet) -> bool:
        """Return whether the selector selects a journal with these labels and its name."""
        return self.selector.matches(labels)


class Authorizer:
    """Verifies and issues tokens.

    Attributes:
        keys: secret keys; without any, no token is wanted.
    """

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = [key for key in keys if key != PERMITS_ALL]
        self._is_open = not keys or PERMITS_ALL in keys
        if self.keys:
            _load_jwt()

    def use(self, other: "Authorizer") -> None:
        """Verify and issue tokens with the keys of another authorizer from now on."""
        self.keys, self._is_open = other.keys, other._is_open

    @classmethod
    def of_text(cls, text: str) -> "Authorizer":
        """Return an authorizer with keys in Base64, separated by spaces or commas.

        Raises:
            ValueError: a key is no Base64.
        """
        try:
            keys = [base64.b64decode(one, validate=True) for one in text.replace(",", " ").split()]
        except binascii.Error as error:
            raise ValueError(f"a key is no Base64: {error}") from None
        return cls(keys)

    def verify(self, header: str, capability: Capability) -> Claims:
        """Return the claims of a request.

        Args:
            header: its header `authorization`, or "".
            capability: the operation that it wants.

        Raises:
            AuthError: the token is missing or invalid, or does not permit the operation.
        """
        scheme, _, token = header.partition(" ")
        if not header:
            if self._is_open:
                return Claims()
            raise AuthError("a token is missing: send `authorization: Bearer TOKEN`")
        if scheme.lower() != "bearer":
            raise AuthError(f"invalid scheme {scheme!r} of the authorization: use Bearer")
        if not self.keys:
            return Claims()
        if not token.isascii():
            raise AuthError("the token is invalid: it has other characters than those of ASCII")
        claims = self._decode(token)
        bits = claims.get("cap", 0)
        granted = Capability(bits & Capability.ALL if isinstance(bits, int) else 0)
        if capability not in granted:
            raise AuthError(f"the token does not permit {capability.name}")
        return Claims(_selector(claims.get("sel")), int(claims["exp"]))

    def _decode(self, token: str) -> dict[str, Any]:
        jwt = _load_jwt()
        cause: Exception | None = None
        for key in self.keys:
            try:
                decoded: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=_ALGORITHMS,
                    leeway=_LEEWAY_S,
                    options={"require": ["exp", "iat"], "verify_aud": False, "verify_iss": False},
                )
                return decoded
            except jwt.InvalidTokenError as error:
                cause = cause or error
        raise AuthError(f"the token is invalid: {cause}")

    def sign(self, capability: Capability, selector: dict[str, Any], duration_s: int) -> str:
        """Return a token.

        Args:
            capability: permitted operations.
            selector: selector as JSON of a `LabelSelector`.
            duration_s: duration of its validity in seconds.
        """
        now = int(time.time())
        claims = {"cap": int(capability), "sel": selector, "iat": now, "exp": now + duration_s}
        return str(_load_jwt().encode(claims, self.keys[0], algorithm="HS256"))


def _load_jwt() -> ModuleType:
    """Return the module that signs. Without keys, no broker waits for it at its start: 0.05 s."""
    import jwt  # noqa: PLC0415  # cryptography delays the start

    return jwt


def _selector(claim: Any) -> LabelSelector:
    if claim is None:
        return LabelSelector()
    try:
        include, exclude = claim.get("include") or {}, claim.get("exclude") or {}
        selector = LabelSelector(
            tuple(_wanted(label) for label in include.get("labels") or ()),
            tuple(_wanted(label) for label in exclude.get("labels") or ()),
        )
        return selector_of_journals(selector)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AuthError(f"the token has an invalid selector {claim!r}") from None


def _wanted(label: dict[str, Any]) -> Wanted:
    return Wanted(str(label["name"]), str(label.get("value", "")), bool(label.get("prefix")))
