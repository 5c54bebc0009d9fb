"""Secondary indexes, range scans and pages.

Four sessions write and read a space with a unique secondary index, one that is not unique, and one
of two parts. A fifth reads another space page by page, while its rows are changed and rows are
inserted between its static ones.
"""

from typing import Any

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_TXN_ISOLATION,
    REPLACE,
    SELECT,
    UPDATE,
    UPSERT,
)
from qsync_sim.cluster import Cluster
from qsync_sim.workloads.base import Script, Workload, WorkloadRequest, body_of
from qsync_sim.workloads.checks import (
    LINEARIZABLE,
    check_dirty_read,
    check_read,
    check_write,
)
from qsync_sim.workloads.order import ConfirmedOrder
from qsync_sim.workloads.table import EQ, GE, GT, LE, LT, REQ

SPACE, PAGED_SPACE = 600, 601
KEYS, VALUES, GROUPS = 7, 5, 3
STATIC_KEYS = range(0, 24, 2)
WRITES, PAGINATIONS = 11, 3
PAGE, PAGES_MAX = 5, 8
BEAT_MS = 100
"""The sessions often send at the same moment, so that their requests meet pending rows."""
ITERATORS = (EQ, GE, GT, LE, LT, REQ)
_INDEXES: dict[int, list[tuple[str, bool, list[Any]]]] = {
    SPACE: [
        ("primary", True, [[0, "unsigned"]]),
        ("value", True, [[2, "unsigned"]]),
        ("group", False, [[3, "unsigned"]]),
        ("both", True, [[3, "unsigned"], [1, "string"]]),
    ],
    PAGED_SPACE: [("primary", True, [[0, "unsigned"]]), ("group", False, [[2, "unsigned"]])],
}


class Indexes(Workload):
    """Writes, reads and pages through secondary indexes."""

    name = "indexes"
    number = 1

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self.paginations: list[list[WorkloadRequest]] = []

    def set_up(self) -> None:
        """Create both spaces and the static rows."""
        for space, indexes in _INDEXES.items():
            self.world.insert(SystemSpace.SPACE, [space, 1, f"s{space}", "memtx", 0, {}, []])
            for number, (name, is_unique, parts) in enumerate(indexes):
                options = {"unique": is_unique}
                self.world.insert(SystemSpace.INDEX, [space, number, name, "tree", options, parts])
        for key in STATIC_KEYS:
            self.world.insert(PAGED_SPACE, [key, f"first {key}", key % GROUPS])

    def scripts(self) -> list[Script]:
        return [*(self._use() for _ in range(4)), self._paginate()]

    # --- requests -----------------------------------------------------------------------------

    def _use(self) -> Script:
        for _ in range(WRITES):
            if self.rng.random() < 0.7:
                yield self.rng.choice([0, 300, 900]) + self.until_beat(BEAT_MS)
            choose = self._read if self.rng.random() < 0.4 else self._write
            yield self.sent(choose())

    def _write(self) -> WorkloadRequest:
        rng, tag = self.rng, self.new_tag()
        made = [rng.randrange(KEYS), tag, rng.randrange(VALUES), rng.randrange(GROUPS)]
        ops = [["=", 1, tag], ["=", rng.choice([2, 3]), rng.randrange(GROUPS)]]
        kind = rng.choice(["insert", "replace", "replace", "upsert", "update", "delete"])
        if kind in ("insert", "replace"):
            number = INSERT if kind == "insert" else REPLACE
            return WorkloadRequest(kind, number, body_of(space=SPACE, tuple=made), tag)
        if kind == "upsert":
            return WorkloadRequest(kind, UPSERT, body_of(space=SPACE, tuple=made, ops=ops), tag)
        index = rng.choice([0, 1, 1, 1, 2])
        key = [rng.randrange(KEYS if index == 0 else VALUES if index == 1 else GROUPS)]
        if kind == "delete":
            return WorkloadRequest(kind, DELETE, body_of(space=SPACE, index=index, key=key))
        body = body_of(space=SPACE, index=index, key=key, tuple=ops)
        return WorkloadRequest(kind, UPDATE, body, tag)

    def _read(self) -> WorkloadRequest:
        rng = self.rng
        index = rng.choice([0, 1, 2, 2, 3])
        key = [] if rng.random() < 0.3 else [rng.randrange(GROUPS)]
        body = body_of(
            space=SPACE,
            index=index,
            key=key,
            iterator=rng.choice(ITERATORS),
            limit=rng.choice([2, 100]),
            offset=rng.choice([0, 0, 1]),
            isolation=rng.choice([0, 1, 2, 3, LINEARIZABLE]),
        )
        return WorkloadRequest("select", SELECT, body)

    def _paginate(self) -> Script:
        rng = self.rng
        for _ in range(PAGINATIONS):
            index, iterator = rng.choice([0, 1]), rng.choice([GE, LE])
            isolation = rng.choice([0, LINEARIZABLE])
            pages: list[WorkloadRequest] = []
            self.paginations.append(pages)
            more: dict[str, Any] = {}
            for _ in range(PAGES_MAX):
                if rng.random() < 0.4:
                    yield self.sent(self._change_between())
                body = body_of(
                    space=PAGED_SPACE, index=index, key=[], iterator=iterator, limit=PAGE,
                    isolation=isolation, fetch_position=True, **more,
                )  # fmt: skip
                page = self.sent(WorkloadRequest("page", SELECT, body))
                page.note = pages[-1].tuples[-1] if pages else None
                answered = yield page
                if answered is None or answered.outcome != "committed":
                    break
                pages.append(page)
                if len(page.tuples) < PAGE:
                    break
                more = {"after_position": page.position}
                if rng.random() < 0.3:
                    more = {"after_tuple": page.tuples[-1]}

    def _change_between(self) -> WorkloadRequest:
        """Return a change of a static row, or of a row between them."""
        rng, tag = self.rng, self.new_tag()
        key = rng.choice([rng.choice(STATIC_KEYS), rng.choice(STATIC_KEYS) + 1])
        if key % 2 and rng.random() < 0.5:
            return WorkloadRequest("delete", DELETE, body_of(space=PAGED_SPACE, key=[key]))
        made = [key, tag, key % GROUPS]
        return WorkloadRequest("replace", REPLACE, body_of(space=PAGED_SPACE, tuple=made), tag)

    # --- checks -------------------------------------------------------------------------------

    def check(self, order: ConfirmedOrder) -> None:
        """Check writes, reads and pages (T6, T8, R1, R2)."""
        for request in self.requests:
            if request.type == SELECT:
                check_read(self, order, request)
                check_dirty_read(self, request)
            else:
                check_write(self, order, request)
        for pages in self.paginations:
            self._check_pages(pages)

    def _check_pages(self, pages: list[WorkloadRequest]) -> None:
        """Check that complete pages return each static row exactly once (R1)."""
        found = [made[0] for page in pages for made in page.tuples]
        if pages and len(set(found)) < len(found):
            self.fail(pages[-1], f"R1: pages return the keys {found}")
        if not pages or len(pages[-1].tuples) == PAGE:
            return
        is_strict = pages[0].fields.get(KEY_TXN_ISOLATION) == LINEARIZABLE
        missing = [key for key in STATIC_KEYS if key not in found]
        if missing and is_strict:
            self.fail(pages[-1], f"R2: pages return {found}, without {missing}")
        self.world.count("paginations checked")
