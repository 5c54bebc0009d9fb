"""The status of a cluster as people read it: summary, problems, members, and an exit code.

Both platforms fill the same `View`, so that their tables have the same columns. All functions are
pure.
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from qsync_operator.views.failovers import pause_of
from qsync_operator.views.times import local_time

if TYPE_CHECKING:
    from qsync_operator.api.cluster import QsyncCluster
    from qsync_operator.api.status import ClusterStatus, LastFailover, MemberStatus

Table = tuple[list[str], list[list[str]]]
UNKNOWN = "-"
GAP = 2
"""Spaces between columns, so that they fit on a terminal of 80."""
_NOT_SERVING = ("down", "joining")


class ClusterHealth(IntEnum):
    """Exit codes of `status --check`, from good to bad. 1 to 3 have other meanings (main.py)."""

    HEALTHY = 0
    CHANGING = 4
    DEGRADED = 5
    UNAVAILABLE = 6


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One row of the table: every column as text, those after `location` with `-o wide` only.

    `location` is the machine of a pod, or the address of a local process.
    """

    member: str
    role: str = "down"
    ready: str = "no"
    term: str = UNKNOWN
    confirmed: str = UNKNOWN
    lag: str = UNKNOWN
    fenced: str = UNKNOWN
    location: str = UNKNOWN
    restarts: str = UNKNOWN
    id: str = UNKNOWN
    pid: str = UNKNOWN
    address: str = UNKNOWN
    admin: str = UNKNOWN
    image: str = UNKNOWN
    uuid: str = UNKNOWN
    directory: str = UNKNOWN


@dataclass(frozen=True, slots=True)
class View:
    """The status of one cluster.

    Attributes:
        document: the QsyncCluster, for programs.
        lines: the summary, then every problem.
        rows: the members.
        health: the exit code of `--check`.
    """

    document: dict[str, Any]
    lines: list[str]
    rows: list[StatusRow]
    health: ClusterHealth


def table(rows: list[StatusRow], is_wide: bool) -> Table:
    """Return titles and cells."""
    names = [field.name for field in fields(StatusRow)]
    shown = names if is_wide else names[: names.index("location") + 1]
    return [name.upper() for name in shown], [
        [str(getattr(row, name)) for name in shown] for row in rows
    ]


def member_row(member: "MemberStatus") -> StatusRow:
    """Return the row of a member by the status of the cluster."""
    is_down = member.role == "down"
    return StatusRow(
        member=member.name,
        role=member.role,
        ready="no" if member.role in _NOT_SERVING else "yes",
        term=UNKNOWN if is_down else str(member.term),
        confirmed=UNKNOWN if is_down else str(member.signature),
        lag=UNKNOWN if is_down else str(member.lag),
        fenced="yes" if member.fenced else UNKNOWN,
        location=member.address or UNKNOWN,
        id=str(member.replica_id or UNKNOWN),
        pid=str(member.pid or UNKNOWN),
        address=member.address or UNKNOWN,
        admin=member.admin_address or UNKNOWN,
        uuid=member.uuid or UNKNOWN,
        directory=member.directory or UNKNOWN,
    )


def summary(cluster: "QsyncCluster", phase: str = "") -> list[str]:
    """Return a cluster in one line, then its problems, and its last failover.

    Args:
        cluster: the cluster with its status.
        phase: the phase to show, if it is not that of the status.
    """
    status = cluster.status
    is_known = any(member.role != "down" for member in status.members)
    confirmed = f"confirmed {status.confirmed_signature if is_known else 'unknown'}"
    shown = phase or status.phase or "Pending"
    lines = [
        f"{cluster.name}: {shown} · {_leadership(status)} · quorum {status.quorum} · {confirmed}",
        *problems(cluster),
    ]
    if status.last_failover is not None:
        lines += failover_lines(status.last_failover)
    return lines


def failover_lines(failover: "LastFailover") -> list[str]:
    """Return the last change of leader, and a line with its effect, if that is known.

    Live views omit both by their prefix.
    """
    change = f"{failover.from_} -> {failover.to} ({failover.reason})"
    effects = []
    if paused := pause_of(failover):
        effects.append(f"writes paused for {paused}")
    if failover.rolled_back_rows:
        effects.append(f"{failover.rolled_back_rows} rows rolled back")
    lines = [f"last failover: {change} at {local_time(failover.at)}"]
    return [*lines, f"last failover: {', '.join(effects)}"] if effects else lines


def _leadership(status: "ClusterStatus") -> str:
    if status.leader:
        return f"{status.leader} leads in term {status.term}"
    leading = next((member for member in status.members if member.role == "leader"), None)
    if leading is not None:
        return f"{leading.name} leads in term {leading.term} and accepts no writes"
    return "no leader"


def problems(cluster: "QsyncCluster") -> list[str]:
    """Return a sentence for each problem: of the cluster, of a member, and warnings."""
    status = cluster.status
    found: list[str] = []
    ready, degraded = status.condition("Ready"), status.condition("Degraded")
    if ready is not None and ready.status != "True" and ready.message:
        found.append(ready.message)
    if degraded is not None and degraded.status == "True" and degraded.message:
        found.append(degraded.message)
    found += [f"{m.name}: {m.message}" for m in status.members if m.message]
    found += [f"warning: {text}" for text in status.warnings]
    return _without_repetitions(found)


def _without_repetitions(sentences: list[str]) -> list[str]:
    """Return the sentences that no earlier one contains."""
    kept: list[str] = []
    for sentence in sentences:
        plain = sentence.removeprefix("warning: ")
        if not any(plain in earlier for earlier in kept):
            kept.append(sentence)
    return kept


def health_of(phase: str) -> ClusterHealth:
    """Return the exit code for a phase."""
    if phase == "Ready":
        return ClusterHealth.HEALTHY
    if phase == "Degraded":
        return ClusterHealth.DEGRADED
    return (
        ClusterHealth.UNAVAILABLE
        if phase in ("Unavailable", "Hibernated")
        else ClusterHealth.CHANGING
    )


def view_of(cluster: "QsyncCluster") -> View:
    """Return the view of a cluster whose status is current."""
    return View(
        cluster.document(),
        summary(cluster),
        [member_row(member) for member in cluster.status.members],
        health_of(cluster.status.phase),
    )
