"""Publications that are too large for the tuple that holds their content."""

import pytest

from qsync_node.engine.tuples import TUPLE_BYTES_MAX
from qsync_node.errors import ErrorCode
from qsync_testing.publications import CALL, JOURNAL, publish, publishing_cluster, values
from qsync_testing.worlds import BEGIN, COMMIT


@pytest.mark.parametrize("stream", [0, 1])
def test_content_larger_than_a_tuple_is_refused(stream: int) -> None:
    """A statement of a transaction has the limit of a single one."""
    driven = publishing_cluster()
    leader = driven.leader()
    if stream:
        driven.ask(leader, BEGIN, stream=stream)
    largest = TUPLE_BYTES_MAX - len(JOURNAL) - 10  # the row has other fields as well
    assert driven.ask(leader, CALL, publish(b"x" * largest), stream=stream).code == 0
    refused = driven.ask(leader, CALL, publish(b"x" * TUPLE_BYTES_MAX), stream=stream)
    assert refused.code == ErrorCode.SLAB_ALLOC_MAX
    if stream:
        assert values(driven.ask(leader, COMMIT, stream=stream)) == [[JOURNAL, 1]]
