"""Encoding of transactions to the bytes of one batch: once, by the leader, with timestamps (L9)."""

from typing import Any

from qsync_node.format.row import LogRow, encode_row, encode_singles

TransactionRows = list[tuple[int, bytes, Any]]
"""Rows of one transaction: (type, body, idempotency key or None)."""


def encode_transactions(
    transactions: list[TransactionRows],
    replica_id: int,
    first_lsn: int,
    timestamp: float,
    flags: int,
) -> tuple[bytes, int]:
    """Return the encoded rows and their number; each transaction's last row gets `flags`."""
    if all(len(rows) == 1 and rows[0][2] is None for rows in transactions):
        singles = [(rows[0][0], rows[0][1]) for rows in transactions]
        return b"".join(encode_singles(singles, replica_id, first_lsn, timestamp, flags)), len(
            singles
        )
    parts: list[bytes] = []
    lsn = first_lsn
    for rows in transactions:
        tsn = lsn
        last = len(rows) - 1
        for position, (row_type, body, key) in enumerate(rows):
            row = LogRow(
                row_type,
                replica_id,
                lsn,
                timestamp,
                body,
                tsn=tsn,
                is_commit=position == last,
                flags=flags if position == last else 0,
                idempotency=key,
            )
            parts.append(encode_row(row))
            lsn += 1
    return b"".join(parts), lsn - first_lsn
