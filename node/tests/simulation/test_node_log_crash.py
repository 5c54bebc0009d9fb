"""Crashes at every call lose no acknowledged data, and the directory always opens.

A model records the guarantees of each operation. A script of operations runs against the simulated
disk. At a chosen call the power fails, or the call fails and the process stops. The directory is
then opened and compared with the model, over several process runs.
"""

import contextlib
import zlib
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import REPLACE
from qsync_node.format.row import LogRow, encode_rows, encode_singles
from qsync_node.storage.errors import DiskError, DiskFull
from qsync_node.storage.rewind import read_saved_rows
from qsync_node.storage.storage import Recovered, SegmentLimits, Storage
from qsync_sim.disk import DiskFault, PowerLoss, SimDisk

# A busy machine may delay examples: no test here depends on a duration.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

UUID = "70dce487-582e-5e56-a3ed-a1541ed73826"
DIRECTORY = "/srv/data"
BIG_BODY = b"\x81\x21\xc5\x20\x00" + Random(2).randbytes(0x2000)
LIMITS = SegmentLimits(segment_bytes=1500, mark_bytes=200)


def make_batch(rng: Random, first_index: int, replica_id: int, first_lsn: int) -> LogBatch:
    """Return one to five rows: single transactions, or one transaction of all rows."""
    count = rng.randint(1, 5)
    bodies = []
    for _ in range(count):
        value = rng.randbytes(rng.choice([0, 3, 40, 400, 700]))
        bodies.append(
            b"\x82\x10\xcd\x02\x00\x21\x92\x01\xc5" + len(value).to_bytes(2, "big") + value
        )
    if count > 1 and rng.random() < 0.4:
        rows = [
            LogRow(
                   REPLACE, replica_id, first_lsn + number, 1.5, body,
                   tsn=first_lsn, is_commit=number == count - 1,
            )
            for number, body in enumerate(bodies)
        ]  # fmt: skip
        data = encode_rows(rows)
    else:
        data = b"".join(
            encode_singles([(REPLACE, body) for body in bodies], replica_id, first_lsn, 1.5, 6)
        )
    return LogBatch(first_index, first_index + count - 1, replica_id, first_lsn + count - 1, data)


@dataclass
class CrashState:
    """A log that an opened directory may show: digest and vclock at the end of each batch."""

    digests: dict[int, int] = field(default_factory=lambda: {0: 0})
    vclocks: dict[int, dict[int, int]] = field(default_factory=lambda: {0: {}})
    last: int = 0

    def extended(self, batches: list[LogBatch]) -> "CrashState":
        state = CrashState(dict(self.digests), dict(self.vclocks), self.last)
        for batch in batches:
            vclock = dict(state.vclocks[state.last])
            vclock[batch.replica_id] = batch.last_lsn
            digest = zlib.crc32(batch.data, state.digests[state.last])
            state.last = batch.last_index
            state.digests[state.last], state.vclocks[state.last] = digest, vclock
        return state

    def cut(self, index: int) -> "CrashState":
        return CrashState(
            {at: digest for at, digest in self.digests.items() if at <= index},
            {at: vclock for at, vclock in self.vclocks.items() if at <= index},
            index,
        )


def snapshot_bodies(state: CrashState, index: int) -> list[bytes]:
    """Return a snapshot whose contents identify its position in one history."""
    digest = state.digests[index].to_bytes(4, "big")
    filler = b"\x82\x10\xce\x00\x00\x02\x00\x21\x91\xc4\x30" + bytes(48)
    return [b"\x82\x10\xce\x00\x00\x02\x00\x21\x91\xce" + digest] + [filler] * (index % 50)


class CrashWorld:
    """One directory, its model, and the states that are allowed after a crash."""

    def __init__(self, seed: int, limits: SegmentLimits = LIMITS) -> None:
        self.limits = limits
        self.rng = Random(seed)
        self.disk = SimDisk()
        self.disk.makedirs("/srv")
        self.disk.sync_dir("/")
        self.state = CrashState()
        self.allowed = [self.state]
        self.ballots = [b"first"]
        self.snapshots = [0]
        self.must_be_saved: list[LogBatch] = []
        self.storage = Storage.create(self.disk, DIRECTORY, UUID, limits, b"first")

    # -- operations: each first sets the states that a crash during it may leave --

    def write(self) -> None:
        batches, index, state = [], self.state.last, self.state
        for _ in range(self.rng.randint(1, 3)):
            replica_id = self.rng.randint(1, 2)
            first_lsn = state.vclocks[state.last].get(replica_id, 0) + 1
            batch = make_batch(self.rng, index + 1, replica_id, first_lsn)
            batches.append(batch)
            state, index = state.extended([batch]), batch.last_index
        self.allowed = [self.state, state]
        self.storage.write(batches)
        self.settle(state)

    def rewind(self) -> None:
        points = [at for at in self.state.digests if at >= self.snapshots[-1]]
        points = [at for at in points if at >= self.storage.first_available_index]
        index = self.rng.choice(points)
        tail = self.storage.read(index, 1 << 30)
        self.allowed = [self.state.cut(at) for at in points if at >= index]
        # A crash may leave the log truncated at any later end of a batch, such as a segment's end.
        self.storage.rewind(index, 7)
        self.must_be_saved = tail
        self.settle(self.state.cut(index))

    def checkpoint(self) -> None:
        index = self.rng.choice([at for at in self.state.digests if at >= self.snapshots[-1]])
        self.snapshots.append(index)
        self.storage.write_snapshot(
            self.state.vclocks[index], snapshot_bodies(self.state, index), 1.5
        )
        self.snapshots = [index]

    def install(self) -> None:
        """Install a leader's snapshot that is up to 20 rows ahead."""
        state = self.state
        for _ in range(self.rng.randint(1, 4)):
            lsn = state.vclocks[state.last].get(1, 0) + 1
            state = state.extended([make_batch(self.rng, state.last + 1, 1, lsn)])
        self.allowed = [self.state, state]
        self.snapshots.append(state.last)
        self.storage.install_snapshot(
            state.vclocks[state.last], snapshot_bodies(state, state.last), 1.5
        )
        self.snapshots = [state.last]
        self.settle(state)

    def ballot(self) -> None:
        self.ballots.append(self.rng.randbytes(self.rng.randint(0, 30)))
        self.storage.store_ballot(self.ballots[-1])
        self.ballots = self.ballots[-1:]

    def collect(self) -> None:
        self.storage.remove_segments_before(self.rng.randint(0, self.state.last))
        self.storage.remove_snapshots_before(self.rng.randint(0, self.state.last))

    def rotate(self) -> None:
        self.storage.rotate()

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.storage.clean_stop()
        self.disk.kill()
        assert self.open().clean

    OPERATIONS = ("write", "write", "write", "rewind", "checkpoint", "install", "ballot",
                  "collect", "rotate", "restart")  # fmt: skip

    def settle(self, state: CrashState) -> None:
        self.state = state
        self.allowed = [state]

    # -- after a crash --

    def open(self) -> Recovered:
        self.storage, recovered = Storage.open(self.disk, DIRECTORY, self.limits)
        return recovered

    def reopen_and_check(self) -> None:
        recovered = self.open()
        assert recovered.ballot in self.ballots
        base = recovered.snapshot.index if recovered.snapshot is not None else 0
        assert base in self.snapshots
        candidates = [state for state in self.allowed if state.last == recovered.last_index]
        assert candidates, (recovered.last_index, [state.last for state in self.allowed])
        state = candidates[-1]
        if recovered.snapshot is not None:
            assert list(recovered.snapshot.bodies()) == snapshot_bodies(state, base)
        check_rows(state, base, recovered)
        assert self.storage.read(base, 1 << 30) == recovered.batches
        self.ballots = [recovered.ballot]
        self.snapshots = [base]
        self.settle(state)

    def check_saved(self) -> None:
        """Assert that the rows of the last truncation are in exactly one file."""
        wanted = b"".join(batch.data for batch in self.must_be_saved)
        if wanted:
            names = self.disk.listdir(DIRECTORY + "/rollback")
            saved = [read_saved_rows(self.disk, f"{DIRECTORY}/rollback/{name}") for name in names]
            assert saved.count(wanted) == 1


def check_rows(state: CrashState, base: int, recovered: Recovered) -> None:
    """Assert that the recovered rows have the model's digests up to the end of the log."""
    digest, index = state.digests[base], base
    reached = {base}
    for batch in recovered.batches:
        # Recovery may join batches, so digests are compared only where the model's batches end.
        assert batch.first_index == index + 1
        digest, index = zlib.crc32(batch.data, digest), batch.last_index
        if index in state.digests:
            assert digest == state.digests[index]
            reached.add(index)
    assert index == recovered.last_index == state.last
    assert state.last in reached
    assert recovered.vclock == state.vclocks[state.last]


def run(world: CrashWorld, names: list[str]) -> None:
    for name in names:
        getattr(world, name)()


def count_calls(seed: int, names: list[str]) -> int:
    calls = 0

    def count(call: str, path: str) -> None:
        nonlocal calls
        calls += 1

    world = CrashWorld(seed)
    world.disk.on_call = count
    run(world, names)
    return calls


def run_with_fault(seed: int, names: list[str], at: int, fault: DiskFault) -> CrashWorld:
    """Run a script up to the fault; a failed call stops the process there."""
    world = CrashWorld(seed)
    remaining = at

    def inject(call: str, path: str) -> DiskFault | None:
        nonlocal remaining
        remaining -= 1
        return fault if remaining == -1 else None

    world.disk.on_call = inject
    with contextlib.suppress(PowerLoss, DiskError):
        run(world, names)
    world.disk.on_call = None
    return world


scripts = st.lists(st.sampled_from(CrashWorld.OPERATIONS), min_size=1, max_size=6)


@pytest.mark.parametrize("at", range(14))
@pytest.mark.parametrize("fault", ["power", "power_after", "fail"])
def test_a_crash_while_a_directory_is_made_leaves_all_or_nothing(at: int, fault: DiskFault) -> None:
    for seed in range(10):
        disk = SimDisk()
        disk.makedirs("/srv")
        disk.sync_dir("/")
        calls: list[str] = []

        def inject(call: str, path: str, calls: list[str] = calls) -> DiskFault | None:
            calls.append(call)
            return fault if len(calls) == at + 1 else None

        disk.on_call = inject
        with contextlib.suppress(PowerLoss, DiskError):
            Storage.create(disk, DIRECTORY, UUID, LIMITS, b"first")
        assert len(calls) > at, "every call is tried"
        disk.on_call = None
        disk.crash(Random(seed))
        if Storage.exists(disk, DIRECTORY):
            _, recovered = Storage.open(disk, DIRECTORY, LIMITS)
            assert (recovered.last_index, recovered.ballot) == (0, b"first")
        else:
            assert Storage.create(disk, DIRECTORY, UUID, LIMITS).last_index == 0


@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 32), names=scripts)
def test_power_loss_at_every_call(seed: int, names: list[str]) -> None:
    names = ["write", *names]
    for at in range(count_calls(seed, names)):
        for fault in ("power", "power_after"):
            world = run_with_fault(seed, names, at, fault)
            world.disk.crash(Random(seed + at))
            world.reopen_and_check()
            world.write()
            world.disk.crash(Random(at))
            world.reopen_and_check()
            world.check_saved()


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 32), names=scripts)
def test_failure_of_every_call(seed: int, names: list[str]) -> None:
    """A failed call stops the process. The power fails after a start, and again after a write."""
    names = ["write", *names]
    for at in range(count_calls(seed, names)):
        for fault in ("fail", "short", "full"):
            world = run_with_fault(seed, names, at, fault)
            world.disk.kill()
            world.reopen_and_check()
            world.disk.crash(Random(seed + at))
            world.reopen_and_check()
            world.write()
            world.disk.crash(Random(at))
            world.reopen_and_check()


@pytest.mark.parametrize("seed", range(60))
def test_many_incarnations(seed: int) -> None:
    """Operations and faults are random, and faults also interrupt starts."""
    world = CrashWorld(seed)
    rng = world.rng

    def inject(call: str, path: str) -> DiskFault | None:
        if rng.random() < 0.02:
            return rng.choice(["power", "power_after", "fail", "short"])
        return None

    for _ in range(25):
        world.disk.on_call = inject
        with contextlib.suppress(PowerLoss, DiskError):
            run(world, rng.choices(CrashWorld.OPERATIONS, k=12))
        for _ in range(2):
            world.disk.kill() if rng.random() < 0.3 else world.disk.crash(rng)
            try:
                world.reopen_and_check()
            except (PowerLoss, DiskError):
                continue
        world.disk.on_call = None
        world.disk.crash(rng)
        world.reopen_and_check()


@pytest.mark.parametrize("seed", range(40))
def test_operations_continue_after_a_full_disk(seed: int) -> None:
    """DiskFull without `failed` means that nothing happened, so the same process continues (D5)."""
    world = CrashWorld(seed)
    rng = world.rng
    refused = 0

    def fill(call: str, path: str) -> DiskFault | None:
        needs_space = call in ("append", "create", "rename")
        return "full" if needs_space and rng.random() < 0.1 else None

    for _ in range(150):
        world.disk.on_call = fill
        saved = (list(world.ballots), list(world.snapshots))
        try:
            run(world, [rng.choice(CrashWorld.OPERATIONS[:-1])])
        except DiskFull:
            world.disk.on_call = None
            if world.storage.failed:
                world.disk.kill()
                world.reopen_and_check()
            else:
                refused += 1
                world.ballots, world.snapshots = saved
                world.settle(world.state)
                assert world.storage.last_index == world.state.last
                assert world.storage.vclock == world.state.vclocks[world.state.last]
        world.disk.on_call = None
    assert refused
    world.disk.crash(rng)
    world.reopen_and_check()


def test_a_full_disk_undoes_the_write_and_continues_in_a_new_file() -> None:
    world = CrashWorld(5, SegmentLimits())
    for _ in range(4):
        world.write()
    segments = len(world.disk.listdir(DIRECTORY))
    for room in (0, 7, 30, 200):
        world.disk.capacity_bytes = world.disk.used_bytes + room
        batch = make_batch(
            Random(1), world.state.last + 1, 1, world.state.vclocks[world.state.last].get(1, 0) + 1
        )
        big = LogBatch(
            batch.first_index, batch.first_index, 1, batch.first_lsn,
            encode_rows([LogRow(REPLACE, 1, batch.first_lsn, 1.5, BIG_BODY)]),
        )  # fmt: skip
        with pytest.raises(DiskFull):
            world.storage.write([big])
        assert not world.storage.failed
        assert world.storage.last_index == world.state.last
    world.disk.capacity_bytes = 1 << 40
    world.write()
    assert len(world.disk.listdir(DIRECTORY)) == segments + 1
    world.disk.crash(Random(1))
    world.reopen_and_check()


def test_a_failed_flush_poisons_the_storage_for_good() -> None:
    world = CrashWorld(6)
    world.write()
    world.disk.on_call = lambda call, path: "fail" if call == "sync" else None
    with pytest.raises(DiskError):
        world.write()
    world.disk.on_call = None
    assert world.storage.failed
    with pytest.raises(DiskError, match="restart"):
        world.write()
    with pytest.raises(DiskError, match="restart"):
        world.storage.rewind(0, 1)
