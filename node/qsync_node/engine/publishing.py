"""Publications: content that a transaction hands to a journal, together with its rows.

Theory. `qsync.publish` inserts a row into `_qsync_publication` and raises `last` in the journal's
row of `_qsync_publisher`. Both rows belong to the transaction of the client, so they commit or roll
back with its other rows. The sequence is assigned at the transaction's place in the log: the
statement reads `last` in the state there. In a transaction its answer is empty, because a sequence
that another transaction shifts must not be a conflict (T8). COMMIT returns the sequences.

The primary broker of the journal appends the content and then calls `qsync.published`, which
deletes rows and raises `published`. It depends on no row that it did not expect, so it never
conflicts with clients that publish. `qsync.discard` deletes the rows of a journal that was deleted.

A user with write access to `_qsync_publication` may publish to all journals. Another one needs the
privilege to execute a function whose name states the journals (`publish_function`). The function
must belong to admin: its owner could grant it to anyone.

Only these procedures change the two spaces. A client that could write a sequence of its own could
make brokers skip another client's publication.

Invariants (docs/journals.md)

  X2  Sequences of a journal are 1, 2, 3 and so on, in the order of the log.
  X5  Rows exist exactly for the sequences after `published`, up to `last`.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol
from qsync_node.format.body import put_body
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    PUBLICATION_SPACE,
    PUBLISHER_SPACE,
    REMOVED_MAX,
    JournalRow,
    PublisherRow,
    decode_row,
    permits_publishing,
)
from qsync_node.format.mp import pack

from . import system
from .access import User
from .bootstrap import BUILTIN_FUNCTIONS
from .fields import decode
from .requests import Delete, Put, Update
from .space import SpaceChange, SpaceData
from .statements import StatementResult, StatementRow, StateReader, execute_write, find_unique

PUBLICATIONS_MAX = 65_536
"""Publications of a journal that may wait for its primary broker."""
PENDING_BYTES_MAX = 64 << 20
"""Bytes of the publications of a journal that may wait for its primary broker."""
TRANSACTION_MAX = 1_024
"""Publications of one transaction, whose rows each follower applies in one step."""
STATEMENT_WORK = 2_000
"""Cost of one statement of a procedure, in units of a step's budget (G1)."""
PLACES_MAX = 64
"""Publications of a journal whose offsets are remembered."""
UNKNOWN, PENDING, PUBLISHED = "unknown", "pending", "published"
"""States of a publication; an unknown one has not reached this member, or has never existed."""

_LAST, _PUBLISHED, _PENDING_BYTES, _PLACES = 2, 3, 4, 5


class PublishingState(StateReader, Protocol):
    """A state as publications see it."""

    def find_space(self, space_id: int) -> SpaceData | None: ...


@dataclass(frozen=True, slots=True)
class Publish:
    """`qsync.publish(journal, content)`."""

    journal: str
    content: bytes
    space_id: int = PUBLICATION_SPACE
    type: int = protocol.CALL


@dataclass(frozen=True, slots=True)
class Published:
    """`qsync.published(journal, journal_id, through, places)`, called by the primary broker.

    Attributes:
        journal: name of the journal.
        journal_id: the journal's `create_revision`.
        through: sequence up to which all brokers of the journal have the publications.
        places: [sequence, begin, end] of publications whose offsets the broker knows.
    """

    journal: str
    journal_id: int
    through: int
    places: list[list[int]]
    space_id: int = PUBLISHER_SPACE
    type: int = protocol.CALL


@dataclass(frozen=True, slots=True)
class Discard:
    """`qsync.discard(journal, journal_id)`, called by a broker after a journal was deleted."""

    journal: str
    journal_id: int
    space_id: int = PUBLISHER_SPACE
    type: int = protocol.CALL


Procedure: TypeAlias = Publish | Published | Discard
PROCEDURES = (Publish, Published, Discard)


# --- calls ----------------------------------------------------------------------------------------


def procedure_of(name: str, arguments: list[Any]) -> Procedure | None:
    """Return the procedure of a CALL, or None if it is another one.

    Raises:
        ClientError: the arguments have other types.
    """
    if name == "qsync.publish":
        journal, content = _arguments(name, arguments, (str, bytes | str))
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogateescape")
        if not content:
            raise _illegal(name, "the content must not be empty")
        return Publish(journal, content)
    if name == "qsync.published":
        journal, journal_id, through, places = _arguments(name, arguments, (str, int, int, list))
        if len(places) > PLACES_MAX or not all(map(_is_place, places)):
            raise _illegal(name, f"places must be at most {PLACES_MAX} triples of integers")
        return Published(journal, journal_id, through, places)
    if name == "qsync.discard":
        return Discard(*_arguments(name, arguments, (str, int)))
    return None


def _arguments(name: str, arguments: list[Any], types: tuple[Any, ...]) -> list[Any]:
    is_valid = len(arguments) == len(types) and all(
        isinstance(value, kind) and (kind is not int or _is_unsigned(value))
        for value, kind in zip(arguments, types, strict=True)
    )
    if not is_valid:
        raise _illegal(name, f"it takes {len(types)} arguments of the documented types")
    return arguments


def _is_unsigned(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_place(place: object) -> bool:
    return isinstance(place, list) and len(place) == 3 and all(map(_is_unsigned, place))


def _illegal(name: str, reason: str) -> ClientError:
    return ClientError(ErrorCode.ILLEGAL_PARAMS, f"{name} was refused: {reason}")


# --- execution ------------------------------------------------------------------------------------


def run(state: PublishingState, request: Procedure, user: User) -> StatementResult:
    """Execute a procedure over a state, without changing it.

    Raises:
        ClientError: it is refused; nothing is to be logged.
    """
    space = state.find_space(request.space_id)
    if space is None or state.find_space(JOURNAL_SPACE) is None:
        raise ClientError(
            ErrorCode.NO_SUCH_JOURNAL,
            "the publication was refused: journals are not enabled in this cluster; set"
            " spec.journals.enabled",
        )
    if not (isinstance(request, Publish) and may_publish(state, request.journal, user)):
        user.check_space(space.definition, system.WRITE)
    if isinstance(request, Publish):
        return _publish(state, request)
    if isinstance(request, Published):
        return _published(state, request)
    return _discard(state, request)


def may_publish(state: PublishingState, journal: str, user: User) -> bool:
    """Return whether a user has a grant that names a journal, or a folder that contains it.

    A grant of all functions, or on the universe, is none: it names no journal.
    """
    if not user.universe & system.USAGE:
        return False
    for (object_type, function), bits in user.grants.items():
        is_own = object_type == "function" and type(function) is int
        if is_own and function > BUILTIN_FUNCTIONS and bits & system.EXECUTE:
            row = _row(state, system.FUNC_ID, [function])
            if row is not None and row[1] == system.ADMIN and permits_publishing(row[2], journal):
                return True
    return False


def _publish(state: PublishingState, request: Publish) -> StatementResult:
    journal = journal_of(state, request.journal)
    if journal is None:
        raise ClientError(
            ErrorCode.NO_SUCH_JOURNAL,
            f"the publication was refused: journal {request.journal!r} does not exist; create it"
            " first",
        )
    size = len(request.content)
    found = publisher_of(state, journal.name, journal.create_revision)
    row = found or PublisherRow(journal.name, journal.create_revision, 0, 0, 0, [])
    if row.pending >= PUBLICATIONS_MAX or row.pending_bytes + size > PENDING_BYTES_MAX:
        raise ClientError(
            ErrorCode.PUBLICATIONS_FULL,
            f"the publication was refused: too many publications wait for journal"
            f" {request.journal!r}; retry later, and check that the journal accepts appends",
        )
    sequence, pending = row.last + 1, row.pending_bytes + size
    fields = [*row.key, sequence, request.content]
    done = _Statements(state)
    done.put(PUBLICATION_SPACE, protocol.INSERT, fields)
    if found is None:
        done.put(PUBLISHER_SPACE, protocol.INSERT, [*row.key, sequence, 0, pending, []])
    else:
        done.update(row, [["=", _LAST, sequence], ["=", _PENDING_BYTES, pending]])
    return StatementResult(done.rows, done.changes, [pack(sequence)])


def _published(state: PublishingState, request: Published) -> StatementResult:
    row = publisher_of(state, request.journal, request.journal_id)
    if row is None:
        return StatementResult([], [], [])  # the journal was deleted
    if request.through > row.last:
        raise _illegal(
            "qsync.published",
            f"{request.through} is after the last publication {row.last}: the journal's bytes"
            " belong to another state of the cluster",
        )
    through = min(request.through, row.published + REMOVED_MAX)
    if through <= row.published:
        return StatementResult([], [], [])
    done = _Statements(state)
    removed = done.delete(row, row.published + 1, through)
    known = [place for place in request.places if row.published < place[0] <= through]
    places = [*row.places, *known][-PLACES_MAX:]
    operations: list[list[Any]] = [
        ["=", _PUBLISHED, through],
        ["=", _PENDING_BYTES, row.pending_bytes - removed],
        ["=", _PLACES, places],
    ]
    done.update(row, operations)
    return StatementResult(done.rows, done.changes, [])


def _discard(state: PublishingState, request: Discard) -> StatementResult:
    row = publisher_of(state, request.journal, request.journal_id)
    if row is None:
        return StatementResult([], [], [])
    journal = journal_of(state, request.journal)
    if journal is not None and journal.create_revision == request.journal_id:
        raise _illegal("qsync.discard", f"journal {request.journal!r} exists")
    done = _Statements(state)
    through = min(row.last, row.published + REMOVED_MAX)
    removed = done.delete(row, row.published + 1, through)
    if through == row.last:
        done.run(Delete(PUBLISHER_SPACE, 0, row.key))
    else:
        left = row.pending_bytes - removed
        done.update(row, [["=", _PUBLISHED, through], ["=", _PENDING_BYTES, left]])
    return StatementResult(done.rows, done.changes, [])


class _Statements:
    """Statements of one procedure. No two of them concern the same tuple."""

    def __init__(self, state: PublishingState) -> None:
        self.rows: list[StatementRow] = []
        self.changes: list[SpaceChange] = []
        self._state = state

    def run(self, request: Put | Update | Delete) -> StatementResult:
        self._state.note_work(STATEMENT_WORK)
        outcome = execute_write(self._state, self._state.space(request.space_id), request)
        self.rows += outcome.rows
        self.changes += outcome.changes
        return outcome

    def put(self, space: int, kind: int, fields: list[Any]) -> None:
        packed: bytes = pack(fields)
        self.run(Put(kind, space, packed, fields, put_body(space, packed)))

    def update(self, row: PublisherRow, operations: list[list[Any]]) -> None:
        self.run(Update(PUBLISHER_SPACE, 0, row.key, pack(operations), 0))

    def delete(self, row: PublisherRow, first: int, last: int) -> int:
        """Delete publications, and return their bytes."""
        size = 0
        for sequence in range(first, last + 1):
            outcome = self.run(Delete(PUBLICATION_SPACE, 0, [*row.key, sequence]))
            size += sum(len(decode(packed)[3]) for packed in outcome.answer)
        return size


def journal_of(state: PublishingState, name: str) -> JournalRow | None:
    """Return a journal's row; None if there is none, or it is not one that brokers wrote."""
    row = _row(state, JOURNAL_SPACE, [name])
    try:
        found = decode_row(JOURNAL_SPACE, row) if row is not None else None
    except ValueError:
        return None
    assert found is None or isinstance(found, JournalRow)
    return found


def publisher_of(state: PublishingState, journal: str, journal_id: int) -> PublisherRow | None:
    """Return the state of a journal's publications, or None before the first one."""
    row = _row(state, PUBLISHER_SPACE, [journal, journal_id])
    return PublisherRow(*row) if row is not None else None


def find_publication(state: PublishingState, journal: str, sequence: int) -> dict[str, Any]:
    """Return whether a publication is in its journal, and its offsets if they are remembered."""
    row = journal_of(state, journal)
    found = publisher_of(state, journal, row.create_revision) if row is not None else None
    if found is None or not 0 < sequence <= found.last:
        return {"state": UNKNOWN}
    if sequence > found.published:
        return {"state": PENDING}
    for place, begin, end in found.places:
        if place == sequence:
            return {"state": PUBLISHED, "begin": begin, "end": end}
    return {"state": PUBLISHED}


def _row(state: PublishingState, space_id: int, key: list[Any]) -> list[Any] | None:
    """Return the row under a key; a space whose index does not exist (yet) has no rows."""
    space = state.find_space(space_id)
    if space is None or 0 not in space.indexes:
        return None
    packed = find_unique(space, 0, key)
    return decode(packed) if packed is not None else None


def sequences_in(changes: list[SpaceChange]) -> list[bytes]:
    """Return [journal, sequence] of each publication that the changes insert, packed."""
    inserted = [
        new for space, _, new, _ in changes if space == PUBLICATION_SPACE and new is not None
    ]
    return [pack([fields[0], fields[2]]) for fields in map(_decode, inserted)]


def _decode(packed: bytes) -> list[Any]:
    fields: list[Any] = decode(packed)
    return fields


def refusal_to_write(space: SpaceData) -> ClientError:
    """Return the error for a statement that would change one of the spaces."""
    return ClientError(
        ErrorCode.UNSUPPORTED,
        f"space '{space.name}' cannot be changed by a statement: call qsync.publish",
    )
