"""Homes of streams: the leader that received the BEGIN of each open transaction (T10)."""

from collections.abc import Collection

from qsync_node.format.keys import Type
from qsync_node.transactions.calls import Call, CallHome, StreamOpening

REFUSED_MAX = 1000
"""Refused BEGINs that are remembered in addition to two for each request that waits."""


class StreamHomes:
    """The homes of this member's own sessions' streams.

    Attributes:
        refused_ns: when the last BEGIN of an unbound stream was refused, by session and stream.
    """

    def __init__(self) -> None:
        self._openings: dict[tuple[int, int], StreamOpening] = {}  # by session and stream
        self._streams_of: dict[int, set[int]] = {}  # by session: its streams that have a home
        self.refused_ns: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._openings)

    def of(self, call: Call) -> CallHome | None:
        """Return the home of the call's stream, or None if no transaction is open in it."""
        opening = self._openings.get((call.session, call.transaction))
        return opening.home if opening is not None else None

    def bind(self, call: Call, home: CallHome) -> None:
        """Bind the stream of a BEGIN to the leader that receives it."""
        assert (call.session, call.transaction) not in self._openings, (
            "K4: one leader a transaction"
        )
        self.refused_ns.pop((call.session, call.transaction), None)
        self._openings[call.session, call.transaction] = StreamOpening(home)
        self._streams_of.setdefault(call.session, set()).add(call.transaction)
        self.join(call)

    def join(self, call: Call) -> None:
        """Note that a request is part of its stream's open transaction."""
        opening = self._openings.get((call.session, call.transaction))
        if opening is None or call.opening is not None:
            return
        call.opening = opening
        if call.type == Type.BEGIN:
            opening.begins += 1

    def is_in_open_transaction(self, call: Call) -> bool:
        """Return whether no COMMIT or ROLLBACK has ended the transaction of a request here."""
        opening = call.opening
        return (
            opening is not None and self._openings.get((call.session, call.transaction)) is opening
        )

    def forget(self, call: Call) -> None:
        """Unbind the call's stream: its next request begins a transaction.

        A COMMIT that is executed again, after its first attempt, has done so before.
        """
        if call.opening is not None and not self.is_in_open_transaction(call):
            return
        self._openings.pop((call.session, call.transaction), None)
        streams = self._streams_of.get(call.session)
        if streams is not None:
            streams.discard(call.transaction)
            if not streams:
                del self._streams_of[call.session]

    def on_refused(self, call: Call, now_ns: int) -> None:
        """Unbind the stream of a refused BEGIN, unless another one in it was not refused."""
        if call.type != Type.BEGIN or call.link:
            return
        stream = call.session, call.transaction
        if call.opening is None:
            is_unbound = stream not in self._openings
        else:
            call.opening.begins -= 1
            is_unbound = not call.opening.begins and self.is_in_open_transaction(call)
        if is_unbound:
            self.forget(call)
            self.refused_ns[stream] = now_ns

    def is_refused_with_begin(self, call: Call) -> bool:
        """Return whether the client sent a request of an unbound stream for a refused BEGIN.

        It then arrived before that refusal. The refused transaction ends with COMMIT or ROLLBACK.
        """
        stream = call.session, call.transaction
        is_refused = call.arrived_ns <= self.refused_ns.get(stream, -1)
        if not is_refused or call.type in (Type.COMMIT, Type.ROLLBACK):
            self.refused_ns.pop(stream, None)
        return is_refused

    def keep_refused(self, calls: Collection[Call]) -> None:
        """Remember refused BEGINs only while requests wait.

        Args:
            calls: the requests that wait.
        """
        if len(self.refused_ns) > (2 * len(calls) + REFUSED_MAX if calls else 0):
            # Under load, requests may always wait, and most refused streams have none of them.
            waiting = {(call.session, call.transaction) for call in calls}
            for stream in self.refused_ns.keys() - waiting:
                del self.refused_ns[stream]

    def on_session_closed(self, session: int) -> None:
        for stream in self._streams_of.pop(session, ()):
            self._openings.pop((session, stream), None)
