"""Bounds of memory, checked at each step of each member (T11, docs/limits.md).

  queue    A leader logs user transactions only while the queue is within its limits. A step checks
           that before its requests, and `work_per_step` ends it after at most `SLACK` of them. A
           follower may hold the rows that it received at once, too, because a step confirms a
           bounded number of them (G1): another `relay_window_bytes` and one chunk.
  peers    The rows sent to a follower and not acknowledged exceed `relay_window_bytes` by one chunk
           and one batch at most: the window is checked before each send.
  steps    A step confirms at most `confirm_rows_max` rows that take effect, and the rest of the
           transaction that reaches the limit (G1). A forced configuration is one transaction with
           two rows for each member that it removes.
  cache    The batches kept in memory exceed `tail_cache_bytes` by the newest batch at most.
  files    Between two operations of its disk, a process has its log open, and no other file.
  ends     When all clients have their answers, no member keeps a request, a forwarded request or a
           read. A leak is unbounded in a long run.

`server.py` checks the answers that clients have not read, and the requests of a connection.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus.entries import EntryKind
from qsync_node.format import mp
from qsync_node.format.keys import RAFT_PROMOTE, RAFT_ROLLBACK, Key, Type
from qsync_sim.cluster import ObservedRow
from qsync_sim.publishing import BROKER_SESSION
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_node.node import Node

SLACK = 3
"""User transactions that a step may log after it has checked the queue."""
TRANSACTION_ROWS = 8
"""The most rows of a workload's transaction."""
TRANSACTION_BYTES = 9_000
"""The largest transaction of a workload, with its header."""
OPEN_FILES_MAX = 1
"""Files that a process has open between two operations of its disk: the log."""
CONTROL_BYTES = 4_000
"""Rows of decisions, confirmations and members in a queue, at most."""
ENTRY_BYTES_MIN = 28
"""The smallest batch, with one short row."""


def check_step(shell: Shell, node: "Node", ledger: Mapping[int, ObservedRow]) -> None:
    """Check the bounds of a member after a step.

    Args:
        shell: the member.
        node: its process.
        ledger: all confirmed rows.

    Raises:
        Violation: a buffer is larger than it may be.
    """
    context = node.context
    replica = node.replica
    limbo, settings = context.limbo, node.settings
    if shell.disk.open_files > OPEN_FILES_MAX:
        raise InvariantViolation(f"T11: {shell.name} has {shell.disk.open_files} files open")
    if limbo is shell.limbo_before:
        rows = limbo.confirmed_index - shell.confirmed_before
        if rows > settings.confirm_rows_max + TRANSACTION_ROWS:
            _check_confirmed(shell, node, ledger)
    if len(limbo.entries) > settings.limbo_entries_max or limbo.bytes > settings.limbo_bytes_max:
        _check_queue(shell, node)
    for relay in replica.relays.by_number.values():
        if relay.bytes_in_flight > settings.relay_window_bytes:
            _check_window(shell, node, relay.bytes_in_flight)
    tail = context.tail
    if tail.cached_bytes > settings.tail_cache_bytes and tail.cached_batches > 1:
        raise InvariantViolation(
            f"T11: {shell.name} keeps {tail.cached_bytes} bytes of recent rows"
        )


def _check_confirmed(shell: Shell, node: "Node", ledger: Mapping[int, ObservedRow]) -> None:
    last = node.context.limbo.confirmed_index
    taken = removals = 0
    for index in range(shell.confirmed_before + 1, last + 1):
        _, _, body, is_taken, row_type = ledger[index]
        taken += is_taken
        removals += row_type == Type.DELETE and mp.unpack(body)[Key.SPACE_ID] == SystemSpace.CLUSTER
        if not is_taken and row_type in (RAFT_PROMOTE, RAFT_ROLLBACK):
            taken = 0  # a decision without effect: its rows are confirmed in one step (T5)
    most = node.settings.confirm_rows_max + max(TRANSACTION_ROWS, 2 * removals)
    if taken > most:
        raise InvariantViolation(
            f"G1: {shell.name} confirms {taken} rows in a step, {most} are allowed"
        )


def _check_window(shell: Shell, node: "Node", sent: int) -> None:
    settings = node.settings
    # A batch that was read from a file may join some transactions, and is sent as a whole.
    batch_bytes = SLACK * TRANSACTION_BYTES
    most = settings.relay_window_bytes + settings.relay_chunk_bytes + batch_bytes
    if sent > most:
        raise InvariantViolation(
            f"T11: {shell.name} has sent {sent} bytes to a follower that acknowledged none of "
            f"them, {most} are allowed"
        )


def _check_queue(shell: Shell, node: "Node") -> None:
    context, settings = node.context, node.settings
    entries = [entry for entry in context.limbo.entries if entry.kind is EntryKind.USER]
    own = [entry for entry in entries if entry.is_clients_write]
    most = settings.limbo_bytes_max + SLACK * TRANSACTION_BYTES
    size = sum(len(entry.batch.data) for entry in own)
    if len(own) > settings.limbo_entries_max + SLACK or size > most:
        raise InvariantViolation(
            f"T11: {shell.name} has a queue of {len(own)} transactions, {size} bytes"
        )
    most += settings.relay_window_bytes + settings.relay_chunk_bytes + CONTROL_BYTES
    if context.limbo.bytes > most:
        raise InvariantViolation(
            f"T11: {shell.name} has a queue of {context.limbo.bytes} bytes, not {most}"
        )
    ahead = settings.relay_window_bytes + settings.relay_chunk_bytes + CONTROL_BYTES
    most = settings.limbo_entries_max + SLACK + ahead // ENTRY_BYTES_MIN
    if len(context.limbo) > most:
        raise InvariantViolation(
            f"T11: {shell.name} has a queue of {len(context.limbo)} entries, not {most}"
        )


def check_end(shell: Shell, node: "Node") -> None:
    """Check that a member keeps nothing of clients that have all their answers.

    Raises:
        Violation: it keeps a request.
    """
    waiting, forwarding = node.shared.answers.waiting, node.forwarding
    reads, commits = node.linearizable_reads, node.commits
    if any(call.session == BROKER_SESSION for call in waiting):
        return  # the stand-in for brokers does not wait for its last answers
    # A call of a closed session is dropped at its deadline.
    oldest_ns = node.context.now_ns - node.settings.request_timeout_ns
    kept = {
        "requests in the queue": len(node.shared.queue),
        "requests after their deadline": sum(call.arrived_ns < oldest_ns for call in waiting),
        "forwarded requests": len(forwarding.outgoing),
        "answers that wait for their index": len(forwarding.covering),
        "proofs of reads": len(reads.proofs),
        "questions for an index": len(reads.asked),
        "reads that wait for an index": len(reads.applying),
        "paused reads": len(node.stepped_reads),
        "statements that wait": len(commits.waiters) + len(commits.unplaced),
        "answers without a proof": len(commits.unproven),
    }
    for what, count in kept.items():
        if count:
            raise InvariantViolation(
                f"T11: {shell.name} keeps {count} {what} after the last answer"
            )
