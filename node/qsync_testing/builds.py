"""Driven clusters whose members build an index or check a format in parts."""

from typing import Any

from qsync_node.engine.database import Database
from qsync_node.engine.fields import decode
from qsync_node.engine.index import TreeIndex
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, Driven, node_of, put

TUPLES = 60
SPACES, INDEXES, TRUNCATIONS = 280, 288, 330


def index_row(index_id: int, parts: list[Any], *, unique: bool = False) -> list[Any]:
    return [SPACE, index_id, f"i{index_id}", "tree", {"unique": unique}, parts]


def create(row: list[Any]) -> bytes:
    return build_body(INDEXES, tuple=row)


BY_VALUE = index_row(1, [[1, "string"]])


def filled(**settings: int) -> Driven:
    """Return three members that hold `TUPLES` tuples."""
    driven = Driven(3, **settings)
    for key in range(TUPLES):
        assert driven.ask(driven.leader(), REPLACE, put(key, f"v{key % 10}")).code == 0
    assert driven.run(10_000, lambda: all(size_of(shell) == TUPLES for shell in driven.shells))
    return driven


def database_of(shell: Shell) -> Database:
    return node_of(shell).database


def size_of(shell: Shell) -> int:
    return len(database_of(shell).space(SPACE).indexes[0])


def is_building(shell: Shell) -> bool:
    return node_of(shell).builds.is_active


def check_indexes(driven: Driven) -> None:
    """Check that every index of every living member holds exactly the tuples of the space."""
    states = []
    for shell in driven.world.alive():
        database = database_of(shell)
        space = database.space(SPACE)
        wanted = {packed for _, packed in space.indexes[0].entries()}
        for index in space.indexes.values():
            assert isinstance(index, TreeIndex)
            entries = dict(index.entries())
            assert sorted(entries.values()) == sorted(wanted)
            for key, packed in entries.items():
                assert index.key_def.entry_key(decode(packed)) == key
        states.append((sorted(space.indexes), sorted(wanted), database.memory_bytes))
        copy = Database()
        for body in database.snapshot_bodies():
            copy.load(body)
        assert copy.memory_bytes == database.memory_bytes
    assert all(state == states[0] for state in states)


def is_everywhere(driven: Driven, index_id: int) -> bool:
    return all(
        index_id in database_of(shell).space(SPACE).indexes for shell in driven.world.alive()
    )


def count_parts(shell: Shell) -> list[int]:
    """Return a list that grows by one with each step that continues a build."""
    builds = node_of(shell).builds
    advance, taken = builds.advance, []

    def counted() -> None:
        if builds.is_active:
            taken.append(1)
        advance()

    builds.advance = counted  # type: ignore[method-assign]  # counts, then advances
    return taken
