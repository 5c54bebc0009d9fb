"""The key space as the cluster holds it: transactions are serializable, and form a log."""

from typing import Any

from qsync_broker.keyspace import Absent, Deleted, KeyChange, KeySpace, RowChange, Written
from qsync_broker.operations import Publication
from qsync_broker.spec import JournalSpec
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    NO_ROUTE,
    PUBLISHER_SPACE,
    JournalRow,
    PublisherRow,
    decode_row,
    encode_row,
    next_revision,
    space_of,
)

STORE = "file:///store/"
SPEC: dict[str, Any] = {
    "labels": {"labels": []},
    "fragment": {
        "length": 4096,
        "compression_codec": "NONE",
        "stores": [],
        "refresh_interval": "5m",
        "retention": "0s",
        "flush_interval": "0s",
        "path_postfix_template": "",
    },
    "flags": "O_RDWR",
    "max_append_rate": 0,
}


class SimKeySpace:
    """The key space, its publications and its log."""

    def __init__(self) -> None:
        self.revision = 1
        self.rows: dict[tuple[int, tuple[str, ...]], list[Any]] = {}
        self.log: list[tuple[int, list[RowChange]]] = []
        self.publishers: dict[tuple[str, int], PublisherRow] = {}
        self.contents: dict[tuple[str, int], dict[int, bytes]] = {}
        self.published: dict[tuple[str, int], list[bytes]] = {}  # all that was ever committed

    def transact(self, change: KeyChange) -> bool:
        """Carry out a transaction, and return whether it committed."""
        for row in change.expected:
            if isinstance(row, Absent):
                if (row.space, row.key) in self.rows:
                    return False
            elif self.rows.get((space_of(row), tuple(row.key))) != encode_row(row):
                return False
        changes: list[RowChange] = []
        for written in change.written:
            fields = encode_row(written)
            self.rows[space_of(written), tuple(written.key)] = fields
            changes.append(Written(space_of(written), fields))
        for deleted in change.deleted:
            self.rows.pop((deleted.space, deleted.key), None)
            changes.append(Deleted(deleted.space, list(deleted.key)))
        self.note(changes)
        return True

    def publish(self, journal: str, content: bytes) -> int:
        """Publish to a journal, and return the sequence; 0 if the journal does not exist."""
        fields = self.rows.get((JOURNAL_SPACE, (journal,)))
        if fields is None:
            return 0
        row = decode_row(JOURNAL_SPACE, fields)
        assert isinstance(row, JournalRow)
        key = journal, row.create_revision
        found = self.publishers.get(key, PublisherRow(*key, 0, 0, 0, []))
        sequence = found.last + 1
        self.contents.setdefault(key, {})[sequence] = content
        self.published.setdefault(key, []).append(content)
        size = found.pending_bytes + len(content)
        self._put_publisher(found._replace(last=sequence, pending_bytes=size))
        return sequence

    def call(self, name: str, journal: str, journal_id: int, *more: Any) -> bool:
        """Run `qsync.published` or `qsync.discard`, as the members do."""
        key = journal, journal_id
        row = self.publishers.get(key)
        if row is None:
            return True
        contents = self.contents[key]
        if name == "qsync.discard":
            del self.publishers[key], self.contents[key]
            self.rows.pop((PUBLISHER_SPACE, key), None)  # type: ignore[arg-type]
            self.note([Deleted(PUBLISHER_SPACE, list(key))])
            return True
        through, places = more
        assert through <= row.last, "a broker has published more than there is"
        for sequence in range(row.published + 1, through + 1):
            del contents[sequence]
        places = [*row.places, *(list(place) for place in places if place[0] > row.published)]
        published = max(through, row.published)
        size = sum(map(len, contents.values()))
        self._put_publisher(
            row._replace(published=published, pending_bytes=size, places=places[-64:])
        )
        return True

    def _put_publisher(self, row: PublisherRow) -> None:
        self.publishers[row.journal, row.journal_id] = row
        self.rows[PUBLISHER_SPACE, (row.journal, row.journal_id)] = list(row)  # type: ignore[index]
        self.note([Written(PUBLISHER_SPACE, list(row))])

    def publications(
        self, journal: str, journal_id: int, after: int, limit: int
    ) -> list[Publication]:
        """Return publications after a sequence."""
        contents = self.contents.get((journal, journal_id), {})
        return [Publication(*one) for one in sorted(contents.items()) if one[0] > after][:limit]

    def as_of(self, count: int) -> tuple[int, dict[tuple[int, tuple[str, ...]], list[Any]]]:
        """Return revision and rows after a number of transactions."""
        copy = KeySpace()
        rows: dict[tuple[int, tuple[str, ...]], list[Any]] = {}
        for _, changes in self.log[:count]:
            for change in changes:
                key = copy.apply(change)
                if isinstance(change, Written):
                    rows[change.space, key] = change.fields
                else:
                    rows.pop((change.space, key), None)
        return self.log[count - 1][0] if count else 1, rows

    def note(self, changes: list[RowChange]) -> None:
        """Add a transaction to the log."""
        self.revision += max(1, len(changes))
        self.log.append((self.revision, changes))

    # --- journals -----------------------------------------------------------------------------

    def create(
        self, journal: str, replication: int = 3, stores: bool = False, **spec: object
    ) -> None:
        """Create a journal."""
        revision = self.revision + 1
        fields = {"replication": replication, **SPEC, **spec}
        if stores:
            fields["fragment"] = {**SPEC["fragment"], "stores": [STORE]}
        row = JournalRow(journal, fields, 0, 0, 0, 0, NO_ROUTE, revision, revision)
        assert self.transact(KeyChange((Absent(JOURNAL_SPACE, (journal,)),), (row,)))

    def scale(self, journal: str, replication: int) -> None:
        """Change the replication of a journal, if it exists."""
        if (JOURNAL_SPACE, (journal,)) in self.rows:
            self._change(journal, replication=replication)

    def use_stores(self, journal: str, urls: tuple[str, ...]) -> None:
        """Change the stores of a journal."""
        fragment = self._row(journal).spec["fragment"]
        self._change(journal, fragment={**fragment, "stores": list(urls)})

    def spec(self, journal: str) -> JournalSpec:
        """Return the specification of a journal."""
        return JournalSpec.from_row(journal, self._row(journal).spec)

    def _row(self, journal: str) -> JournalRow:
        row = decode_row(JOURNAL_SPACE, self.rows[JOURNAL_SPACE, (journal,)])
        assert isinstance(row, JournalRow)
        return row

    def _change(self, journal: str, **fields: object) -> None:
        row = self._row(journal)
        revision = next_revision(self.revision, row)
        changed = row._replace(spec={**row.spec, **fields}, mod_revision=revision)
        assert self.transact(KeyChange((row,), (changed,)))
