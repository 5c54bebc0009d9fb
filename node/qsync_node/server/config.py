"""Configuration of one node: a YAML file, validated before the node opens any resource.

A supervisor (`qsync local`, the operator) or a user writes the file. `consensus/settings.py` states
the reason for each default. Unknown settings are ignored and reported: a newer supervisor may have
written the file, and a node that refused it could not start at all.
"""

import re
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from qsync_node.consensus.filtering import refusal_of_list
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.errors import QsyncError
from qsync_node.peering.addresses import PORT_MAX, is_port
from qsync_node.server.tlsconfig import TlsConfig

_UNITS_NS = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti)?")
_SIZES = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


class ConfigError(QsyncError):
    """The configuration is invalid; the message names the field and the cause."""


def parse_duration_ns(value: object) -> int:
    """Parse `500ms`, `5s`, `2m`, `1h`, or a number of seconds. Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value * 1_000_000_000)
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise ValueError(
            f"invalid duration {value!r}: use a number with a unit, such as 500ms or 5s"
        )
    return int(float(match.group(1)) * _UNITS_NS[match.group(2)])


def parse_size_bytes(value: object) -> int:
    """Parse `64Mi`, `1Gi`, or a number of bytes. Raises ValueError."""
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"invalid size {value!r}: use a number with a unit, such as 64Mi")
    return int(float(match.group(1)) * _SIZES[match.group(2)])


DurationNs = Annotated[int, BeforeValidator(parse_duration_ns)]
Size = Annotated[int, BeforeValidator(parse_size_bytes)]


class ArchiveConfig(BaseModel):
    """The archive of sealed segments, snapshots and rollback files.

    `interval` is the longest time until the segment of a row is sealed. Credentials come from the
    environment variables of the object store's own tools, such as `AWS_ACCESS_KEY_ID`.
    """

    model_config = ConfigDict(extra="allow")

    url: str = Field(pattern=r"^(file|s3|s3a|gs|az|adl|azure|abfss?|https?)://.+$")
    interval: DurationNs = 60_000_000_000


class NodeConfig(BaseModel):
    """The configuration file of one node."""

    model_config = ConfigDict(extra="allow")

    directory: Path
    name: str = Field(min_length=1, max_length=63)
    listen: str = "127.0.0.1:0"
    admin_listen: str = "127.0.0.1:0"
    advertise: str = ""
    replicaset_uuid: str = Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
    secret: str = Field(min_length=8)
    peers: dict[str, str] = Field(default_factory=dict)
    role: str = Field(default="voter", pattern="^(voter|async|anonymous)$")
    spaces: list[int | str] = Field(default_factory=list)
    election_mode: str = Field(default="candidate", pattern="^(candidate|manual|voter)$")
    priority: int = Field(default=10, ge=0, le=10)
    quorum: str | int = "majority"
    unconfirmed: str = Field(default="adopt", pattern="^(adopt|rollback)$")
    wal_mode: str = Field(default="fsync", pattern="^(fsync|write)$")
    heartbeat: DurationNs = 100_000_000
    election_timeout: DurationNs = 1_000_000_000
    synchro_timeout: DurationNs = 5_000_000_000
    retention: DurationNs = 3_600_000_000_000
    segment_size: Size = 64 << 20
    checkpoint_size: Size = 256 << 20
    memory: Size = 0
    guest: bool = True  # whether clients may send requests without logging in
    max_connections: int = Field(default=10_000, ge=1)
    max_request: Size = Field(default=16 << 20, le=32 << 20)
    disk_reserve: Size = 64 << 20
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    tls: TlsConfig | None = None
    trace: Path | None = None
    archive: ArchiveConfig | None = None
    bootstrap_from: Path | None = None  # folder with the snapshot for a bootstrap

    @field_validator("listen", "admin_listen", "advertise")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address:
            try:
                split_address(address)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return address

    @field_validator("archive")
    @classmethod
    def _check_archive(
        cls, archive: ArchiveConfig | None, info: ValidationInfo
    ) -> ArchiveConfig | None:
        if archive is not None and info.data.get("role") == "anonymous":
            raise ValueError("an anonymous replica has no archive: omit the field")
        return archive

    @field_validator("spaces")
    @classmethod
    def _check_spaces(cls, spaces: list[int | str], info: ValidationInfo) -> list[int | str]:
        if not spaces:
            raise ValueError("name at least one space, or omit the field to hold all spaces")
        reason = refusal_of_list(str(info.data.get("role", "")), spaces)
        if reason:
            raise ValueError(reason)
        return spaces

    def unknown_settings(self) -> list[str]:
        """Return the paths of settings that this version ignores."""
        parts: tuple[tuple[str, BaseModel | None], ...] = (
            ("", self), ("tls.", self.tls), ("archive.", self.archive)
        )  # fmt: skip
        return [
            f"{prefix}{name}"
            for prefix, part in parts
            if part is not None
            for name in sorted(part.model_extra or {})
        ]

    def settings(self) -> ConsensusSettings:
        return ConsensusSettings(
            heartbeat_ns=self.heartbeat,
            election_timeout_ns=self.election_timeout,
            synchro_timeout_ns=self.synchro_timeout,
            quorum=self.quorum,
            election_mode=self.election_mode,
            failover_unconfirmed=self.unconfirmed,
            role=self.role,
            spaces=tuple(self.spaces),
            priority=self.priority,
            name=self.name,
            memory_bytes_max=self.memory,
            checkpoint_bytes=self.checkpoint_size,
            retention_ns=self.retention,
        )


def load_config(path: Path) -> NodeConfig:
    """Load a configuration file. Raises ConfigError, which names the field."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    try:
        return NodeConfig.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}: {where}: {reason}") from error


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not is_port(port):
        raise ConfigError(
            f"invalid address {address!r}: use the form host:port, with a port up to {PORT_MAX}"
        )
    return host.strip("[]"), int(port)
