"""Changes one byte of a row in a member's archive and corrects the checksums.

    python damage.py URL

Prints the damaged file's name, and the replica id and LSN of its row.
"""

import hashlib
import sys
from dataclasses import replace

import obstore
from obstore.store import from_url

from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    SEGMENT,
    archived_name,
    decode_manifest,
    encode_manifest,
)
from qsync_node.format.row import LogRow, decode_rows
from qsync_node.format.xlog import EOF_MARKER, Block, decode_file_header, encode_block, read_blocks

WRITTEN = b"value-"  # how every value of the writer begins


def damaged(data: bytes) -> tuple[bytes, LogRow] | None:
    """Return the changed file and its changed row, or None if it has no row of the writer."""
    _, start = decode_file_header(data)
    parts, found = [data[:start]], None
    for item in read_blocks(data, start):
        if not isinstance(item, Block):
            continue
        rows = bytes(item.data)
        at = rows.find(WRITTEN)
        if at >= 0 and found is None:
            found = next(row for row in decode_rows(rows) if WRITTEN in row.body)
            rows = rows[:at] + b"w" + rows[at + 1 :]
        parts.append(encode_block(rows))
    return None if found is None else (b"".join([*parts, EOF_MARKER]), found)


def main(url: str) -> None:
    store = from_url(url)
    paths = [str(item["path"]) for batch in obstore.list(store) for item in batch]
    path = min(path for path in paths if path.endswith(f"/{MANIFEST_NAME}"))
    folder = path.partition("/")[0]
    manifest = decode_manifest(bytes(obstore.get(store, path).bytes()), path)
    for number, entry in enumerate(manifest.files):
        if entry.kind != SEGMENT:
            continue
        changed = damaged(bytes(obstore.get(store, f"{folder}/{entry.name}").bytes()))
        if changed is None:
            continue
        data, row = changed
        digest = hashlib.sha256(data).hexdigest()
        term = int(entry.name.split("-")[1])
        name = archived_name(SEGMENT, entry.after_index + 1, term, digest)
        obstore.put(store, f"{folder}/{name}", data)
        manifest.files[number] = replace(
            entry, name=name, sha256=digest, size=len(data), marks=entry.marks[:1]
        )
        obstore.put(store, path, encode_manifest(manifest))
        print(name, row.replica_id, row.lsn)
        return
    sys.exit("no segment contains a row of the writer")


if __name__ == "__main__":
    main(sys.argv[1])
