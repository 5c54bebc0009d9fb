"""Names of persisted fragments: offsets, checksum and codec, so that a listing is an index.

    JOURNAL/[POSTFIX/]BEGIN-END-SHA1.EXTENSION

Offsets are 16 hexadecimal digits, so the lexicographic order is that of the offsets. Any folder
below the journal's may contain fragments: its template may have changed. A journal can therefore
not have a name below that of another one.
"""

import re

from qsync_broker.codecs import EXTENSIONS, Codec, codec_of_extension
from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_broker.postfix import Postfix, PostfixError

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{40})(\.[A-Za-z0-9]+)?")
_OFFSET_MAX = (1 << 63) - 1


def content_name(begin: int, end: int, checksum: bytes, codec: int) -> str:
    """Return the name of a fragment."""
    return f"{begin:016x}-{end:016x}-{checksum.hex()}{EXTENSIONS[Codec(codec)]}"


def path_of(journal: str, fragment: LocalFragment, template: str = "") -> str:
    """Return the path of a fragment below the URL of its store.

    Args:
        journal: name of the journal.
        fragment: the completed fragment.
        template: template of a folder below the journal's one. An invalid one counts as none.
    """
    begin, end, checksum, codec, first_append = fragment
    try:
        folder = Postfix(template).folder(journal, begin, end, first_append)
    except PostfixError:
        folder = ""
    return "/".join(filter(None, (journal, folder, content_name(begin, end, checksum, codec))))


def parse_path(store: str, journal: str, path: str, mod_time: int) -> RemoteFragment | None:
    """Return the fragment with a path, or None if the object is no fragment of the journal."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if not f"{folder}/".startswith(f"{journal}/") or found is None:
        return None
    begin, end = int(found[1], 16), int(found[2], 16)
    codec = codec_of_extension(found[4] or "")
    if codec is None or not begin <= end <= _OFFSET_MAX:
        return None
    return RemoteFragment(begin, end, bytes.fromhex(found[3]), codec, store, path, mod_time)


def attributes_of(codec: int) -> dict[str, str] | None:
    """Return the attributes of an object with a fragment, for stores that have attributes."""
    return {"Content-Encoding": "gzip"} if codec == Codec.GZIP_OFFLOAD_DECOMPRESSION else None


def unknown_extension(path: str) -> str:
    """Return the extension that prevents an object from being a fragment, or ""."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    extension = (found[4] or "") if found is not None else ""
    return extension if codec_of_extension(extension) is None else ""
