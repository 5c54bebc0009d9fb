"""Resolution of a request: the broker that serves it, under a revision of the key space."""

from typing import NamedTuple

from qsync_broker.keyspace import KeySpace
from qsync_broker.replica import JournalReplica
from qsync_broker.status import Status
from qsync_broker.wholeness import partial_brokers
from qsync_node.format.journals import BrokerId, JournalRow, Route

SUSPEND_FULL = 2
NO_BROKER = BrokerId("", "")
REVISION_S = 30.0
"""Time in which a broker must know the revision that a request names."""
FIRST_REVISION = 1
"""Least revision of a broker that has a snapshot of the key space."""


class Resolution(NamedTuple):
    """How a request of a journal is served.

    Attributes:
        status: `OK`, or the reason why this broker refuses the request.
        journal: the journal, or None if it does not exist.
        route: the journal's brokers.
        broker: the broker that serves the request, or `NO_BROKER` if any broker of the route may.
        revision: revision of the key space.
    """

    status: Status
    journal: JournalRow | None
    route: Route
    broker: BrokerId
    revision: int


def resolve(
    keys: KeySpace, name: str, me: BrokerId, *, needs_primary: bool, may_proxy: bool
) -> Resolution:
    """Resolve a request.

    Args:
        keys: the key space.
        name: name of the journal; anything after `;` is ignored.
        me: this broker.
        needs_primary: whether only the primary can serve the request.
        may_proxy: whether this broker may forward the request.
    """
    name = name.partition(";")[0]
    journal, route = keys.journals.get(name), keys.route(name)
    is_member = me in route.members
    if needs_primary:
        broker = route.members[route.primary] if route.primary >= 0 else NO_BROKER
    else:
        broker = me if is_member else NO_BROKER
    status = Status.OK
    if journal is None:
        status = Status.JOURNAL_NOT_FOUND
    elif journal.suspend_level == SUSPEND_FULL:
        status = Status.SUSPENDED
    elif needs_primary and broker == NO_BROKER:
        status = Status.NO_JOURNAL_PRIMARY_BROKER
    elif not route.members:
        status = Status.INSUFFICIENT_JOURNAL_BROKERS
    elif not may_proxy and broker != me:
        refusals = (Status.NOT_JOURNAL_BROKER, Status.NOT_JOURNAL_PRIMARY_BROKER)
        status = refusals[needs_primary]
    return Resolution(status, journal, route, broker if status is Status.OK else me, keys.revision)


def broker_for_read(
    row: JournalRow, route: Route, replica: JournalReplica, me: BrokerId, offset: int
) -> BrokerId | None:
    """Return the whole broker that must serve a read, or None if this one has all its bytes.

    Args:
        row: the journal.
        route: its brokers.
        replica: the journal at this broker.
        me: this broker.
        offset: offset of the first wanted byte, negative for the write head.
    """
    if me not in partial_brokers(row) or not 0 <= offset < replica.spool.begin:
        return None
    if replica.hole(offset, replica.spool.begin) is None:
        return None
    order = (*route.members[route.primary :], *route.members) if route.primary >= 0 else ()
    whole = (one for one in order if one in row.route.members and one not in row.partial)
    return next(whole, None)
