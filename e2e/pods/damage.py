"""Changes one byte of one row in one member's archive, under right checksums: in a member's pod.

    python damage.py URL

Prints the damaged file's name.
"""

import hashlib
import sys
from dataclasses import replace

import obstore
from obstore.store import from_url

from qsync_node.format.manifest import (
    MANIFEST_NAME,
    SEGMENT,
    archived_name,
    decode_manifest,
    encode_manifest,
)
from qsync_node.format.xlog import EOF_MARKER, Block, decode_file_header, encode_block, read_blocks

WRITTEN = b"value-"  # how every value of the writer begins


def damaged(data: bytes) -> bytes | None:
    """The file with another row; None if no row of the writer is in it."""
    _, start = decode_file_header(data)
    parts, is_done = [data[:start]], False
    for item in read_blocks(data, start):
        if not isinstance(item, Block):
            continue
        rows = bytes(item.data)
        at = rows.find(WRITTEN)
        if at >= 0 and not is_done:
            rows = rows[:at] + b"w" + rows[at + 1 :]
            is_done = True
        parts.append(encode_block(rows))
    return b"".join([*parts, EOF_MARKER]) if is_done else None


def main(url: str) -> None:
    store = from_url(url)
    paths = [str(item["path"]) for batch in obstore.list(store) for item in batch]
    path = min(path for path in paths if path.endswith(f"/{MANIFEST_NAME}"))
    folder = path.partition("/")[0]
    manifest = decode_manifest(bytes(obstore.get(store, path).bytes()), path)
    for number, entry in enumerate(manifest.files):
        if entry.kind != SEGMENT:
            continue
        data = damaged(bytes(obstore.get(store, f"{folder}/{entry.name}").bytes()))
        if data is None:
            continue
        digest = hashlib.sha256(data).hexdigest()
        term = int(entry.name.split("-")[1])
        name = archived_name(SEGMENT, entry.after_index + 1, term, digest)
        obstore.put(store, f"{folder}/{name}", data)
        manifest.files[number] = replace(
            entry, name=name, sha256=digest, size=len(data), marks=entry.marks[:1]
        )
        obstore.put(store, path, encode_manifest(manifest))
        print(name)
        return
    sys.exit("no segment holds a row of the writer")


if __name__ == "__main__":
    main(sys.argv[1])
