"""Pages of a read: where each one begins, and which positions are refused (R1)."""

from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.engine import Database, OpenTransaction, Pending, Select, decode_request, reads
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format import keys as protocol
from qsync_node.format.body import put_body

UUID = "aaaaaaaa-0000-4000-8000-000000000001"
SPACE = 512
ITERATOR_POSITION = 251
BY_ID, BY_NAME, BY_RANK = 0, 1, 2
NAMES = [[1, "string"]]
RANKS = [{"field": 2, "type": "unsigned", "is_nullable": True}]

Page = tuple[list[Any], bytes | None]


class PagedSpace:
    """A space with a primary key, an index of names, and one of optional ranks."""

    def __init__(self, primary: list[Any]) -> None:
        self.database = Database.bootstrap(UUID)
        self.put(SystemSpace.SPACE, SPACE, 1, "t", "memtx", 0, {}, [])
        self.put(SystemSpace.INDEX, SPACE, BY_ID, "id", "tree", {}, primary)
        self.put(SystemSpace.INDEX, SPACE, BY_NAME, "name", "tree", {"unique": False}, NAMES)
        self.put(SystemSpace.INDEX, SPACE, BY_RANK, "rank", "tree", {"unique": False}, RANKS)

    def put(self, space: int, *fields: object) -> None:
        self.database.apply(Type.REPLACE, put_body(space, msgpack.packb(fields)))

    def page(self, index: int, iterator: int, key: list[Any], **after: object) -> Page:
        """Return at most two tuples, and the position after them.

        Args:
            after: `position` or `tuple` of the page before.
        """
        body = {Key.SPACE_ID: SPACE, Key.INDEX_ID: index, Key.ITERATOR: iterator, Key.KEY: key}
        body |= {Key.LIMIT: 2, Key.FETCH_POSITION: True}
        keys = {"position": Key.AFTER_POSITION, "tuple": Key.AFTER_TUPLE}
        body |= {keys[name]: value for name, value in after.items()}
        read = decode_request(Type.SELECT, msgpack.packb(body))
        assert isinstance(read, Select)
        admin = self.database.user_by_name("admin")
        assert admin is not None
        found, position = reads.select_page(Pending(self.database), read, admin)
        return [msgpack.unpackb(packed) for packed in found], position

    def pages(self, index: int) -> list[Any]:
        """Return the tuples of all pages, in the order of an index."""
        found, position = self.page(index, protocol.ALL, [])
        rows = list(found)
        while found:
            found, position = self.page(index, protocol.ALL, [], position=position)
            rows += found
        return rows


@pytest.fixture
def paged() -> PagedSpace:
    """Return a space with tuples 1 to 5, whose names are `a` and `b` in turn."""
    paged = PagedSpace([[0, "unsigned"]])
    for number in range(1, 6):
        paged.put(SPACE, number, "ba"[number % 2])
    return paged


def test_page_after_the_tuple_of_a_full_key_is_empty(paged: PagedSpace) -> None:
    """A client that reads pages until one is empty must come to an end."""
    found, position = paged.page(BY_ID, protocol.EQ, [2])
    assert found == [[2, "b"]]
    assert paged.page(BY_ID, protocol.EQ, [2], position=position) == ([], position)
    assert paged.page(BY_ID, protocol.EQ, [2], tuple=[2, "b"])[0] == []


@pytest.mark.parametrize(
    ("index", "iterator", "key", "number"),
    [
        (BY_ID, protocol.EQ, [3], 1),
        (BY_ID, protocol.EQ, [3], 5),
        (BY_ID, protocol.REQ, [3], 5),
        (BY_ID, protocol.REQ, [3], 1),
        (BY_ID, protocol.ALL, [3], 2),
        (BY_ID, protocol.GE, [3], 2),
        (BY_ID, protocol.GT, [3], 2),
        (BY_ID, protocol.LE, [3], 4),
        (BY_ID, protocol.LT, [3], 4),
        (BY_NAME, protocol.EQ, ["b"], 1),
        (BY_NAME, protocol.REQ, ["a"], 2),
        (BY_NAME, protocol.GE, ["b"], 1),
        (BY_NAME, protocol.LE, ["a"], 2),
    ],
)
def test_position_outside_the_range_of_a_key_is_refused(
    paged: PagedSpace, index: int, iterator: int, key: list[Any], number: int
) -> None:
    """Tarantool refuses it, too."""
    name = "ba"[number % 2]
    position = msgpack.packb([1, [number] if index == BY_ID else [name, number]])
    for after in ({"position": position}, {"tuple": [number, name]}):
        with pytest.raises(ClientError, match="position is invalid") as refused:
            paged.page(index, iterator, key, **after)
        assert refused.value.code == ITERATOR_POSITION


@pytest.mark.parametrize(
    ("index", "iterator", "key", "number", "expected"),
    [
        (BY_ID, protocol.GT, [3], 3, [4, 5]),
        (BY_ID, protocol.LT, [3], 3, [2, 1]),
        (BY_ID, protocol.GE, [3], 4, [5]),
        (BY_ID, protocol.LE, [3], 2, [1]),
        (BY_NAME, protocol.EQ, ["a"], 1, [3, 5]),
        (BY_NAME, protocol.REQ, ["a"], 5, [3, 1]),
        (BY_NAME, protocol.GT, ["a"], 2, [4]),
        (BY_NAME, protocol.GT, ["a"], 3, [5, 2]),  # as in Tarantool
    ],
)
def test_page_within_the_range_of_a_key_begins_after_its_position(
    paged: PagedSpace, index: int, iterator: int, key: list[Any], number: int, expected: list[int]
) -> None:
    after = [number, "ba"[number % 2]]
    assert [row[0] for row in paged.page(index, iterator, key, tuple=after)[0]] == expected


def test_pages_join_although_tuples_lack_the_indexed_field(paged: PagedSpace) -> None:
    """An absent field counts as NULL, in a position too."""
    paged.put(SPACE, 6, "b", 0)
    assert [row[0] for row in paged.pages(BY_RANK)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("index", [BY_ID, BY_NAME])
def test_pages_join_if_the_primary_key_is_inside_a_document(index: int) -> None:
    paged = PagedSpace([{"field": 0, "type": "unsigned", "path": "id"}])
    for number in range(1, 6):
        paged.put(SPACE, {"id": number}, "a")
    assert [row[0]["id"] for row in paged.pages(index)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("after", "code"), [([], ErrorCode.FIELD_MISSING), (["x", "a"], ErrorCode.FIELD_TYPE)]
)
def test_page_after_a_tuple_that_does_not_fit_is_refused(
    paged: PagedSpace, after: list[Any], code: ErrorCode
) -> None:
    with pytest.raises(ClientError) as refused:
        paged.page(BY_ID, protocol.ALL, [], tuple=after)
    assert refused.value.code == code


def begun(paged: PagedSpace, pending: Pending, **fields: object) -> reads.SteppedSelect:
    """Return a read of the whole space that has read nothing yet."""
    body = {Key.SPACE_ID: SPACE, Key.ITERATOR: protocol.ALL, Key.KEY: [], Key.LIMIT: 1000}
    body |= {Key[name]: value for name, value in fields.items()}
    request, admin = (
        decode_request(Type.SELECT, msgpack.packb(body)),
        paged.database.user_by_name("admin"),
    )
    assert isinstance(request, Select)
    assert admin is not None
    return pending.begin_read(request, admin)


@pytest.mark.parametrize(("offset", "limit"), [(0, 4), (3, 1)])
def test_read_beside_pending_rows_visits_a_bounded_number_of_entries(
    paged: PagedSpace, monkeypatch: pytest.MonkeyPatch, offset: int, limit: int
) -> None:
    """It cannot be interrupted, so an unbounded one would hold up its member."""
    monkeypatch.setattr(reads, "WALKED_MAX", 4)
    pending = Pending(paged.database)
    insert = decode_request(Type.INSERT, put_body(SPACE, msgpack.packb([6, "c"])))
    admin = paged.database.user_by_name("admin")
    assert admin is not None
    pending.push(pending.execute(insert, admin).changes)
    reading = begun(paged, pending, OFFSET=offset, LIMIT=limit)
    assert not reading.pause()
    assert reading.run()
    assert len(reading.found) == limit
    with pytest.raises(ClientError, match="visits more than 4 index entries"):
        begun(paged, pending, OFFSET=offset, LIMIT=limit + 1).run()


def test_read_can_be_interrupted_once_no_row_of_its_space_is_pending(paged: PagedSpace) -> None:
    """Else a space could be read as a whole only until the first write to it."""
    pending = Pending(paged.database)
    insert = decode_request(Type.INSERT, put_body(SPACE, msgpack.packb([6, "c"])))
    admin = paged.database.user_by_name("admin")
    assert admin is not None
    changes = pending.execute(insert, admin).changes
    pending.push(changes)
    pending.confirm(changes)
    reading = begun(paged, pending)
    assert not reading.run(2)
    assert reading.pause()
    assert reading.run()
    assert len(reading.found) == 6


def test_parts_of_an_answer_count_together_for_its_size(
    paged: PagedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that takes several steps must not collect more than one answer can hold."""
    size = len(msgpack.packb([1, "a"]))
    monkeypatch.setattr(reads, "ANSWER_BYTES_MAX", 4 * size)
    reading = begun(paged, Pending(paged.database))
    assert not reading.run(2)
    assert not reading.run(2)
    with pytest.raises(ClientError, match="its result has more than") as refused:
        reading.run(2)
    assert refused.value.code == ErrorCode.MEMORY_ISSUE


def test_position_of_a_page_is_in_the_answer_to_its_statement_only(paged: PagedSpace) -> None:
    admin = paged.database.user_by_name("admin")
    assert admin is not None
    transaction = OpenTransaction(Pending(paged.database))
    body = {Key.SPACE_ID: SPACE, Key.KEY: [1], Key.LIMIT: 1, Key.FETCH_POSITION: True}
    transaction.execute(decode_request(Type.SELECT, msgpack.packb(body)), admin)
    assert transaction.position is not None
    insert = decode_request(Type.INSERT, put_body(SPACE, msgpack.packb([6, "c"])))
    transaction.execute(insert, admin)
    assert transaction.position is None
