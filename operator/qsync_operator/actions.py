"""What the controller can do: data, performed by a platform, each harmless when repeated."""

from dataclasses import dataclass

from qsync_operator.observed import Kind


@dataclass(frozen=True, slots=True)
class CreateMember:
    """Give a member its place and start it; it joins automatically."""

    member: str
    kind: Kind

    def __str__(self) -> str:
        return f"create {self.kind} {self.member}"


@dataclass(frozen=True, slots=True)
class RecordBootstrap:
    """Store which instance may found the cluster, before it gets the order (M1)."""

    member: str
    uuid: str

    def __str__(self) -> str:
        return f"record that instance {self.uuid} of {self.member} founds the cluster"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Order the recorded instance to found the cluster (M1)."""

    member: str
    uuid: str
    voters: int

    def __str__(self) -> str:
        return f"let {self.member} found a cluster of {self.voters} voters"


@dataclass(frozen=True, slots=True)
class RecordFormed:
    """Store that the cluster exists: from now on no member may found it again."""

    def __str__(self) -> str:
        return "record that the cluster exists"


@dataclass(frozen=True, slots=True)
class Nominate:
    """Ask a voter to stand, naming the term in which that was decided (E2)."""

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
    """Take an instance out of the configuration for good, through the leader (M3)."""

    leader: str
    member: str
    uuid: str
    reason: str

    def __str__(self) -> str:
        return f"unregister {self.member}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Stop a member that is no longer registered and keep or delete its disk."""

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
    """Bring declared spaces and indexes into being through the leader."""

    leader: str
    spaces: tuple[str, ...]

    def __str__(self) -> str:
        return f"create {', '.join(self.spaces)}"


@dataclass(frozen=True, slots=True)
class RecordFenced:
    """Store which members an annotation fences, before they are: only those are unfenced."""

    members: tuple[str, ...]

    def __str__(self) -> str:
        return f"record as fenced by annotation: {', '.join(self.members) or 'none'}"


@dataclass(frozen=True, slots=True)
class Fence:
    """Keep a member from leading; the node stores it (E10)."""

    member: str

    def __str__(self) -> str:
        return f"fence {self.member}"


@dataclass(frozen=True, slots=True)
class Unfence:
    """Let a member lead again."""

    member: str

    def __str__(self) -> str:
        return f"unfence {self.member}"


@dataclass(frozen=True, slots=True)
class GrowStorage:
    """Let the volumes grow while members run."""

    size: str

    def __str__(self) -> str:
        return f"let the volumes grow to {self.size}"


@dataclass(frozen=True, slots=True)
class GrantAccess:
    """Make users and roles what is declared, through the leader."""

    leader: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"make users and roles as declared: {', '.join(self.names)}"


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
)
