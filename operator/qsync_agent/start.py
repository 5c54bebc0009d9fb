"""The start of a member's pod: writes the node's configuration file, then becomes the node.

    CONFIG/settings.yaml    settings that the members of a kind share (ConfigMap)
    CONFIG/members.json     address, role and incarnation of each member (ConfigMap)
    CONFIG/restore.json     founder and archive to restore, until the cluster is formed (ConfigMap)
    IDENTITY/...            uuid of the replica set and secret of the cluster (Secret)
    $POD_NAME               name of this member

The incarnation selects the directory of the volume. A member that was removed and returns under its
old name finds its old volume. Its old instance was permanently removed from the configuration and
can never join again (M3). So the new instance starts in a directory of its own, and the old files
remain.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from qsync_node.archive.restore.child import RestoreError
from qsync_operator.members.restore import restore_into

KNOWN_WAIT_S = 120.0
POLL_S = 0.5


class PodError(Exception):
    """The pod cannot start a node; the text is one sentence."""


def node_document(
    settings: dict[str, Any],
    members: dict[str, dict[str, Any]],
    identity: dict[str, str],
    name: str,
    volume: Path,
) -> dict[str, Any]:
    """Return the content of the node's configuration file.

    Args:
        settings: settings that the members of a kind share.
        members: address, role and incarnation of each member.
        identity: uuid of the replica set and secret of the cluster.
        name: name of this member.
        volume: directory of the mounted volume.

    Raises:
        PodError: the member or its identity is missing.
    """
    own = members.get(name)
    if own is None:
        raise PodError(f"{name} is not among the members {', '.join(members)}")
    if "replicasetUUID" not in identity or "secret" not in identity:
        raise PodError(
            "the identity Secret of the cluster lacks replicasetUUID or secret: restore it "
            "from a backup"
        )
    if own["role"] == "anonymous":
        # The member is not registered, so no member relies on a copy of its log.
        settings = {key: value for key, value in settings.items() if key != "archive"}
    return {
        # The network is shared: clients must log in unless `spec.guest` allows access without that.
        "guest": False,
        **settings,
        "name": name,
        "directory": str(volume / f"data-{int(own.get('incarnation', 0))}"),
        "replicaset_uuid": identity["replicasetUUID"],
        "secret": identity["secret"],
        "role": own["role"],
        "advertise": own["advertise"],
        "peers": {member: fields["address"] for member, fields in members.items()},
    }


def _read_identity(directory: Path) -> dict[str, str]:
    names = ("replicasetUUID", "secret")
    return {n: (directory / n).read_text() for n in names if (directory / n).exists()}


def _read_members(config: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the members; wait until a stale mounted ConfigMap contains this one."""
    deadline_s = time.monotonic() + KNOWN_WAIT_S
    while True:
        members: dict[str, dict[str, Any]] = json.loads((config / "members.json").read_text())
        if name in members or time.monotonic() > deadline_s:
            return members
        time.sleep(POLL_S)


def restore_first(config: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Restore the archive if this member must, and return the completed configuration.

    Only the founder restores, only while it has no data, and only once. A restore that is
    interrupted by the end of the pod starts again.

    Raises:
        RestoreError: the archive cannot be restored.
    """
    from qsync_operator.api.bootstrap import FromArchiveSpec  # noqa: PLC0415  # pydantic, for a restore only

    file = config / "restore.json"
    wanted = json.loads(file.read_text()) if file.exists() else {}
    data = Path(document["directory"])
    has_snapshot = data.is_dir() and any(data.glob("*.snap"))
    if wanted.get("member") != document["name"] or has_snapshot:
        return document
    folder = data.with_name(f"{data.name}-restore")
    said = restore_into(FromArchiveSpec.model_validate(wanted["fromArchive"]), folder)
    if said:
        sys.stderr.write(
            f"qsync-pod: restored up to index {said['index']} by {said['snapshot']}"
            f" and {said['rows']} rows after it\n"
        )
        sys.stderr.writelines(f"qsync-pod: {note}\n" for note in said["notes"])
    return {**document, "bootstrap_from": str(folder)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_agent", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("/etc/qsync/config"))
    parser.add_argument("--identity", type=Path, default=Path("/etc/qsync/identity"))
    parser.add_argument("--volume", type=Path, default=Path("/var/lib/qsync"))
    parser.add_argument("--run", type=Path, default=Path("/run/qsync"))
    parsed = parser.parse_args(arguments)
    name = os.environ.get("POD_NAME", "")
    try:
        settings = yaml.safe_load((parsed.config / "settings.yaml").read_text())
        members = _read_members(parsed.config, name)
        identity = _read_identity(parsed.identity)
        document = node_document(settings, members, identity, name, parsed.volume)
        document = restore_first(parsed.config, document)
    except (PodError, RestoreError, OSError, ValueError) as error:
        sys.stderr.write(f"qsync-pod: {error}\n")
        return 2
    file = parsed.run / "node.yaml"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    # The node replaces this process and receives the pod's signals; `execv` does not return.
    os.execv(sys.executable, [sys.executable, "-m", "qsync_node", "--config", str(file)])
    raise AssertionError("unreachable")
