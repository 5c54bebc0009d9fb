"""The sending side of a stream: one relay for each follower that asked for rows.

Theory. A relay knows the index it has sent up to, and nothing about quorums. Registered replicas
get the log as it grows, from their leader only. All others get confirmed rows, from any member (L8,
L7), and so does a voter while a pending row ends its vote (M2). Rows come from memory while the
follower keeps up and from disk otherwise. The bytes that are sent and not yet acknowledged are
bounded (T11). The frames hold the bytes of the log itself (L9).

A list of spaces in SUBSCRIBE applies to its connection until the next SUBSCRIBE. Rows of other user
spaces are sent as NOPs, and snapshots omit their tuples (spaces.py).

Invariants

  S1  Rows are sent contiguously after `Follow.log_index`, at which both logs have the same term.
  S2  An unregistered subscriber never gets a row after the confirmed index.
  S3  Each peer has one relay: a newer subscription replaces the older one, and never the reverse,
      although peers have two connections, of which either may be slower.
"""

from collections import deque
from collections.abc import Iterator

from qsync_node.consensus import effects as fx
from qsync_node.consensus.context import Context
from qsync_node.consensus.filtering import NEEDS_EVERYTHING, keep_spaces, refusal_to_serve
from qsync_node.consensus.interfaces import Transitions
from qsync_node.consensus.messages import Ack, Follow, Histories, Refusal, Rows, Subscribe
from qsync_node.consensus.source import Source
from qsync_node.errors import ErrorCode
from qsync_node.format.batch import LogBatch, cut_batch

_ALL: frozenset[int] = frozenset()


class Relay:
    """State of one subscriber's stream."""

    __slots__ = (
        "_in_flight",
        "acked_index",
        "bytes_in_flight",
        "confirmed_sent",
        "is_reading",
        "link",
        "number",
        "peer_uuid",
        "sent_index",
        "spaces",
        "subscription",
        "term",
    )

    def __init__(
        self, number: int, link: int, peer_uuid: str, follow: Follow, spaces: frozenset[int]
    ) -> None:
        self.number = number
        self.link = link
        self.peer_uuid = peer_uuid
        self.subscription = follow.subscription
        self.spaces = spaces
        self.term = follow.term
        self.sent_index = follow.log_index
        self.acked_index = 0
        self.confirmed_sent = -1
        self.is_reading = False
        self.bytes_in_flight = 0
        self._in_flight: deque[tuple[int, int]] = deque()

    def sent(self, batches: list[LogBatch]) -> None:
        size = sum(len(batch.data) for batch in batches)
        assert batches[-1].last_index > self.sent_index, "S1: a stream only moves forward"
        self.sent_index = batches[-1].last_index
        self.bytes_in_flight += size
        self._in_flight.append((self.sent_index, size))

    def acked(self, index: int) -> None:
        self.acked_index = max(self.acked_index, index)
        while self._in_flight and self._in_flight[0][0] <= index:
            self.bytes_in_flight -= self._in_flight.popleft()[1]
        assert self.bytes_in_flight >= 0, "T11: each row frees the window once"


class Relays:
    """All streams that leave this node."""

    def __init__(self, context: Context, source: Source, transitions: Transitions) -> None:
        self.context = context
        self.source = source
        self.transitions = transitions
        self.by_peer: dict[str, Relay] = {}
        self.by_number: dict[int, Relay] = {}
        self._lists: dict[int, frozenset[int]] = {}  # by link, for peers that asked for a list
        self._next_number = 1

    def list_of(self, link: int) -> frozenset[int]:
        """Return the ids of the spaces that this link's peer asked for; empty for all."""
        return self._lists.get(link, _ALL)

    # --- handshake ----------------------------------------------------------------------------

    def on_subscribe(self, link: int, uuid: str, message: Subscribe) -> None:
        context = self.context
        if message.term > context.term and not context.is_removed(uuid):
            self.transitions.adopt_term(message.term)
        refusal = self._refusal(uuid, message)
        if refusal is not None:
            code, reason = refusal
            context.send(link, Refusal(message.subscription, context.term, code, reason))
            return
        self._lists.pop(link, None)
        if message.spaces:
            self._lists[link] = frozenset(message.spaces)
        tail = context.tail
        context.send(
            link,
            Histories(
                message.subscription,
                context.term,
                list(tail.history.starts),
                tail.last_index,
                tail.first_available_index,
                context.limbo.confirmed_index,
                context.is_leading,
            ),
        )

    def _refusal(self, uuid: str, message: Subscribe) -> tuple[int, str] | None:
        context = self.context
        if uuid == context.uuid:
            return int(ErrorCode.CONNECTION_TO_SELF), "the connection leads to the member itself"
        if context.is_removed(uuid):
            return int(ErrorCode.UNKNOWN_REPLICA), (
                f"instance {uuid} was removed: join as a new instance with an empty directory"
            )
        if context.is_stopped or self.source.is_replacing_log or not context.has_origin:
            return int(ErrorCode.LOADING), (
                "the member cannot serve rows: it is joining, is replacing its log or has "
                "stopped (split brain, or the feature level of a later version)"
            )
        is_registered = context.configuration.by_uuid(uuid) is not None
        if is_registered and not context.is_leading:
            return int(ErrorCode.NOT_LEADER), (
                "the member does not lead: a registered replica follows the leader only"
            )
        if message.spaces and (is_registered or not message.is_anonymous):
            return int(ErrorCode.UNSUPPORTED), NEEDS_EVERYTHING
        reason = refusal_to_serve(context.ballot.spaces, message.spaces)
        return (int(ErrorCode.UNSUPPORTED), reason) if reason else None

    def on_follow(self, link: int, uuid: str, message: Follow) -> bool:
        """Begin a stream; return whether it began."""
        context = self.context
        tail = context.tail
        known = self.by_peer.get(uuid)
        if known is not None and message.subscription < known.subscription:
            # It was sent earlier, over a slower connection. Both are of one process, because the
            # links to earlier processes of a peer are closed before it can send anything.
            return False
        refusal: tuple[int, str] | None = None
        is_registered = context.configuration.by_uuid(uuid) is not None
        spaces = self.list_of(link)
        lacking = refusal_to_serve(context.ballot.spaces, spaces)
        if is_registered and (not context.is_leading or message.term != context.term):
            refusal = int(ErrorCode.NOT_LEADER), "the member does not lead the term of the request"
        elif is_registered and spaces:
            refusal = int(ErrorCode.UNSUPPORTED), NEEDS_EVERYTHING
        elif lacking:
            refusal = int(ErrorCode.UNSUPPORTED), lacking
        elif (
            message.log_index > tail.last_index
            or tail.term_at(message.log_index) != message.index_term
        ):
            refusal = int(ErrorCode.XLOG_GAP), "the logs differ at the requested index"
        elif message.log_index + 1 < tail.first_available_index:
            refusal = (
                int(ErrorCode.XLOG_GAP),
                ("the member no longer has the rows after the requested index"),
            )
        if refusal is not None:
            context.send(link, Refusal(message.subscription, context.term, *refusal))
            return False
        self._drop(uuid)
        relay = Relay(self._next_number, link, uuid, message, spaces)
        self._next_number += 1
        self.by_peer[uuid] = relay
        self.by_number[relay.number] = relay
        context.is_relay_due = True
        return True

    # --- streaming ----------------------------------------------------------------------------

    def pump(self) -> None:
        """Send each replica the rows that it may receive now; called once per step."""
        if not self.context.is_relay_due:
            return
        self.context.is_relay_due = False
        for relay in list(self.by_number.values()):
            self._pump_one(relay)

    def _limit(self, relay: Relay) -> int:
        context = self.context
        if context.is_leading and self._gets_pending_rows(relay.peer_uuid):
            return context.tail.last_index
        return context.limbo.confirmed_index

    def _gets_pending_rows(self, uuid: str) -> bool:
        """Return whether an instance gets rows before they are confirmed (L8, M2).

        A voter that alone had the row that ends its vote could block elections: it would refuse its
        vote to shorter logs, and could not stand itself.
        """
        context = self.context
        now = context.configuration.by_uuid(uuid)
        confirmed = context.confirmed_configuration.by_uuid(uuid)
        if uuid in context.ballot.forced_voters:
            return True  # its ACKs confirm the rows (E11)
        ends_vote = confirmed is not None and confirmed.is_voting
        return now is not None and (now.is_voting or not ends_vote)

    def _pump_one(self, relay: Relay) -> None:
        context = self.context
        tail = context.tail
        limit = self._limit(relay)
        window = context.settings.relay_window_bytes
        chunk = context.settings.relay_chunk_bytes
        while relay.sent_index < limit and relay.bytes_in_flight < window and not relay.is_reading:
            batches = tail.batches_after(relay.sent_index, chunk)
            if batches is None:
                if relay.sent_index >= tail.durable_index:
                    break  # the next rows are in the log once they are durable
                relay.is_reading = True
                context.out.append(fx.ReadLog(relay.number, relay.sent_index, chunk))
                break
            if not self._send(relay, batches, limit):
                break
        confirmed = context.limbo.confirmed_index
        if relay.confirmed_sent < confirmed and not relay.is_reading:
            self._send_rows(relay, [])

    def _send(self, relay: Relay, batches: list[LogBatch], limit: int) -> bool:
        """Send rows up to `limit`, where a transaction ends; return False if there are none (S2).

        A batch from a file may hold unconfirmed rows: those after `limit` wait. A block of a file
        may exceed the maximum size of a frame: it is then sent in several frames.
        """
        ready: list[LogBatch] = []
        for batch in batches:
            if batch.first_index > limit:
                break
            ready.append(batch if batch.last_index <= limit else cut_batch(batch, limit)[0])
        if not ready:
            return False
        assert ready[-1].last_index <= limit, "L8: the receiver may have these rows"
        if relay.spaces:
            ready = [keep_spaces(batch, relay.spaces) for batch in ready]
        for part in in_frames(ready, self.context.settings.relay_chunk_bytes):
            self._send_rows(relay, part)
        return True

    def _send_rows(self, relay: Relay, batches: list[LogBatch]) -> None:
        context = self.context
        confirmed = context.limbo.confirmed_index
        previous = relay.sent_index
        term = context.tail.term_at(previous)
        rows = Rows(relay.subscription, relay.term, previous, term, confirmed, batches)
        if batches:
            assert batches[0].first_index == previous + 1, "S1: sent batches are contiguous"
            relay.sent(batches)
        relay.confirmed_sent = confirmed
        context.send(relay.link, rows)

    def on_log_read(self, number: int, batches: list[LogBatch] | None) -> None:
        relay = self.by_number.get(number)
        if relay is None or not relay.is_reading:
            return
        relay.is_reading = False
        if batches is None:
            # The rows were removed meanwhile: the subscriber starts over and uses a snapshot.
            reason = "the member no longer has the rows after the requested index"
            code = int(ErrorCode.XLOG_GAP)
            self.context.send(relay.link, Refusal(relay.subscription, relay.term, code, reason))
            self._drop(relay.peer_uuid)
            return
        if batches and batches[0].first_index == relay.sent_index + 1:
            self._send(relay, batches, self._limit(relay))
        self.context.is_relay_due = True

    def on_ack(self, uuid: str, message: Ack) -> bool:
        """Free the window of a stream; return whether the ACK belongs to a stream that is open."""
        relay = self.by_peer.get(uuid)
        if relay is None or relay.subscription != message.subscription:
            return False
        relay.acked(message.log_index)
        self.context.is_relay_due = True
        return True

    # --- ends ---------------------------------------------------------------------------------

    def _drop(self, uuid: str) -> None:
        relay = self.by_peer.pop(uuid, None)
        if relay is not None:
            del self.by_number[relay.number]

    def on_link_down(self, link: int) -> None:
        self._lists.pop(link, None)
        for relay in list(self.by_number.values()):
            if relay.link == link:
                self._drop(relay.peer_uuid)

    def close_all(self, reason: str) -> None:
        """End all streams because the log was truncated or replaced (L6).

        Each subscriber then compares histories again.
        """
        for relay in list(self.by_number.values()):
            code = int(ErrorCode.XLOG_GAP)
            self.context.send(relay.link, Refusal(relay.subscription, relay.term, code, reason))
            self._drop(relay.peer_uuid)


def in_frames(batches: list[LogBatch], bytes_max: int) -> Iterator[list[LogBatch]]:
    """Yield `batches` in order, in lists of at most `bytes_max` bytes, or of one larger batch."""
    part: list[LogBatch] = []
    size = 0
    for batch in batches:
        if part and size + len(batch.data) > bytes_max:
            yield part
            part, size = [], 0
        part.append(batch)
        size += len(batch.data)
    yield part
