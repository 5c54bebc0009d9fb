"""The batches that a relay puts into one frame."""

import pytest

from qsync_node.consensus.relay import in_frames
from qsync_node.format.batch import LogBatch


def batch(index: int, size: int) -> LogBatch:
    return LogBatch(index, index, 1, index, bytes(size))


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [
        ([10], [[10]]),
        ([200], [[200]]),
        ([60, 40], [[60, 40]]),
        ([60, 41], [[60], [41]]),
        ([1, 200, 1, 99], [[1], [200], [1, 99]]),
    ],
)
def test_a_block_larger_than_a_frame_goes_out_in_several(
    sizes: list[int], frames: list[list[int]]
) -> None:
    batches = [batch(number, size) for number, size in enumerate(sizes, 1)]
    found = list(in_frames(batches, 100))
    assert [[len(item.data) for item in frame] for frame in found] == frames
    assert [item for frame in found for item in frame] == batches
