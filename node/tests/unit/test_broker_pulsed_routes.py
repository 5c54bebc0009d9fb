"""Pulses after a restart of all brokers of a journal, whose row does not change."""

from types import SimpleNamespace
from typing import cast

from qsync_broker.append import AppendMachine
from qsync_broker.keyspace import KeyChange, KeySpace
from qsync_broker.lease import BrokerConfig
from qsync_broker.pulses import PULSE_AGAIN_NS, PULSE_NS, Pulses
from qsync_broker.replica import JournalReplica
from qsync_broker.requests import Append
from qsync_broker.states import AppendState
from qsync_node.format.journals import (
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    KeySpaceRow,
    Route,
)
from qsync_sim.journals.keys import SPEC, SimKeySpace

NAME = "a/journal"
BROKERS = [BrokerId("z", f"broker-{letter}") for letter in "abc"]


class PulseStub:
    """The primary of a journal whose three brokers have started again."""

    is_fenced = False

    def __init__(self) -> None:
        self.me = BROKERS[0]
        self.config = BrokerConfig(self.me, "", "", "run")
        self.keys = KeySpace()
        self.rows = SimKeySpace()
        self.begun: list[Append] = []
        self.pulses = Pulses(self, self._begin)
        self.one = SimpleNamespace(sender=None, in_flight=0, journal=NAME, append_error="")
        route = Route(tuple(BROKERS), 0)
        journal = JournalRow(NAME, SPEC, 0, 0, 50, 50, route, 1, 50)
        slots = [AssignmentRow(NAME, one, slot, 2, 2) for slot, one in enumerate(BROKERS)]
        self._put(journal, *slots)
        self.pulses.add(NAME)

    def replica(self, journal: str) -> JournalReplica | None:
        return cast(JournalReplica, self.one)

    def _begin(self, request: Append) -> int:
        self.begun.append(request)
        return len(self.begun)

    def _put(self, *rows: KeySpaceRow) -> None:
        assert self.rows.transact(KeyChange((), rows))
        for revision, changes in self.rows.log[-1:]:
            for change in changes:
                self.keys.apply(change)
            self.keys.advance(revision)

    def announce(self, broker: BrokerId) -> None:
        self._put(BrokerRow(broker, "", "", 100, False, 1000, "run", 1, 60, 60))

    def end(self) -> None:
        """Refuse the pulse under way as one that lacks brokers: no cause is kept."""
        result = SimpleNamespace(error="", reason="")
        append = SimpleNamespace(
            number=len(self.begun), replica=self.one, result=result, state=AppendState.ERROR
        )
        self.pulses.ended(cast(AppendMachine, append))


def test_return_of_the_other_brokers_is_pulsed_without_a_minute_of_delay() -> None:
    host = PulseStub()
    host.announce(BROKERS[0])
    now_ns = 10**9
    host.pulses.tick(now_ns)
    assert len(host.begun) == 1
    host.end()
    host.pulses.tick(now_ns + PULSE_AGAIN_NS + 1)
    assert len(host.begun) == 2, "the journal is not consistent without its other brokers"
    host.end()
    for broker in BROKERS[1:]:
        host.announce(broker)
    returned_ns = now_ns + PULSE_AGAIN_NS + 2
    host.pulses.tick(returned_ns)
    assert len(host.begun) == 2, "a pulse follows the last one too soon"
    later_ns = returned_ns + PULSE_AGAIN_NS
    host.pulses.tick(later_ns)
    assert len(host.begun) == 3
    host.pulses.tick(later_ns + PULSE_NS - 1)
    assert len(host.begun) == 3
    host.pulses.tick(later_ns + PULSE_NS)
    assert len(host.begun) == 4
