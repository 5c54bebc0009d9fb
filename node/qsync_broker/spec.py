"""Specifications of journals: as the key space contains them, and the rules that they must follow.

A row contains the fields of Gazette's `JournalSpec` by their names in Protobuf, with durations and
enumerations as text. Reading a row never fails: clients with write access to the key space can
write anything, and one journal must not stop a broker. `problem` states the rule that a client's
specification violates.
"""

import posixpath
import re
from collections import Counter
from enum import IntEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from qsync_broker.codecs import Codec
from qsync_broker.duration import format_duration, parse_duration
from qsync_broker.labels import NAME_LABEL, NO_LABELS, PREFIX_LABEL, LabelSet
from qsync_broker.postfix import Postfix, PostfixError

SECOND_NS = 1_000_000_000
REPLICATION_MAX = 5
LABELS_MAX = 256
STORES_MAX = 16
STORE_MAX = 2048
"""Maximum length of the URL of a store in characters."""

_DEFAULT_LENGTH = 64 << 20
_DEFAULT_REFRESH_NS = 300 * SECOND_NS
_LENGTHS = 1 << 10, 16 << 30
_REFRESH_NS = SECOND_NS, 86_400 * SECOND_NS
_FLUSH_MIN_NS = 60 * SECOND_NS
_SCHEMES = ("file", "s3", "gs", "azure", "azure-ad")
_SINGLE = (
    "content-type",
    "app.gazette.dev/instance",
    "app.gazette.dev/managed-by",
    "app.gazette.dev/message-type",
    "app.gazette.dev/message-subtype",
    "app.gazette.dev/region",
)
_REQUIRES = {
    "app.gazette.dev/message-type": "content-type",
    "app.gazette.dev/message-subtype": "app.gazette.dev/message-type",
}
_MIME = re.compile(r"[\w.+-]+/[\w.+*-]+(\s*;\s*[\w.+-]+=(\"[^\"]*\"|[\w.+-]+))*")
_TOKEN = re.compile(r"[\w\-+/.]+")
_PATH = re.compile(r"[\w\-+/.=%]+")


class JournalFlags(IntEnum):
    """Whether a journal can be read and written; the values are Gazette's."""

    UNSPECIFIED = 0
    O_RDONLY = 1
    O_WRONLY = 2
    O_RDWR = 4


class FragmentSpec(NamedTuple):
    """Fragments of a journal.

    Attributes:
        length: content length in bytes after which a fragment is completed.
        compression_codec: codec of persisted fragments.
        stores: URLs of stores; the first one is written.
        refresh_ns: interval between two listings of the stores, in nanoseconds.
        retention_ns: age after which persisted fragments may be removed, 0 for never.
        flush_ns: interval at whose multiples fragments are completed, 0 for none.
        path_postfix_template: template of a folder below the journal's one.
    """

    length: int = _DEFAULT_LENGTH
    compression_codec: int = Codec.NONE
    stores: tuple[str, ...] = ()
    refresh_ns: int = _DEFAULT_REFRESH_NS
    retention_ns: int = 0
    flush_ns: int = 0
    path_postfix_template: str = ""


class JournalSpec(NamedTuple):
    """A journal's specification.

    Attributes:
        name: name of the journal.
        replication: number of brokers that have each appended byte.
        labels: labels by which clients select journals.
        fragment: fragments and their persistence.
        flags: whether it can be read and written.
        max_append_rate: maximum rate of an append in bytes per second, 0 for no limit.
    """

    name: str
    replication: int = 3
    labels: LabelSet = NO_LABELS
    fragment: FragmentSpec = FragmentSpec()
    flags: int = JournalFlags.O_RDWR
    max_append_rate: int = 0

    @property
    def is_writable(self) -> bool:
        """Return whether content may be appended."""
        return self.flags != JournalFlags.O_RDONLY

    @property
    def is_readable(self) -> bool:
        """Return whether content may be read."""
        return self.flags != JournalFlags.O_WRONLY

    @classmethod
    def from_row(cls, name: str, fields: dict[str, Any]) -> "JournalSpec":
        """Return the specification of a row; missing and invalid fields have their defaults."""
        fragment = _dict(fields.get("fragment"))
        labels = _list(_dict(fields.get("labels")).get("labels"))
        return cls(
            name,
            _int(fields.get("replication"), 3),
            LabelSet.of(
                (str(label["name"]), str(label.get("value", "")))
                for label in labels
                if isinstance(label, dict) and "name" in label
            ),
            FragmentSpec(
                max(_int(fragment.get("length"), _DEFAULT_LENGTH), _LENGTHS[0]),
                _member(Codec, fragment.get("compression_codec"), Codec.NONE),
                stores_of(fields),
                max(_duration(fragment.get("refresh_interval"), _DEFAULT_REFRESH_NS), SECOND_NS),
                _duration(fragment.get("retention"), 0),
                _duration(fragment.get("flush_interval"), 0),
                str(fragment.get("path_postfix_template", "")),
            ),
            _member(JournalFlags, fields.get("flags"), JournalFlags.O_RDWR),
            max(_int(fields.get("max_append_rate"), 0), 0),
        )

    def row_fields(self) -> dict[str, Any]:
        """Return the fields of a row."""
        fragment = self.fragment
        return {
            "replication": self.replication,
            "labels": {"labels": [{"name": name, "value": value} for name, value in self.labels]},
            "fragment": {
                "length": fragment.length,
                "compression_codec": Codec(fragment.compression_codec).name,
                "stores": list(fragment.stores),
                "refresh_interval": format_duration(fragment.refresh_ns),
                "retention": format_duration(fragment.retention_ns),
                "flush_interval": format_duration(fragment.flush_ns),
                "path_postfix_template": fragment.path_postfix_template,
            },
            "flags": JournalFlags(self.flags).name,
            "max_append_rate": self.max_append_rate,
        }


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: object, default: int) -> int:
    return value if type(value) is int else default


def _member(kind: type[IntEnum], value: Any, default: int) -> int:
    """Return an enumeration's value, given as its name or number."""
    if isinstance(value, str):
        return kind.__members__.get(value, default)
    return value if value in list(kind) else default


def _duration(value: object, default_ns: int) -> int:
    try:
        return parse_duration(value) if isinstance(value, str) else default_ns
    except ValueError:
        return default_ns


# --- rules ----------------------------------------------------------------------------------------


def problem(spec: JournalSpec) -> str:
    """Return the first violated rule of a specification as `FIELD: cause`, or ""."""
    return (
        _name_problem(spec.name, "name", 4, 512)
        or _range_problem("replication", spec.replication, 1, REPLICATION_MAX)
        or _labels_problem(spec.labels)
        or _fragment_problem(spec)
        or (
            "flags: use O_RDWR, O_RDONLY or O_WRONLY"
            if spec.flags not in list(JournalFlags)
            else ""
        )
        or ("max_append_rate: must not be negative" if spec.max_append_rate < 0 else "")
    )


def name_problem(name: str) -> str:
    """Return the defect of the name of a journal in a request, or "".

    Anything after `;` is metadata of the client.
    """
    return _name_problem(name.partition(";")[0], "name", 4, 512)


def _name_problem(name: str, field: str, least: int, most: int) -> str:
    if not least <= len(name.encode()) <= most:
        return f"{field}: must have {least} to {most} bytes, not {len(name.encode())}"
    if _PATH.fullmatch(name) is None:
        return f"{field}: {name!r} must consist of letters, digits and -_+/.=%"
    if name.startswith("/") or posixpath.normpath(name) != name or ".." in name.split("/"):
        return f"{field}: {name!r} must be a path without needless slashes and dots"
    return ""


def _range_problem(field: str, value: int, least: int, most: int) -> str:
    return "" if least <= value <= most else f"{field}: must be {least} to {most}, not {value}"


def _labels_problem(labels: LabelSet) -> str:
    if len(labels) > LABELS_MAX:
        return f"labels: must be at most {LABELS_MAX}, not {len(labels)}"
    counts = Counter(name for name, _ in labels)
    for name, value in labels:
        field = f"labels[{name}]"
        if not 2 <= len(name) <= 64 or _TOKEN.fullmatch(name) is None:
            return f"{field}: a name must have 2 to 64 letters, digits and -_+/."
        if name in (NAME_LABEL, PREFIX_LABEL):
            return f"{field}: the name is reserved"
        if len(value) > 1024 or (value and _PATH.fullmatch(value) is None and name != _SINGLE[0]):
            return f"{field}: a value must have at most 1024 letters, digits and -_+/.=%"
        if counts[name] > 1 and (name in _SINGLE or not value):
            return f"{field}: must have one value, not {counts[name]}"
        if name in _REQUIRES and not labels.values(_REQUIRES[name]):
            return f"{field}: requires the label {_REQUIRES[name]}"
        if name == _SINGLE[0] and _MIME.fullmatch(value) is None:
            return f"{field}: {value!r} is no media type"
    return ""


def _fragment_problem(spec: JournalSpec) -> str:
    fragment = spec.fragment
    found = _range_problem("fragment.length", fragment.length, *_LENGTHS)
    if not found and fragment.compression_codec not in list(Codec):
        found = f"fragment.compression_codec: use one of {', '.join(one.name for one in Codec)}"
    if not found and len(fragment.stores) > STORES_MAX:
        found = f"fragment.stores: must be at most {STORES_MAX}, not {len(fragment.stores)}"
    for number, url in enumerate(fragment.stores):
        found = found or _store_problem(url, f"fragment.stores[{number}]")
    is_offloaded = fragment.compression_codec == Codec.GZIP_OFFLOAD_DECOMPRESSION
    if not found and is_offloaded and fragment.stores[:1] and fragment.stores[0][:5] == "file:":
        found = "fragment.compression_codec: GZIP_OFFLOAD_DECOMPRESSION needs an object store"
    if not found and not _REFRESH_NS[0] <= fragment.refresh_ns <= _REFRESH_NS[1]:
        found = "fragment.refresh_interval: must be 1s to 24h"
    if not found and fragment.flush_ns and fragment.flush_ns < _FLUSH_MIN_NS:
        found = "fragment.flush_interval: must be 0 or at least 1m"
    if not found:
        try:
            Postfix(fragment.path_postfix_template).check(spec.name)
        except PostfixError as error:
            found = f"fragment.path_postfix_template: {error}"
    return found


def stores_of(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the URLs of the stores that the fields of a row name."""
    return tuple(str(url) for url in _list(_dict(fields.get("fragment")).get("stores")))


def store_problem(url: str) -> str:
    """Return the defect of the URL of a store, or ""."""
    return _store_problem(url, "store")


def _store_problem(url: str, field: str) -> str:
    if len(url) > STORE_MAX:
        return f"{field}: must have at most {STORE_MAX} characters, not {len(url)}"
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"{field}: {url!r} is no URL: {error}"
    if parts.scheme not in _SCHEMES:
        return f"{field}: the scheme of {url!r} must be one of {', '.join(_SCHEMES)}"
    if parts.scheme == "file" and parts.netloc:
        return f"{field}: {url!r} must not have a host: write file:///folder/"
    if parts.scheme != "file" and not parts.netloc:
        return f"{field}: {url!r} must name a bucket"
    if not parts.path.endswith("/"):
        return f"{field}: the path of {url!r} must end with `/`"
    return ""
