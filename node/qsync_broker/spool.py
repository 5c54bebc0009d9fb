"""The spool of a journal at one broker: the fragment under construction, as a state machine.

A spool has committed bytes up to `end`, of which those up to `confirmed` are on every broker of the
route, and received bytes after `end`, which the next proposal commits or a rollback discards.

    input                condition                          result
    ------------------   --------------------------------   ---------------------------------------
    receive(delta)       delta is the count of received     bytes are appended after `end`
                         bytes
    commit(proposal)     proposal is what `proposal()`      received bytes become committed
                         returns
    rollback()                                              received bytes are discarded
    roll(begin)          begin == end == confirmed          the fragment is complete, an empty one
                                                            begins
    adopt(choice)        rule J4                            bytes after the chosen end are
                                                            discarded; the epoch is recorded
    confirm(end)         end <= `end`                       bytes up to `end` are confirmed

Each transition that changes committed state returns the operation that makes it durable. A broker
reports a transition to its peer only when this operation is done.
"""

import hashlib
from collections import deque
from typing import Any, NamedTuple

from qsync_broker.chosen_ends import proven_end
from qsync_broker.operations import (
    NO_SUM,
    Buffer,
    CommitAppend,
    Roll,
    SpoolKey,
    SpoolState,
    WriteContent,
)
from qsync_node.format.journals import ChosenEnds


class SpoolMismatchError(Exception):
    """A primary sent content or a proposal that does not continue this spool."""


class Version(NamedTuple):
    """A committed end, and the state of the spool there; `hash` is a hashlib object."""

    end: int
    registers: bytes
    hash: Any


class Proposal(NamedTuple):
    """A proposed end with the checksum of the fragment up to it, and the registers."""

    end: int
    sum: bytes
    registers: bytes


class Choice(NamedTuple):
    """The state that the primary chose in a synchronisation.

    Attributes:
        epoch: epoch of the synchronisation.
        source: greatest epoch of the former states; brokers with it have all bytes up to `end`.
        end: chosen end of the journal.
        registers: registers at this end.
        codec: codec of a new fragment.
        is_continued: whether all brokers have the same fragment up to `end`, and continue it.
        ends: chosen ends of the last synchronisations, with this one.
    """

    epoch: int
    source: int
    end: int
    registers: bytes
    codec: int
    is_continued: bool
    ends: ChosenEnds = ()


class Spool:
    """The open spool of a journal.

    Attributes:
        journal: name of the journal.
        journal_id: revision of the journal's creation.
        epoch: epoch of the last synchronisation.
        begin: offset of the fragment's first byte.
        confirmed: offset up to which the bytes are on every broker of the route.
        delta: number of received bytes after `end`.
        codec: codec of the fragment.
        first_append: Unix time of the fragment's first commit in seconds, 0 before it.
        former: state of the last completed spool, or None.
    """

    def __init__(self, journal: str, journal_id: int, codec: int) -> None:
        self.journal = journal
        self.journal_id = journal_id
        self.epoch = 0
        self.begin = 0
        self.confirmed = 0
        self.codec = codec
        self.first_append = 0
        self.delta = 0
        self.former: SpoolState | None = None
        # From the last confirmed version on, so that unconfirmed ones can be undone.
        self._versions: deque[Version] = deque([Version(0, b"", hashlib.sha1())])
        self._received: Any = None  # hash of the committed and the received bytes

    @classmethod
    def recovered(cls, state: SpoolState, versions: list[Version]) -> "Spool":
        """Return a spool as the storage found it: its state, and the versions since `confirmed`."""
        spool = cls(state.key.journal, state.key.journal_id, state.codec)
        spool.epoch = state.epoch
        spool.begin = state.key.begin
        spool.confirmed = state.confirmed
        spool.first_append = state.first_append
        spool._versions = deque(versions)
        return spool

    # --- state --------------------------------------------------------------------------------

    @property
    def key(self) -> SpoolKey:
        return SpoolKey(self.journal, self.journal_id, self.begin)

    @property
    def end(self) -> int:
        return self._versions[-1].end

    @property
    def registers(self) -> bytes:
        return self._versions[-1].registers

    @property
    def sum(self) -> bytes:
        """Return the checksum of the committed fragment."""
        return self._sum(self._versions[-1])

    @property
    def confirmed_sum(self) -> bytes:
        """Return the checksum of the visible bytes of the fragment."""
        return self._sum(self._versions[0])

    @property
    def state(self) -> SpoolState:
        """Return the state that is, or is about to be, durable."""
        return SpoolState(
            self.key,
            self.epoch,
            self.end,
            self.sum,
            self.registers,
            self.confirmed,
            self.codec,
            self.first_append,
        )

    def _sum(self, version: Version) -> bytes:
        return version.hash.digest() if version.end > self.begin else NO_SUM

    # --- content ------------------------------------------------------------------------------

    def receive(self, delta: int, data: Buffer) -> WriteContent:
        """Append received bytes.

        Args:
            delta: number of bytes received since the last commit or rollback.
            data: the bytes.

        Raises:
            SpoolMismatchError: bytes are missing or repeated.
        """
        if delta != self.delta:
            raise SpoolMismatchError(
                f"content of journal {self.journal} begins at byte {delta} of the append, but"
                f" {self.delta} bytes were received"
            )
        if self._received is None:
            self._received = self._versions[-1].hash.copy()
        self._received.update(data)
        offset = self.end + self.delta
        self.delta += len(data)
        return WriteContent(self.key, offset, data)

    def proposal(self, registers: bytes) -> Proposal:
        """Return the proposal that commits the received bytes, with new registers."""
        end = self.end + self.delta
        hashed = self._received or self._versions[-1].hash
        return Proposal(end, hashed.digest() if end > self.begin else NO_SUM, registers)

    def commit(self, proposal: Proposal, now: int) -> CommitAppend:
        """Commit the received bytes.

        Args:
            proposal: the primary's proposal.
            now: Unix time in seconds.

        Raises:
            SpoolMismatchError: the proposal differs from the received bytes.
        """
        if proposal != self.proposal(proposal.registers):
            raise SpoolMismatchError(
                f"proposal for journal {self.journal} with end {proposal.end} and sum"
                f" {proposal.sum.hex()} does not fit {self.delta} received bytes after {self.end}"
            )
        hashed = self._received or self._versions[-1].hash
        if proposal.end == self.end:
            self._versions.pop()  # an idle journal must not collect versions
        self._versions.append(Version(proposal.end, proposal.registers, hashed))
        if self.delta and not self.first_append:
            self.first_append = now
        self.rollback()
        return CommitAppend(self.state)

    def rollback(self) -> None:
        """Discard the received bytes."""
        self.delta = 0
        self._received = None

    def confirm(self, end: int) -> bool:
        """Record that all brokers have the bytes up to `end`, and return whether this is news.

        The record becomes durable with the next commit: it may be lost, because it is learned again
        at the next synchronisation.
        """
        if end <= self.confirmed or end > self.end:
            return False
        self.confirmed = end
        while len(self._versions) > 1 and self._versions[1].end <= end:
            self._versions.popleft()
        return True

    # --- fragments ----------------------------------------------------------------------------

    def roll(self, begin: int, codec: int) -> CommitAppend | Roll:
        """Complete the fragment and begin an empty one.

        Raises:
            SpoolMismatchError: bytes are unconfirmed or uncommitted, or `begin` is not the end.
        """
        if begin != self.end or self.confirmed != self.end or self.delta:
            raise SpoolMismatchError(
                f"journal {self.journal} cannot begin a fragment at {begin}: its end is {self.end},"
                f" {self.confirmed} is confirmed, and {self.delta} more bytes were received"
            )
        return self._begin_at(begin, codec, self.registers)

    def adopt(self, choice: Choice) -> CommitAppend | Roll:
        """Take the state that the primary chose in a synchronisation (rule J4).

        Raises:
            SpoolMismatchError: the primary wants to continue a fragment that this spool lacks.
        """
        self.rollback()
        is_source = self.epoch == choice.source
        # Without the epoch of the choice, other bytes may not be the journal's.
        proven = max(self.confirmed, proven_end(choice.ends, self.epoch))
        self._undo(choice.end if is_source else min(choice.end, proven))
        self.epoch = choice.epoch
        if not choice.is_continued:
            return self._begin_at(choice.end, choice.codec, choice.registers)
        if not is_source or self.end != choice.end:
            raise SpoolMismatchError(
                f"journal {self.journal} has no commit of epoch {choice.source} that ends at"
                f" {choice.end}: it ends at {self.end}"
            )
        # Bytes after `confirmed` stay unconfirmed until the synchronisation is recorded (J5).
        last = self._versions.pop()
        self._versions.append(last._replace(registers=choice.registers))
        return CommitAppend(self.state)

    def _undo(self, end: int) -> None:
        while len(self._versions) > 1 and self._versions[-1].end > end:
            self._versions.pop()

    def _begin_at(self, begin: int, codec: int, registers: bytes) -> CommitAppend | Roll:
        if begin < self.end:
            raise SpoolMismatchError(
                f"journal {self.journal} cannot begin a fragment at {begin}: it is confirmed up to"
                f" {self.end}"
            )
        former = self.state
        completed, end, checksum = former.key, former.end, former.sum
        self.begin = self.confirmed = begin
        self.codec = codec
        self.first_append = 0
        self._versions = deque([Version(begin, registers, hashlib.sha1())])
        is_same = completed.begin == begin  # an empty fragment is continued
        if is_same:
            return CommitAppend(self.state)
        self.former = former
        return Roll(completed, end, checksum, self.state)
