"""The members of a schedule and its network, as clients and faults use them.

`World` (world.py) adds the observers. Everything that happens to a member is
reported by a method `on_...`. Here it does nothing, or only its part for the members.
"""

import uuid as uuids
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import msgpack

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import PeerMessage
from qsync_node.consensus.settings import MILLISECOND, SECOND, ConsensusSettings
from qsync_node.format.body import put_body
from qsync_node.format.keys import INSERT
from qsync_node.node import Node
from qsync_sim.archiving import ArchiveModel
from qsync_sim.costs import INSTANT
from qsync_sim.disktasks import Disks
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.network import Network
from qsync_sim.operation import ClientOperation
from qsync_sim.shell import Shell
from qsync_sim.timeline import Timeline
from qsync_sim.violation import InvariantViolation

ADMIN_SESSION = 7
KEY_WINDOW_ROWS = 150  # so short that keys expire within a schedule

ObservedRow = tuple[int, int, bytes, bool, int]
"""A confirmed row: replica id, LSN, body, whether it was taken, type."""


class Receiver(Protocol):
    """A client that receives the answers to its session."""

    def on_answer(self, answer: fx.Answer) -> None: ...


class Guest(Protocol):
    """A client that has to know when a member's process ends."""

    def on_member_stopped(self, shell: Shell) -> None: ...


class Levels(Protocol):
    """The versions of a world's processes (versions.py)."""

    def level_of_new(self) -> int: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def check(self) -> None: ...
    def on_started(self, shell: Shell) -> None: ...
    def on_step(self, shell: Shell, node: Node) -> None: ...
    def on_removed(self, uuid: str) -> None: ...
    def on_stopped_by_level(self, shell: Shell) -> None: ...


class Cluster(Timeline):
    """Members, their network, and the data that clients agree on.

    Attributes:
        disks: properties of all disks.
        guests: clients that hear of processes that end.
        ledger: the confirmed rows by index, as members have reported them.
        told_index: the greatest index that a client has received.
        confirmed_anywhere: the greatest index that a member has confirmed.
        ambushes: faults that wait for an event of a member, with its name.
    """

    def __init__(self, seed: int, settings: ConsensusSettings | None = None) -> None:
        super().__init__(seed)
        self.base = settings or ConsensusSettings(
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
        self.disks = Disks()
        self.archive: ArchiveModel | None = None
        self.has_sockets = False  # whether clients connect by sockets
        self.versions: Levels | None = None  # if there are processes of two versions
        self.has_journal = False  # to which clients publish
        self.begins_twice = False  # whether clients begin in streams of open transactions
        self.clients_by_session: dict[int, Receiver] = {}
        self.guests: list[Guest] = []
        self.history: list[ClientOperation] = []
        self.ledger: dict[int, ObservedRow] = {}
        self.stamps: dict[int, float] = {}  # timestamps of the same rows (L9)
        self.told_index = 0
        self.confirmed_anywhere = 0
        self.has_faults = True  # until the schedule ends them all
        self.ambushes: list[tuple[str, Callable[[Shell], None]]] = []
        # What receives packets for a Tarantool replica: without one, no member sends any.
        self.take_packets: Callable[[Shell, fx.TarantoolPackets], None] = lambda shell, packets: (
            None
        )
        self._admin_sync = 0
        self._admin_answers: dict[int, fx.Answer] = {}
        self._made = 0

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
        self.network.add(shell)
        return shell

    def bootstrap(self, voters: int, **settings: Any) -> None:
        """Form a cluster of `voters` that accepts writes, with its spaces."""
        shells = [self.add(**settings) for _ in range(voters)]
        shells[0].bootstrap(voters, KEY_WINDOW_ROWS)
        for shell in shells:
            shell.start()
        if not self.run_for(60 * SECOND, lambda: self.all_vote(voters)):
            raise InvariantViolation("liveness: the cluster did not form within 60 s")
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

    def addresses_for(self, shell: Shell) -> dict[str, str]:
        """Return the addresses that the configuration of a starting process names."""
        return {
            other.name: self.network.address_of(other)
            for other in self.shells.values()
            if not other.is_removed or other is shell
        }

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

    # --- requests of the administrator ----------------------------------------------------------

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
        raise InvariantViolation(
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

    def command(self, shell: Shell, verb: str, **arguments: object) -> None:
        """Send an admin verb without waiting for its answer."""
        self.on_order(shell, self._admin_sync + 1, verb, arguments)
        self.send(shell, lambda sync: fx.Command(ADMIN_SESSION, sync, verb, arguments))

    # --- processes ----------------------------------------------------------------------------

    def start_again(self, shell: Shell) -> None:
        if not shell.is_alive and not shell.is_removed:
            shell.start()

    def on_restart_wanted(self, shell: Shell) -> None:
        """Restart a member because its core no longer trusts its memory (D4)."""
        self.count("restarts after a failed write")
        shell.stop(power_loss=False)
        self.after(self.rng.randrange(300 * MILLISECOND), lambda: self.start_again(shell))

    # --- reports of members, and of faults ------------------------------------------------------

    def on_node(self, shell: Shell, node: Node) -> None:
        """A process has a core, which has not recovered yet."""

    def on_started(self, shell: Shell) -> None:
        """A process has started."""

    def on_stopped(self, shell: Shell) -> None:
        """A process has ended."""

    def on_refused_files(self, shell: Shell) -> None:
        """A process did not start because of a damaged file."""

    def on_order(self, shell: Shell, sync: int, verb: str, arguments: dict[str, Any]) -> None:
        """The administrator is about to send an order."""

    def on_send(self, shell: Shell, peer_uuid: str, message: PeerMessage) -> None:
        """A process is about to send a message to another member."""

    def on_answer(self, shell: Shell, answer: fx.Answer) -> None:
        """A process has answered a request."""
        if answer.session == ADMIN_SESSION:
            self._admin_answers[answer.sync] = answer

    def on_report(self, shell: Shell, report: fx.Report) -> None:
        """A core has reported an event."""

    def on_step(self, shell: Shell, node: Node, inputs: list[Any], last_before: int) -> None:
        """A step has ended, whose effects were taken; `last_before` was the end of the log."""

    def on_fault(self) -> None:
        """A fault has begun or ended."""


def insert_body(space: int, fields: list[Any]) -> bytes:
    """Return the body of an INSERT."""
    packed: bytes = msgpack.packb(fields)
    return put_body(space, packed)
