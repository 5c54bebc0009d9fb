"""Events of one key after another: the tuples of snapshots compared with the replay (pure).

A finding names its cause. Snapshots between two changes of a key are judged together:

    the snapshots of one member differ         each of them is wrong
    those of most members differ alike, from   the first snapshot of the replay is wrong, or the
    the first one, and no row changed the key  log lost a row before the second one
    those of most members differ alike,        the log lost a row after the last snapshot that
    otherwise                                  agrees

The log alone is judged, too. An engine executes a statement before it logs it, so a confirmed row
that no engine accepts on the replayed state is a finding: an INSERT of an existing key, an UPDATE
or DELETE of a missing one, an UPDATE that fails or changes the primary key, a request that ran
twice. Differences of snapshots of that key up to its next whole tuple result from that row, and are
not reported.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from qsync_node.format.keys import DELETE, INSERT, REPLACE, UPDATE, UPSERT, Key
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_spark.audit.catalogue import KeyCatalogue
from qsync_spark.audit.drawn import ADVANCE, advance
from qsync_spark.audit.events import BASE, CHECK, COUNT, MARK, REMEMBER, UNKNOWN, VERSION
from qsync_spark.audit.key_values import Unkeyed
from qsync_spark.audit.operations import Impossible, Unsupported, apply_operations
from qsync_spark.decode.batches import batch_of, sql_of
from qsync_spark.decode.blocks import INT64_MAX
from qsync_spark.decode.schema_rows import KEYS, SCHEMA, SCHEMA_VERSION_KEY, SEQUENCE_DATA

ODD = pa.schema(
    [
        pa.field("space", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("index", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("is_known", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("cause", pa.string()),
        pa.field("after", pa.int64()),
    ]
)
"""`cause`: "" for a snapshot, ROW for the row at `index`, LOST for one in `after + 1 .. index`."""
ROW, LOST = "row", "lost"
ODD_SQL = sql_of(ODD)
FOLDED = ("space", "key", "index", "op", "body", "file", "offset")
"""Columns of an event that a fold uses."""


@dataclass(frozen=True, slots=True)
class FoldedSnapshots:
    """The snapshots, as (index, file), that are compared with the log."""

    judged: list[tuple[int, str]]  # ascending
    base: tuple[int, str]  # the start of the replay, in the same form
    oldest: dict[str, int]  # see `oldest_requests`
    until: int = INT64_MAX  # the log is known without a gap up to here
    defined: frozenset[int] = frozenset()  # spaces of the base


NO_SNAPSHOTS = FoldedSnapshots([], (0, ""), {})
LACKS = "the snapshot lacks a tuple that the log contains"
INVENTED = "the snapshot has a tuple that the log does not contain"
NO_KEY = "a row has no readable primary key"
OF_NO_SPACE = "the snapshot has a tuple without a readable primary key"
DIFFERS = "the tuple in the snapshot differs from the log"
BASE_DIFFERS = "{} later snapshots differ without a row between them"
BASE_OR_LOG = BASE_DIFFERS + ": the snapshot is wrong, or the log lost a row up to index {}"


class Vote(NamedTuple):
    """A snapshot's difference from the replay since the key's last change."""

    at: int  # its index
    file: str
    body: bytes | None  # None: no tuple
    offset: int
    text: str


def _members(files: Iterable[str]) -> int:
    return len({file.partition("/")[0] for file in files})


def _is_count(fields: object) -> bool:
    """Return whether the fields are those of a count: `[name, number]`."""
    return isinstance(fields, list) and len(fields) == 2 and type(fields[1]) is int


@dataclass(slots=True)
class Fold:
    """One key, from event to event. `fields` None: the tuple does not exist.

    A tuple is decoded on demand: most tuples are overwritten before.
    """

    catalogue: KeyCatalogue
    snapshots: FoldedSnapshots = NO_SNAPSHOTS
    space: int = 0
    key: bytes = b""
    _fields: list[Any] | None = None
    _body: bytes | None = None  # the undecoded source of `_fields`
    _why_unknown: str = ""
    since: int = 0  # index of the last change
    next_snapshot: int = 0
    there: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    is_touched: bool = False  # changed by the log
    votes: list[Vote] = field(default_factory=list)
    agreeing: list[tuple[int, str]] = field(default_factory=list)
    base_offset: int = 0
    refused: int = 0  # index of a row that no engine accepts, after which the tuple is unknown
    odd: list[tuple[Any, ...]] = field(default_factory=list)

    def begin(self, space: int, key: bytes) -> None:
        self.space, self.key = space, key
        self._set(None)
        self.since, self.next_snapshot, self.base_offset, self.refused = 0, 0, 0, 0
        self.there = {}
        self.is_touched = False

    @property
    def fields(self) -> list[Any] | None:
        self._decode()
        return self._fields

    @property
    def why_unknown(self) -> str:
        self._decode()
        return self._why_unknown

    def clear(self) -> None:
        """Record that the tuple does not exist."""
        self._set(None)

    def _set(self, fields: list[Any] | None, body: bytes | None = None, why: str = "") -> None:
        self._fields, self._body, self._why_unknown = fields, body, why

    def _decode(self) -> None:
        body = self._body
        if body is not None:
            try:
                self._set(unpack(body)[Key.TUPLE])
            except (*BAD_MSGPACK, KeyError) as error:
                self._set(None, why=str(error) or type(error).__name__)

    def take(self, index: int, op: int, body: bytes, file: str, offset: int) -> None:
        if not self.key:
            self._take_unkeyed(index, op, file, offset)
            return
        while self.next_snapshot < len(self.snapshots.judged):
            at = self.snapshots.judged[self.next_snapshot][0]
            if at > index or (at == index and op == CHECK):
                break
            if at == index:
                break  # changes at the snapshot's own index come before its tuples
            self._compare()
        if op == CHECK:
            self.there[file] = (body, offset)
            return
        self.clear_before(index)
        if op == BASE:
            self.base_offset = offset
        else:
            self._settle()
            refusal = self._refusal(index, op, body)
            if refusal:
                self._odd(index, "", 0, True, refusal, ROW)
                self.refused = index
            elif op not in (UPDATE, UPSERT):
                self.refused = 0
        self.since = index
        if op in (REPLACE, INSERT, BASE, REMEMBER):
            self._set(None, body)
        elif op == DELETE:
            self._set(None)
        elif op in (ADVANCE, COUNT):
            self._count(op, body)
        else:
            self._update(index, op, body)

    def _take_unkeyed(self, index: int, op: int, file: str, offset: int) -> None:
        """Take a row that may change any tuple of its space, or a snapshot's tuple of no space."""
        if op != UNKNOWN:
            self._odd(index, file, offset, True, OF_NO_SPACE)
        elif not self._why_unknown:  # otherwise it is reported
            self._set(None, why=NO_KEY)
            self._odd(index, "", 0, False, NO_KEY)

    def end(self) -> None:
        while self.next_snapshot < len(self.snapshots.judged):
            self._compare()
        self._settle()

    def _refusal(self, index: int, op: int, body: bytes) -> str:
        """Return why no engine accepts this row on the previous state; "" if one does, or may."""
        if not self.snapshots.base[0] < index <= self.snapshots.until or self.refused:
            return ""
        is_drawn = self.space == SEQUENCE_DATA or (self.space == SCHEMA and self.key == VERSION)
        if is_drawn or self._why_unknown:
            return ""  # rows are not the only source of this tuple
        is_there = self._body is not None or self._fields is not None
        if op == INSERT and is_there:
            return f"an INSERT of a key that exists since index {self.since}"
        if op == DELETE and not is_there:
            return "a DELETE of a tuple that does not exist"
        if op == UPDATE:
            return (
                self._refusal_to_update(index, body)
                if is_there
                else "an UPDATE of a tuple that does not exist"
            )
        return self._refusal_to_repeat(index, body) if op == REMEMBER and is_there else ""

    def _refusal_to_update(self, index: int, body: bytes) -> str:
        fields = self.fields
        if fields is None:
            return ""
        names = self.catalogue.names_at(self.space, index)
        try:
            request = unpack(body)
            base = request.get(Key.INDEX_BASE, 0)
            made = apply_operations(fields, request[Key.TUPLE], base, names, False)
            if self.catalogue.key_of_tuple(self.space, made) != self.key:
                return "an UPDATE that changes the primary key"
        except Impossible as error:
            return f"an UPDATE that fails: {error}"
        except (Unsupported, Unkeyed, KeyError, IndexError, *BAD_MSGPACK):
            return ""
        return ""

    def _refusal_to_repeat(self, index: int, body: bytes) -> str:
        """Return why a request must not run again; "" if its first attempt is forgotten.

        Then its mark is newer than that attempt, and the window lies between them (T9).
        """
        fields = self.fields
        if fields is None:
            return ""
        at = fields[3]
        mark, begin = unpack(body)[MARK]
        window = self.catalogue.window_between(at, index)
        is_again = mark < at or (window is not None and index - at <= window)
        if at < begin and is_again:
            return f"an idempotency key that was already used at index {at}"
        return ""

    def clear_before(self, before: int) -> None:
        """Remove the tuple if a truncation or drop lies between its last change and `before`."""
        for at in self.catalogue.clears_between(self.space, self.since, before):
            self._settle()
            self._set(None)
            self.since, self.refused = at, 0

    def _update(self, index: int, op: int, body: bytes) -> None:
        names = self.catalogue.names_at(self.space, index)
        fields, why = self.fields, self.why_unknown
        try:
            request = unpack(body)
            base = request.get(Key.INDEX_BASE, 0)
            if op == UPDATE:
                if fields is not None:
                    fields = apply_operations(fields, request[Key.TUPLE], base, names, False)
            elif fields is None:
                fields = request[Key.TUPLE]
            else:
                fields = apply_operations(fields, request[Key.OPS], base, names, True)
        except (Unsupported, Impossible, KeyError, *BAD_MSGPACK) as error:
            why = str(error) or type(error).__name__
        self._set(fields, why=why)

    def _count(self, op: int, body: bytes) -> None:
        fields = self.fields
        if fields is not None and not _is_count(fields):
            self._set(fields, why="its value is not a number")
        elif op == ADVANCE:
            self._set(advance(fields, body, unpack(self.key)[0]))
        else:
            self._set([SCHEMA_VERSION_KEY, (fields[1] if fields is not None else 1) + 1])

    def _compare(self) -> None:
        at, file = self.snapshots.judged[self.next_snapshot]
        self.next_snapshot += 1
        self.clear_before(at + 1)
        body, offset = self.there.pop(file, (None, 0))
        text = self._difference(body, file, at)
        if text and self.why_unknown:
            self._odd(at, file, 0, False, self.why_unknown)
        elif text:
            self.votes.append(Vote(at, file, body, offset, text))
        else:
            self.agreeing.append((at, file))

    def _difference(self, body: bytes | None, file: str, at: int) -> str:
        """Return the difference between a snapshot's tuple and the replay's; "" without one."""
        if body is not None and self._body == body:
            return ""  # the same bytes
        if body is None:
            return "" if self.fields is None or self._is_forgotten(file, at) else LACKS
        if self.fields is None:
            return INVENTED
        try:
            return DIFFERS if repr(unpack(body)[Key.TUPLE]) != repr(self.fields) else ""
        except (*BAD_MSGPACK, KeyError):
            return DIFFERS  # no node writes a tuple that does not decode

    def _settle(self) -> None:
        """Judge the snapshots since the last change, at the next change or the end."""
        was_touched, self.is_touched = self.is_touched, True
        votes, self.votes = self.votes, []
        agreeing, self.agreeing = self.agreeing, []
        if not votes or self.refused:
            return
        groups: dict[bytes | None, list[Vote]] = {}
        for vote in votes:
            groups.setdefault(vote.body, []).append(vote)
        others = max(groups.values(), key=lambda group: _members(vote.file for vote in group))
        most, right = _members(v.file for v in others), _members(file for _, file in agreeing)
        base = self.snapshots.base[0]
        is_later = all(at < others[0].at for at, _ in agreeing)
        is_log = most > 1 and (is_later or most > right)
        if not was_touched:
            is_base = len(others) > 1 and most > right and self.space in self.snapshots.defined
            is_base = is_base and not (agreeing and is_later and agreeing[-1][0] > base)
            is_log = is_log and not is_base
            if is_base:
                self._blame_base(others, agreeing)
        if is_log:
            self._blame_log(others, agreeing)
        if is_log or (not was_touched and is_base):
            votes = [vote for vote in votes if vote.body != others[0].body]
            self._set(None, others[0].body)
        for vote in votes:
            self._odd(vote.at, vote.file, vote.offset, True, vote.text)

    def _blame_base(self, others: list[Vote], agreeing: list[tuple[int, str]]) -> None:
        base, file = self.snapshots.base
        text = BASE_DIFFERS.format(len(others))
        if not agreeing and others[0].at > base:
            text = BASE_OR_LOG.format(len(others), others[0].at)
        self._odd(base, file, self.base_offset, True, text)
        for index, other in agreeing:
            self._odd(index, other, 0, True, text)

    def _blame_log(self, others: list[Vote], agreeing: list[tuple[int, str]]) -> None:
        first = others[0]
        before = [at for at, _ in agreeing if at < first.at]
        after = max([self.since, self.snapshots.base[0], *before])
        what = (
            "has"
            if first.body is not None and self.fields is None
            else "has a different version of"
        )
        if first.body is None:
            what = "lacks"
        changed = f"index {self.since}" if self.since else "not in the log"
        text = (
            f"{len(others)} snapshots of {_members(vote.file for vote in others)} "
            f"members agree and differ from the log: the first of them {what} the tuple; "
            f"last change of the tuple: {changed}"
        )
        self._odd(first.at, first.file, first.offset, True, text, LOST, after)

    def _is_forgotten(self, file: str, at: int) -> bool:
        """Return whether a snapshot may lack a request's key because it expired.

        Requests expire oldest first, each when a newer one is a window later (T9). A key's tuple is
        `[client, number, digest, index]`; the base of the replay contains keys older than itself.
        """
        if self.space != KEYS or self.fields is None:
            return False
        made_at = self.fields[3] if len(self.fields) > 3 else None
        if type(made_at) is not int or made_at >= self.snapshots.oldest.get(file, 0):
            return False
        window = self.catalogue.window_between(self.since, at)
        return window is None or made_at < at - window

    def _odd(
        self, at: int, file: str, offset: int, is_known: bool, text: str, cause: str = "",
        after: int = 0,
    ) -> None:  # fmt: skip
        self.odd.append((self.space, self.key, at, file, offset, is_known, text, cause, after))


def fold_events(
    batches: Iterator[pa.RecordBatch], catalogue: KeyCatalogue, snapshots: FoldedSnapshots
) -> Iterator[pa.RecordBatch]:
    """Fold the events of each key, in order, into findings about snapshots."""
    fold = Fold(catalogue, snapshots)
    is_open = False
    for batch in batches:
        columns = [column.to_pylist() for column in batch.select(FOLDED).columns]
        for space, key, index, op, body, file, offset in zip(*columns, strict=True):
            if not is_open or space != fold.space or key != fold.key:
                if is_open:
                    fold.end()
                fold.begin(space, key)
                is_open = True
            fold.take(index, op, body, file, offset)
        if fold.odd:
            yield batch_of(fold.odd, ODD)
            fold.odd = []
    if is_open:
        fold.end()
    yield batch_of(fold.odd, ODD)
