"""The controller's actions: data that a platform performs; repeating an action is harmless."""

from dataclasses import dataclass

from qsync_operator.api.names import MemberKind


@dataclass(frozen=True, slots=True)
class CreateMember:
    """Give a member its place and start it; it joins automatically."""

    member: str
    kind: MemberKind

    def __str__(self) -> str:
        return f"create {self.kind} {self.member}"


@dataclass(frozen=True, slots=True)
class RecordBootstrap:
    """Store the instance that may bootstrap the cluster, before it gets the order (M1)."""

    member: str
    uuid: str

    def __str__(self) -> str:
        return f"record instance {self.uuid} of {self.member} as the bootstrap instance"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Order the recorded instance to bootstrap the cluster (M1)."""

    member: str
    uuid: str
    voters: int

    def __str__(self) -> str:
        return f"bootstrap a cluster of {self.voters} voters on {self.member}"


@dataclass(frozen=True, slots=True)
class RecordFormed:
    """Store that the cluster exists, so that no member can bootstrap it again."""

    def __str__(self) -> str:
        return "record that the cluster is formed"


@dataclass(frozen=True, slots=True)
class Nominate:
    """Ask a voter to stand for election, and name the term of this decision (E2)."""

    member: str
    term: int

    def __str__(self) -> str:
        return f"nominate {self.member} in term {self.term}"


@dataclass(frozen=True, slots=True)
class Switchover:
    """Move leadership to a member that is alive and caught up (E9)."""

    leader: str
    target: str
    reason: str

    def __str__(self) -> str:
        return f"switch over from {self.leader} to {self.target}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Unregister:
    """Remove an instance from the configuration permanently, through the leader (M3)."""

    leader: str
    member: str
    uuid: str
    reason: str

    def __str__(self) -> str:
        return f"unregister {self.member}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Stop an unregistered member, and keep or delete its disk."""

    member: str

    def __str__(self) -> str:
        return f"remove {self.member}"


@dataclass(frozen=True, slots=True)
class Configure:
    """Change settings of a running member."""

    member: str

    def __str__(self) -> str:
        return f"configure {self.member}"


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart a member with its new configuration."""

    member: str

    def __str__(self) -> str:
        return f"restart {self.member} with its new configuration"


@dataclass(frozen=True, slots=True)
class CreateSpaces:
    """Create declared spaces and indexes, or change them, through the leader."""

    leader: str
    spaces: tuple[str, ...]

    def __str__(self) -> str:
        noun = "space" if len(self.spaces) == 1 else "spaces"
        return f"create or change {noun} {', '.join(self.spaces)}"


@dataclass(frozen=True, slots=True)
class RecordFenced:
    """Store the members that an annotation fences before fencing them: only those are unfenced."""

    members: tuple[str, ...]

    def __str__(self) -> str:
        return f"record as fenced by annotation: {', '.join(self.members) or 'none'}"


@dataclass(frozen=True, slots=True)
class Fence:
    """Prevent a member from leading; the node stores the fence (E10)."""

    member: str

    def __str__(self) -> str:
        return f"fence {self.member}"


@dataclass(frozen=True, slots=True)
class Unfence:
    """Allow a member to lead again."""

    member: str

    def __str__(self) -> str:
        return f"unfence {self.member}"


@dataclass(frozen=True, slots=True)
class GrowStorage:
    """Expand the volumes while members run."""

    size: str

    def __str__(self) -> str:
        return f"grow the volumes to {self.size}"


@dataclass(frozen=True, slots=True)
class GrantAccess:
    """Make users and roles match their declarations, through the leader."""

    leader: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"apply the declared users and roles: {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class DrainBroker:
    """Let the broker of a member hand its journals over, through the key space."""

    leader: str
    member: str

    def __str__(self) -> str:
        return f"hand the journals of {self.member} over"


Action = (
    CreateMember
    | RecordBootstrap
    | Bootstrap
    | RecordFormed
    | Nominate
    | Switchover
    | Unregister
    | RemoveMember
    | Configure
    | Restart
    | CreateSpaces
    | RecordFenced
    | Fence
    | Unfence
    | GrowStorage
    | GrantAccess
    | DrainBroker
)
