"""The member that this one follows, and the state of the conversation with it.

    IDLE ──► COMPARING ──► FOLLOWING
               │  └─► CUTTING ──┘ │
               └─► FETCHING ──► INSTALLING ──► IDLE

    IDLE        no conversation; the next one begins at `retry_at_ns`
    COMPARING   SUBSCRIBE is sent; the histories of both logs are compared (L5)
    CUTTING     rows that the source lacks are being truncated (L6)
    FETCHING    a snapshot is being pulled, because the source lacks the next rows (S3)
    INSTALLING  it is being written
    FOLLOWING   the log is matched: rows are appended and acknowledged (T2)

An error of the connection leads from COMPARING, FETCHING and FOLLOWING back to IDLE. A truncation
or an installation that is under way is always completed.
"""

from enum import Enum

from qsync_node.consensus.context import Context
from qsync_node.consensus.messages import Histories


class SourceState(Enum):
    """State of the conversation with the source."""

    IDLE = "idle"
    COMPARING = "comparing"
    CUTTING = "cutting"
    FETCHING = "fetching"
    INSTALLING = "installing"
    FOLLOWING = "following"


TRANSITIONS = {
    SourceState.IDLE: {SourceState.IDLE, SourceState.COMPARING},
    SourceState.COMPARING: {
        SourceState.IDLE,
        SourceState.COMPARING,
        SourceState.CUTTING,
        SourceState.FETCHING,
        SourceState.FOLLOWING,
    },
    SourceState.CUTTING: {SourceState.IDLE, SourceState.FETCHING, SourceState.FOLLOWING},
    SourceState.FETCHING: {SourceState.IDLE, SourceState.INSTALLING},
    SourceState.INSTALLING: {SourceState.IDLE},
    SourceState.FOLLOWING: {SourceState.IDLE, SourceState.COMPARING},
}
"""The states that may follow each state."""


class Source:
    """A replica has one source at a time.

    Attributes:
        uuid: the instance, or empty.
        link: number of the connection to it.
        quiet_uuid: a source that sent no rows for long, which the next choice avoids, or empty.
        silent_link: number of the last connection by which a source did not answer, or 0.
        subscription: number of the newest SUBSCRIBE; answers to earlier ones are ignored.
        retry_at_ns: when an idle replica looks for a source again.
        since_ns: when the state was entered, or rows or a chunk of a snapshot arrived.
        histories: the answer of the source to SUBSCRIBE.
        refused: the reason of its last refusal, or empty.
        is_confirm_due: whether rows wait to be confirmed until the next step (G1).
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.state = SourceState.IDLE
        self.uuid = ""
        self.link = 0
        self.quiet_uuid = ""
        self.silent_link = 0
        self.subscription = 0
        self.retry_at_ns = 0
        self.since_ns = 0
        self.histories: Histories | None = None
        self.refused = ""
        self.is_confirm_due = False

    @property
    def is_replacing_log(self) -> bool:
        """Whether a truncation or a snapshot is being written; the replica must not stand (V4)."""
        return self.state in (SourceState.CUTTING, SourceState.INSTALLING)

    def is_answer(self, link: int, subscription: int, state: SourceState) -> bool:
        """Return whether a message answers the newest SUBSCRIBE, in the state that expects it.

        Args:
            link: the connection by which it arrived.
            subscription: the number that it names.
            state: the state in which it counts.
        """
        is_newest = link == self.link and subscription == self.subscription
        return is_newest and self.state is state

    def become(self, state: SourceState) -> None:
        """Enter a state."""
        assert state in TRANSITIONS[self.state], f"{self.state.name} cannot become {state.name}"
        self.state = state
        self.since_ns = self.context.now_ns

    def stop(self) -> None:
        """End the stream of the current term or source.

        A truncation or an installation that is under way continues.
        """
        if self.is_replacing_log:
            self.uuid = ""
            self.histories = None
            return
        self.become(SourceState.IDLE)
        self.uuid = ""

    def restart(self) -> None:
        """End the stream and look for a source at once."""
        self.stop()
        self.retry_at_ns = 0

    def retry_later(self) -> None:
        """End the stream after an error; the replica looks for a source after a random wait."""
        self.become(SourceState.IDLE)
        self.uuid = ""
        wait = self.context.settings.heartbeat_ns
        self.retry_at_ns = self.context.now_ns + wait // 2 + self.context.rng.randrange(wait)
