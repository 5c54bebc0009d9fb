"""Forged rows whose changes cancel: the hash of a chunk of rows needs a secret key."""

from unittest import mock

import pytest
from archive_copy import Copy
from plain_audit import plain_audit

from qsync_node.format.keys import RAFT_PROMOTE
from qsync_node.format.manifest import (
    SEGMENT,
)
from qsync_node.format.row import Row, encode_row
from qsync_spark.audit.findings import VIOLATED
from qsync_spark.decode import HASH_BYTES, SECRET_BYTES, RowHash, new_secret
from qsync_spark.facts import CHUNK_BITS

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
def test_changes_that_cancel_need_the_key_of_the_audit(copy: Copy, is_key_known: bool) -> None:
    """A forger who can compute the hash changes rows without changing the hash of their chunk.

    Among 129 candidate rows and their changed copies there is always such a set of rows. The
    forger does not know the key, because the audit draws it later.
    """
    secret = bytes(SECRET_BYTES)
    content_hash = RowHash(secret)
    member = copy.full_members()[0]
    by_file: dict[str, list[Row]] = {}
    candidates: dict[tuple[int, int], list[Row]] = {}
    for entry in member.of_kind(SEGMENT):
        by_file[entry.name] = rows = copy.rows(member, entry)
        for row in rows[1:-1]:
            if row.type < RAFT_PROMOTE:  # the audit also checks control rows one by one
                candidates.setdefault((row.replica_id, row.lsn >> CHUNK_BITS), []).append(row)
    wanted = 8 * HASH_BYTES + 1
    pools = [
        rows[start : start + wanted]
        for rows in sorted(candidates.values(), key=len, reverse=True)
        for start in range(0, len(rows) - wanted + 1, wanted // 2)
    ]
    drawn = secret if is_key_known else new_secret()
    found = []
    # A unit of comparison may end within a pool, so the forger tries several pools.
    for pool in pools[:8]:
        differences = []
        for row in pool:
            before = content_hash(encode_row(row))
            row.timestamp += CHANGE_S
            after = content_hash(encode_row(row))
            row.timestamp -= CHANGE_S
            differences.append(int.from_bytes(before) ^ int.from_bytes(after))
        chosen = [pool[number] for number in cancelling(differences)]
        old = [row.timestamp for row in chosen]
        for row in chosen:
            row.timestamp += CHANGE_S
        names = list(by_file)
        for number, entry in enumerate(list(member.of_kind(SEGMENT))):
            copy.rewrite(member, entry, by_file[names[number]])
        with mock.patch("plain_audit.new_secret", return_value=drawn):
            result = plain_audit(copy.folder)
        found.append({proof for one in result.violations for proof in one.proofs})
        if not is_key_known:
            break
        for row, timestamp in zip(chosen, old, strict=True):
            row.timestamp = timestamp
    if is_key_known:
        assert any(1 not in proofs for proofs in found), found
        return
    assert result.verdict == VIOLATED
    assert {one.lsn for one in result.violations if 1 in one.proofs} == {one.lsn for one in chosen}


def test_each_audit_draws_another_key() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) == SECRET_BYTES
