"""One simulated schedule of a cluster: its members, its clients and its observers.

Everything is drawn from one seed. The world keeps the ledger of confirmed rows as each instance
reports them, and stops the schedule at the first contradiction: two leaders of one term, a
confirmed row that differs between two instances or changes, a process that does not start
(`InvariantViolation`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from qsync_node.consensus import effects as fx
from qsync_node.consensus.entries import Entry
from qsync_node.consensus.messages import PeerMessage
from qsync_node.consensus.settings import MILLISECOND, SECOND, ConsensusSettings
from qsync_node.format.keys import CHANGES
from qsync_node.node import Node
from qsync_sim import faults, refusals
from qsync_sim.authority import FENCES, LeadershipChecks
from qsync_sim.availability import MOVING, Availability
from qsync_sim.clients import SimClient
from qsync_sim.cluster import ADMIN_SESSION, Cluster, ObservedRow
from qsync_sim.model import held_by, is_held
from qsync_sim.onlooker import Onlooker
from qsync_sim.readers import EarlyReader
from qsync_sim.recorder import Recorder, Recording
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation
from qsync_sim.watch import WorldWatch

NOP = 12


class World(Cluster):
    """A cluster and everything that observes it."""

    def __init__(self, seed: int, settings: ConsensusSettings | None = None) -> None:
        super().__init__(seed, settings)
        self.authority = LeadershipChecks(self)
        self.onlooker = Onlooker(self, self.authority)
        self.availability = Availability(self)
        self.watch = WorldWatch(self)
        self.clients: list[SimClient] = []
        self.readers: list[EarlyReader] = []  # which are clients, too
        self.leaders: dict[int, str] = {}
        self.trace: list[str] = []
        self.is_tracing = False
        self.on_event: Callable[[Shell, fx.Report], None] | None = None
        self.on_leadership: Callable[[str, str], None] | None = None
        self.recording: Recording | None = None
        self.on_story_answer: Callable[[fx.Answer], None] | None = None
        self.switchover_ns = 0

    # --- processes ----------------------------------------------------------------------------

    def on_node(self, shell: Shell, node: Node) -> None:
        """Record the confirmed rows of each instance and compare them (L3)."""

        def see(taken: list[Entry], removed: list[Entry]) -> None:
            for entries, is_taken in ((taken, True), (removed, False)):
                for entry in entries:
                    self._record(shell, entry, is_taken)

        node.observer = see

    def on_started(self, shell: Shell) -> None:
        self.count("starts")
        self.onlooker.on_started(shell)
        if self.versions is not None:
            self.versions.on_started(shell)
        if self.recording is not None and shell.settings.role != "anonymous":
            assert shell.node is not None
            self.recording.names[shell.uuid] = shell.name
            Recorder(self.recording, shell.node)

    def on_stopped(self, shell: Shell) -> None:
        self.onlooker.on_stopped(shell)
        self.watch.on_stopped(shell)
        self.availability.observe()
        for client in self.clients:
            client.on_member_stopped(shell)
        for guest in self.guests:
            guest.on_member_stopped(shell)

    def on_refused_files(self, shell: Shell) -> None:
        """Replace a member that does not start because of a damaged file."""
        self.count("damaged files refused")
        faults.replace_member(self, shell)

    # --- orders and answers -------------------------------------------------------------------

    def on_order(self, shell: Shell, sync: int, verb: str, arguments: dict[str, Any]) -> None:
        if verb in FENCES:
            self.authority.on_order(shell, sync, verb)
        if verb in MOVING:
            self.availability.on_order(shell)
        self.watch.on_order(sync, shell, verb, arguments)

    def on_answer(self, shell: Shell, answer: fx.Answer) -> None:
        if self.on_story_answer is not None and answer.session != ADMIN_SESSION:
            self.on_story_answer(answer)
            return
        if answer.session == ADMIN_SESSION:
            super().on_answer(shell, answer)
            self.authority.on_order_answered(answer)
            self.watch.on_answer(answer)
            return
        if answer.code and not refusals.is_relayed(shell, answer.code):
            refusals.check(self, shell, answer.code, answer.reason, shell.uuid)
        client = self.clients_by_session.get(answer.session)
        if client is None:
            return
        incarnation = shell.incarnation

        def arrive() -> None:
            if shell.incarnation == incarnation:
                client.on_answer(answer)

        self.after(self.rng.randrange(50_000, 400_000), arrive)

    # --- steps, messages and events -------------------------------------------------------------

    def on_step(self, shell: Shell, node: Node, inputs: list[Any], last_before: int) -> None:
        if self.versions is not None:
            self.versions.on_step(shell, node)
        self.onlooker.on_step(shell, node)
        if node.context.term != shell.term_before:
            self.availability.on_term(shell, node.context.term)
        if shell.removed_before:
            self.authority.on_step(shell, node, inputs, last_before)
        self.watch.on_step(shell, node)

    def on_send(self, shell: Shell, peer_uuid: str, message: PeerMessage) -> None:
        self.onlooker.on_send(shell, peer_uuid, message)
        self.watch.on_send(shell, peer_uuid, message)

    def on_fault(self) -> None:
        self.availability.observe()

    def on_report(self, shell: Shell, report: fx.Report) -> None:
        event, fields = report.event, report.fields
        self.count(f"event {event}")
        if self.is_tracing:
            shown = " ".join(f"{name}={value}" for name, value in fields.items())
            self.trace.append(f"{self.now_ns / 1e6:10.3f} {shell.name:4} {event} {shown}")
        if self.on_event is not None:
            self.on_event(shell, report)
        if self.on_leadership is not None and event in ("leader", "step_down"):
            self.on_leadership(shell.name, event)
        self.watch.on_report(shell, report)
        self._watch_switchover(event)
        if event == "rollback" and "too many" in fields["reason"]:
            self.count("anti-quorums")
        self._spring(shell, event)
        for reader in self.readers:
            reader.on_event(shell, event)
        if event == "leader":
            self._on_leader(shell, fields)
        elif event == "promote_confirmed":
            self.availability.on_promote_confirmed(shell, fields["term"])
        elif event == "step_down":
            self.availability.on_leadership(shell, fields["reason"])
        elif event == "nack":
            self.onlooker.on_nack(shell, fields["index"], fields["term"])
        elif event == "split_brain":
            raise InvariantViolation(
                f"L4: {shell.name}: split brain without a cause: {fields['reason']}"
            )
        elif event == "unregister" and self.versions is not None:
            self.versions.on_removed(fields["uuid"])
        elif event == "feature_level_unsupported" and self.versions is not None:
            self.versions.on_stopped_by_level(shell)
        elif event == "row_not_applied" and not self.counters["fault nack"]:
            raise InvariantViolation(f"T7: {shell.name}: {fields['reason']}")

    def _on_leader(self, shell: Shell, fields: dict[str, Any]) -> None:
        """Check a new leader, and count adopted and discarded tails."""
        term = fields["term"]
        other = self.leaders.setdefault(term, shell.uuid)
        if other != shell.uuid:
            raise InvariantViolation(f"E1: term {term} has two leaders")
        self.onlooker.on_leader(shell, term)
        self.availability.on_leadership(shell, "")
        if fields["kept"] < fields["promote_index"] - 1:
            self.count("tails rolled back at failover")
        elif shell.node is not None and len(shell.node.context.limbo) > 1:
            self.count("tails adopted at failover")

    def _watch_switchover(self, event: str) -> None:
        """Count the switchovers that cost waiting clients no more than a pause (E9)."""
        if event == "switchover":
            self.switchover_ns = self.now_ns
        elif event == "promote_confirmed" and self.switchover_ns:
            began_ns, self.switchover_ns = self.switchover_ns, 0
            if self.now_ns - began_ns < SECOND:
                self.after(50 * MILLISECOND, partial(self._count_switchover, began_ns))

    def _count_switchover(self, began_ns: int) -> None:
        seen = [o for o in self.history[-100:] if o.returned_ns >= began_ns]
        if seen and not any(o.outcome in ("unknown", "rolled back") for o in seen):
            self.count("switchovers without a failed request")

    def _spring(self, shell: Shell, event: str) -> None:
        """Let the faults that wait for this event strike shortly after it."""
        for ambush in [ambush for ambush in self.ambushes if ambush[0] == event]:
            self.ambushes.remove(ambush)
            self.count("ambushes")
            delay_ns = self.rng.choice([0, 200_000, 2_000_000])
            self.after(delay_ns, partial(self._strike, ambush[1], shell))

    def _strike(self, strike: Callable[[Shell], None], shell: Shell) -> None:
        strike(shell)
        self.on_fault()

    # --- the ledger ---------------------------------------------------------------------------

    def _record(self, shell: Shell, entry: Entry, is_taken: bool) -> None:
        for index, replica_id, lsn, body in content_of(entry):
            seen = self.ledger.get(index)
            decoded = entry.rows[index - entry.batch.first_index]
            row = (replica_id, lsn, body, is_taken, decoded.type)
            stamp = self.stamps.setdefault(index, decoded.timestamp)
            if decoded.timestamp != stamp:
                raise InvariantViolation(
                    f"L9: {shell.name} has another timestamp at {index}: {decoded.timestamp} "
                    f"instead of {stamp}"
                )
            if shell.settings.spaces and seen is not None:
                seen = _as_sent_to(shell, seen)
            if seen is None:
                self.ledger[index] = row
                if shell.node is not None:
                    self.onlooker.on_confirmed(shell, shell.node, index, is_taken)
                self.confirmed_anywhere = max(self.confirmed_anywhere, index)
            elif seen != row:
                raise InvariantViolation(
                    f"L3: {shell.name} confirmed another row at {index}: "
                    f"{_shown(row)} instead of {_shown(seen)}"
                )


def _as_sent_to(shell: Shell, row: ObservedRow) -> ObservedRow:
    """Return the row as an instance with a list of spaces receives it, possibly as a NOP."""
    replica_id, lsn, body, is_taken, row_type = row
    if row_type not in CHANGES or is_held(body, held_by(shell.settings.spaces)):
        return row
    return replica_id, lsn, b"", is_taken, NOP


def _shown(row: ObservedRow) -> str:
    replica_id, lsn, body, is_taken, row_type = row
    verdict = "taken" if is_taken else "rolled back"
    return f"type {row_type} replica {replica_id} lsn {lsn} {verdict} {body[:40]!r}"


def content_of(entry: Entry) -> list[tuple[int, int, int, bytes]]:
    """Return the identity of each row of an entry: (index, replica id, LSN, body)."""
    index = entry.batch.first_index
    return [
        (index + position, row.replica_id, row.lsn, row.body)
        for position, row in enumerate(entry.rows)
    ]
