"""The 128 bytes with which a server opens a connection.

Two lines of 64 bytes, padded with spaces: version and instance uuid, then the salt for the
password. Connectors choose their features by the version (2.11: ID, streams, watchers).
"""

import base64
import binascii
import re
from dataclasses import dataclass

GREETING_BYTES = 128
SALT_BYTES = 32
VERSION = "2.11.0"

_LINE = re.compile(
    rb"Tarantool (\d+\.\d+\.\d+)(?:-\S+)? \(Binary\) "
    rb"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}) *\n"
)


class GreetingError(ValueError):
    """The peer does not use IPROTO."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Version, uuid and salt of a server."""

    version: str
    instance_uuid: str
    salt: bytes


def encode_greeting(instance_uuid: str, salt: bytes, version: str = VERSION) -> bytes:
    assert len(salt) == SALT_BYTES, len(salt)
    first = f"Tarantool {version} (Binary) {instance_uuid}".encode()
    assert len(first) <= 63, first
    return first.ljust(63) + b"\n" + base64.b64encode(salt).ljust(63) + b"\n"


def decode_greeting(data: bytes) -> Greeting:
    """Decode a greeting.

    Raises:
        GreetingError: `data` is not a binary greeting of 128 bytes.
    """
    match = _LINE.fullmatch(data[:64])
    if match is None or len(data) != GREETING_BYTES or data[127:] != b"\n":
        raise GreetingError(f"not a Tarantool greeting: {data[:64]!r}")
    try:
        salt = base64.b64decode(data[64:127].rstrip(), validate=True)
    except binascii.Error as error:
        raise GreetingError(f"the salt is not base64: {error}") from None
    if len(salt) < 20:
        raise GreetingError(f"the salt has {len(salt)} bytes, but must have at least 20")
    return Greeting(match[1].decode(), match[2].decode().lower(), salt)
