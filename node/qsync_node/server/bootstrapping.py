"""The first state of a replica set: an empty database, or a restored snapshot (M1)."""

from pathlib import Path

from qsync_node.archive.restore.origin import restored_bodies, with_users
from qsync_node.consensus.ballot import Ballot
from qsync_node.errors import QsyncError
from qsync_node.node import Node
from qsync_node.storage.checkpoint import open_snapshot
from qsync_node.storage.files import OsFileSystem
from qsync_node.storage.storage import Storage
from qsync_node.transactions.own_rows import read_term_body


class StartError(QsyncError):
    """The node cannot start; the message states the cause and the remedy."""


def first_state(
    restored: Path | None, uuid: str, name: str, replicaset_uuid: str, voters: int
) -> tuple[dict[int, int], list[bytes]]:
    """Return clock and rows of the first state.

    Args:
        restored: folder with a restored snapshot; None for an empty database.
        uuid: the first instance.
        name: its name.
        replicaset_uuid: the replica set.
        voters: the planned number of voters.

    Raises:
        StartError: the folder does not hold one snapshot.
    """
    names = (uuid, name, replicaset_uuid)
    if restored is None:
        return {}, Node.bootstrap_bodies(*names, voters)
    found = sorted(restored.glob("*.snap"))
    if len(found) != 1:
        raise StartError(
            f"cannot bootstrap from {restored}: it contains {len(found)} "
            "snapshots instead of one; restore the archive into an empty folder first"
        )
    snapshot = open_snapshot(OsFileSystem(), str(found[0]))
    bodies = restored_bodies(list(snapshot.bodies()), snapshot.index, *names, voters)
    return dict(snapshot.vclock), bodies


def write_first_state(
    storage: Storage,
    ballot: Ballot,
    vclock: dict[int, int],
    bodies: list[bytes],
    users: dict[str, str],
    secret: str,
) -> None:
    """Write the first state and its users.

    Args:
        storage: the member's files.
        ballot: its ballot.
        vclock: clock of the state.
        bodies: rows of the state.
        users: name -> password.
        secret: the cluster's secret.
    """
    bodies = with_users(bodies, users, secret)
    # A log is never ahead of the ballot (D2), so the ballot gets the restored terms first.
    last_term = max((s.term for b in bodies if (s := read_term_body(b))), default=0)
    if last_term > ballot.term:
        storage.store_ballot(ballot.in_term(last_term).encode())
    storage.install_snapshot(vclock, bodies)
