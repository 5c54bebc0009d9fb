"""A node's shell in the simulation: its disk, its clock, its process.

It performs the effects of the core with the code of `qsync_node.storage` on a simulated disk. Each
lane of the production's scheduler performs one task at a time, as the threads do: writes that queue
up behind one another go to the disk together, and ballots, reads and checkpoints continue beside
them.
A task is taken at the beginning of its delay, as a thread takes it, and has its effect at the end.
A checkpoint takes long, and draws its rows while the state changes.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from random import Random
from typing import TYPE_CHECKING, Any

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.entries import Entry
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.settings import Settings
from qsync_node.format.keys import Type
from qsync_node.node import Node
from qsync_node.storage.errors import CorruptionError, DiskError
from qsync_node.storage.rewind import read_saved_rows
from qsync_node.storage.scheduler import ArchiveFloor, Lane, Scheduler, Seal
from qsync_node.storage.storage import Limits, Storage
from qsync_sim.archiving import SimArchiver
from qsync_sim.disk import PowerLoss, SimDisk
from qsync_sim.eventloop import EventLoop
from qsync_sim.peers import SimPeers
from qsync_sim.server import SimServer

if TYPE_CHECKING:
    from qsync_sim.world import World

DIRECTORY = "/data"
LIMITS = Limits(segment_bytes=8192)
MILLISECOND = 1_000_000
JOINED = 0.8
"""Probability with which a write joins the one before it."""
STORAGE_CALLS = 6
"""Disk calls of a task whose number is not known yet."""
WRITES_AT_ONCE = 4
"""Of a checkpoint, between two looks at how slow the disk is."""


class Shell:
    """One instance on one disk, over all its process runs."""

    def __init__(self, world: "World", name: str, uuid: str, settings: Settings) -> None:
        self.world = world
        self.name = name
        self.uuid = uuid
        self.settings = settings
        self.disk = SimDisk()
        self.rng = Random(world.rng.random())
        self.node: Node | None = None
        self.storage: Storage | None = None
        self.life = 0
        self.clock_rate = 1.0
        self.clock_offset_ns = world.rng.randrange(1, 10**12)
        self.wall_offset_s = 0.0
        self.scheduler = Scheduler()
        self.under_way: dict[Lane, Any] = {}  # the task of each lane that has one
        self.checkpoint: fx.WriteSnapshot | None = None  # under way
        self.disk_delay_ns = 200_000
        self.write_since_ns = 0  # when the write began that is under way, 0 without one
        self.peers: SimPeers | None = None  # of the process that runs
        self.archiver: SimArchiver | None = None  # the same, if the world has an archive
        self.server: SimServer | None = None  # the same, if clients connect by sockets
        self.has_power = True
        self.loop = EventLoop(world, self._turn)
        self.inputs: list[Any] = []  # of the next step
        self.inputs_now: list[Any] = []  # of the step whose effects are performed
        self.lag_ns = 0  # between the beginning of a step and its effects
        self.reads: dict[tuple[int, int], fx.Request] = {}  # not answered, by session and number
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
        self.disk_index = 0  # where the log on disk ended when this instance stopped
        self.disk_position = (0, 0)  # term and index of the last row then, at least
        self._woken_life = 0  # to which `wake_at_ns` belongs

    # --- life ---------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self.node is not None

    def now_ns(self) -> int:
        return self.clock_offset_ns + int(self.world.now_ns * self.clock_rate)

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
        self.life += 1
        self.has_power = True
        self.world.network.on_power(self)
        self.disk.on_call = None
        try:
            self._start()
        except CorruptionError as error:
            if not self.is_damaged:
                self.world.fail(f"{self.name} does not start: {error}")
            self._end_start()
            self.world.on_refused_files(self)
        except PowerLoss:
            self.world.count("power lost during a start")
            self._end_start()
            self.has_power = False
            self.disk.crash(self.rng)
            self.world.after(500 * MILLISECOND, partial(self.world.start_again, self))
        except DiskError:
            # A full disk: the process reports it and exits, and its supervisor restarts it.
            self._end_start()
            self.world.after(500 * MILLISECOND, partial(self.world.start_again, self))

    def _end_start(self) -> None:
        self.node = None
        self.storage = None
        self.disk.on_call = None
        self.disk.kill()

    def _start(self) -> None:
        disk = self.disk
        if self.rng.random() < self.world.lost_starts:
            disk.on_call = self._power_cut(STORAGE_CALLS)
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
        self.world.observe(self, node)
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
        self.scheduler = Scheduler(lambda: self.rng.random() < JOINED)
        self.under_way = {}
        self.write_since_ns = 0
        self.checkpoint = None
        self.fail_next_write = ""
        self.loop = EventLoop(self.world, self._turn)
        self.inputs = []
        node.start(self.now_ns())
        self.peers = SimPeers(self, Random(self.rng.random()))
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
        if power_loss:
            self._lose_power()
        if self.storage is not None:
            self.disk_index = self.storage.last_index
            history = self.node.context.tail.history
            self.disk_position = (history.term_at(self.disk_index), self.disk_index)
        self.node = None
        self.server = None
        self.storage = None
        self.life += 1
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
        storage = self.storage
        if storage is None:
            return
        with suppress(DiskError):
            lanes: list[Lane] = [self.scheduler.log, self.scheduler.ballots, self.scheduler.reads]
            for lane in lanes:
                task = self.under_way.pop(lane, None) or lane.next_task()
                while task is not None:
                    lane.perform(storage, task)
                    task = lane.next_task()
            if not storage.failed:
                storage.clean_stop()
        self.stop(power_loss=False)

    def _lose_power(self) -> None:
        """Cut the power during some of the tasks under way, each at any of its disk calls."""
        if self.checkpoint is not None and self.rng.random() < 0.3:
            self._tear(self.scheduler.checkpoints, self.checkpoint)
        for lane, task in list(self.under_way.items()):
            if self.rng.random() < 0.7:
                self._tear(lane, task)

    def _tear(self, lane: Lane, task: Any) -> None:
        """Cut the power at one of the disk calls of a task."""
        assert self.storage is not None
        self.world.count(f"power lost during {type(task).__name__}")
        calls = self.world.disk_calls.get(type(task), STORAGE_CALLS)
        self.disk.on_call = self._power_cut(calls)
        with suppress(PowerLoss, DiskError):
            lane.perform(self.storage, task)
        self.disk.on_call = None

    def _power_cut(self, calls: int) -> Callable[[str, str], Any]:
        """Return a hook that cuts the power at one of the next `calls` calls, or after them."""
        left = self.rng.randrange(calls + 1)

        def hook(call: str, path: str) -> Any:
            nonlocal left
            left -= 1
            return "power" if left < 0 else None

        return hook

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
        life = self.life

        def due() -> None:
            if self.life == life:
                self.run(callback)

        self.world.after(delay_ns, due)

    def run_in(self, peers: SimPeers, callback: Callable[[], None]) -> None:
        """Run `callback` if the process of `peers` still runs."""
        if self.peers is peers:
            self.loop.run(callback)

    def feed(self, item: Any) -> None:
        """Append an input for the next step, from a callback of the event loop."""
        self.inputs.append(item)

    def step(self, inputs: list[Any]) -> None:
        """Feed inputs to the core once the event loop is free, even if there are none."""
        self.run(partial(self._feed_all, inputs))

    def _feed_all(self, inputs: list[Any]) -> None:
        for item in inputs:
            if type(item) is fx.Request and item.type == Type.SELECT:
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
        life, node = self.life, self.node
        assert node is not None
        self.term_before = node.context.term
        self.voters_before = node.context.voter_uuids()
        self.removed_before = node.context.confirmed_configuration.removed
        last_before = node.context.tail.last_index
        self.limbo_before = node.context.limbo
        self.confirmed_before = self.limbo_before.confirmed_index
        wall = 1e9 + self.world.now_ns / 1e9 + self.wall_offset_s
        machine = self.world.machine
        machine.begin()
        out = node.step(self.now_ns(), wall, inputs)
        cost_ns = self.lag_ns = machine.time_of(
            len(inputs), len(out), is_checkpoint=self.checkpoint is not None
        )
        for effect in out:
            if self.life != life:
                return 0
            self._take(effect)
        if self.server is not None:
            self.server.flush()
        self.lag_ns = 0
        if self.life == life:
            self.world.onlooker.on_step(self, node)
            if self.removed_before:
                self.world.authority.on_step(self, node, inputs, last_before)
            self.world.watch.on_step(self, node)
            self._sleep(node)
        return cost_ns

    def _sleep(self, node: Node) -> None:
        """Wake at the core's next deadline. A pending wake-up before it finds nothing due."""
        wait = max(node.next_deadline_ns() - self.now_ns(), 100_000)
        at = self.world.now_ns + wait
        if self.world.now_ns < self.wake_at_ns <= at and self._woken_life == self.life:
            return
        self.wake_at_ns, self._woken_life = at, self.life
        life = self.life

        def wake() -> None:
            if self.life == life and self.wake_at_ns == at:
                self.step([])

        self.world.at(at, wake)

    def _take(self, effect: Any) -> None:
        kind = type(effect)
        if kind is fx.Send:
            if self.peers is not None:
                self.peers.send(effect.link, effect.message)
        elif kind in _ANSWERS:
            self._take_answer(effect)
        elif kind is fx.Report:
            self.world.on_report(self, effect)
        elif kind is fx.CloseLink:
            if self.peers is not None:
                self.peers.close(effect.link)
        elif kind is fx.Restart:
            self.world.on_restart_wanted(self)
        elif kind is fx.WriteSnapshot:
            self._begin_checkpoint(effect)
        else:
            lane = self.scheduler.lane_of(effect)
            lane.submit(effect)
            self._run(lane)

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
        """Repeat a deferred read in a later step."""
        self.world.count("reads deferred")
        request = self.reads[effect.session, effect.sync]
        life = self.life
        self.world.after(100_000, lambda: self.step([request]) if self.life == life else None)

    def pause(self) -> None:
        self.loop.pause()

    def resume(self) -> None:
        self.loop.resume()

    # --- disk ---------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The data directory."""
        return DIRECTORY

    def seal(self) -> None:
        """Begin a new segment, so that the rows before it can be archived."""
        self.scheduler.log.submit(Seal())
        self._run(self.scheduler.log)

    def allow(self, floor: ArchiveFloor) -> None:
        """Permit the removal of archived files only, and perform removals that waited (S5)."""
        self.scheduler.log.allow(floor)
        self._run(self.scheduler.log)

    def _delay(self) -> int:
        spread = self.world.disk_spread
        return self.lag_ns + int(self.disk_delay_ns * (1 + spread * (self.rng.random() - 0.5)))

    def _run(self, lane: Lane) -> None:
        """Take the lane's next task, unless one is under way, and perform it after a delay."""
        if lane.has_task and lane not in self.under_way:
            self._perform_after(lane, self._delay())

    def _perform_after(self, lane: Lane, delay_ns: int) -> None:
        task = self.under_way[lane] = lane.next_task()
        if type(task) is fx.WriteLog:
            self.write_since_ns = self.world.now_ns
        life = self.life

        def done() -> None:
            if self.life == life and self.storage is not None:
                del self.under_way[lane]
                self._perform(lane, task)

        self.world.after(delay_ns, done)

    def _perform(self, lane: Lane, task: Any) -> None:
        life = self.life
        outcome = lane.on_result(task, self._result_of(lane, task))
        if outcome.broken:
            self.world.on_restart_wanted(self)
            return
        if outcome.inputs:
            self.step(outcome.inputs)
        if self.life != life:
            return
        if outcome.retry_after_s:
            retry = partial(self._retry, lane, life)
            self.world.after(int(outcome.retry_after_s * 1e9), retry)
        else:
            self._run(lane)

    def _retry(self, lane: Lane, life: int) -> None:
        if self.life == life:
            self._run(lane)

    def _begin_checkpoint(self, effect: fx.WriteSnapshot) -> None:
        writes, most = 1, self.world.checkpoint_delays
        if most > 1:
            drawn = list(islice(effect.bodies, self.rng.randrange(40)))
            effect = effect._replace(bodies=chain(drawn, effect.bodies))
            writes = self.rng.randint(1, most)
        self.checkpoint = effect
        self._continue_checkpoint(effect, writes)

    def _continue_checkpoint(self, effect: fx.WriteSnapshot, writes: int) -> None:
        """Wait for the next writes of a checkpoint, as long as the disk takes at that time.

        A disk that was slow when the checkpoint began does not slow what follows its recovery.
        """
        now = min(writes, WRITES_AT_ONCE)
        if now == writes:
            self.scheduler.checkpoints.submit(effect)
            self._perform_after(self.scheduler.checkpoints, now * self._delay())
            return
        life = self.life

        def written() -> None:
            if self.life == life:
                self._continue_checkpoint(effect, writes - now)

        self.world.after(now * self._delay(), written)

    def _result_of(self, lane: Lane, task: Any) -> Any:
        """Perform a task with the faults that wait for it; return its result or its error."""
        assert self.storage is not None
        if type(task) is fx.WriteLog:
            self.write_since_ns = 0
            self._prepare_write(self.storage, task)
        elif type(task) is fx.WriteSnapshot:
            self.checkpoint = None
        before = self.disk.calls
        removed = b""
        if type(task) is fx.Rewind:
            removed = _rows_after(self.storage, task.after_index)
        try:
            result = lane.perform(self.storage, task)
        except DiskError as error:
            return error
        finally:
            self.disk.on_call = None
        self.world.note_disk_calls(type(task), self.disk.calls - before)
        if removed:
            self._check_saved(result, removed)
        if type(task) is fx.StoreBallot:
            self.ballot_on_disk = task.data
        return result

    def _check_saved(self, report: fx.Rewound, removed: bytes) -> None:
        """Check that a truncation has saved the rows that it removed (L6)."""
        if not report.file or read_saved_rows(self.disk, report.file) != removed:
            self.world.fail(f"L6: {self.name} has not saved {len(removed)} bytes of rows")

    def _prepare_write(self, storage: Storage, task: fx.WriteLog) -> None:
        first = task.batches[0].first_index
        assert first > storage.last_index, f"{self.name} writes {first} twice"
        fault = self.fail_next_write
        if not fault or first > storage.last_index + 1:
            return
        self.fail_next_write = ""

        def hook(call: str, path: str) -> Any:
            if fault == "flush":
                return "fail" if call == "sync" else None
            return fault if call in ("append", "sync") else None

        self.disk.on_call = hook


_ANSWERS = frozenset({fx.Answer, fx.Deferred})


def _rows_after(storage: Storage, index: int) -> bytes:
    return b"".join(batch.data for batch in storage.read(index, 1 << 62))


def content_of(entry: Entry) -> list[tuple[int, int, int, bytes]]:
    """Return the identity of each row of an entry: (index, replica id, LSN, body)."""
    index = entry.batch.first_index
    return [
        (index + position, row.replica_id, row.lsn, row.body)
        for position, row in enumerate(entry.rows)
    ]
