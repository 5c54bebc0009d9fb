"""Configuration of a broker: a JSON or YAML file that its supervisor writes."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qsync_node.errors import QsyncError
from qsync_node.server.tlsconfig import TlsConfig


class BrokerConfigError(QsyncError):
    """The configuration is invalid; the message names the field and the cause."""


class ServerConfig(BaseModel):
    """Configuration of one broker.

    Attributes:
        name: the broker's name in its zone.
        zone: zone of failures.
        data_dir: directory of its spools.
        listen: HOST:PORT for clients.
        peer_listen: HOST:PORT for other brokers.
        endpoint: URL at which clients reach it.
        peer_address: HOST:PORT at which other brokers reach it.
        node: HOST:PORT of the local member of the cluster.
        user: user of the cluster.
        password_file: file with the user's password.
        secret_file: file with the secret that brokers share.
        journal_limit: number of assignments that it accepts.
        lease_ms: duration of its lease.
        replication_max: upper limit of the replication of all journals.
        auto_suspend: whether journals are suspended once they are idle and persisted.
        auth_keys_file: file with the keys of clients' tokens in Base64; without it, everything is
            permitted.
        tls: certificate, key and authority of the broker; without it, connections are plain.
        is_node_tls: whether `node` is a port with TLS.
        disk_reserve: free bytes of the disk below which appends are refused. It is greater than
            that of members, which often write to the same disk.
    """

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=4, max_length=128)
    zone: str = Field(default="default", min_length=1, max_length=32)
    data_dir: Path
    listen: str
    peer_listen: str
    endpoint: str
    peer_address: str
    node: str
    user: str
    password_file: Path
    secret_file: Path
    journal_limit: int = Field(default=16_384, ge=1, le=131_072)
    lease_ms: int = Field(default=2_000, ge=200, le=120_000)
    replication_max: int = Field(default=9, ge=1, le=9)
    auto_suspend: bool = False
    auth_keys_file: Path | None = None
    tls: TlsConfig | None = None
    is_node_tls: bool = False
    disk_reserve: int = Field(default=128 << 20, ge=0)


def load_config(path: Path) -> ServerConfig:
    """Return the configuration in a file.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    try:
        fields: Any = yaml.safe_load(path.read_text())
        return ServerConfig.model_validate(fields)
    except (OSError, yaml.YAMLError) as error:
        raise BrokerConfigError(f"configuration {path} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BrokerConfigError(f"configuration {path}: {where}: {first['msg']}") from None


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
