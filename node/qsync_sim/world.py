"""One simulated schedule of a cluster: event queue, instances, clients and observer.

Everything is drawn from one seed. The observer keeps the ledger of confirmed rows as each instance
reports them, and stops the schedule at the first contradiction: two leaders of one term, a
confirmed row that differs between two instances or changes, a process that does not start
(`Violation`).
"""

import heapq
import uuid as uuids
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.entries import Entry
from qsync_node.consensus.settings import MILLISECOND, SECOND, Settings
from qsync_node.format.body import put_body
from qsync_node.format.keys import CHANGES, INSERT
from qsync_node.node import Node
from qsync_sim import faults, refusals
from qsync_sim.archiving import Archive
from qsync_sim.authority import FENCES, Authority
from qsync_sim.availability import MOVING, Availability
from qsync_sim.clients import Client, Operation
from qsync_sim.costs import INSTANT
from qsync_sim.model import ASYNC_SPACE, SPACE, held_by, is_held
from qsync_sim.network import Network
from qsync_sim.onlooker import Onlooker
from qsync_sim.readers import EarlyReader
from qsync_sim.recorder import Recorder, Recording
from qsync_sim.shell import Shell, content_of
from qsync_sim.violation import Violation
from qsync_sim.watch import Watch

if TYPE_CHECKING:
    from qsync_sim.workloads.base import Session

ADMIN_SESSION = 7
KEY_WINDOW_ROWS = 300  # so short that keys expire within a schedule
NOP = 12


class Receiver(Protocol):
    """A client that receives the answers to its session."""

    def on_answer(self, answer: fx.Answer) -> None: ...


class Levels(Protocol):
    """The versions of a world's processes (versions.py)."""

    def level_of_new(self) -> int: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def check(self) -> None: ...
    def on_started(self, shell: Shell) -> None: ...
    def on_step(self, shell: Shell, node: Node) -> None: ...
    def on_stopped_by_level(self, shell: Shell) -> None: ...


class World:
    """Event queue and observer."""

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_ns = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.base = settings or Settings(
            heartbeat_ns=50 * MILLISECOND,
            election_timeout_ns=400 * MILLISECOND,
            synchro_timeout_ns=700 * MILLISECOND,
            checkpoint_bytes=6000,
            tail_cache_bytes=2000,
            retention_ns=2 * SECOND,
            relay_chunk_bytes=4096,
            confirm_rows_max=5,
            work_per_step=1_200,
            read_part_tuples=2,
            build_tuples_max=5,
        )
        self.replicaset_uuid = self._uuid()
        self.shells: dict[str, Shell] = {}
        self.network = Network(self)
        self.machine = INSTANT
        self.disk_calls: dict[type[Any], int] = {}  # the most of a task so far, by its type
        self.disk_spread = 1.0  # of the time of a task, relative to the delay of its disk
        self.lost_starts = 0.0  # probability that the power is lost during a start
        self.onlooker = Onlooker(self)
        self.archive: Archive | None = None
        self.authority = Authority()
        self.availability = Availability(self)
        self.watch = Watch(self)
        self.has_sockets = False  # whether clients connect by sockets
        self.versions: Levels | None = None  # if there are processes of two versions
        self.clients: list[Client] = []
        self.readers: list[EarlyReader] = []  # which are clients, too
        self.has_journal = False  # to which clients publish
        self.clients_by_session: dict[int, Receiver] = {}
        self.sessions: list[Session] = []  # of workloads
        self.history: list[Operation] = []
        self.counters: Counter[str] = Counter()
        self.ledger: dict[int, tuple[int, int, bytes, bool, int]] = {}
        self.leaders: dict[int, str] = {}
        self.told_index = 0
        self.confirmed_anywhere = 0
        self.trace: list[str] = []
        self.is_tracing = False
        self.on_event: Callable[[Shell, fx.Report], None] | None = None
        self.on_leadership: Callable[[str, str], None] | None = None
        self.recording: Recording | None = None
        self.on_story_answer: Callable[[fx.Answer], None] | None = None
        self._admin_sync = 0
        self._admin_answers: dict[int, fx.Answer] = {}
        self._made = 0
        self._by_address: dict[str, Shell] = {}
        self._links = 0
        self.switchover_ns = 0
        self.checkpoint_delays = 1  # writes of the longest checkpoint
        self.has_faults = True  # until the schedule ends them all
        self.ambushes: list[tuple[str, Callable[[Shell], None]]] = []

    # --- time ---------------------------------------------------------------------------------

    def at(self, when_ns: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (max(when_ns, self.now_ns), self._sequence, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.at(self.now_ns + delay_ns, action)

    def run_until(self, deadline_ns: int, done: Callable[[], bool] | None = None) -> bool:
        """Run events; True when `done` became true, False at the deadline."""
        while self._events and self._events[0][0] <= deadline_ns:
            when, _, action = heapq.heappop(self._events)
            self.now_ns = when
            action()
            if done is not None and done():
                return True
        self.now_ns = deadline_ns
        return done is not None and done()

    def run_for(self, duration_ns: int, done: Callable[[], bool] | None = None) -> bool:
        return self.run_until(self.now_ns + duration_ns, done)

    def _uuid(self) -> str:
        return str(uuids.UUID(int=self.rng.getrandbits(128), version=4))

    # --- instances ----------------------------------------------------------------------------

    def add(self, role: str = "voter", **settings: Any) -> Shell:
        """Add an instance on an empty disk."""
        self._made += 1
        name = f"n{self._made}"
        if self.versions is not None:
            settings["level"] = self.versions.level_of_new()
        chosen = replace(self.base, name=name, role=role, **settings)
        shell = Shell(self, name, self._uuid(), chosen)
        self.shells[shell.uuid] = shell
        self._by_address[self.address_of(shell)] = shell
        return shell

    def bootstrap(self, voters: int, **settings: Any) -> None:
        """Form a cluster of `voters` that accepts writes, with its spaces."""
        shells = [self.add(**settings) for _ in range(voters)]
        shells[0].bootstrap(voters, KEY_WINDOW_ROWS)
        for shell in shells:
            shell.start()
        if not self.run_for(60 * SECOND, lambda: self.all_vote(voters)):
            raise Violation("liveness: the cluster did not form within 60 s")
        for space in (SPACE, ASYNC_SPACE):
            options = {"is_sync": space == SPACE}
            self.insert(SystemSpace.SPACE, [space, 1, f"s{space}", "memtx", 0, options, []])
            parts = [[0, "unsigned"]]
            self.insert(SystemSpace.INDEX, [space, 0, "pk", "tree", {"unique": True}, parts])

    def all_vote(self, voters: int) -> bool:
        """Return whether a leader has at least `voters` voters, and accepts registrations."""
        leader = self.leader()
        if leader is None or leader.node is None:
            return False
        node = leader.node
        configuration = node.context.confirmed_configuration
        return len(configuration.voters) >= voters and node.registrar.is_open()

    # --- addresses ----------------------------------------------------------------------------

    def address_of(self, shell: Shell) -> str:
        return f"{shell.name}:1"

    def at_address(self, address: str) -> Shell:
        return self._by_address[address]

    def addresses_for(self, shell: Shell) -> dict[str, str]:
        """Return the addresses that the configuration of a starting process names."""
        return {
            other.name: self.address_of(other)
            for other in self.shells.values()
            if not other.is_removed or other is shell
        }

    def next_link(self) -> int:
        """Return an unused number for a link."""
        self._links += 1
        return self._links

    def leader(self) -> Shell | None:
        """Return the leader of the highest term, if it may answer clients."""
        found: Shell | None = None
        for shell in self.shells.values():
            if shell.node is not None and shell.node.replica.leader is not None:
                best = found.node.context.term if found is not None and found.node else -1
                if shell.node.context.term > best:
                    found = shell
        return found

    def alive(self) -> list[Shell]:
        return [shell for shell in self.shells.values() if shell.is_alive]

    def insert(self, space: int, fields: list[Any]) -> None:
        """Insert a row as the administrator and wait for it."""
        self.change(INSERT, insert_body(space, fields))

    def change(self, row_type: int, body: bytes) -> None:
        """Send a request as the administrator until it succeeds or its key exists."""
        for _ in range(20):
            answer = self.ask_leader(
                lambda sync: fx.Request(ADMIN_SESSION, sync, row_type, body, 0, "admin", None)
            )
            if answer is not None and answer.code in (0, 3):
                return
            self.run_for(100 * MILLISECOND)
        raise Violation(
            f"liveness: {msgpack.unpackb(body, strict_map_key=False)} could not be written"
        )

    def ask_leader(self, make: Callable[[int], Any], wait_ns: int = 5 * SECOND) -> fx.Answer | None:
        leader = self.leader()
        if leader is None:
            return None
        return self.ask(leader, make, wait_ns)

    def ask(
        self, shell: Shell, make: Callable[[int], Any], wait_ns: int = 5 * SECOND
    ) -> fx.Answer | None:
        """Ask one instance and wait for its answer."""
        sync = self.send(shell, make)
        self.run_for(wait_ns, lambda: sync in self._admin_answers)
        return self._admin_answers.get(sync)

    def send(self, shell: Shell, make: Callable[[int], Any]) -> int:
        """Send what `make` returns for the number of a new request, and return that number."""
        self._admin_sync += 1
        shell.step([make(self._admin_sync)])
        return self._admin_sync

    def command(self, shell: Shell, verb: str, **arguments: Any) -> None:
        """Send an admin verb without waiting for its answer."""
        if verb in FENCES:
            self.authority.on_order(shell, self._admin_sync + 1, verb)
        if verb in MOVING:
            self.availability.on_order(shell)
        self.watch.on_order(self._admin_sync + 1, shell, verb, arguments)
        self.send(shell, lambda sync: fx.Command(ADMIN_SESSION, sync, verb, arguments))

    # --- reports of shells ---------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        raise Violation(reason)

    def count(self, what: str) -> None:
        self.counters[what] += 1

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
        for client in self.clients:
            client.on_member_stopped(shell)
        for session in self.sessions:
            session.on_member_stopped(shell)

    def on_restart_wanted(self, shell: Shell) -> None:
        """Restart a member because its core no longer trusts its memory (D4)."""
        self.count("restarts after a failed write")
        shell.stop(power_loss=False)
        self.after(self.rng.randrange(300 * MILLISECOND), lambda: self.start_again(shell))

    def on_refused_files(self, shell: Shell) -> None:
        """Replace a member that does not start because of a damaged file."""
        self.count("damaged files refused")
        faults.replace_member(self, shell)

    def note_disk_calls(self, task: type[Any], calls: int) -> None:
        """Note how many disk calls a task took, for power losses at any of them."""
        if calls > self.disk_calls.get(task, 0):
            self.disk_calls[task] = calls

    def start_again(self, shell: Shell) -> None:
        if not shell.is_alive and not shell.is_removed:
            shell.start()

    def on_answer(self, shell: Shell, answer: fx.Answer) -> None:
        if self.on_story_answer is not None and answer.session != ADMIN_SESSION:
            self.on_story_answer(answer)
            return
        if answer.session == ADMIN_SESSION:
            self._admin_answers[answer.sync] = answer
            self.authority.on_order_answered(answer)
            self.watch.on_answer(answer)
            return
        if answer.code and not refusals.is_relayed(shell, answer.code):
            refusals.check(shell, answer.code, answer.reason, shell.uuid)
        client = self.clients_by_session.get(answer.session)
        if client is None:
            return
        life = shell.life

        def arrive() -> None:
            if shell.life == life:
                client.on_answer(answer)

        self.after(self.rng.randrange(50_000, 400_000), arrive)

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
        elif event == "step_down":
            self.availability.on_leadership(shell, fields["reason"])
        elif event == "nack":
            self.onlooker.on_nack(shell, fields["index"], fields["term"])
        elif event == "split_brain":
            raise Violation(f"L4: {shell.name}: split brain without a cause: {fields['reason']}")
        elif event == "feature_level_unsupported" and self.versions is not None:
            self.versions.on_stopped_by_level(shell)
        elif event == "row_not_applied" and not self.counters["fault nack"]:
            raise Violation(f"T7: {shell.name}: {fields['reason']}")

    def _on_leader(self, shell: Shell, fields: dict[str, Any]) -> None:
        """Check a new leader, and count adopted and discarded tails."""
        term = fields["term"]
        other = self.leaders.setdefault(term, shell.uuid)
        if other != shell.uuid:
            raise Violation(f"E1: term {term} has two leaders")
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
        self.availability.observe()

    def observe(self, shell: Shell, node: Node) -> None:
        """Record the confirmed rows of each instance and compare them (L3)."""

        def see(taken: list[Entry], removed: list[Entry]) -> None:
            for entries, is_taken in ((taken, True), (removed, False)):
                for entry in entries:
                    self._record(shell, entry, is_taken)

        node.observer = see

    def _record(self, shell: Shell, entry: Entry, is_taken: bool) -> None:
        for index, replica_id, lsn, body in content_of(entry):
            seen = self.ledger.get(index)
            row_type = entry.rows[index - entry.batch.first_index].type
            row = (replica_id, lsn, body, is_taken, row_type)
            if shell.settings.spaces and seen is not None:
                seen = _as_sent_to(shell, seen)
            if seen is None:
                self.ledger[index] = row
                if shell.node is not None:
                    self.onlooker.on_confirmed(shell, shell.node, index, is_taken)
                self.confirmed_anywhere = max(self.confirmed_anywhere, index)
            elif seen != row:
                raise Violation(
                    f"L3: {shell.name} confirmed another row at {index}: "
                    f"{_shown(row)} instead of {_shown(seen)}"
                )


def insert_body(space: int, fields: list[Any]) -> bytes:
    """Return the body of an INSERT."""
    packed: bytes = msgpack.packb(fields)
    return put_body(space, packed)


def _as_sent_to(
    shell: Shell, row: tuple[int, int, bytes, bool, int]
) -> tuple[int, int, bytes, bool, int]:
    """Return the row as an instance with a list of spaces receives it, possibly as a NOP."""
    replica_id, lsn, body, is_taken, row_type = row
    if row_type not in CHANGES or is_held(body, held_by(shell.settings.spaces)):
        return row
    return replica_id, lsn, b"", is_taken, NOP


def _shown(row: tuple[int, int, bytes, bool, int]) -> str:
    replica_id, lsn, body, is_taken, row_type = row
    verdict = "taken" if is_taken else "rolled back"
    return f"type {row_type} replica {replica_id} lsn {lsn} {verdict} {body[:40]!r}"
