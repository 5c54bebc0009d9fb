"""The configuration file of a node, derived from the cluster's specification on every platform."""

from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import yaml

from qsync_operator.api.base import duration_ns
from qsync_operator.api.spec import ClusterSpec

Drift = Literal["none", "live", "restart"]

_LIVE_FIELDS = {
    "heartbeat": "heartbeat_ns",
    "election_timeout": "election_timeout_ns",
    "synchro_timeout": "synchro_timeout_ns",
    "quorum": "quorum",
    "election_mode": "election_mode",
    "unconfirmed": "failover_unconfirmed",
}


def node_settings(
    spec: ClusterSpec, kind: str, host: str, iproto: int, admin: int
) -> dict[str, Any]:
    """Return the part of a node's file that the specification determines.

    Differences from the applied settings are drift.
    """
    replication = spec.replication
    return {
        "listen": f"{host}:{iproto}",
        "admin_listen": f"{host}:{admin}",
        "role": kind,
        "quorum": replication.quorum,
        "election_mode": replication.election_mode,
        "wal_mode": replication.wal_mode,
        "unconfirmed": spec.failover.unconfirmed,
        "heartbeat": _milliseconds(replication.heartbeat),
        "election_timeout": _milliseconds(replication.election_timeout),
        "synchro_timeout": _milliseconds(replication.synchro_timeout),
        # Omitted if not specified: the node's default or the platform decides.
        **({"guest": spec.guest} if spec.guest is not None else {}),
    }


def archive_settings(spec: ClusterSpec, kind: str) -> dict[str, Any]:
    """Return the archive's part of a node's file; unregistered members archive nothing."""
    archive = spec.archive
    if archive is None or kind == "anonymous":
        return {"archive": None}
    return {"archive": {"url": archive.url, "interval": _milliseconds(archive.interval)}}


def _milliseconds(text: str) -> str:
    """Return a duration in exact milliseconds; nodes accept no exponent."""
    return f"{Decimal(duration_ns(text)).scaleb(-6).normalize():f}ms"


def render_config(
    settings: dict[str, Any],
    name: str,
    directory: Path,
    replicaset_uuid: str,
    secret: str,
    peers: dict[str, str],
) -> str:
    """Return the configuration file of a node as YAML."""
    document = {
        "name": name,
        "directory": str(directory),
        "replicaset_uuid": replicaset_uuid,
        "secret": secret,
        "peers": peers,
        **settings,
    }
    return yaml.safe_dump(document, sort_keys=False)


def drift_of(applied: dict[str, Any], wanted: dict[str, Any]) -> Drift:
    """Return whether changed settings can take effect live, need a restart, or do not exist."""
    changed = {key for key in wanted if applied.get(key) != wanted[key]}
    if not changed:
        return "none"
    return "live" if changed <= _LIVE_FIELDS.keys() else "restart"


def live_changes(applied: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the verb `configure`."""
    return {
        setting: duration_ns(wanted[key]) if setting.endswith("_ns") else wanted[key]
        for key, setting in _LIVE_FIELDS.items()
        if applied.get(key) != wanted[key]
    }
