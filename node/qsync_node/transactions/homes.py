"""Homes of streams: the leader that received the BEGIN of each open transaction (T10)."""

from qsync_node.transactions.calls import Call

CallHome = tuple[int, int]
"""A leader as this member knows it: the link to it, 0 for itself, and its term."""


class StreamHomes:
    """The homes of this member's own sessions' streams."""

    def __init__(self) -> None:
        self._homes: dict[tuple[int, int], CallHome] = {}  # by session and stream
        self._openings: dict[tuple[int, int], int] = {}  # the number of each one's BEGIN
        self._last_opening = 0
        self._streams_of: dict[int, set[int]] = {}  # by session: its streams that have a home

    def __len__(self) -> int:
        return len(self._homes)

    def of(self, call: Call) -> CallHome | None:
        """Return the home of the call's stream, or None if no transaction is open in it."""
        return self._homes.get((call.session, call.transaction))

    def bind(self, call: Call, home: CallHome) -> None:
        """Bind the stream of a BEGIN to the leader that receives it."""
        assert (call.session, call.transaction) not in self._homes, "K4: one leader a transaction"
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

    def forget_refused(self, call: Call) -> None:
        """Unbind the stream of a BEGIN that is refused, unless a later one has bound it again."""
        if call.opening and self._openings.get((call.session, call.transaction)) == call.opening:
            self.forget(call)

    def on_session_closed(self, session: int) -> None:
        for stream in self._streams_of.pop(session, ()):
            self._homes.pop((session, stream), None)
            self._openings.pop((session, stream), None)
