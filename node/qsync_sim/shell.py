"""A node's shell in the simulation: its process, its clock and its disk.

A process performs the effects of the core with the code of `qsync_node.storage` on a simulated disk
(disktasks.py), and connects to other members as in production (peers.py).
"""

from collections.abc import Callable, Container
from functools import partial
from random import Random
from typing import Any, Protocol

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.messages import PeerMessage
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.format.keys import Type
from qsync_node.node import Node
from qsync_node.storage.errors import CorruptionError, DiskError
from qsync_node.storage.scheduler import ArchiveFloor
from qsync_node.storage.storage import SegmentLimits, Storage
from qsync_sim.archiving import ArchiveModel, SimArchiver
from qsync_sim.costs import Machine
from qsync_sim.disk import PowerLoss, SimDisk
from qsync_sim.disktasks import STORAGE_CALLS, Disks, DiskTasks, power_cut
from qsync_sim.eventloop import EventLoop
from qsync_sim.network import Network
from qsync_sim.peers import SimPeers
from qsync_sim.server import SimServer
from qsync_sim.timeline import Timeline

DIRECTORY = "/data"
LIMITS = SegmentLimits(segment_bytes=8192, mark_bytes=600)
MILLISECOND = 1_000_000


class Surroundings(Protocol):
    """Everything around a member: the cluster of a schedule (cluster.py)."""

    network: Network
    replicaset_uuid: str
    disks: Disks
    machine: Machine
    archive: ArchiveModel | None
    has_sockets: bool
    take_packets: Callable[["Shell", fx.TarantoolPackets], None]

    def addresses_for(self, shell: "Shell") -> dict[str, str]: ...
    def start_again(self, shell: "Shell") -> None: ...
    def on_node(self, shell: "Shell", node: Node) -> None: ...
    def on_started(self, shell: "Shell") -> None: ...
    def on_stopped(self, shell: "Shell") -> None: ...
    def on_restart_wanted(self, shell: "Shell") -> None: ...
    def on_refused_files(self, shell: "Shell") -> None: ...
    def on_send(self, shell: "Shell", peer_uuid: str, message: PeerMessage) -> None: ...
    def on_answer(self, shell: "Shell", answer: fx.Answer) -> None: ...
    def on_report(self, shell: "Shell", report: fx.Report) -> None: ...
    def on_step(self, shell: "Shell", node: Node, inputs: list[Any], last_before: int) -> None: ...


class Shell:
    """One instance on one disk, over all its process runs."""

    def __init__(
        self, world: Surroundings, name: str, uuid: str, settings: ConsensusSettings
    ) -> None:
        self.world = world
        self.timeline: Timeline = world.network.timeline
        self.name = name
        self.uuid = uuid
        self.settings = settings
        self.disk = SimDisk()
        self.rng = Random(self.timeline.rng.random())
        self.node: Node | None = None
        self.storage: Storage | None = None
        self.incarnation = 0
        self.clock_rate = 1.0
        self.clock_offset_ns = self.timeline.rng.randrange(1, 10**12)
        self.resumed_ns = 0  # when its last pause ended
        self.wall_offset_s = 0.0
        self.tasks: DiskTasks | None = None  # of the process that runs
        self.disk_delay_ns = 200_000
        self.peers: SimPeers | None = None  # of the process that runs
        self.archiver: SimArchiver | None = None  # the same, if the world has an archive
        self.server: SimServer | None = None  # the same, if clients connect by sockets
        self.has_power = True
        self.loop = EventLoop(self.timeline, self._turn)
        self.inputs: list[Any] = []  # of the next step
        self.inputs_now: list[Any] = []  # of the step whose effects are performed
        self.lag_ns = 0  # between the beginning of a step and its effects
        # Reads and calls without an answer, by session and number.
        self.reads: dict[tuple[int, int], fx.Request] = {}
        self.wake_at_ns = 0
        self.is_removed = False
        self.limbo_before: Limbo | None = None  # before the step under way, like the next one
        self.confirmed_before = 0
        self.is_damaged = False  # a file at rest was changed
        self.fail_next_write = ""
        self.ballot_on_disk = b""
        self.term_before = 0  # when the step began whose effects are performed
        self.voters_before: tuple[str, ...] = ()  # the same, by its log
        self.removed_before: frozenset[str] = frozenset()  # instances that it knew as removed then
        self.members_before: Container[str] = ()  # instances that its log had registered then
        self.disk_index = 0  # where the log on disk ended when this instance stopped
        self.disk_position = (0, 0)  # term and index of the last row then, at least
        self._woken_incarnation = 0  # to which `wake_at_ns` belongs

    # --- process ------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self.node is not None

    def now_ns(self) -> int:
        return self.clock_offset_ns + int(self.timeline.now_ns * self.clock_rate)

    def bootstrap(self, voters: int, key_window_rows: int) -> None:
        """Bootstrap this instance on its empty disk, as ordered (M1)."""
        bodies = Node.bootstrap_bodies(
            self.uuid, self.name, self.world.replicaset_uuid, voters, key_window_rows
        )
        self.install_origin({}, bodies, 0)

    def install_origin(self, vclock: dict[int, int], bodies: list[bytes], term: int) -> None:
        """Write the first state of a cluster to the empty disk.

        Args:
            vclock: the state's vclock; empty unless it was restored.
            bodies: its rows.
            term: the term of its last row. A log is never ahead of the ballot (D2).
        """
        ballot = Ballot(term=term, replicaset_uuid=self.world.replicaset_uuid)
        storage = Storage.create(self.disk, DIRECTORY, self.uuid, LIMITS, ballot.encode())
        storage.install_snapshot(vclock, bodies)
        storage.close()
        self.disk.kill()

    def start(self) -> None:
        """Start a process with the content of the disk."""
        assert self.node is None
        self.incarnation += 1
        self.has_power = True
        self.world.network.on_power(self)
        self.disk.on_call = None
        try:
            self._start()
        except CorruptionError as error:
            if not self.is_damaged:
                self.timeline.fail(f"{self.name} does not start: {error}")
            self._end_start()
            self.world.on_refused_files(self)
        except PowerLoss:
            self.timeline.count("power lost during a start")
            self._end_start()
            self.has_power = False
            self.disk.crash(self.rng)
            self.timeline.after(500 * MILLISECOND, partial(self.world.start_again, self))
        except DiskError:
            # A full disk: the process reports it and exits, and its supervisor restarts it.
            self._end_start()
            self.timeline.after(500 * MILLISECOND, partial(self.world.start_again, self))

    def _end_start(self) -> None:
        self.node = None
        self.storage = None
        self.disk.on_call = None
        self.disk.kill()

    def _start(self) -> None:
        disk = self.disk
        if self.rng.random() < self.world.disks.lost_starts:
            disk.on_call = power_cut(self.rng, STORAGE_CALLS)
        if not Storage.exists(disk, DIRECTORY):
            empty = Ballot(replicaset_uuid=self.world.replicaset_uuid)
            Storage.create(disk, DIRECTORY, self.uuid, LIMITS, empty.encode()).close()
        storage, recovered = Storage.open(disk, DIRECTORY, LIMITS)
        disk.on_call = None
        self.storage = storage
        self.ballot_on_disk = recovered.ballot
        ballot = Ballot.decode(recovered.ballot)
        node = Node(self.uuid, self.settings, Random(self.rng.random()), ballot)
        self.node = node
        self.world.on_node(self, node)
        if recovered.snapshot is not None:
            snapshot = recovered.snapshot
            bodies = list(snapshot.bodies())
            node.recover(
                self.now_ns(),
                snapshot.vclock,
                bodies,
                recovered.batches,
                recovered.first_available_index + 1,
            )
        broken = partial(self.world.on_restart_wanted, self)
        self.tasks = DiskTasks(self, storage, self.timeline, self.world.disks, broken)
        self.fail_next_write = ""
        self.loop = EventLoop(self.timeline, self._turn)
        self.inputs = []
        node.start(self.now_ns())
        self.peers = SimPeers(
            self,
            self.world.network,
            self.world.replicaset_uuid,
            partial(self.world.on_send, self),
            Random(self.rng.random()),
        )
        self.world.on_started(self)
        self._start_archiver(self.peers)
        if self.world.has_sockets:
            self.open_sockets()
        self.run(partial(self.peers.start, self.world.addresses_for(self)))
        self.step([])

    def open_sockets(self) -> None:
        """Let clients connect by sockets."""
        assert self.node is not None
        self.server = SimServer(self, self.node)

    def _start_archiver(self, peers: SimPeers) -> None:
        archive = self.world.archive
        if archive is not None and self.settings.role != "anonymous":
            self.allow(ArchiveFloor(0, 0, 0))  # until the manifest lists the archived files
            self.archiver = SimArchiver(archive, self, peers)

    def stop(self, power_loss: bool) -> None:
        """Kill the process, or lose power and with it all unflushed data."""
        if self.node is None:
            return
        if self.archiver is not None:
            self.archiver.on_stopped()
            self.archiver = None
        if self.tasks is not None:
            if power_loss:
                self.tasks.lose_power()
            self.tasks.end()
        if self.storage is not None:
            self.disk_index = self.storage.last_index
            history = self.node.context.tail.history
            self.disk_position = (history.term_at(self.disk_index), self.disk_index)
        self.node = None
        self.server = None
        self.storage = None
        self.tasks = None
        self.incarnation += 1
        self.loop.end()
        self.reads.clear()
        self.disk.on_call = None
        self.has_power = not power_loss
        if power_loss:
            self.disk.crash(self.rng)
        else:
            self.disk.kill()
        if self.peers is not None:
            self.world.network.on_stopped(self.peers, self.has_power)
            self.peers = None
        self.world.on_stopped(self)

    def stop_cleanly(self) -> None:
        """Finish all tasks except a checkpoint, and write the clean mark (D3)."""
        if self.tasks is not None:
            self.tasks.finish()
            self.stop(power_loss=False)

    # --- steps --------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self.loop.is_paused

    def run(self, callback: Callable[[], None]) -> None:
        """Let the event loop run `callback` once it is free, and then a step with its inputs."""
        if self.node is not None:
            self.loop.run(callback)

    def run_after(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """Let the event loop of this process run `callback` later."""
        incarnation = self.incarnation

        def due() -> None:
            if self.incarnation == incarnation:
                self.run(callback)

        self.timeline.after(delay_ns, due)

    def run_in(self, peers: object, callback: Callable[[], None]) -> None:
        """Run `callback` if the process of `peers` still runs."""
        if self.peers is peers:
            self.loop.run(callback)

    def feed(self, item: object) -> None:
        """Append an input for the next step, from a callback of the event loop."""
        self.inputs.append(item)

    def step(self, inputs: list[Any]) -> None:
        """Feed inputs to the core once the event loop is free, even if there are none."""
        self.run(partial(self._feed_all, inputs))

    def _feed_all(self, inputs: list[Any]) -> None:
        for item in inputs:
            if type(item) is fx.Request and item.type in (Type.SELECT, Type.CALL):
                self.reads[item.session, item.sync] = item
        self.inputs += inputs
        self.loop.is_step_due = True

    def _turn(self) -> int:
        """Perform a step of the core and its effects, and return the time of the step."""
        if self.server is not None:
            self.server.work()
        inputs = self.inputs
        if not inputs and not self.loop.is_step_due:
            return 0
        self.inputs, self.loop.is_step_due = [], False
        self.inputs_now = inputs
        incarnation, node = self.incarnation, self.node
        assert node is not None
        self.term_before = node.context.term
        self.voters_before = node.context.voter_uuids()
        self.removed_before = node.context.confirmed_configuration.removed
        self.members_before = node.context.configuration.uuids
        last_before = node.context.tail.last_index
        self.limbo_before = node.context.limbo
        self.confirmed_before = self.limbo_before.confirmed_index
        wall = 1e9 + self.timeline.now_ns / 1e9 + self.wall_offset_s
        machine = self.world.machine
        machine.begin()
        out = node.step(self.now_ns(), wall, inputs)
        cost_ns = self.lag_ns = machine.time_of(
            len(inputs), len(out), is_checkpoint=self.checkpoint is not None
        )
        for effect in out:
            if self.incarnation != incarnation:
                return 0
            self._take(effect)
        if self.server is not None:
            self.server.flush()
        self.lag_ns = 0
        if self.incarnation == incarnation:
            self.world.on_step(self, node, inputs, last_before)
            self._sleep(node)
        return cost_ns

    def _sleep(self, node: Node) -> None:
        """Wake at the core's next deadline. A pending wake-up before it finds nothing due."""
        wait = max(node.next_deadline_ns() - self.now_ns(), 100_000)
        at = self.timeline.now_ns + wait
        if (
            self.timeline.now_ns < self.wake_at_ns <= at
            and self._woken_incarnation == self.incarnation
        ):
            return
        self.wake_at_ns, self._woken_incarnation = at, self.incarnation
        incarnation = self.incarnation

        def wake() -> None:
            if self.incarnation == incarnation and self.wake_at_ns == at:
                self.step([])

        self.timeline.at(at, wake)

    def _take(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Send):
            if self.peers is not None:
                self.peers.send(effect.link, effect.message)
        elif isinstance(effect, fx.Answer | fx.Deferred):
            self._take_answer(effect)
        elif isinstance(effect, fx.Report):
            self.world.on_report(self, effect)
        elif isinstance(effect, fx.CloseLink):
            if self.peers is not None:
                self.peers.close(effect.link)
        elif isinstance(effect, fx.RestartNode):
            self.world.on_restart_wanted(self)
        elif isinstance(effect, fx.TarantoolPackets):
            self.world.take_packets(self, effect)
        elif self.tasks is not None:
            if isinstance(effect, fx.ReadLog) and effect.reader < 0:
                self.timeline.count("reads for Tarantool replicas")
            self.tasks.submit(effect)

    def _take_answer(self, effect: fx.Answer | fx.Deferred) -> None:
        """Pass an answer, or a returned read, to its client."""
        if self.server is not None and self.server.take(effect):
            return
        if isinstance(effect, fx.Deferred):
            self._give_again(effect)
        else:
            self.reads.pop((effect.session, effect.sync), None)
            self.world.on_answer(self, effect)

    def _give_again(self, effect: fx.Deferred) -> None:
        """Repeat a deferred read or call in a later step."""
        self.timeline.count("reads deferred")
        request = self.reads[effect.session, effect.sync]
        incarnation = self.incarnation
        self.timeline.after(
            100_000, lambda: self.step([request]) if self.incarnation == incarnation else None
        )

    def pause(self) -> None:
        self.loop.pause()

    def resume(self) -> None:
        self.resumed_ns = self.timeline.now_ns
        self.loop.resume()

    # --- disk ---------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The data directory."""
        return DIRECTORY

    @property
    def checkpoint(self) -> fx.WriteSnapshot | None:
        """The checkpoint under way."""
        return self.tasks.checkpoint if self.tasks is not None else None

    def seal(self) -> None:
        """Begin a new segment, so that the rows before it can be archived."""
        if self.tasks is not None:
            self.tasks.seal()

    def allow(self, floor: ArchiveFloor) -> None:
        """Permit the removal of archived files only, and perform removals that waited (S5)."""
        if self.tasks is not None:
            self.tasks.allow(floor)
