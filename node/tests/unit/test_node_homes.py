"""Homes of streams: requests that their client sent for a refused BEGIN (T10)."""

from collections.abc import Iterable

from qsync_node.consensus import effects as fx
from qsync_node.format.keys import Type
from qsync_node.transactions.calls import Call
from qsync_node.transactions.homes import REFUSED_MAX, StreamHomes


def arrived(kind: int, now_ns: int, *, stream: int = 1) -> Call:
    return Call(fx.Request(100, now_ns, int(kind), b"", stream, "admin", None), now_ns)


def with_refused(streams: Iterable[int]) -> StreamHomes:
    """Return homes after a BEGIN in each stream arrived at 1 ns and was refused at 5 ns."""
    homes = StreamHomes()
    for stream in streams:
        homes.on_refused(arrived(Type.BEGIN, 1, stream=stream), 5)
    return homes


def test_requests_until_commit_are_refused_with_their_begin() -> None:
    homes = with_refused([1])
    for kind in (Type.INSERT, Type.INSERT, Type.COMMIT):
        assert homes.is_refused_with_begin(arrived(kind, 2))
    assert not homes.is_refused_with_begin(arrived(Type.INSERT, 3)), "COMMIT has ended it"


def test_requests_that_arrive_later_are_not_refused() -> None:
    homes = with_refused([1])
    assert not homes.is_refused_with_begin(arrived(Type.INSERT, 2, stream=2))
    assert not homes.is_refused_with_begin(arrived(Type.INSERT, 6))


def test_next_transaction_of_the_stream_is_not_refused() -> None:
    homes = with_refused([1])
    begin = arrived(Type.BEGIN, 2)
    homes.bind(begin, (0, 1))
    homes.forget(begin)
    assert not homes.is_refused_with_begin(arrived(Type.INSERT, 3))


def test_refused_begins_are_forgotten_when_no_request_waits() -> None:
    homes = with_refused([1])
    homes.keep_refused([])
    assert not homes.is_refused_with_begin(arrived(Type.INSERT, 2))


def test_refused_begins_of_streams_without_waiting_requests_are_bounded() -> None:
    waiting = arrived(Type.INSERT, 2, stream=7)
    homes = with_refused(range(1, REFUSED_MAX + 4))
    homes.keep_refused([waiting])
    assert homes.is_refused_with_begin(waiting)
    assert not homes.is_refused_with_begin(arrived(Type.INSERT, 2, stream=8))
