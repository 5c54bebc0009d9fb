"""Messages between members arrive as they were sent, and invalid ones raise ValueError (P1)."""

from types import GenericAlias
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_node.consensus import messages as msg
from qsync_node.consensus.history import TermStart
from qsync_node.format.batch import LogBatch

NUMBERS = st.integers(0, 2**63)
STARTS = st.lists(st.builds(TermStart, NUMBERS, NUMBERS, NUMBERS), max_size=3)
BATCHES = st.lists(
    st.builds(LogBatch, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=30)), max_size=3
)


def fields_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: NUMBERS,
        bool: st.booleans(),
        str: st.text(max_size=10),
        bytes: st.binary(max_size=20),
        object: st.none() | st.lists(NUMBERS, max_size=3),
        list[TermStart]: STARTS,
        list[LogBatch]: BATCHES,
        list[int]: st.lists(NUMBERS, max_size=3),
        list[bytes]: st.lists(st.binary(max_size=9), max_size=3),
        dict[int, int]: st.dictionaries(NUMBERS, NUMBERS, max_size=3),
    }
    return st.tuples(*(plain[kind.__annotations__[name]] for name in kind._fields)).map(
        lambda values: kind(*values)
    )


ANY_MESSAGE = st.one_of([fields_of(kind) for kind in msg.MESSAGES])


@given(ANY_MESSAGE)
def test_round_trip(message: Any) -> None:
    again = msg.decode(msg.encode(message))
    assert again == message
    assert type(again) is type(message)
    for sent, got in zip(message, again, strict=True):
        if isinstance(sent, list) and isinstance(got, list):
            assert list(map(type, got)) == list(map(type, sent))


WIRE_FORM = """
0 VoteRequest: int int int bool bool int
1 VoteReply: int bool bool int int int int bool
2 Heartbeat: int int int int
3 HeartbeatReply: int int bool
4 Subscribe: int int bool list[int]
5 Histories: int int list[TermStart] int int int bool
6 Follow: int int int int
7 Rows: int int int int int list[LogBatch]
8 Ack: int int int int int int
9 Refusal: int int int str
10 SnapshotRequest: int int int
11 SnapshotChunk: int int int dict[int, int] list[TermStart] list[bytes] bool int
12 Register: int str str int
13 RegisterReply: int int int str
14 Forward: int str int bytes int int object int
15 ForwardReply: int int str list[bytes] int bytes
16 ForwardClosed: int
17 ReadIndex: int
18 ReadIndexReply: int int
19 NominationOrder: int
"""


def test_members_of_two_versions_understand_each_other() -> None:
    """A message with other fields closes the connection, also while an update rolls (P2)."""
    found = [
        f"{number} {kind.__name__}: " + " ".join(map(_name_of, kind.__annotations__.values()))
        for number, kind in enumerate(msg.MESSAGES)
    ]
    assert found == WIRE_FORM.split("\n")[1:-1]


def _name_of(hint: type | GenericAlias) -> str:
    if isinstance(hint, GenericAlias):
        return f"{hint.__origin__.__name__}[{', '.join(map(_name_of, hint.__args__))}]"
    return str(hint.__name__)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message(junk: bytes) -> None:
    try:
        message = msg.decode(junk)
    except ValueError:
        return
    assert type(message) in msg.MESSAGES


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JUNK)
def test_values_that_are_no_message(junk: object) -> None:
    try:
        message = msg.decode(msgpack.packb(junk))
    except ValueError:
        return
    assert type(message) in msg.MESSAGES


@given(ANY_MESSAGE, st.data())
def test_one_field_replaced(message: msg.PeerMessage, data: st.DataObject) -> None:
    fields = msgpack.unpackb(msg.encode(message), strict_map_key=False)
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(JUNK)
    try:
        again = msg.decode(msgpack.packb(fields))
    except ValueError:
        return
    assert type(again) in msg.MESSAGES


@given(ANY_MESSAGE, st.data())
def test_cut_off(message: msg.PeerMessage, data: st.DataObject) -> None:
    encoded = msg.encode(message)
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError):
        msg.decode(encoded[:length])


FOREIGN_VCLOCK: Any = {1: "five"}
FOREIGN_ROWS: Any = ["text"]
FOREIGN_SPACES: Any = ["512"]


@pytest.mark.parametrize(
    "message",
    [  # values that the types forbid and a faulty peer may send
        msg.SnapshotChunk(1, 0, 5, FOREIGN_VCLOCK, [], [], True, 0),
        msg.SnapshotChunk(1, 0, 5, {1: 5}, [], FOREIGN_ROWS, True, 0),
        msg.Subscribe(1, 1, False, FOREIGN_SPACES),
    ],
)
def test_items_of_lists_are_checked(message: msg.PeerMessage) -> None:
    with pytest.raises(ValueError, match="something else"):
        msg.decode(msg.encode(message))
