"""The queue before the disk of a broker, without a disk."""

import errno

import pytest

from qsync_broker.disk_queue import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    DiskFailure,
    DiskQueue,
    FailedTask,
    RetryTask,
    StoredTask,
)
from qsync_broker.operations import (
    NO_SUM,
    CommitAppend,
    Drop,
    SpoolKey,
    SpoolOperation,
    SpoolState,
    WriteContent,
)

KEY = SpoolKey("a/journal", 1, 0)
FULL = OSError(errno.ENOSPC, "no space")


def content(offset: int) -> SpoolOperation:
    return WriteContent(KEY, offset, b"x")


def queue_of(*offsets: int) -> DiskQueue:
    queue = DiskQueue()
    for token, offset in enumerate(offsets, 1):
        queue.submit(token, [content(offset)])
    return queue


def test_all_that_waits_is_one_batch_with_the_last_token() -> None:
    queue = queue_of(0, 1, 2)
    assert queue.next_batch() == [content(0), content(1), content(2)]
    assert queue.on_result(None) == StoredTask(3)
    assert queue.next_batch() is None


def test_one_batch_is_under_way() -> None:
    queue = queue_of(0)
    queue.next_batch()
    queue.submit(2, [content(1)])
    assert queue.next_batch() is None
    assert queue.on_result(None) == StoredTask(1)
    assert queue.next_batch() == [content(1)]
    assert queue.on_result(None) == StoredTask(2)


def test_failed_batch_is_repeated_without_newer_operations() -> None:
    queue = queue_of(0, 1)
    batch = queue.next_batch()
    for _ in range(2):
        queue.submit(3, [Drop(KEY)])
        assert queue.on_result(DiskFailure(FULL, is_final=False)) == RetryTask(FULL)
        assert queue.next_batch() == batch == [content(0), content(1)]
    assert queue.on_result(None) == StoredTask(2)
    assert queue.next_batch() == [Drop(KEY), Drop(KEY)]


def test_nothing_is_written_after_a_final_failure() -> None:
    queue = queue_of(0)
    queue.next_batch()
    failed = queue.on_result(DiskFailure(FULL, is_final=True))
    assert failed == FailedTask("writing spools failed: [Errno 28] no space")
    queue.submit(2, [content(1)])
    assert queue.next_batch() is None


def test_batch_has_a_bounded_number_of_submissions() -> None:
    queue = queue_of(*range(BATCH_MAX + 1))
    assert len(queue.next_batch() or ()) == BATCH_MAX
    assert queue.on_result(None) == StoredTask(BATCH_MAX)
    assert queue.next_batch() == [content(BATCH_MAX)]


def commit(registers: bytes) -> SpoolOperation:
    return CommitAppend(SpoolState(KEY, 1, 1, NO_SUM, registers, 1, 1, 0))


PART = BATCH_BYTES_MAX // 4


@pytest.mark.parametrize(
    "operation",
    [WriteContent(KEY, 0, bytes(PART)), commit(bytes(PART))],
    ids=["content", "registers"],
)
def test_batch_has_a_bounded_size(operation: SpoolOperation) -> None:
    queue = DiskQueue()
    for token in range(1, 7):
        queue.submit(token, [operation])
    assert len(queue.next_batch() or ()) == 4
    assert queue.on_result(None) == StoredTask(4)
    assert len(queue.next_batch() or ()) == 2
    assert queue.on_result(None) == StoredTask(6)


def test_submission_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    queue = DiskQueue()
    large = [WriteContent(KEY, number * PART, bytes(PART)) for number in range(5)]
    submissions: list[list[SpoolOperation]] = [[content(0)], [*large], [content(1)]]
    for token, operations in enumerate(submissions, 1):
        queue.submit(token, list(operations))
    for expected in submissions:
        assert queue.next_batch() == expected
        queue.on_result(None)


def test_submission_without_operations_is_stored() -> None:
    queue = DiskQueue()
    queue.submit(7, [])
    assert queue.next_batch() == []
    assert queue.on_result(None) == StoredTask(7)
