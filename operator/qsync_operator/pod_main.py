"""What runs in a member's pod: makes the node's file from what is mounted, then becomes the node.

    CONFIG/settings.yaml    what all members of a kind share (ConfigMap)
    CONFIG/members.json     every member's address, role and incarnation (ConfigMap)
    CONFIG/restore.json     whose first state comes from which archive, until the cluster is formed
    IDENTITY/...            the replica set's uuid and the cluster's secret (Secret)
    $POD_NAME               who this is

An incarnation is the directory of the volume that counts. A member that was removed and comes back
under its old name finds its old volume: its instance was taken out of the configuration for good
and can never speak again (M3), so the new one begins in a directory of its own, and the old files
stay where they are.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from qsync_node.restore.child import RestoreError
from qsync_operator.restoring import restore_into

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
    """The node's file. Raises PodError."""
    own = members.get(name)
    if own is None:
        raise PodError(f"{name} is not among the members {', '.join(members)}")
    if "replicasetUUID" not in identity or "secret" not in identity:
        raise PodError("the Secret of the cluster's identity has no replicasetUUID or no secret")
    if own["role"] == "anonymous":
        # It is not registered, so no member relies on a copy of its log.
        settings = {key: value for key, value in settings.items() if key != "archive"}
    return {
        # Others share the network: clients log in unless `spec.guest` lets them in without.
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
    """A mounted ConfigMap may be a little older than the pod: wait until it knows of us."""
    deadline_s = time.monotonic() + KNOWN_WAIT_S
    while True:
        members: dict[str, dict[str, Any]] = json.loads((config / "members.json").read_text())
        if name in members or time.monotonic() > deadline_s:
            return members
        time.sleep(POLL_S)


def restore_first(config: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The node's file, with the snapshot that its bootstrap begins with where there is to be one.

    Only the member that founds the cluster restores, only where it has no data yet, and only once:
    a restore that the pod did not survive is begun again. Raises RestoreError.
    """
    from qsync_operator.models.bootstrap import FromArchiveSpec  # noqa: PLC0415  # pydantic, for a restore only

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
            f" and {said['rows']} rows behind it\n"
        )
        sys.stderr.writelines(f"qsync-pod: {note}\n" for note in said["notes"])
    return {**document, "bootstrap_from": str(folder)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_operator.pod_main", description=__doc__)
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
    # The node takes this process over, and with it the pod's signals: it does not return.
    os.execv(sys.executable, [sys.executable, "-m", "qsync_node", "--config", str(file)])
    raise AssertionError("unreachable")


if __name__ == "__main__":
    sys.exit(main())
