"""Failover: nominates a member if there is no leader, and measures the last change of leader.

The controller only speeds up an election. The vote decides, and the nodes also elect without it.

Invariants:
1. No member is nominated while one reports that it leads, and at most one per election timeout.
   A leader that runs but does not answer the operator may still lead. It gets twice the election
   timeout, and unlimited time while voters hear it. The target of a handover gets one election
   timeout, because a nomination would compete with a user's order.
2. The nominated member is the greatest by (term of the last row, last index) among those that
   report that they can stand. After a failed nomination another member is preferred (E2).
3. A nomination carries the greatest observed term; a node in a later term refuses it.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from qsync_node.consensus.quorum import needed
from qsync_operator.api.base import duration_ns
from qsync_operator.api.names import ordinal_of
from qsync_operator.api.reasons import FailoverReason
from qsync_operator.api.spec import ClusterSpec
from qsync_operator.api.status import LastFailover
from qsync_operator.plan.actions import Nominate
from qsync_operator.plan.observed import MemberView, Memory, Nomination, Observed

NOMINATIONS_KEPT = 8


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """A nomination, or the sentence that states why there is none."""

    action: Nominate | None
    sentence: str


def plan_failover(spec: ClusterSpec, observed: Observed, now_ns: int) -> FailoverPlan:
    """Decide on a nomination; the caller ensures that no member reports that it leads."""
    voters = observed.voting()
    found = [observed.by_uuid(voter.uuid) for voter in voters]
    reachable = [member for member in found if member is not None]
    majority = needed(len(voters))
    if not voters:
        return FailoverPlan(None, "no member answers yet")
    if len(reachable) < majority:
        said = (
            f"no leader can be elected: {len(reachable)} of {len(voters)} voters answer and "
            f"{majority} are needed"
        )
        return FailoverPlan(None, f"{said}; {_way_back(observed)}")
    memory = observed.memory
    if memory.lost_at_ns and now_ns - memory.lost_at_ns < duration_ns(spec.failover.delay):
        return FailoverPlan(
            None, f"the leader is unavailable: the operator acts after {spec.failover.delay}"
        )
    timeout_ns = duration_ns(spec.replication.election_timeout)
    if memory.reason == FailoverReason.UNREACHABLE:
        if any(m.status and m.status.hears_leader for m in observed.members):
            return FailoverPlan(
                None,
                f"{memory.leader} does not answer the operator, but voters receive its heartbeats",
            )
        if now_ns - memory.lost_at_ns < 2 * timeout_ns:
            return FailoverPlan(
                None, f"{memory.leader} does not answer: the voters elect a new leader"
            )
    if memory.reason == FailoverReason.STEPPED_DOWN and now_ns - memory.lost_at_ns < timeout_ns:
        return FailoverPlan(None, f"{memory.leader} stepped down: waiting for its successor")
    recent = [n for n in memory.nominations if now_ns - n.at_ns < 4 * timeout_ns]
    if any(now_ns - nomination.at_ns < timeout_ns for nomination in recent):
        return FailoverPlan(None, f"{recent[-1].member} was nominated: waiting for the election")
    best = _best(reachable, [n.member for n in recent])
    if best is None:
        return FailoverPlan(None, _no_candidate(reachable))
    if not best.takes_orders:
        return FailoverPlan(
            None,
            f"cannot nominate {best.name}: its version does not accept signed orders; "
            "wait for the voters to elect a leader, or run `kubectl qsync promote "
            f"{best.name}`",
        )
    term = max((m.status.term for m in observed.members if m.status), default=0)
    return FailoverPlan(
        Nominate(best.name, term), f"no member leads: the operator nominates {best.name}"
    )


def _way_back(observed: Observed) -> str:
    names = {voter.name for voter in observed.voting()}
    empty = [m.name for m in observed.members if m.is_empty and m.name in names]
    if not empty:
        return "restore the other voters"
    return (
        f"the volumes of {', '.join(empty)} are new. Restore the old volumes. If their "
        "data is lost permanently, continue without it: `qsync force-confirm` "
        "(docs/operations.md)"
    )


def _no_candidate(reachable: list[MemberView]) -> str:
    """Return the sentence for voters of which none can stand for election."""
    fenced = [m.name for m in reachable if m.status and m.status.is_fenced]
    if len(fenced) == len(reachable):
        return f"no member can lead: {', '.join(fenced)} fenced; unfence one"
    return "no reachable voter can stand for election: check the messages of the members"


def _best(candidates: list[MemberView], tried: list[str]) -> MemberView | None:
    able = [m for m in candidates if m.status and m.status.can_stand]
    # Nominate a leaving member only if there is no other one.
    able = [member for member in able if not member.is_leaving] or able
    fresh = [member for member in able if member.name not in tried]

    def rank(member: MemberView) -> tuple[int, int, bool, int]:
        said = member.status
        assert said is not None
        return (said.last_term, said.last_index, said.takes_orders, -ordinal_of(member.name))

    return max(fresh or able, key=rank, default=None)


def after_nomination(memory: Memory, action: Nominate, now_ns: int) -> Memory:
    """Return the memory with a nomination added; the oldest ones are dropped."""
    nomination = Nomination(action.member, action.term, now_ns)
    return replace(memory, nominations=(*memory.nominations, nomination)[-NOMINATIONS_KEPT:])


def track_leader(observed: Observed, now_ns: int, wall_s: float) -> Memory:
    """Return the memory after this observation: the leader, or when it was lost."""
    memory = observed.memory
    leader = observed.writable_leader()
    if leader is None or leader.status is None:
        return _lost(observed, now_ns) if memory.leader else memory
    if memory.leader == leader.name and memory.leader_term == leader.status.term:
        cut_rows = leader.status.cut_rows
        seen = replace(memory, seen_at_ns=now_ns, lost_at_ns=0, reason="", leader_cut_rows=cut_rows)
        return _with_rolled_back_rows(seen, observed)
    found = replace(
        memory,
        leader=leader.name,
        leader_term=leader.status.term,
        seen_at_ns=now_ns,
        lost_at_ns=0,
        reason="",
        nominations=(),
        leader_cut_rows=leader.status.cut_rows,
    )
    if not memory.leader:
        return found
    memory = memory if memory.lost_at_ns else _since_its_end(observed, memory)
    # A new process counts from zero.
    old_cut_rows = 0 if memory.reason == FailoverReason.PROCESS_ENDED else memory.leader_cut_rows
    lost_at_ns = memory.lost_at_ns or now_ns
    return replace(
        found,
        old_cut_rows=old_cut_rows,
        last_failover=LastFailover(
            from_=memory.leader,
            to=leader.name,
            reason=_change_reason(memory),
            at=datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds"),
            unavailable_milliseconds=round((now_ns - lost_at_ns) / 1e6, 1),
        ),
    )


def _change_reason(memory: Memory) -> FailoverReason:
    if not memory.seen_at_ns:
        return FailoverReason.UNSUPERVISED
    return memory.reason or FailoverReason.SWITCHOVER


def _lost(observed: Observed, now_ns: int) -> Memory:
    memory = observed.memory
    if memory.lost_at_ns:
        return memory
    ended = _since_its_end(observed, memory)
    if ended.lost_at_ns:
        return ended
    old = observed.member(memory.leader)
    if old is None or not old.is_running:
        reason = FailoverReason.PROCESS_ENDED
    elif old.status is None:
        reason = FailoverReason.UNREACHABLE
    else:
        reason = FailoverReason.STEPPED_DOWN
    return replace(memory, lost_at_ns=now_ns, reason=reason)


def _since_its_end(observed: Observed, memory: Memory) -> Memory:
    """Return the memory with the loss dated to the end of the leader's process, if it has ended.

    It has ended if its end is later than the last observation of this leader, even if a new process
    was started since.
    """
    old = observed.member(memory.leader)
    if old is None or old.ended_at_ns <= memory.seen_at_ns:
        return memory
    return replace(memory, lost_at_ns=old.ended_at_ns, reason=FailoverReason.PROCESS_ENDED)


def _with_rolled_back_rows(memory: Memory, observed: Observed) -> Memory:
    """Add the rows that the returned old leader rolled back to the record of its failover."""
    failover = memory.last_failover
    old = observed.member(failover.from_) if failover is not None else None
    if failover is None or old is None or old.status is None or old.is_leader:
        return memory
    before = memory.old_cut_rows
    rows = old.status.cut_rows - (before if before <= old.status.cut_rows else 0)
    if rows <= failover.rolled_back_rows:
        return memory
    changed = failover.model_copy(update={"rolled_back_rows": rows})
    return replace(memory, last_failover=changed)
