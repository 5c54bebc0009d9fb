"""Limits of the leader: whether writes are logged at all (T11, D5, M1)."""

from qsync_node.consensus.replica import Replica
from qsync_node.engine import publishing
from qsync_node.engine.requests import DataRequest, Delete
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.journals import KEY_SPACES
from qsync_node.transactions.answers import Answers
from qsync_node.transactions.calls import Call
from qsync_node.transactions.commits import Commits
from qsync_node.transactions.registrar import Registrar
from qsync_node.transactions.state import StatementState


def takes_memory(request: DataRequest | publishing.Procedure) -> bool:
    """Return whether the memory limit refuses a write.

    It refuses none that deletes rows or publications, until others fit again. It refuses none to
    the key space of journals either: this is small, and without its lease each broker would stop.
    """
    if isinstance(request, publishing.PROCEDURES):
        return isinstance(request, publishing.Publish)
    return not isinstance(request, Delete) and request.space_id not in KEY_SPACES


class WriteLimits:
    """The reason for which this leader logs no write, looked up once per batch."""

    def __init__(
        self,
        replica: Replica,
        state: StatementState,
        answers: Answers,
        commits: Commits,
        registrar: Registrar,
    ) -> None:
        self.replica = replica
        self.context = replica.context
        self.state = state
        self.answers = answers
        self.commits = commits
        self.registrar = registrar
        self._refusal: ClientError | None = None

    def refresh(self) -> None:
        """Find out whether writes may be logged now."""
        self._refusal = None
        try:
            self._check_limits()
        except ClientError as error:
            self._refusal = error

    def is_refused(self, call: Call, *, takes_memory: bool) -> bool:
        """Return whether a limit of the leader refused the call before logging (T11, D5).

        The answer does not depend on pending rows, so it waits for none of them.

        Args:
            call: a write outside a transaction, or a COMMIT.
            takes_memory: see the function of that name; of a transaction, any of its writes.
        """
        refusal = self._refusal
        if refusal is None:
            return False
        if refusal.code == ErrorCode.MEMORY_ISSUE and not takes_memory:
            return False
        self.answers.refuse(call, refusal.code, refusal.message)
        return True

    def _check_limits(self) -> None:
        context = self.context
        settings, limbo = context.settings, context.limbo
        if context.is_space_low:
            raise ClientError(
                ErrorCode.DISK_FULL,
                "the write was not logged: the leader's disk is nearly full; free space "
                "on it, then retry",
            )
        if self.replica.election.is_read_only:
            raise ClientError(
                ErrorCode.READONLY,
                "the write was not logged: the leader is read-only until another member can "
                "lead; retry",
            )
        self.registrar.check_open()
        full = limbo.bytes + self.commits.batch_bytes > settings.limbo_bytes_max
        if full or len(limbo) > settings.limbo_entries_max:
            raise ClientError(
                ErrorCode.SYNC_QUEUE_FULL,
                "the write was not logged: the queue of unconfirmed transactions is "
                "full; retry later",
            )
        if limbo.oldest_wait_ns(context.now_ns) > settings.synchro_timeout_ns // 2:
            raise ClientError(
                ErrorCode.SYNC_QUEUE_FULL,
                "the write was not logged: the quorum confirms transactions more slowly "
                "than they arrive; retry later",
            )
        # The last check: a request that takes no memory must pass all others.
        memory_bytes = self.state.database.memory_bytes
        if settings.memory_bytes_max and memory_bytes > settings.memory_bytes_max:
            raise ClientError(
                ErrorCode.MEMORY_ISSUE,
                "the write was not logged: the memory limit is reached; delete rows or "
                "raise `memory`",
            )
