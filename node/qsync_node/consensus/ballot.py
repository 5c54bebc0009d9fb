"""The ballot, which a replica stores before it sends any of it: term, vote, NACKs and fence.

The ballot is a separate file, replaced atomically and fsynced before any of it is used (D2).
Operations that remove rows do not touch it. A directory with a log but no readable ballot does not
start: the replica has forgotten its vote, so its disk counts as lost (M6).
"""

from dataclasses import dataclass, replace
from typing import Any

from qsync_node.errors import QsyncError
from qsync_node.format.mp import pack, unpack


@dataclass(frozen=True, slots=True)
class Nack:
    """A row at `index`, written in `term`, that this replica could not apply (T7)."""

    term: int
    index: int


class OldBallotError(QsyncError):
    """The ballot is older than the log, so the replica may have made other promises (D2)."""

    def __init__(self, term: int, log_term: int) -> None:
        super().__init__(
            f"the ballot states term {term}, but the log has rows of term {log_term}: an older "
            "copy has replaced the file of the ballot; keep a copy of the data directory, empty "
            "it and start the node, which then joins its cluster as a new instance"
        )


@dataclass(frozen=True, slots=True)
class Ballot:
    """The durable promises of one instance."""

    term: int = 0
    vote: str = ""  # instance uuid voted for in `term`, "" for none
    nacks: tuple[Nack, ...] = ()
    is_fenced: bool = False
    forced_voters: tuple[str, ...] = ()  # uuids counted instead of the log's voters (E11)
    was_forced: bool = False  # shown in status permanently (E11)
    replicaset_uuid: str = ""
    registered_name: str = ""
    divergent_index: int = 0  # a NACKed row that was confirmed: the state diverges (T7)
    spaces: tuple[int, ...] = ()  # ids of the user spaces held here, () for all (spaces.py, F2)
    listed_spaces: tuple[str | int, ...] = ()  # the names or ids in the configuration

    def in_term(self, term: int) -> "Ballot":
        assert term > self.term, f"D2: term {term} does not follow {self.term}"
        return replace(self, term=term, vote="")

    def nack_in(self, term: int) -> int:
        """Return the first row that was refused in `term` or later; 0 if there is none.

        A NACK of an earlier term is obsolete once rows of `term` are acknowledged: they are
        acknowledged in full (T7).
        """
        if not self.nacks:
            return 0
        return min((nack.index for nack in self.nacks if nack.term >= term), default=0)

    def encode(self) -> bytes:
        packed: bytes = pack(
            {
                "term": self.term,
                "vote": self.vote,
                "nacks": [[nack.term, nack.index] for nack in self.nacks],
                "is_fenced": self.is_fenced,
                "forced_voters": list(self.forced_voters),
                "was_forced": self.was_forced,
                "replicaset_uuid": self.replicaset_uuid,
                "registered_name": self.registered_name,
                "doubt_index": self.divergent_index,
                **self._list_of_spaces(),
            }
        )
        return packed

    def _list_of_spaces(self) -> dict[str, Any]:
        if not self.spaces:
            return {}
        return {"spaces": list(self.spaces), "listed_spaces": list(self.listed_spaces)}

    @classmethod
    def decode(cls, data: bytes) -> "Ballot":
        """Return the ballot that `data` encodes.

        Raises:
            ValueError: `data` is not a ballot.
        """
        fields: Any = unpack(data)
        if not isinstance(fields, dict) or not isinstance(fields.get("term"), int):
            raise ValueError("the ballot is not a map of the expected fields")
        return cls(
            term=fields["term"],
            vote=fields["vote"],
            nacks=tuple(Nack(*nack) for nack in fields["nacks"]),
            is_fenced=fields["is_fenced"],
            forced_voters=tuple(fields["forced_voters"]),
            was_forced=fields["was_forced"],
            replicaset_uuid=fields["replicaset_uuid"],
            registered_name=fields.get("registered_name", ""),
            divergent_index=fields["doubt_index"],
            spaces=tuple(fields.get("spaces", ())),
            listed_spaces=tuple(fields.get("listed_spaces", ())),
        )
