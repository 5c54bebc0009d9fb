"""The handshake of two members, without I/O (P1).

The opening end reads the greeting, and sends HELLO: its instance uuid, the replica set's uuid, and
a proof over the greeting's salt with the cluster's secret. The other end answers with its own proof
over the nonce in the HELLO. Until then, neither end accepts any other message. Both send their
addresses, and the accepting end names the members that it knows, so that one address is enough to
find all members.

    state of the connection   input                               result
    ------------------------  ----------------------------------  ----------------------------------
    GREETING                  less than a greeting                nothing
    GREETING                  the greeting of another member      HELLO; then SWITCHING
    GREETING                  anything else                       `HandshakeFailed`
    SWITCHING                 less than a packet                  nothing
    SWITCHING                 the right proof                     `Established`; then SWITCHED
    SWITCHING                 an error, a wrong proof, or more    `HandshakeFailed`
                              than `ANSWER_MAX` bytes

With TLS, a HELLO is accepted over TLS only, from an end whose certificate names the cluster
(`server/tls.py`). The proofs are bound to the connection (`format/proofs.py`). Earlier versions
prove the secret without a binding. Their proofs are always accepted from an end with such a
certificate, because an image may be rolled back. Two members that know bound proofs never exchange
unbound ones: the challenge reveals this capability. Without TLS a proof covers the challenge and
the identity. It shows knowledge of the secret and cannot be replayed, but does not protect later
data of the connection.
"""

import hmac
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from qsync_client.protocol.connection import ClientConnection, Ended, Opened, Switched
from qsync_client.protocol.constants import HelloKey, Key, Type
from qsync_client.protocol.greeting import Greeting
from qsync_node.consensus.membership import LEVEL
from qsync_node.errors import ErrorCode, QsyncError
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack
from qsync_node.format.proofs import certificate_binding, is_marked, peer_proof

HELLO: Final = int(Type.HELLO)
ANSWER_MAX = 1 << 16
"""Maximum size of the answer to a HELLO in bytes: its sender has proven nothing yet."""
WRONG_PROOF = "the proof of the cluster's secret is wrong; configure the same secret on all members"
_UUID, _REPLICASET = int(Key.INSTANCE_UUID), int(Key.REPLICASET_UUID)
_PROOF, _BOUND, _NONCE = int(HelloKey.PROOF), int(HelloKey.BOUND_PROOF), int(HelloKey.NONCE)
_LEVEL, _KNOWN, _INCARNATION = int(HelloKey.LEVEL), int(HelloKey.KNOWN), int(HelloKey.INCARNATION)
_REASON = int(Key.ERROR_24)


class HandshakeFailed(QsyncError):  # noqa: N818  # a decision: nothing is wrong with this member
    """The other end is no member of the cluster, or refuses this one; the text is the cause."""


class OwnAddress(HandshakeFailed):
    """The address is this member's own, as another member knows it."""


class HelloRefused(QsyncError):  # noqa: N818  # a decision: nothing is wrong with this member
    """A HELLO is not accepted.

    Attributes:
        code: the error code of the answer.
    """

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class PeerIdentity(NamedTuple):
    """One process of a member, as it introduces itself.

    Attributes:
        uuid: its instance uuid.
        replicaset_uuid: uuid of the replica set.
        secret: the cluster's secret.
        incarnation: random bytes of this process.
        has_certificate: whether it connects over TLS, and requires it.
        level: its feature level.
    """

    uuid: str
    replicaset_uuid: str
    secret: str
    incarnation: bytes
    has_certificate: bool
    level: int = LEVEL


class Established(NamedTuple):
    """The other end of a connection is a member.

    Attributes:
        uuid: its instance uuid.
        level: its feature level.
        incarnation: random bytes of its process; "" from earlier versions.
        known: addresses of members by name, unchecked.
        rest: received bytes after the handshake.
    """

    uuid: str
    level: int
    incarnation: bytes
    known: Any
    rest: bytes = b""


class Opening:
    """The opening end of one connection."""

    def __init__(
        self,
        me: PeerIdentity,
        target: str,
        nonce: bytes,
        own_address: dict[str, str],
        certificate: Callable[[], bytes],
    ) -> None:
        """Wait for the greeting.

        Args:
            me: this process.
            target: name of the member that is expected, for messages.
            nonce: random bytes.
            own_address: name and address of this member, if others can use the address.
            certificate: returns the certificate of the other end; used with TLS only.
        """
        self._me = me
        self._target = target
        self._nonce = nonce
        self._own_address = own_address
        self._certificate = certificate
        self._connection = ClientConnection(None, answer_max=ANSWER_MAX)
        self._peer_uuid = ""
        self._binding = b""  # of this connection, if both ends know bound proofs

    def receive(self, data: bytes) -> tuple[bytes, Established | None]:
        """Take received bytes.

        Returns:
            Bytes to send, and the result once the handshake has ended.

        Raises:
            HandshakeFailed: the connection must be closed.
        """
        found: Established | None = None
        for event in self._connection.receive(data):
            if isinstance(event, Opened):
                self._greeted(event.greeting)
            elif isinstance(event, Switched):
                found = self._answered(event)
            elif isinstance(event, Ended):
                raise HandshakeFailed(f"{self._target} {self._failure()}: {event.reason}")
        return self._connection.take_output(), found

    def _failure(self) -> str:
        return "failed the handshake" if self._peer_uuid else "is not a Qsync member"

    def _greeted(self, greeting: Greeting) -> None:
        me = self._me
        if greeting.instance_uuid == me.uuid:
            raise OwnAddress("the address leads to the member itself")
        self._peer_uuid = greeting.instance_uuid
        if me.has_certificate and is_marked(me.secret, greeting.salt):
            self._binding = certificate_binding(self._certificate())
        proof = peer_proof(me.secret, b"dial", greeting.salt, me.uuid, self._binding)
        fields = {
            _UUID: me.uuid,
            _REPLICASET: me.replicaset_uuid,
            _NONCE: self._nonce,
            _LEVEL: me.level,
            _KNOWN: self._own_address,
            _INCARNATION: me.incarnation,
            (_BOUND if self._binding else _PROOF): proof,
        }
        self._connection.switch(HELLO, fields)

    def _answered(self, answer: Switched) -> Established:
        try:
            fields = unpack(answer.body)
        except BAD_MSGPACK as error:
            raise HandshakeFailed(f"{self._target} sends an invalid packet: {error}") from None
        if not isinstance(fields, dict):
            raise HandshakeFailed(f"{self._target} sends a packet without a map")
        if answer.kind:
            raise HandshakeFailed(str(fields.get(_REASON, "refused")))
        proof = peer_proof(self._me.secret, b"accept", self._nonce, self._peer_uuid, self._binding)
        if not _is_same(fields.get(_BOUND if self._binding else _PROOF), proof):
            raise HandshakeFailed(f"{self._target}: {WRONG_PROOF}")
        return _established(self._peer_uuid, fields, answer.rest)


def answer_hello(
    me: PeerIdentity,
    known: dict[str, str],
    fields: dict[int, Any],
    *,
    salt: bytes,
    binding: bytes,
    is_member: bool,
) -> tuple[Established, bytes]:
    """Check the HELLO of a connection.

    Args:
        me: this process.
        known: addresses of the members that it knows, by name.
        fields: body of the HELLO.
        salt: the salt of the greeting on this connection.
        binding: hash of the certificate that this end has presented, b"" without TLS.
        is_member: whether the other end's certificate names the cluster.

    Returns:
        The other end, and the body of the answer.

    Raises:
        HelloRefused: the other end is no member of the cluster.
    """
    uuid, nonce = fields.get(_UUID), fields.get(_NONCE)
    given = fields.get(_BOUND, fields.get(_PROOF))
    # An end of an earlier version, authenticated by a certificate, sends only an unbound proof.
    binding = binding if _BOUND in fields else b""
    if not isinstance(uuid, str) or not isinstance(nonce, bytes) or not isinstance(given, bytes):
        raise HelloRefused(ErrorCode.PROTOCOL, "HELLO refused: it lacks a uuid, a nonce or a proof")
    if me.has_certificate and not is_member:
        raise HelloRefused(
            ErrorCode.ACCESS_DENIED,
            "HELLO refused: it requires TLS and a certificate for the cluster",
        )
    if not _is_same(given, peer_proof(me.secret, b"dial", salt, uuid, binding)):
        raise HelloRefused(ErrorCode.ACCESS_DENIED, f"HELLO refused: {WRONG_PROOF}")
    if fields.get(_REPLICASET) != me.replicaset_uuid:
        raise HelloRefused(
            ErrorCode.REPLICASET_UUID_MISMATCH,
            f"Replica set UUID mismatch: expected {me.replicaset_uuid}, "
            f"got {fields.get(_REPLICASET)}; configure the expected replicaset_uuid",
        )
    if uuid == me.uuid:
        raise HelloRefused(ErrorCode.CONNECTION_TO_SELF, "Connection to itself")
    answer = {
        _UUID: me.uuid,
        _LEVEL: me.level,
        _KNOWN: known,
        _INCARNATION: me.incarnation,
        (_BOUND if binding else _PROOF): peer_proof(me.secret, b"accept", nonce, me.uuid, binding),
    }
    return _established(uuid, fields), pack(answer)


def _established(uuid: str, fields: dict[int, Any], rest: bytes = b"") -> Established:
    level, incarnation = fields.get(_LEVEL, 1), fields.get(_INCARNATION)
    return Established(
        uuid,
        level if isinstance(level, int) else 1,
        incarnation if isinstance(incarnation, bytes) else b"",
        fields.get(_KNOWN),
        rest,
    )


def _is_same(given: object, expected: bytes) -> bool:
    return isinstance(given, bytes) and hmac.compare_digest(given, expected)
