"""Leaders that `qsync chaos` kills: processes of this machine, or pods."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as sessions
from qsync_cli.where import Where

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession
    from qsync_local.store import ClusterFiles

UP = ("leader", "follower", "async", "anonymous")
"""Roles of a member that has its rows, or receives them."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """A moment of a cluster.

    Attributes:
        leader: name of the leader, "" without one.
        term: its term.
        is_whole: whether every member is up. Only then may the leader be killed: a majority
            remains.
    """

    leader: str
    term: int
    is_whole: bool


class Victims(Protocol):
    """A platform on which a leader is found and killed. Methods block."""

    def observe(self) -> Leadership: ...

    def kill(self, member: str) -> str:
        """Kill a member, and return how."""


class LocalVictims:
    """Processes of a local cluster."""

    def __init__(self, store: "ClusterFiles") -> None:
        self._store = store

    def observe(self) -> Leadership:
        members = clusters.observe(self._store).status.members
        leaders = [one for one in members if one.role == "leader"]
        is_whole = len(leaders) == 1 and all(one.role in UP for one in members)
        if not leaders:
            return Leadership("", 0, is_whole=False)
        newest = max(leaders, key=lambda one: one.term)
        return Leadership(newest.name, newest.term, is_whole)

    def kill(self, member: str) -> str:
        record = self._store.load_state().members.get(member)
        if record is None or not record.pid:
            raise Failure(FailureReason.NOT_FOUND, f"{member} has no process: run `qsync status`")
        with suppress(ProcessLookupError):  # it ended between two polls
            os.kill(record.pid, signal.SIGKILL)
        return f"kill -9 {record.pid}"


class PodVictims:
    """Pods of a cluster on Kubernetes."""

    def __init__(self, where: Where) -> None:
        self._where = where

    def observe(self) -> Leadership:
        async def read(session: "KubernetesSession") -> Leadership:
            found = sessions.choose(await session.clusters(), self._where, session.namespace, None)
            status = found.get("status") or {}
            is_whole = status.get("phase") == "Ready" and bool(status.get("leader"))
            return Leadership(status.get("leader") or "", int(status.get("term") or 0), is_whole)

        return sessions.converse(self._where, read)

    def kill(self, member: str) -> str:
        async def delete(session: "KubernetesSession") -> None:
            await session.api.delete("Pod", session.namespace, member)

        sessions.converse(self._where, delete)
        return "pod deleted"
