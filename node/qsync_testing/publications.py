"""Publications to journals in a simulated cluster: calls, and a cluster that has a journal."""

from typing import Any

import msgpack

from qsync_client.protocol.constants import Key
from qsync_node.consensus import effects as fx
from qsync_node.format.journals import JOURNAL_SPACE, NO_ROUTE, JournalRow, definitions, encode_row
from qsync_sim.clients import build_body
from qsync_testing.worlds import INSERT, Driven

CALL, CALL_16 = 10, 6
JOURNAL, ID = "orders/eu", 7


def call(name: str, *arguments: object) -> bytes:
    packed: bytes = msgpack.packb({Key.FUNCTION_NAME: name, Key.TUPLE: list(arguments)})
    return packed


def publish(content: bytes | str, journal: str = JOURNAL) -> bytes:
    return call("qsync.publish", journal, content)


def journal(name: str = JOURNAL, journal_id: int = ID) -> bytes:
    row = JournalRow(name, {"replication": 3}, 0, 0, 0, 0, NO_ROUTE, journal_id, journal_id)
    return build_body(JOURNAL_SPACE, tuple=encode_row(row))


def publishing_cluster() -> Driven:
    """Return a cluster of three members with the spaces of journals, and one journal."""
    driven = Driven(3)
    for space, fields in definitions():
        assert driven.ask(driven.leader(), INSERT, build_body(space, tuple=fields)).code == 0
    assert driven.ask(driven.leader(), INSERT, journal()).code == 0
    return driven


def values(answer: fx.Answer) -> list[Any]:
    assert answer.code == 0, answer.reason
    return [msgpack.unpackb(packed) for packed in answer.tuples]
