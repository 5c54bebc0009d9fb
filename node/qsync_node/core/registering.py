"""Registration: a replica that follows without an id asks the leader to register it (M2, M4)."""

from typing import TYPE_CHECKING

from qsync_node.core.membership import LEVEL
from qsync_node.core.messages import Register, RegisterReply
from qsync_node.core.stage import State

if TYPE_CHECKING:
    from qsync_node.core.applier import Applier


class Registering:
    """Registration requests, repeated until the local log contains the registration."""

    def __init__(self, applier: "Applier") -> None:
        self.applier = applier
        self.replica = applier.replica
        self._request = 0
        self._ask_at_ns = 0

    def tick(self) -> None:
        """Ask the leader for a registration if this instance still needs one (M2, M4)."""
        replica = self.replica
        if self.applier.is_anonymous or replica.replica_id or not replica.has_origin:
            return
        if replica.ballot.spaces:
            return  # a replica that does not hold all spaces is never registered (F3)
        leader = replica.election.leader_uuid
        if (
            self.applier.state is not State.FOLLOWING
            or not leader
            or replica.now_ns < self._ask_at_ns
        ):
            return
        self._ask_at_ns = replica.now_ns + replica.settings.election_timeout_ns
        self._request += 1
        settings = replica.settings
        replica.send_to(leader, Register(self._request, settings.name, settings.role, LEVEL))

    def on_reply(self, message: RegisterReply) -> None:
        replica = self.replica
        if message.request != self._request:
            return
        if message.code:
            self.applier.refused = message.reason
            replica.report("registration_refused", code=message.code, reason=message.reason)
            return
        # Registered replicas follow the leader's whole log, not only confirmed rows (L8).
        if self.applier.state is State.FOLLOWING:
            self.applier.retry_later()
            self.applier.retry_at_ns = 0
