"""Rows of the key space of journals: specifications, brokers with leases, and assignments.

Three synchronous spaces hold them:

    _qsync_journal     (493)   a journal's specification, by name
    _qsync_broker      (494)   a broker and its lease, by zone and suffix
    _qsync_assignment  (495)   one broker in one slot of one journal

Two more hold publications, which transactions over rows write and brokers append to journals:

    _qsync_publication (496)   content that is to be appended, by journal and sequence
    _qsync_publisher   (497)   the last sequence of a journal, and the last appended one

They are created by ordinary rows of `_space` and `_index` when journals are enabled, so a cluster
without journals does not contain them. The leader removes a broker whose lease expired
(docs/journals-protocol.md). Everything else is written by clients: the operator writes
specifications, brokers write their own rows, the assignments, and the state of their journals. The
operator sets `is_exiting` of a broker that it is about to remove.

An assignment is in force while the row of its broker exists. It outlives a broker's lease, so that
a restarted broker resumes its journals with the bytes that it has on disk.

`mod_revision` is the revision of the last change of a row and `create_revision` that of its
insertion. A writer cannot know the index of its row in advance. It computes both by `next_revision`
from the revision that it knows and from the row that it replaces. They therefore rise with each
change of a row, and never exceed the index of the row in the log.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from qsync_client.protocol.access import UserId
from qsync_client.protocol.spaces import SystemSpace

JOURNAL_SPACE: Final = int(SystemSpace.QSYNC_JOURNAL)
BROKER_SPACE: Final = int(SystemSpace.QSYNC_BROKER)
ASSIGNMENT_SPACE: Final = int(SystemSpace.QSYNC_ASSIGNMENT)
KEY_SPACES = (JOURNAL_SPACE, BROKER_SPACE, ASSIGNMENT_SPACE)
PUBLICATION_SPACE: Final = int(SystemSpace.QSYNC_PUBLICATION)
PUBLISH_FUNCTION = "qsync.publish:"
"""Prefix of the names of functions whose grants permit to publish (`publish_function`)."""
PUBLISHER_SPACE: Final = int(SystemSpace.QSYNC_PUBLISHER)
PUBLICATION_SPACES = (PUBLICATION_SPACE, PUBLISHER_SPACE)
"""Spaces that only `qsync.publish` and its neighbours change, see `core.engine.publishing`."""
WATCHED_SPACES = (*KEY_SPACES, PUBLISHER_SPACE)
"""Spaces that a broker watches; it reads contents of publications when it appends them."""
REMOVED_MAX = 1_000
"""Publications that one call of `qsync.published` or `qsync.discard` deletes."""
DATA_SPACES = (*KEY_SPACES, *PUBLICATION_SPACES)
"""Spaces with system ids whose rows are data: writing one changes no schema."""

_SPACE, _INDEX = int(SystemSpace.SPACE), int(SystemSpace.INDEX)
_ADMIN = int(UserId.ADMIN)


class BrokerId(NamedTuple):
    """A broker: the zone of failures that it belongs to, and its name in that zone."""

    zone: str
    suffix: str


Members: TypeAlias = tuple[BrokerId, ...]


class Route(NamedTuple):
    """The brokers of a journal in ascending order, and the index of its primary, or -1."""

    members: Members
    primary: int


NO_ROUTE = Route((), -1)
ChosenEnds: TypeAlias = tuple[tuple[int, int], ...]


class JournalRow(NamedTuple):
    """A journal: its specification, and the state that its brokers agree on.

    Attributes:
        name: name of the journal.
        spec: fields of Gazette's JournalSpec, by their names in Protobuf, without `suspend`.
        suspend_level: 0 for none, 1 for partial, 2 for full.
        suspend_offset: least write head of the journal after it resumes.
        ballot: greatest epoch that a primary has reserved.
        epoch: epoch of the last synchronisation of all brokers, 0 before the first one.
        route: brokers of that synchronisation. Each of them has the bytes since then, and all but
            the partial ones have every acknowledged byte.
        create_revision: revision of the journal's creation; identifies it if names are reused.
        mod_revision: revision of the last change of `spec` or of the suspension.
        partial: brokers of `route` that still copy fragments from the others.
        ends: epochs of the last synchronisations, and the ends that they chose, oldest first. They
            show a broker that was away up to which offset its bytes are the journal's.
    """

    name: str
    spec: dict[str, Any]
    suspend_level: int
    suspend_offset: int
    ballot: int
    epoch: int
    route: Route
    create_revision: int
    mod_revision: int
    partial: Members = ()
    ends: ChosenEnds = ()

    @property
    def key(self) -> list[Any]:
        return [self.name]


class BrokerRow(NamedTuple):
    """A broker and its lease.

    Attributes:
        id: zone and suffix.
        endpoint: absolute URL at which clients reach the broker, `http://host:port`.
        peer_address: `host:port` at which other brokers reach it.
        journal_limit: number of assignments that it accepts.
        is_exiting: whether it wants to hand its assignments over.
        lease_ms: time without a renewal after which the leader removes the broker.
        process: UUID of the process, so that a restarted broker differs from the former one.
        renewals: count of renewals; a renewal changes nothing else.
        create_revision: revision at which the process was announced; it orders brokers by age.
        mod_revision: revision of the last change other than a renewal.
        is_drained: whether its disk has no bytes that another broker or a store needs. It is set
            by an exiting broker, and reset with the removal of an assignment.
    """

    id: BrokerId
    endpoint: str
    peer_address: str
    journal_limit: int
    is_exiting: bool
    lease_ms: int
    process: str
    renewals: int
    create_revision: int
    mod_revision: int
    is_drained: bool = False

    @property
    def key(self) -> list[Any]:
        return list(self.id)


class AssignmentRow(NamedTuple):
    """A broker's place in a journal.

    Attributes:
        journal: name of the journal.
        broker: the assigned broker.
        slot: 0 for the primary.
        create_revision: revision of the assignment.
        mod_revision: revision of the last change.
    """

    journal: str
    broker: BrokerId
    slot: int
    create_revision: int
    mod_revision: int

    @property
    def key(self) -> list[Any]:
        return [self.journal, *self.broker]


class PublisherRow(NamedTuple):
    """The publications of a journal.

    Attributes:
        journal: name of the journal.
        journal_id: `create_revision` of the journal, so that a name can be used again.
        last: sequence of the last publication; the first one has 1.
        published: sequence up to which the journal contains publications, whose rows are deleted.
        pending_bytes: bytes of the publications after `published`.
        places: [sequence, begin, end] of the last ones whose offsets are known.
    """

    journal: str
    journal_id: int
    last: int
    published: int
    pending_bytes: int
    places: list[list[int]]

    @property
    def key(self) -> list[Any]:
        return [self.journal, self.journal_id]

    @property
    def pending(self) -> int:
        """Return the number of publications that are not known to be in the journal."""
        return self.last - self.published


KeySpaceRow: TypeAlias = JournalRow | BrokerRow | AssignmentRow


def next_revision(known: int, replaced: KeySpaceRow | None = None) -> int:
    """Return a revision for a change that is made with knowledge of the revision `known`."""
    return max(known, replaced.mod_revision if replaced is not None else 0) + 1


# --- rows -----------------------------------------------------------------------------------------


def space_of(row: KeySpaceRow) -> int:
    """Return the space that holds a row."""
    if isinstance(row, JournalRow):
        return JOURNAL_SPACE
    return BROKER_SPACE if isinstance(row, BrokerRow) else ASSIGNMENT_SPACE


def encode_row(row: KeySpaceRow) -> list[Any]:
    """Return the tuple of a row."""
    if isinstance(row, JournalRow):
        route = [[list(member) for member in row.route.members], row.route.primary]
        partial, ends = ([list(one) for one in several] for several in row[9:])
        return [*row[:6], route, *row[7:9], partial, ends]
    if isinstance(row, BrokerRow):
        return [*row.id, *row[1:]]
    return [row.journal, *row.broker, *row[2:]]


def decode_row(space: int, fields: list[Any]) -> KeySpaceRow:
    """Return the row of a tuple of one of the three spaces.

    Raises:
        ValueError: the tuple has another form.
    """
    try:
        if space == JOURNAL_SPACE:
            name, spec, level, offset, ballot, epoch, (members, primary), *rest = fields
            created, modified, *later = rest
            partial, ends = later + [()] * (2 - len(later))
            route = Route(_members(members), primary)
            state = level, offset, ballot, epoch, route, created, modified
            chosen = tuple((number, end) for number, end in ends)
            return JournalRow(name, spec, *state, _members(partial), chosen)
        if space == BROKER_SPACE:
            zone, suffix, *rest = fields
            return BrokerRow(BrokerId(zone, suffix), *rest)
        journal, zone, suffix, *rest = fields
        return AssignmentRow(journal, BrokerId(zone, suffix), *rest)
    except (TypeError, ValueError) as error:
        raise ValueError(f"space {space} holds no such tuple: {error}") from None


def _members(fields: Iterable[Any]) -> Members:
    return tuple(BrokerId(*member) for member in fields)


# --- definitions ----------------------------------------------------------------------------------

_FIELDS: dict[int, tuple[str, tuple[tuple[str, str], ...]]] = {
    JOURNAL_SPACE: (
        SystemSpace.QSYNC_JOURNAL.space_name,
        (
            ("name", "string"),
            ("spec", "map"),
            ("suspend_level", "unsigned"),
            ("suspend_offset", "unsigned"),
            ("ballot", "unsigned"),
            ("epoch", "unsigned"),
            ("route", "array"),
            ("create_revision", "unsigned"),
            ("mod_revision", "unsigned"),
            ("partial", "array"),
            ("ends", "array"),
        ),
    ),
    BROKER_SPACE: (
        SystemSpace.QSYNC_BROKER.space_name,
        (
            ("zone", "string"),
            ("suffix", "string"),
            ("endpoint", "string"),
            ("peer_address", "string"),
            ("journal_limit", "unsigned"),
            ("is_exiting", "boolean"),
            ("lease_ms", "unsigned"),
            ("process", "string"),
            ("renewals", "unsigned"),
            ("create_revision", "unsigned"),
            ("mod_revision", "unsigned"),
            ("is_drained", "boolean"),
        ),
    ),
    ASSIGNMENT_SPACE: (
        SystemSpace.QSYNC_ASSIGNMENT.space_name,
        (
            ("journal", "string"),
            ("zone", "string"),
            ("suffix", "string"),
            ("slot", "unsigned"),
            ("create_revision", "unsigned"),
            ("mod_revision", "unsigned"),
        ),
    ),
    PUBLICATION_SPACE: (
        SystemSpace.QSYNC_PUBLICATION.space_name,
        (
            ("journal", "string"),
            ("journal_id", "unsigned"),
            ("sequence", "unsigned"),
            ("content", "varbinary"),
        ),
    ),
    PUBLISHER_SPACE: (
        SystemSpace.QSYNC_PUBLISHER.space_name,
        (
            ("journal", "string"),
            ("journal_id", "unsigned"),
            ("last", "unsigned"),
            ("published", "unsigned"),
            ("pending_bytes", "unsigned"),
            ("places", "array"),
        ),
    ),
}
_KEY_FIELDS = {
    JOURNAL_SPACE: 1,
    BROKER_SPACE: 2,
    ASSIGNMENT_SPACE: 3,
    PUBLICATION_SPACE: 3,
    PUBLISHER_SPACE: 2,
}


def definitions() -> list[tuple[int, list[Any]]]:
    """Return the rows that create the spaces: (space to insert into, tuple), in order."""
    rows: list[tuple[int, list[Any]]] = []
    for space, (name, fields) in _FIELDS.items():
        layout = [{"name": field, "type": kind} for field, kind in fields]
        parts = [[number, fields[number][1]] for number in range(_KEY_FIELDS[space])]
        options = {"is_sync": True}
        rows.append((_SPACE, [space, _ADMIN, name, "memtx", 0, options, layout]))
        rows.append((_INDEX, [space, 0, "primary", "tree", {"unique": True}, parts]))
    return rows


# --- privileges -----------------------------------------------------------------------------------


def publish_function(journals: str) -> str:
    """Return the name of the function that a user must be permitted to execute.

    It has no body: it is the object of a grant, which Tarantool knows as well.

    Args:
        journals: name of a journal, or a folder of journals followed by `/*`.
    """
    return f"{PUBLISH_FUNCTION}{journals}"


def permits_publishing(function: str, journal: str) -> bool:
    """Return whether a grant of a function permits to publish to a journal."""
    prefix, found, journals = function.partition(PUBLISH_FUNCTION)
    if prefix or not found:
        return False
    if journals.endswith("/*"):
        return journal.startswith(journals[:-1])
    return journal == journals
