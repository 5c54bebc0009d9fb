"""Kinds and names of members; they are the same on every platform."""

from typing import Literal

from qsync_operator.api.spec import ClusterSpec

MemberKind = Literal["voter", "async", "anonymous"]

_INFIX: dict[MemberKind, str] = {"voter": "", "async": "async-", "anonymous": "reader-"}


def member_name(cluster: str, kind: MemberKind, ordinal: int) -> str:
    return f"{cluster}-{_INFIX[kind]}{ordinal}"


def ordinal_of(member: str) -> int:
    return int(member.rpartition("-")[2])


def wanted_members(cluster: str, spec: ClusterSpec) -> dict[str, MemberKind]:
    """Return all members of the specification with their kinds, voters first."""
    counts: dict[MemberKind, int] = {
        "voter": spec.replicas,
        "async": spec.async_replicas,
        "anonymous": spec.read_replicas,
    }
    return {
        member_name(cluster, kind, ordinal): kind
        for kind, count in counts.items()
        for ordinal in range(count)
    }
