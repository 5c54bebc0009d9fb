"""Requests that other members forward to this one, on the leader (T10).

Their streams belong to the link and the session of the member that forwards them. The request of an
earlier term's transaction fails, because the transaction ended with that term.
"""

from qsync_node.consensus.effects import Request
from qsync_node.consensus.membership import REMOVED_REASON
from qsync_node.consensus.messages import Forward, ForwardClosed, ForwardReply
from qsync_node.errors import ErrorCode
from qsync_node.transactions.calls import Call
from qsync_node.transactions.clients import Clients
from qsync_node.transactions.shared import Shared


class Forwarded:
    """The receiving end of `Forwarding`."""

    def __init__(self, shared: Shared, clients: Clients) -> None:
        self.context = shared.context
        self.replica = shared.replica
        self.answers = shared.answers
        self.clients = clients

    def on_request(self, link: int, message: Forward) -> None:
        """Take a request, or refuse it: it is forwarded once only."""
        item = Request(
            message.session,
            message.request,
            message.type,
            message.body,
            message.stream,
            message.user,
            message.key,
        )
        call = Call(item, self.context.now_ns)
        call.link = link
        if self.replica.leader is None:
            reason = (
                "the request was not logged: it was forwarded to a member that does not lead; retry"
            )
            self.answers.reply(call, int(ErrorCode.NOT_LEADER), reason, [], 0)
            return
        if message.stream and message.term != self.context.term:
            # Sent to an earlier term's leader: the transaction ended with that term.
            code = int(ErrorCode.TRANSACTION_CONFLICT)
            reason = (
                "Transaction has been aborted by conflict: its leader lost leadership; "
                "roll it back and run it again from BEGIN"
            )
            self.answers.reply(call, code, reason, [], 0)
            return
        self.clients.take(call)

    def on_closed(self, link: int, message: ForwardClosed) -> None:
        """End a session that its member closed."""
        self.clients.on_owner_closed((link, message.session))

    def refuse_removed(self, link: int, message: Forward) -> None:
        """Refuse a request that a removed instance forwards: its client must not wait (K1)."""
        code = int(ErrorCode.UNKNOWN_REPLICA)
        self.context.send(link, ForwardReply(message.request, code, REMOVED_REASON, [], 0, b""))
