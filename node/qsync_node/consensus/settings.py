"""Settings of one node, with the reason for each default.

Durations are integer nanoseconds of a monotonic clock. No safety rule reads a clock: durations only
determine how soon a member acts.
"""

from dataclasses import dataclass, fields

from qsync_node.consensus.filtering import refusal_of_list
from qsync_node.consensus.membership import LEVEL, REPLICAS_MAX
from qsync_node.consensus.quorum import needed

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ConsensusSettings:
    """Settings of one replica. A change applies at once, also to entries that already wait."""

    heartbeat_ns: int = 100 * MILLISECOND
    """Interval at which a leader proves that it and its write path are alive (E5)."""

    election_timeout_ns: int = 1 * SECOND
    """Silence after which a follower stands; also the leader's lease (E4, E13).

    A leader without a quorum of answers for this long steps down. The wait before standing is
    randomised upwards to twice this value.
    """

    synchro_timeout_ns: int = 5 * SECOND
    """How long an entry waits for its quorum before its leader writes a ROLLBACK (T4)."""

    request_timeout_ns: int = 15 * SECOND
    """How long a client's request may wait for its answer.

    It is longer than two `synchro_timeout`, so that the outcome of a lost quorum is reported by
    then (T6, G3).
    """

    confirm_delay_ns: int = 5 * MILLISECOND
    """How long a CONFIRM waits to join a batch before it is written in its own batch (T3)."""

    work_per_step: int = 2 * 1024 * 1024
    """Work of one step: bytes of requests and tuples, plus `REQUEST_WORK` per request (clients.py).

    The remaining work follows in the next steps. A single client therefore cannot delay heartbeats
    and other clients, or fill the memory with its answers (G1).
    """

    read_part_tuples: int = 4_096
    """Tuples of confirmed state that one step of a read covers (G1).

    A larger read takes several steps.
    """

    confirm_rows_max: int = 2_000
    """Rows that one step confirms.

    The rest of a backlog follows in the next steps, so that a member that catches up still answers
    heartbeats (G1).
    """

    build_tuples_max: int = 1_000
    """Tuples of a space for which one step may build an index or check a new format.

    With more, the change is made in parts before its row takes effect (G1, builds.py).
    """

    quorum: str | int = "majority"
    """`majority`, a number or a formula over N; never less than a majority (quorum.py)."""

    election_mode: str = "candidate"
    """`candidate` stands automatically; `manual` stands when nominated; `voter` only votes."""

    failover_unconfirmed: str = "adopt"
    """Treatment of an inherited tail (E8).

    `adopt` keeps it; `rollback` drops entries that provably never had a quorum.
    """

    role: str = "voter"
    """Role that this instance requests when it registers: `voter`, `async` or `anonymous`."""

    spaces: tuple[str | int, ...] = ()
    """Names or ids of the user spaces of an anonymous replica; empty for all (spaces.py)."""

    priority: int = 10
    """0 to 10: each step below 10 delays standing after a lost leader by half a heartbeat."""

    level: int = LEVEL
    """Feature level that this process supports and announces (P2)."""

    name: str = ""
    """Human-readable name of the member (`orders-0`)."""

    limbo_entries_max: int = 65536
    limbo_bytes_max: int = 64 * 1024 * 1024
    """Bounds of the queue of unconfirmed transactions (T11).

    Beyond them a leader refuses writes. A follower acknowledges only confirmed rows if the others
    wait for its own steps.
    """

    relay_window_bytes: int = 8 * 1024 * 1024
    """Bytes that a follower may be sent ahead of its acknowledgements (T11)."""

    relay_chunk_bytes: int = 1024 * 1024
    """Bytes of one read from disk, or of one snapshot chunk, for a follower that lags far."""

    tail_cache_bytes: int = 16 * 1024 * 1024
    """Bytes of recent batches kept in memory; a slower follower is served from disk (T11)."""

    memory_bytes_max: int = 0
    """Limit above which writes are refused while reads still work, in bytes; 0 is no limit."""

    transaction_timeout_ns: int = 300 * SECOND
    """How long an interactive transaction may stay open."""

    transaction_bytes_max: int = 8 * 1024 * 1024
    """Bytes that one transaction may write; it is sent to a follower whole, in one frame (T11)."""

    transactions_bytes_max: int = 256 * 1024 * 1024
    """Bytes that all open transactions may hold; beyond it their statements are refused."""

    checkpoint_bytes: int = 256 * 1024 * 1024
    """Bytes of log after which a node writes its next snapshot automatically."""

    retention_ns: int = 3600 * SECOND
    """How long rows are kept for a registered replica that is disconnected (S5)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is not int:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
                raise ValueError(f"invalid {field.name} {value!r}: use a whole number, 0 or more")
        if isinstance(self.quorum, bool) or not isinstance(self.quorum, str | int):
            raise ValueError(
                f"invalid quorum {self.quorum!r}: use `majority`, a number or a formula"
            )
        for voters in range(1, REPLICAS_MAX + 1):
            needed(voters, self.quorum)
        if self.election_mode not in ("candidate", "manual", "voter"):
            raise ValueError(
                f"invalid election_mode {self.election_mode!r}: use candidate, manual or voter"
            )
        if self.failover_unconfirmed not in ("adopt", "rollback"):
            raise ValueError(
                f"invalid failover_unconfirmed {self.failover_unconfirmed!r}: use adopt or rollback"
            )
        if self.role not in ("voter", "async", "anonymous"):
            raise ValueError(f"invalid role {self.role!r}: use voter, async or anonymous")
        reason = refusal_of_list(self.role, self.spaces)
        if reason:
            raise ValueError(reason)
        if self.heartbeat_ns * 2 > self.election_timeout_ns:
            raise ValueError(
                "invalid election_timeout: it must be at least twice the heartbeat interval"
            )
