"""Admission of content to a broker: requests for more, and connections that must wait."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from qsync_broker import events as ev
from qsync_broker.admission import CONTENT_NS, UNSTORED_BYTES_MAX, BrokerAdmission
from qsync_broker.append import AppendMachine
from qsync_broker.flow import PATIENCE_NS, FlowLimit, Pace
from qsync_broker.replica import JournalReplica
from qsync_broker.states import AppendState


class Gate:
    """Admission whose effects are collected."""

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.admission = BrokerAdmission(lambda: False, self.effects.append)

    def take(self) -> list[Any]:
        effects, self.effects[:] = list(self.effects), []
        return effects

    def fill(self) -> None:
        self.admission.submitted(UNSTORED_BYTES_MAX + 1)

    def drain(self) -> None:
        self.admission.unstored_bytes = 0
        self.admission.stored(0)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def appending() -> AppendMachine:
    """Return the part of an append that admission knows."""
    replica = SimpleNamespace(limit=FlowLimit(0))
    return cast(
        AppendMachine,
        SimpleNamespace(
            number=1,
            state=AppendState.STREAM_CONTENT,
            content=SimpleNamespace(sequence=0),
            replica=replica,
            pace=Pace(),
            deadline_ns=0,
        ),
    )


def test_connection_that_opens_while_content_waits_is_blocked(gate: Gate) -> None:
    gate.admission.connected(1)
    gate.fill()
    assert gate.take() == [ev.BlockPeer(1, True)]
    gate.admission.connected(2)
    assert gate.take() == [ev.BlockPeer(2, True)]
    gate.drain()
    assert gate.take() == [ev.BlockPeer(1, False), ev.BlockPeer(2, False)]
    gate.admission.connected(3)
    assert gate.take() == []


def test_append_with_all_its_content_is_asked_for_no_more(gate: Gate) -> None:
    """Its brokers may acknowledge it late, and its client has done its part."""
    append = appending()
    gate.fill()
    gate.admission.ask(append, 0)
    append.state, append.content.sequence = AppendState.READ_ACKNOWLEDGEMENTS, 7
    gate.take()
    gate.drain()
    assert not [one for one in gate.take() if isinstance(one, ev.AskContent)]
    assert not append.pace.is_over(2 * PATIENCE_NS)


def test_append_that_waits_for_the_limit_of_its_journal_keeps_a_later_deadline(
    gate: Gate,
) -> None:
    append = appending()
    limit = FlowLimit(1)
    limit.take(1 << 30)
    append.replica = cast(JournalReplica, SimpleNamespace(limit=limit))
    for deadline_ns, expected_ns in ((0, CONTENT_NS), (60_000_000_000, 60_000_000_000)):
        append.deadline_ns = deadline_ns
        gate.admission.ask(append, 0)
        assert gate.take() == []
        assert append.deadline_ns == expected_ns


def test_append_is_asked_once_there_is_room(gate: Gate) -> None:
    append = appending()
    gate.fill()
    gate.admission.ask(append, 0)
    assert not [one for one in gate.take() if isinstance(one, ev.AskContent)]
    gate.drain()
    assert [one for one in gate.take() if isinstance(one, ev.AskContent)] == [ev.AskContent(1)]
    assert append.pace.is_over(2 * PATIENCE_NS)


def test_append_that_has_ended_is_not_asked(gate: Gate) -> None:
    append = appending()
    gate.fill()
    gate.admission.ask(append, 0)
    append.state = AppendState.ERROR
    gate.take()
    gate.drain()
    assert gate.take() == []


def test_append_is_not_asked_while_a_connection_to_a_peer_is_full() -> None:
    effects: list[Any] = []
    is_full = True
    admission = BrokerAdmission(lambda: is_full, effects.append)
    admission.ask(appending(), 0)
    assert effects == []
    is_full = False
    admission.let(0)
    assert effects == [ev.AskContent(1)]
