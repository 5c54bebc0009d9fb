"""Publications to a journal in a schedule of the node: a stand-in for brokers, and the checks.

Clients publish alone, with idempotency keys and in transactions. The stand-in reads the confirmed
state of any member, as brokers do, and deletes publications by `qsync.published`. At the end,
the ledger must contain each committed publication exactly once, with the rows of its transaction,
and the sequences 1, 2, 3 and so on in its order (X1, X2).
"""

from collections.abc import Callable
from random import Random

import msgpack

from qsync_node.consensus import effects as fx
from qsync_node.engine.publishing import publisher_of
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    NO_ROUTE,
    PUBLICATION_SPACE,
    JournalRow,
    definitions,
    encode_row,
)
from qsync_node.format.keys import CHANGES, INSERT, KEY_FUNCTION_NAME, KEY_SPACE_ID, KEY_TUPLE, Type
from qsync_sim.cluster import Cluster
from qsync_sim.operation import ClientOperation
from qsync_sim.violation import InvariantViolation

CALL = int(Type.CALL)
JOURNAL, JOURNAL_ID = "events", 1
PUBLISH, KEYED_PUBLISH = "publish", "keyed publish"
PUBLISHES = (PUBLISH, KEYED_PUBLISH)
ROWS = 2
"""Rows of the log that a publication writes."""
BROKER_SESSION = 900
_MILLISECOND = 1_000_000


def call(name: str, *arguments: object) -> bytes:
    """Return the body of a CALL."""
    packed: bytes = msgpack.packb({KEY_FUNCTION_NAME: name, KEY_TUPLE: list(arguments)})
    return packed


def publish_body(value: str) -> bytes:
    """Return the body that publishes a value."""
    return call("qsync.publish", JOURNAL, value.encode())


def enable(world: Cluster, is_over: Callable[[], bool]) -> None:
    """Create the spaces of journals and one journal, and start the stand-in for its broker.

    Args:
        world: the cluster.
        is_over: returns whether the stand-in ends.
    """
    for space, fields in definitions():
        world.insert(space, fields)
    row = JournalRow(JOURNAL, {}, 0, 0, 0, 0, NO_ROUTE, JOURNAL_ID, JOURNAL_ID)
    world.insert(JOURNAL_SPACE, encode_row(row))
    world.has_journal = True
    _remove(world, is_over, Random(f"removals in {world.seed}"), 1)


def _remove(world: Cluster, is_over: Callable[[], bool], rng: Random, number: int) -> None:
    """Delete a part of the publications that a member shows as committed, then again later.

    A member with a wrong state shows none, because it serves no reads (T7).
    """
    if is_over():
        return
    nodes = [(shell, shell.node) for shell in world.alive() if shell.node is not None]
    serving = [(shell, node) for shell, node in nodes if not node.replica.repair.is_state_wrong]
    if serving:
        shell, node = rng.choice(serving)
        row = publisher_of(node.database, JOURNAL, JOURNAL_ID)
        if row is not None and row.pending:
            through = rng.randrange(row.published, row.last) + 1
            body = call("qsync.published", JOURNAL, JOURNAL_ID, through, [[through, 0, 1]])
            shell.step([fx.Request(BROKER_SESSION, number, CALL, body, 0, "admin", None)])
            world.count("publications removed")
    later_ns = rng.randrange(20, 400) * _MILLISECOND
    world.after(later_ns, lambda: _remove(world, is_over, rng, number + 1))


# --- checks ---------------------------------------------------------------------------------------


class _Found:
    """A publication in the order of confirmed rows."""

    def __init__(self, index: int, sequence: int) -> None:
        self.index = index
        self.sequence = sequence


def check(world: Cluster) -> None:
    """Compare the outcomes of all clients that published with the ledger.

    Raises:
        Violation: a publication is missing, is repeated, or has another place.
    """
    if not world.has_journal:
        return
    found = _publications(world)
    commits = {
        (operation.client, operation.transaction): operation
        for operation in world.history
        if operation.kind == "commit"
    }
    repeated = {
        (operation.client, operation.value)
        for operation in world.history
        if operation.is_repeated or operation.kind == KEYED_PUBLISH
    }
    for operation in world.history:
        if operation.kind not in PUBLISHES or not operation.outcome:
            continue
        decided = operation
        if operation.transaction:
            commit = commits.get((operation.client, operation.transaction))
            if commit is None or operation.outcome != "committed":
                continue
            decided = commit
        is_repeated = (operation.client, operation.value) in repeated
        _check(operation, decided, found.get(operation.value), is_repeated)
        world.count("publications checked")
    _check_rows(world, len(found))


def _publications(world: Cluster) -> dict[str, _Found]:
    """Return all confirmed publications by their contents."""
    found: dict[str, _Found] = {}
    for index in range(1, world.confirmed_anywhere + 1):
        _, _, body, is_taken, row_type = world.ledger[index]
        if not is_taken or row_type not in CHANGES:
            continue
        fields = msgpack.unpackb(body, strict_map_key=False)
        if fields[KEY_SPACE_ID] != PUBLICATION_SPACE or row_type != INSERT:
            continue
        _, _, sequence, content = fields[KEY_TUPLE]
        if sequence != len(found) + 1:
            raise InvariantViolation(f"X2: sequence {sequence} at {index} follows {len(found)}")
        if content.decode() in found:
            raise InvariantViolation(f"X1: {content} was published twice, again at {index}")
        found[content.decode()] = _Found(index, sequence)
    return found


def _check(
    operation: ClientOperation, decided: ClientOperation, found: _Found | None, is_repeated: bool
) -> None:
    outcome = decided.outcome
    if outcome == "committed":
        if found is None:
            raise InvariantViolation(f"X1: {operation.value} was committed and is not published")
        sequences = [it[1] if isinstance(it, list) else it for it in decided.tuples]
        if sequences and found.sequence not in sequences:
            raise InvariantViolation(f"X2: {operation.value} has {found.sequence}, not {sequences}")
        if not is_repeated and not found.index <= decided.index:
            raise InvariantViolation(
                f"X1: {operation.value} at {found.index} is after {decided.index}"
            )
    elif outcome in ("rolled back", "refused") and found is not None and not is_repeated:
        raise InvariantViolation(f"X1: {operation.value} was {outcome} and is published")


def _check_rows(world: Cluster, last: int) -> None:
    """Check that exactly the publications after `published` have rows (X5)."""
    for shell in world.alive():
        if shell.node is None or shell.settings.role == "anonymous":
            continue
        database = shell.node.database
        row = publisher_of(database, JOURNAL, JOURNAL_ID)
        space = database.find_space(PUBLICATION_SPACE)
        if row is None or space is None:
            continue
        rows = [msgpack.unpackb(packed)[2] for _, packed in space.indexes[0].entries()]
        if rows != list(range(row.published + 1, row.last + 1)) or row.last > last:
            raise InvariantViolation(f"X5: {shell.name} has rows {rows} and {row}, of {last}")
