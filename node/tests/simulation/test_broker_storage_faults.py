"""Power losses and failed calls lose nothing that `apply` has returned for.

Random batches run against the simulated disk and a model. At a chosen call the power fails, the
process is killed, or the call fails. The directory is then opened and compared with the model.
"""

import contextlib
import errno
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qsync_broker.operations import SpoolKey, SpoolOperation
from qsync_broker.storage.health import Health
from qsync_broker.storage.log import IN_PROGRESS, PREFIX
from qsync_broker.storage.spools import SpoolFiles, spool_name
from qsync_broker.storage.storage import SpoolStorage
from qsync_sim.journals.files import FileFault, FilePowerLoss, SimFiles, SimHandle
from qsync_testing.brokers.spool_model import (
    DIRECTORY,
    SMALL,
    Batches,
    SpoolModel,
    found,
    open_small,
)

NAMES = ["a/one", "a/two", "b/three"]
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class StorageWorld:
    """A directory, its model, and the states that a crash may leave."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.files = SimFiles(seed)
        self.batches = Batches(self.rng, NAMES)
        self.model = SpoolModel()
        self.allowed = [self.model]
        self.storage: SpoolStorage | None = None
        self.faults: dict[int, FileFault] = {}
        self.count = 0
        self.files.on_call = self._on_call

    def _on_call(self, call: str, path: str) -> FileFault | None:
        self.count += 1
        return self.faults.pop(self.count, None)

    def arm(self, after: int, fault: FileFault) -> None:
        self.faults = {self.count + after: fault}

    def open(self) -> None:
        """Open the directory and compare it with the allowed states."""
        self.storage = open_small(self.files)
        self.batches.partial.clear()
        model = found(self.storage)
        assert not self.storage.recovered.lost
        assert model in self.allowed, self._difference(model)
        assert all(problem is None for _, problem in self.storage.verify_completed())
        self.model = model
        self.allowed = [model]

    def _difference(self, model: SpoolModel) -> str:
        return "\n".join(
            f"{name}: {model.journal(name)}\n  not in {[one.journal(name) for one in self.allowed]}"
            for name in NAMES
            if model.journal(name) not in [one.journal(name) for one in self.allowed]
        )

    def apply(self) -> None:
        """Apply a random batch; repeat it after a failure that permits this."""
        assert self.storage is not None
        batch, models = self.batches.make(self.model)
        self.allowed = [models[0], models[-1]]
        self._apply(batch)
        self.model = models[-1]
        self.allowed = [self.model]

    def _apply(self, batch: list[SpoolOperation]) -> None:
        assert self.storage is not None
        try:
            self.storage.apply(batch)
        except OSError:
            self.storage.apply(batch)

    def check_files(self) -> None:
        """Check that no file is leaked and that the sizes are right."""
        assert self.storage is not None
        spools = set(self.files.listdir(f"{DIRECTORY}/spools"))
        keys = [spool.state.key for spool in self.model.open.values()] + list(self.model.completed)
        assert spools <= {spool_name(key) for key in keys}
        segments = self.files.listdir(DIRECTORY)
        assert len(segments) <= 2, segments
        assert all(name.startswith(PREFIX) for name in segments)
        sizes = [self.files.size(f"{DIRECTORY}/spools/{name}") for name in spools]
        sizes += [self.files.size(f"{DIRECTORY}/{name}") for name in segments]
        assert self.storage.used_bytes == sum(sizes)
        assert self.files.open_handles <= SMALL.open_files + 1


@UNTIMED
@given(seed=st.integers(0, 1 << 32), batches=st.integers(1, 60))
def test_reopened_directory_has_all_batches(seed: int, batches: int) -> None:
    world = StorageWorld(seed)
    world.open()
    for _ in range(batches):
        world.apply()
        world.check_files()
    assert world.storage is not None
    world.storage.close()
    assert world.files.open_handles == 0
    world.open()
    world.check_files()


@settings(UNTIMED, max_examples=300)
@given(
    seed=st.integers(0, 1 << 32),
    runs=st.lists(
        st.tuples(
            st.integers(1, 120), st.sampled_from(["power", "power_after", "fail", "full", "kill"])
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_crash_at_any_call_loses_no_batch(seed: int, runs: list[tuple[int, str]]) -> None:
    crash_repeatedly(seed, runs)


def crash_repeatedly(seed: int, runs: list[tuple[int, str]]) -> None:
    world = StorageWorld(seed)
    for after, fault in runs:
        if fault != "kill":
            world.arm(after, fault)  # type: ignore[arg-type]  # one of Fault
        with contextlib.suppress(FilePowerLoss, OSError):
            world.open()
            for _ in range(world.rng.randint(1, 40)):
                world.apply()
        world.faults = {}
        if fault == "kill" or world.rng.random() < 0.3:
            world.files.kill()
        else:
            world.files.crash()
    world.open()
    world.check_files()


@pytest.mark.parametrize("fault", ["power", "power_after", "fail", "full"])
def test_fault_at_each_call_of_a_script(fault: FileFault) -> None:
    for after in range(1, 400, 3):
        world = StorageWorld(after % 7)
        world.open()
        world.arm(after, fault)
        with contextlib.suppress(FilePowerLoss, OSError):
            for _ in range(25):
                world.apply()
        world.faults = {}
        world.files.crash()
        world.open()
        world.check_files()


def test_full_disk_refuses_a_batch_and_accepts_its_repetition() -> None:
    refused = 0
    for after in range(1, 60):
        world = StorageWorld(3)
        world.open()
        world.arm(after, "full")
        for _ in range(15):
            batch, models = world.batches.make(world.model)
            assert world.storage is not None
            try:
                world.storage.apply(batch)
            except OSError as error:
                if error.errno == errno.EIO:  # it has hit a flush
                    break
                refused += 1
                world.storage.apply(batch)
            world.model = models[-1]
            world.allowed = [world.model]
        else:
            world.check_files()
            world.files.crash()
            world.open()
    assert refused > 20


def test_full_disk_leaves_no_descriptor_of_a_new_segment_open() -> None:
    """The broker tries again with each batch, and would run out of descriptors."""
    world = StorageWorld(1)
    world.open()
    storage = world.storage
    assert storage is not None
    world.files.on_call = lambda call, path: (
        "full" if call == "write" and path.endswith(IN_PROGRESS) else None
    )
    refused = 0
    while refused < 5:
        batch, models = world.batches.make(world.model)
        try:
            storage.apply(batch)
            world.model = models[-1]
        except OSError:
            refused += 1
    storage.close()
    assert world.files.open_handles == 0


def test_file_that_is_removed_while_it_is_read_leaves_no_descriptor_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that reads it closes its descriptor, after the read."""
    files = SimFiles()
    files.makedirs(DIRECTORY)
    spools = SpoolFiles(files, DIRECTORY, Health(), 1, 1)
    key = SpoolKey("a/one", 1, 0)
    spools.write(key, 0, [b"one"])
    read = SimHandle.read

    def read_during_a_removal(handle: SimHandle, offset: int, size: int) -> bytes:
        spools.remove(key)
        return read(handle, offset, size)

    monkeypatch.setattr(SimHandle, "read", read_during_a_removal)
    assert spools.read(key, 0, 3) == b"one"
    assert files.open_handles == 0


def test_failed_flush_refuses_all_batches_until_reopened() -> None:
    world = StorageWorld(1)
    world.open()
    world.apply()
    storage = world.storage
    assert storage is not None
    world.files.on_call = lambda call, path: "fail" if call == "sync" else None
    batch, models = world.batches.make(world.model)
    world.allowed = models
    with pytest.raises(OSError, match="injected"):
        storage.apply(batch)
    world.files.on_call = None
    with pytest.raises(OSError, match="an earlier flush failed"):
        storage.apply(batch)
    with pytest.raises(OSError, match="an earlier flush failed"):
        storage.apply([])
    world.files.kill()
    world.open()
    after = world.model
    world.files.crash()
    world.allowed = [after]
    world.open()
