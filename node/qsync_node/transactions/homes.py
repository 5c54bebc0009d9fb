"""Homes of streams: the leader that received the BEGIN of each open transaction (T10)."""

from collections.abc import Collection

from qsync_node.format.keys import Type
from qsync_node.transactions.calls import Call

CallHome = tuple[int, int]
"""A leader as this member knows it: the link to it, 0 for itself, and its term."""
REFUSED_MAX = 1000
"""Refused BEGINs that are remembered in addition to two for each request that waits."""


class StreamHomes:
    """The homes of this member's own sessions' streams."""

    def __init__(self) -> None:
        self._homes: dict[tuple[int, int], CallHome] = {}  # by session and stream
        self._openings: dict[tuple[int, int], int] = {}  # the number of each one's BEGIN
        self._last_opening = 0
        self._streams_of: dict[int, set[int]] = {}  # by session: its streams that have a home
        self._refused_ns: dict[tuple[int, int], int] = {}  # when the last BEGIN was refused

    def __len__(self) -> int:
        return len(self._homes)

    def of(self, call: Call) -> CallHome | None:
        """Return the home of the call's stream, or None if no transaction is open in it."""
        return self._homes.get((call.session, call.transaction))

    def bind(self, call: Call, home: CallHome) -> None:
        """Bind the stream of a BEGIN to the leader that receives it."""
        assert (call.session, call.transaction) not in self._homes, "K4: one leader a transaction"
        self._refused_ns.pop((call.session, call.transaction), None)
        self._last_opening += 1
        call.opening = self._last_opening
        self._homes[call.session, call.transaction] = home
        self._openings[call.session, call.transaction] = call.opening
        self._streams_of.setdefault(call.session, set()).add(call.transaction)

    def forget(self, call: Call) -> None:
        """Unbind the call's stream: its next request begins a transaction."""
        self._homes.pop((call.session, call.transaction), None)
        self._openings.pop((call.session, call.transaction), None)
        streams = self._streams_of.get(call.session)
        if streams is not None:
            streams.discard(call.transaction)
            if not streams:
                del self._streams_of[call.session]

    def on_refused(self, call: Call, now_ns: int) -> None:
        """Unbind the stream of a BEGIN that is refused, unless a later one has bound it again."""
        if call.type != Type.BEGIN or call.link:
            return
        stream = call.session, call.transaction
        if call.opening and self._openings.get(stream) == call.opening:
            self.forget(call)
        if stream not in self._homes:
            self._refused_ns[stream] = now_ns

    def is_refused_with_begin(self, call: Call) -> bool:
        """Return whether the client sent a request of an unbound stream for a refused BEGIN.

        It then arrived before that refusal. The refused transaction ends with COMMIT or ROLLBACK.
        """
        stream = call.session, call.transaction
        is_refused = call.arrived_ns <= self._refused_ns.get(stream, -1)
        if not is_refused or call.type in (Type.COMMIT, Type.ROLLBACK):
            self._refused_ns.pop(stream, None)
        return is_refused

    def keep_refused(self, calls: Collection[Call]) -> None:
        """Remember refused BEGINs only while requests wait.

        Args:
            calls: the requests that wait.
        """
        if len(self._refused_ns) > (2 * len(calls) + REFUSED_MAX if calls else 0):
            # Under load, requests may always wait, and most refused streams have none of them.
            waiting = {(call.session, call.transaction) for call in calls}
            for stream in self._refused_ns.keys() - waiting:
                del self._refused_ns[stream]

    def on_session_closed(self, session: int) -> None:
        for stream in self._streams_of.pop(session, ()):
            self._homes.pop((session, stream), None)
            self._openings.pop((session, stream), None)
