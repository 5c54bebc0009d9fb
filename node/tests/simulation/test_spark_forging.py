"""Forged rows whose changes cancel: the hash of a chunk of rows needs a secret key."""

from pathlib import Path
from unittest import mock

import pytest

from qsync_node.archive.manifest import (
    SEGMENT,
)
from qsync_node.format.keys import RAFT_PROMOTE
from qsync_node.format.row import encode_row
from qsync_spark.decode.blocks import HASH_BYTES, SECRET_BYTES, RowHash, new_secret
from qsync_spark.report.findings import VIOLATED
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.simulated import calm_archive

CHANGE_S = 2.0**-10


def cancelling(differences: list[int]) -> list[int]:
    """Return positions of one or more values whose exclusive or is 0 (Gaussian elimination)."""
    basis: dict[int, tuple[int, int]] = {}  # bit length -> value, and a mask of its summands
    for number, value in enumerate(differences):
        made = 1 << number
        while value:
            known = basis.get(value.bit_length())
            if known is None:
                basis[value.bit_length()] = (value, made)
                break
            value, made = value ^ known[0], made ^ known[1]
        else:
            return [n for n in range(len(differences)) if made >> n & 1]
    raise AssertionError("fewer candidates than bits")


@pytest.mark.parametrize("is_key_known", [False, True])
def test_changes_that_cancel_need_the_key_of_the_audit(tmp_path: Path, is_key_known: bool) -> None:
    """A forger who can compute the hash changes rows without changing the hash of their chunk.

    Among 129 candidate rows and their changed copies there is always such a set of rows. The
    forger does not know the key, because the audit draws it later.
    """
    secret = bytes(SECRET_BYTES)
    content_hash = RowHash(secret)
    wanted = 8 * HASH_BYTES + 1
    calm_archive(tmp_path / "archive", 2 * wanted)
    copy = Copy(tmp_path / "archive", tmp_path / "copy", 5)
    member = copy.full_members()[0]
    (entry,) = member.of_kind(SEGMENT)
    rows = copy.rows(member, entry)
    # The audit compares control rows, and rows of which a member lacks the first ones, one by one.
    owner = rows[-1].replica_id
    pool = [row for row in rows if row.type < RAFT_PROMOTE and row.replica_id == owner][-wanted:]
    differences = []
    for row in pool:
        before = content_hash(encode_row(row))
        row.timestamp += CHANGE_S
        after = content_hash(encode_row(row))
        row.timestamp -= CHANGE_S
        differences.append(int.from_bytes(before) ^ int.from_bytes(after))
    chosen = [pool[number] for number in cancelling(differences)]
    for row in chosen:
        row.timestamp += CHANGE_S
    copy.rewrite(member, entry, rows)
    drawn = secret if is_key_known else new_secret()
    with mock.patch("qsync_spark.audit.context.new_secret", return_value=drawn):
        result = plain_audit(copy.folder)
    found = {one.lsn for one in result.violations if 1 in one.proofs}
    if is_key_known:
        assert not found
        return
    assert result.verdict == VIOLATED
    assert found == {row.lsn for row in chosen}


def test_each_audit_draws_another_key() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) == SECRET_BYTES
