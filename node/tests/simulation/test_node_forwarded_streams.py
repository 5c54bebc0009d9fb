"""Requests at a member that does not lead: streams, pages, and answers that wait for it (T10)."""

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.transactions.forwarding import COVER_DEADLINE_HEARTBEATS
from qsync_sim.model import SPACE
from qsync_sim.workloads.base import body_of
from qsync_testing.worlds import BEGIN, COMMIT, INSERT, REPLACE, SELECT, Driven, node_of, put


def test_stream_of_a_committed_transaction_can_be_used_after_a_failover() -> None:
    driven = Driven(3)
    member = driven.followers()[0]
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, REPLACE, put(1, "first"), stream=1).code == 0
    assert driven.ask(member, COMMIT, stream=1).code == 0
    former = driven.leader()
    former.stop(power_loss=False)
    assert driven.run(10_000, lambda: driven.world.leader() not in (None, former))
    answer = driven.ask(member, BEGIN, stream=1)
    assert answer.code == 0, answer.reason
    assert driven.ask(member, REPLACE, put(2, "second"), stream=1).code == 0
    assert driven.ask(member, COMMIT, stream=1).code == 0


def test_page_of_a_forwarded_transaction_has_the_position_of_the_next_page() -> None:
    driven = Driven(3)
    leader, member = driven.leader(), driven.followers()[0]
    for key in range(5):
        assert driven.ask(leader, INSERT, put(key, "x")).code == 0
    assert driven.ask(member, BEGIN, stream=1).code == 0
    pages: list[bytes] = []
    after: dict[str, object] = {}
    for count in (2, 2, 1):
        read = body_of(space=SPACE, key=[], iterator=2, limit=2, fetch_position=True, **after)
        page = driven.ask(member, SELECT, read, stream=1)
        assert len(page.tuples) == count
        assert page.position is not None
        pages += page.tuples
        after = {"after_position": page.position}
    whole = driven.ask(leader, SELECT, body_of(space=SPACE, key=[], iterator=2, limit=10))
    assert pages == whole.tuples


def test_committed_write_is_answered_by_a_member_that_lags() -> None:
    """Its client would otherwise wait for the deadline of the request, and then know nothing."""
    driven = Driven(3, build_tuples_max=5)
    leader, member = driven.leader(), driven.followers()[0]
    node = node_of(member)
    for key in range(20):
        assert driven.ask(leader, INSERT, put(key, "x")).code == 0
    driven.run(500)
    node.builds.advance = lambda: None  # type: ignore[method-assign]  # it confirms no row meanwhile
    index = [SPACE, 1, "i1", "tree", {"unique": False}, [[1, "string"]]]
    indexes = int(SystemSpace.INDEX)
    assert driven.ask(leader, INSERT, body_of(space=indexes, tuple=index)).code == 0
    sync = driven.send(member, INSERT, put(50, "committed"))
    wait_ms = COVER_DEADLINE_HEARTBEATS * node.settings.heartbeat_ns / MILLISECOND
    driven.run(wait_ms / 2)
    assert sync not in driven.answers, "the member may still show the row in time"
    assert driven.run(wait_ms, lambda: sync in driven.answers)
    assert driven.answers[sync].code == 0
    assert driven.answers[sync].log_index > node.context.limbo.confirmed_index
