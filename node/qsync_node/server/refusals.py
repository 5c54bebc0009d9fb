"""Refused handshakes with other members: their number, and the lines of the log about them.

A member dials an address up to every `RETRY_MAX_S`, and anyone can send a HELLO. Hence one kind of
refusal is logged at once, and then at most once per `REPEAT_S`.
"""

from collections.abc import Hashable, Set

from qsync_node.server.logs import Log

REPEAT_S = 60.0
"""Time until a refusal is logged again, in seconds."""
KINDS_MAX = 64
"""Maximum number of kinds of one end that are counted apart within `REPEAT_S`."""
REASON_MAX = 400
"""Maximum length of a logged reason: the other end may have written it."""
_OTHERS = "others"


class Refusals:
    """The refused handshakes of one member, at either end.

    Attributes:
        count: their number.
        of_targets: reason of the last refusal by the name of the dialled member, until a handshake
            with it succeeds.
    """

    def __init__(self, log: Log) -> None:
        self.count = 0
        self.of_targets: dict[str, str] = {}
        self._log = log
        # By event, so that a flood of one end hides no refusal of the other: kind -> time, refusals
        # since.
        self._logged: dict[str, dict[Hashable, tuple[float, int]]] = {}

    def on_dialled(self, name: str, address: str, reason: str, now_s: float) -> None:
        """Note that a handshake with a dialled member has failed.

        Args:
            name: name of the member.
            address: its HOST:PORT.
            reason: the cause, and the action to take.
            now_s: the time in seconds.
        """
        reason = reason[:REASON_MAX]
        self.of_targets[name] = reason
        fields = {"peer": name, "address": address, "reason": reason}
        self._note("link_refused", (name, reason), fields, now_s)

    def on_accepted(self, host: str, reason: str, now_s: float) -> None:
        """Note that this member has refused the HELLO of another process.

        Args:
            host: address of that process.
            reason: the cause, and the action to take.
            now_s: the time in seconds.
        """
        reason = reason[:REASON_MAX]
        self._note("hello_refused", (host, reason), {"host": host, "reason": reason}, now_s)

    def on_linked(self, name: str) -> None:
        """Note that a handshake with a dialled member has succeeded."""
        self.of_targets.pop(name, None)

    def keep_targets(self, names: Set[str]) -> None:
        """Forget refusals of all other targets."""
        for name in self.of_targets.keys() - names:
            del self.of_targets[name]

    def _note(self, event: str, kind: Hashable, fields: dict[str, str], now_s: float) -> None:
        self.count += 1
        logged = self._logged.setdefault(event, {})
        if kind not in logged and len(logged) >= KINDS_MAX:
            for old in [one for one, (at_s, _) in logged.items() if now_s - at_s >= REPEAT_S]:
                del logged[old]
            if len(logged) >= KINDS_MAX:
                kind = _OTHERS
        at_s, since = logged.get(kind, (None, 0))
        if at_s is not None and now_s - at_s < REPEAT_S:
            logged[kind] = at_s, since + 1
            return
        logged[kind] = now_s, 0
        self._log(event, **fields, **({"repeated": since} if since else {}))
