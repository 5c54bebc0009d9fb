"""QsyncJournal: the specification of one journal, and its observed state."""

from typing import Annotated, Any, Literal

from pydantic import Field, WrapValidator
from pydantic.alias_generators import to_camel

from qsync_broker.spec import JournalSpec as BrokerSpec
from qsync_broker.spec import problem
from qsync_operator.api.base import Duration, SpecModel, StatusModel, lenient
from qsync_operator.api.cluster import Metadata
from qsync_operator.api.conditions import BaseCondition
from qsync_operator.api.patterns import NAME_PATTERN

CodecName = Literal["NONE", "GZIP", "ZSTANDARD", "SNAPPY", "GZIP_OFFLOAD_DECOMPRESSION"]
FlagName = Literal["O_RDWR", "O_RDONLY", "O_WRONLY"]
JournalConditionType = Literal["Consistent", "Writable", "StoreHealthy", "HeadKnown", "Suspended"]


class Label(SpecModel):
    """One label of a journal. A name may occur with several values."""

    name: str = Field(min_length=2, max_length=64)
    """Name of the label."""
    value: str = Field(default="", max_length=1024)
    """Value of the label."""


class QsyncFragmentSpec(SpecModel):
    """Fragments of a journal and their persistence."""

    length: int = Field(default=64 << 20, ge=1 << 10, le=16 << 30)
    """Content length in bytes after which a fragment is completed."""
    compression_codec: CodecName = "SNAPPY"
    """Compression of persisted fragments."""
    stores: list[str] = Field(default_factory=list, max_length=16)
    """URLs to which fragments are persisted; the first one is written. Without any, fragments stay
    on the disks of the brokers."""
    refresh_interval: Duration = "5m"
    """Interval between two listings of the stores."""
    retention: Duration | None = None
    """Age after which persisted fragments may be removed. The default is to keep them."""
    flush_interval: Duration | None = None
    """Interval at whose multiples a fragment is completed, also a short one."""
    path_postfix_template: str = Field(default="", max_length=1024)
    """Template of a folder of persisted fragments below the journal's folder."""


class QsyncJournalSpec(SpecModel):
    """Specification of a journal."""

    cluster: str = Field(pattern=NAME_PATTERN, max_length=40)
    """Cluster that has the journal."""
    journal: str = Field(min_length=4, max_length=512)
    """Name of the journal, for example `orders/eu/created`."""
    replication: int = Field(default=3, ge=1, le=5)
    """Number of brokers that have each appended byte before the append succeeds."""
    labels: list[Label] = Field(default_factory=list, max_length=256)
    """Labels by which clients select journals."""
    fragment: QsyncFragmentSpec = Field(default_factory=QsyncFragmentSpec)
    """Fragments and their persistence."""
    flags: FlagName = "O_RDWR"
    """Whether the journal can be read and written."""
    max_append_rate: int = Field(default=0, ge=0)
    """Maximum rate of appends in bytes per second, or 0 for no limit."""


class JournalCondition(BaseCondition):
    """One condition of a journal."""

    type: JournalConditionType
    """Aspect that the condition describes."""


class JournalStatus(StatusModel):
    """Route, extent and conditions of a journal."""

    primary: str = ""
    """Broker that accepts appends."""
    brokers: list[str] = Field(default_factory=list, max_length=16)
    """Brokers of the route."""
    write_head: int = 0
    """Offset after the last visible byte."""
    fragments: int = 0
    """Number of fragments."""
    conditions: list[JournalCondition] = Field(default_factory=list, max_length=8)
    """Consistent, Writable, StoreHealthy, HeadKnown and Suspended."""


class QsyncJournal(SpecModel):
    """A journal of a cluster."""

    api_version: Literal["qsync.dev/v1alpha1"]
    kind: Literal["QsyncJournal"]
    metadata: Metadata
    spec: QsyncJournalSpec
    status: Annotated[JournalStatus, WrapValidator(lenient)] = Field(default_factory=JournalStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    def document(self) -> dict[str, Any]:
        """Return the document as JSON, with its defaults and without its status."""
        shown = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        shown.pop("status", None)
        return shown


def row_spec(spec: QsyncJournalSpec) -> dict[str, Any]:
    """Return the specification as the key space contains it: with the names of Protobuf."""
    fragment = spec.fragment
    return {
        "replication": spec.replication,
        "labels": {"labels": [{"name": one.name, "value": one.value} for one in spec.labels]},
        "fragment": {
            "length": fragment.length,
            "compression_codec": fragment.compression_codec,
            "stores": list(fragment.stores),
            "refresh_interval": fragment.refresh_interval,
            "retention": fragment.retention or "0s",
            "flush_interval": fragment.flush_interval or "0s",
            "path_postfix_template": fragment.path_postfix_template,
        },
        "flags": spec.flags,
        "max_append_rate": spec.max_append_rate,
    }


def problem_of(spec: QsyncJournalSpec) -> str:
    """Return the first rule of brokers that a specification violates, with its field, or ""."""
    found = problem(BrokerSpec.from_row(spec.journal, row_spec(spec)))
    field, _, cause = found.partition(": ")
    path = ".".join(to_camel(part) for part in field.split("."))
    return f"spec.{'journal' if path == 'name' else path}: {cause}" if found else ""
