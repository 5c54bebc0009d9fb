"""The common ground of the components of transactions: consensus, state, requests in hand."""

from qsync_node.consensus.context import Context
from qsync_node.consensus.replica import Replica
from qsync_node.transactions.answers import Answers
from qsync_node.transactions.budget import Budget
from qsync_node.transactions.callqueue import CallQueue
from qsync_node.transactions.homes import StreamHomes
from qsync_node.transactions.state import StatementState
from qsync_node.transactions.users import Users


class Shared:
    """One per node.

    Attributes:
        context: identity, clock, log and effects of the replica.
        replica: its consensus.
        state: confirmed and pending state.
        queue: requests that wait until they can run, in order.
        homes: the leaders of open transactions.
        answers: requests without an answer.
        budget: the work of the step.
        users: the users of requests.
        counters: requests by type, since the start.
    """

    def __init__(self, context: Context, replica: Replica, state: StatementState) -> None:
        self.context = context
        self.replica = replica
        self.state = state
        self.queue = CallQueue()
        self.homes = StreamHomes()
        self.answers = Answers(context, self.homes)
        self.budget = Budget(context, state)
        self.users = Users(state)
        self.counters: dict[str, int] = {}
