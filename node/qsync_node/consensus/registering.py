"""Registration: a replica that follows without an id asks the leader to register it (M2, M4)."""

from qsync_node.consensus.context import Context
from qsync_node.consensus.election import Election
from qsync_node.consensus.messages import Register, RegisterReply
from qsync_node.consensus.source import Source, SourceState


class Registering:
    """Registration requests, repeated until the local log contains the registration."""

    def __init__(self, context: Context, source: Source, election: Election) -> None:
        self.context = context
        self.source = source
        self.election = election
        self._request = 0
        self._ask_at_ns = 0

    def tick(self) -> None:
        """Ask the leader for a registration if this instance still needs one (M2, M4)."""
        context = self.context
        if context.replica_id or not context.has_origin:
            return
        if context.ballot.spaces:
            return  # a replica that does not hold all spaces is never registered (F3)
        leader = self.election.leader_uuid
        if (
            self.source.state is not SourceState.FOLLOWING
            or not leader
            or context.now_ns < self._ask_at_ns
        ):
            return
        self._ask_at_ns = context.now_ns + context.settings.election_timeout_ns
        self._request += 1
        settings = context.settings
        context.send_to(
            leader, Register(self._request, settings.name, settings.role, settings.level)
        )

    def on_reply(self, message: RegisterReply) -> None:
        context = self.context
        if message.request != self._request:
            return
        if message.code:
            self.source.refused = message.reason
            context.report("registration_refused", code=message.code, reason=message.reason)
            return
        # Registered replicas follow the leader's whole log, not only confirmed rows (L8).
        if self.source.state is SourceState.FOLLOWING:
            self.source.retry_later()
            self.source.retry_at_ns = 0
