"""chap-sha1: proves that a client knows the password, without transmitting the password.

With `s1 = sha1(password)` and `s2 = sha1(s1)` the server stores base64(s2). The client sends
`s1 XOR sha1(salt[:20] + s2)`. The server reverses the XOR, hashes the result once, and compares it
with s2.
"""

import base64
import binascii
import hashlib
import hmac

MECHANISM = "chap-sha1"
SCRAMBLE_BYTES = 20


def _sha1(*parts: bytes) -> bytes:
    return hashlib.sha1(b"".join(parts), usedforsecurity=False).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def stored_hash(password: str) -> str:
    """Return the value that `_user` stores under `chap-sha1`."""
    return base64.b64encode(_sha1(_sha1(password.encode()))).decode()


EMPTY_HASH = stored_hash("")


def scramble(password: str, salt: bytes) -> bytes:
    """Return the client's proof of `password` for the `salt` of a greeting, 20 bytes."""
    first = _sha1(password.encode())
    return _xor(first, _sha1(salt[:20], _sha1(first)))


def is_valid(answer: object, salt: bytes, stored: str) -> bool:
    """Return whether `answer` (str from C connectors, bin from Python ones) proves the password.

    A str arrives decoded with `surrogateescape`, or as bytes.
    """
    if isinstance(answer, str):
        answer = answer.encode("utf-8", "surrogateescape")
    if not isinstance(answer, bytes) or len(answer) != SCRAMBLE_BYTES:
        return False
    try:
        second = base64.b64decode(stored, validate=True)
    except binascii.Error:
        return False
    if len(second) != SCRAMBLE_BYTES:
        return False
    first = _xor(answer, _sha1(salt[:20], second))
    return hmac.compare_digest(_sha1(first), second)
