"""Specifications of journals, as the key space contains them."""

from typing import Any, NamedTuple

CODECS = {"NONE": 1, "GZIP": 2, "ZSTANDARD": 3, "SNAPPY": 4, "GZIP_OFFLOAD_DECOMPRESSION": 5}


class FragmentSpec(NamedTuple):
    """Fragments of a journal: sizes in bytes, and intervals in seconds."""

    length: int
    compression_codec: int
    stores: tuple[str, ...]
    flush_interval: int
    refresh_interval: int


class JournalSpec(NamedTuple):
    """A journal's specification."""

    name: str
    fragment: FragmentSpec
    is_writable: bool

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "JournalSpec":
        """Return the specification of a row."""
        fragment = fields.get("fragment", {})
        return cls(
            str(fields["name"]),
            FragmentSpec(
                int(fragment.get("length", 64 << 20)),
                CODECS.get(str(fragment.get("compression_codec")), 1),
                tuple(fragment.get("stores", ())),
                0,
                300,
            ),
            fields.get("flags", "O_RDWR") not in ("O_RDONLY", 1),
        )
