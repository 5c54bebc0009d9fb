"""A changed definition in the first snapshot, with which the replay begins, is one finding."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.archive.manifest import SNAPSHOT, FileEntry, Manifest
from qsync_node.archive.reader import Archive, load_archive
from qsync_node.format.keys import INSERT, Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow
from qsync_node.format.walk import space_of
from qsync_spark.audit.catalogue import build_catalogue
from qsync_spark.audit.primary_keys import trusted_keys
from qsync_spark.audit.snapshots import read_basis
from qsync_spark.decode.schema_rows import INDEX
from qsync_spark.facts.kinds import PrimaryKeys, SchemaRow
from qsync_spark.facts.table import FactList
from qsync_spark.local_session import make_local_session
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.plain_audit import plain_audit

Change = Callable[[list[LogRow], int], None]


def first_snapshot_of(copy: Copy) -> tuple[Manifest, FileEntry]:
    found = [(m, e) for m in copy.manifests.values() for e in m.of_kind(SNAPSHOT)]
    return min(found, key=lambda one: (one[1].last_index, one[0].instance_uuid))


def with_field(rows: list[LogRow], number: int, field: int, value: object) -> None:
    body = unpack(rows[number].body)
    body[Key.TUPLE][field] = value
    rows[number].body = pack(body)


def other_field(rows: list[LogRow], number: int) -> None:
    with_field(rows, number, 5, [[1, "unsigned"]])


def other_index(rows: list[LogRow], number: int) -> None:
    with_field(rows, number, 1, 9)


def no_definition(rows: list[LogRow], number: int) -> None:
    del rows[number]


@pytest.mark.parametrize("change", [other_field, other_index, no_definition])
@pytest.mark.parametrize("space", [SystemSpace.SCHEMA, SystemSpace.SPACE, SystemSpace.INDEX])
def test_a_changed_primary_key_is_one_finding(copy: Copy, space: int, change: Change) -> None:
    manifest, entry = first_snapshot_of(copy)
    rows = copy.rows(manifest, entry)
    number = next(
        n for n, row in enumerate(rows)
        if space_of(row.body) == INDEX and unpack(row.body)[Key.TUPLE][:2] == [int(space), 0]
    )  # fmt: skip
    change(rows, number)
    path = copy.rewrite(manifest, entry, rows)
    result = plain_audit(copy.folder)
    assert [(one.file, one.members) for one in result.violations] == [(path, [manifest.member])]
    assert not result.gaps


FIRST, OTHER = [[0, "unsigned"]], [[1, "string"]]


@pytest.mark.parametrize(
    ("stated", "defined_at", "wanted"),
    [
        ([OTHER, OTHER], (), OTHER),
        ([OTHER, FIRST], (), FIRST),  # no majority
        ([OTHER], (), FIRST),  # nor is one other snapshot
        ([OTHER, OTHER], (5,), FIRST),  # the log changed it
        ([OTHER, OTHER], (5000,), OTHER),  # but not before the snapshots
        ([OTHER, OTHER], (-2,), OTHER),  # nor after the first one
        ([OTHER, OTHER], (-2, 5), FIRST),
    ],
)
def test_most_snapshots_define_a_primary_key(
    archive: Path,
    stated: list[list[list[object]]],
    defined_at: tuple[int, ...],
    wanted: list[list[object]],
) -> None:
    loaded: Archive = load_archive(f"file://{archive}")
    chosen = [
        (manifest.instance_uuid, f"{manifest.instance_uuid}/{manifest.of_kind(SNAPSHOT)[-1].name}")
        for manifest in loaded.members
    ]  # fmt: skip
    (_, base), *others = chosen
    facts: list[PrimaryKeys | SchemaRow] = [
        PrimaryKeys(uuid, SNAPSHOT, file, pack({512: parts}))
        for (uuid, file), parts in zip(others, stated, strict=False)
    ]
    for at in defined_at:
        body = pack({Key.SPACE_ID: INDEX, Key.TUPLE: [512, 0, "p", "tree", {}, OTHER]})
        place = (chosen[0][0], "segment", "", 0, at, 1, 1, at)
        facts.append(SchemaRow(*place, INSERT, INDEX, 0.0, body))
    found = trusted_keys(loaded, FactList(facts), (-1, base), {512: FIRST}, ())
    assert found == {512: wanted}


def test_formats_of_the_first_snapshot_name_fields(copy: Copy) -> None:
    manifest, entry = first_snapshot_of(copy)
    session = make_local_session()
    try:
        archive = load_archive(f"file://{copy.folder}")
        basis = read_basis(session, archive, f"{manifest.instance_uuid}/{entry.name}")
    finally:
        session.stop()
    found = build_catalogue(basis.indexes, basis.changes, [])
    assert found.names_at(SystemSpace.SPACE, entry.last_index + 1)["name"] == 2
    assert not found.names_at(SystemSpace.SPACE, entry.last_index)
