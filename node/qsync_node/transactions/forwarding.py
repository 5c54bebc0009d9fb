"""Forwarded writes: a member that does not lead sends them to the leader and answers them (T10).

Theory. A member forwards a request over its connection to the leader, with the user's name; the
leader checks that user's rights. The answer waits here until this member's confirmed index covers
the write, so that its client can read the write. Past a deadline the answer is sent anyway, because
the write is committed however far this member lags. A lost link means *unknown* for a request that
may have been logged. A request is forwarded once: its receiver serves or refuses it.
"""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.membership import Configuration
from qsync_node.consensus.messages import Forward, ForwardClosed, ForwardReply
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import Type
from qsync_node.transactions.calls import Call
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.stages import RequestStage

COVER_DEADLINE_HEARTBEATS = 5


class Outgoing:
    """A request that was forwarded to the leader."""

    __slots__ = ("call", "deadline_ns", "link", "reply")

    def __init__(self, call: Call, link: int) -> None:
        self.call = call
        self.link = link
        self.reply: ForwardReply | None = None
        self.deadline_ns = 0


class Forwarding:
    """Requests of this member's clients at the leader."""

    def __init__(self, shared: Shared) -> None:
        self.context = shared.context
        self.replica = shared.replica
        self.queue = shared.queue
        self.answers = shared.answers
        self.homes = shared.homes
        self.outgoing: dict[int, Outgoing] = {}
        self._numbers: dict[int, set[int]] = {}  # of outgoing requests, by session
        self.covering: list[int] = []
        self._next = 1
        self._bound: dict[int, set[int]] = {}  # links with forwarded streams, by session
        self._configuration: Configuration | None = None  # the one seen last

    def can_forward(self) -> bool:
        context = self.context
        replica = self.replica
        uuid = replica.election.leader_uuid
        return bool(uuid) and uuid != context.uuid and context.link_to(uuid) is not None

    def home(self) -> tuple[int, int]:
        """Return the home of a stream that is forwarded now: the link and the leader's term."""
        context = self.context
        replica = self.replica
        link = context.link_to(replica.election.leader_uuid)
        return (link.number if link is not None else -1), context.term

    def forward(self, call: Call) -> None:
        context = self.context
        replica = self.replica
        link = context.link_to(replica.election.leader_uuid)
        assert link is not None, "T10: the leader is connected"
        assert replica.leader is None, "T10: a leader runs its requests itself"
        assert not call.link, "T10: a request is forwarded once"
        number = self._send(link.number, call)
        self.outgoing[number] = Outgoing(call, link.number)
        self._numbers.setdefault(call.session, set()).add(number)
        call.forwarded = number
        call.become(RequestStage.FORWARDED)
        if call.transaction:
            self._bound.setdefault(call.session, set()).add(link.number)
        if call.type == Type.COMMIT and call.opening is not None:
            call.opening.is_committing = True

    def _send(self, link: int, call: Call) -> int:
        """Send a request to the leader, and return its number there."""
        number = self._next
        self._next += 1
        self.context.send(
            link,
            Forward(
                number,
                call.user,
                call.type,
                call.body,
                call.session,
                call.transaction,
                call.wire_key,
                self.context.term,
            ),
        )
        return number

    def on_reply(self, link: int, reply: ForwardReply) -> None:
        outgoing = self.outgoing.get(reply.request)
        if outgoing is None or outgoing.link != link or outgoing.reply is not None:
            return
        assert not outgoing.call.is_done, "T11: an answered request is not kept"
        outgoing.reply = reply
        context = self.context
        if reply.code == ErrorCode.NOT_LEADER and not outgoing.call.transaction:
            # The leader logged nothing: wait for the next one.
            self._forget(reply.request)
            self.queue.append(outgoing.call)
            return
        if reply.code or reply.log_index <= context.limbo.confirmed_index:
            self._finish(reply.request, outgoing)
            return
        outgoing.deadline_ns = (
            context.now_ns + COVER_DEADLINE_HEARTBEATS * context.settings.heartbeat_ns
        )
        self.covering.append(reply.request)

    def _forget(self, number: int) -> Outgoing | None:
        """Expect no answer to a request, and return it; None if none is expected."""
        outgoing = self.outgoing.pop(number, None)
        if outgoing is not None:
            numbers = self._numbers[outgoing.call.session]
            numbers.discard(number)
            if not numbers:
                del self._numbers[outgoing.call.session]
        return outgoing

    def _finish(self, number: int, outgoing: Outgoing) -> None:
        self._forget(number)
        reply = outgoing.reply
        assert reply is not None
        is_covered = reply.log_index <= self.context.limbo.confirmed_index
        is_late = 0 < outgoing.deadline_ns <= self.context.now_ns
        assert reply.code or is_covered or is_late, "T10: the client can read its own write"
        if reply.code:
            self.answers.refuse(outgoing.call, reply.code, reply.reason, reply.log_index)
        else:
            outgoing.call.position = reply.position or None
            self.answers.answer(outgoing.call, reply.tuples, reply.log_index)

    def on_confirmed(self) -> None:
        """Send the answers that the confirmed index now covers.

        Their clients can then read their own writes here.
        """
        self._leave_removed()
        if not self.covering:
            return
        confirmed = self.context.limbo.confirmed_index
        waiting = []
        for number in self.covering:
            outgoing = self.outgoing.get(number)
            if outgoing is None or outgoing.reply is None:
                continue
            if outgoing.reply.log_index <= confirmed:
                self._finish(number, outgoing)
            else:
                waiting.append(number)
        self.covering = waiting

    def tick(self) -> None:
        if not self.covering:
            return
        now = self.context.now_ns
        covering, self.covering = self.covering, []
        for number in covering:
            outgoing = self.outgoing.get(number)
            if outgoing is None:
                continue
            if now >= outgoing.deadline_ns:
                self._finish(number, outgoing)
            else:
                self.covering.append(number)

    def _leave_removed(self) -> None:
        """Wait no longer for a leader that was removed: its messages are ignored (M5)."""
        context = self.context
        configuration = context.confirmed_configuration
        if configuration is self._configuration:
            return
        self._configuration = configuration
        for number in {outgoing.link for outgoing in self.outgoing.values()}:
            link = context.links.get(number)
            if link is not None and link.peer_uuid in configuration.removed:
                self._leave(number, "the leader was removed from the cluster")

    def on_link_down(self, link: int) -> None:
        self._leave(link, "the link to the leader broke")

    def _leave(self, link: int, cause: str) -> None:
        """Answer the requests that were forwarded over a link whose leader will not answer."""
        for number, outgoing in list(self.outgoing.items()):
            if outgoing.link != link:
                continue
            if outgoing.reply is not None:
                continue
            self._forget(number)
            self._answer_lost(outgoing.call, cause)
        for session, links in list(self._bound.items()):
            links.discard(link)
            if not links:
                del self._bound[session]

    def _answer_lost(self, call: Call, cause: str) -> None:
        """Answer a forwarded request without the leader's answer (T10).

        The leader may have logged a write or a COMMIT, so its outcome is unknown, and that of each
        statement that the COMMIT repeats. Other requests log nothing, and the leader ends the
        transactions of a lost link.
        """
        is_committing = call.opening is not None and call.opening.is_committing
        if call.may_be_logged or is_committing:
            self.answers.refuse(
                call,
                ErrorCode.OUTCOME_UNKNOWN,
                f"the outcome is unknown: {cause}; read the data before you retry",
            )
        elif call.type == Type.ROLLBACK:
            self.answers.answer(call, [])
        elif call.transaction:
            self.answers.refuse(
                call,
                ErrorCode.TRANSACTION_CONFLICT,
                f"Transaction has been aborted by conflict: {cause}; "
                "roll it back and run it again from BEGIN",
            )
        else:
            self.answers.refuse(
                call, ErrorCode.NOT_LEADER, f"the request was not logged: {cause}; retry"
            )

    def on_expired(self, calls: list[Call]) -> None:
        """Forget requests whose deadline has passed; the leader's late answers are ignored (G3).

        Whether an expired statement has run there is unknown, so its transaction ends there, and
        its next requests fail. That of an expired BEGIN is not open here. Neither concerns the
        next transaction of the stream, if the end of this one was forwarded already. An expired
        ROLLBACK is such an end.
        """
        for call in calls:
            expired = self._forget(call.forwarded)
            if expired is None or call.may_be_logged:
                continue
            if self.homes.is_in_open_transaction(call):
                self.roll_back(call, expired.link)

    def roll_back(self, call: Call, link: int) -> None:
        """End the transaction of the call's stream at the leader of a link, if the link lives."""
        if link not in self.context.links:
            return
        kind, stream = int(Type.ROLLBACK), call.transaction
        request = fx.Request(call.session, call.sync, kind, b"", stream, call.user, None)
        self._send(link, Call(request, self.context.now_ns))

    def on_session_closed(self, session: int) -> None:
        """Report to each leader of a session's streams that the session has closed (T10).

        A leader answers none of its requests that still wait there.
        """
        links = self._bound.pop(session, ())
        for link in sorted(links):
            if link in self.context.links:
                self.context.send(link, ForwardClosed(session))
        for number in sorted(self._numbers.get(session, ())):
            outgoing = self.outgoing[number]
            if outgoing.link in links and outgoing.reply is None:
                self._forget(number)
                self.answers.drop(outgoing.call)
