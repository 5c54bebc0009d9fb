"""Elections: determine the leader of each term.

Theory. A candidate opens a term with the votes of a majority of the voters *in its own log*. A
voter grants one vote per term and makes it durable before sending it. It votes only for a log that
is at least as up to date as its own. Such a log has a greater term of the last row, or the same
term and at least the same index (E1). Everything else here only decides *when* a member asks for
votes. A PreVote leaves a replica undisturbed while it hears a leader (E3). A random wait keeps two
members from asking at the same time. A nomination comes from another process (E2). Safety depends
on none of these.

States: FOLLOWER -> PREVOTING -> CANDIDATE -> LEADER; a nominated replica skips PREVOTING. Every
higher term leads back to FOLLOWER (`Replica.adopt_term`).

Invariants

  V1  A member grants at most one vote per term and stores it before sending it (D2, E1).
  V2  A candidate stores its term and its own vote in one step before it asks for votes (D2).
  V3  A reply counts only in the round that it answers, and each voter counts once. The voter is
      identified by its connection.
  V4  A replica does not stand while it is in split brain, truncating its log or rejoining. In
      split brain it does not vote either (L4).
  V5  A member must not take user writes if it is fenced, vote-only or has a divergent state. It
      stands only after it refused a candidate whose log is older than its own. It then leads as a
      read-only leader (`is_read_only`) and takes no user writes. It hands over to a member that may
      lead as soon as that member has its log, and takes writes once its own reason has ended (E1).
"""

from dataclasses import replace
from enum import Enum

from qsync_node.consensus.context import Context
from qsync_node.consensus.decisions import effective, is_lifted
from qsync_node.consensus.entries import EntryKind
from qsync_node.consensus.interfaces import Transitions
from qsync_node.consensus.messages import NominationOrder, VoteReply, VoteRequest
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.consensus.source import Source

ROUND_WAIT_MAX_NS = 2_000 * MILLISECOND
FIRST_WAIT_NS = 20 * MILLISECOND
PRIORITY_MAX = 10
SAFE_ROUND_NS = 150 * MILLISECOND
"""Shortest wait before a lost round is retried: a vote costs two fsyncs and two network trips."""


class Role(Enum):
    FOLLOWER = "follower"
    PREVOTING = "prevoting"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Election:
    """Term, votes and election timers of one replica."""

    def __init__(self, context: Context, source: Source, transitions: Transitions) -> None:
        self.context = context
        self.source = source
        self.transitions = transitions
        self.role = Role.FOLLOWER
        self.leader_uuid = ""
        self.heard_at_ns = 0
        self.deadline_ns = 0
        self.round = 0
        self.lost_rounds = 0
        self.replies: dict[str, VoteReply] = {}
        self.asked_at_ns = 0
        self.is_nominated = False
        self.is_read_only = False
        self.is_rollback_forced = False  # an administrator ordered `force-rollback` (E11)
        # The term in which a candidate was refused because the local log is newer.
        self.refused_term = -1

    # --- state --------------------------------------------------------------------------------

    def start(self) -> None:
        """Wait for an existing leader after a start; a sole voter waits only briefly."""
        self.heard_at_ns = self.context.now_ns
        alone = self.context.voter_uuids() == (self.context.uuid,)
        self._wait(FIRST_WAIT_NS if alone else self.context.settings.election_timeout_ns)

    def hears_leader(self) -> bool:
        context = self.context
        if context.is_leading:
            return True
        return (
            bool(self.leader_uuid)
            and context.link_to(self.leader_uuid) is not None
            and context.now_ns - self.heard_at_ns < context.settings.election_timeout_ns
        )

    def may_lead(self) -> bool:
        """Return whether this member may take user writes.

        A member may not when it is fenced, configured to vote only, or has a divergent state.
        """
        ballot = self.context.ballot
        if ballot.is_fenced or ballot.divergent_index:
            return False
        return self.context.settings.election_mode != "voter"

    def can_stand(self) -> bool:
        """Return whether this member may stand: it votes by its own log and can write (V4, E1)."""
        context = self.context
        return (
            context.is_voting
            and not context.is_stopped
            and not context.is_disk_full
            and not self.source.is_replacing_log
            and not context.is_write_path_hung()
        )

    def stands_by_itself(self) -> bool:
        if not self.can_stand():
            return False
        if self.may_lead():
            return self.context.settings.election_mode == "candidate"
        return self.refused_term == self.context.term

    def majority(self) -> int:
        """Return the number of votes that elect this member (E1, E11).

        The voters of a forced election also need a vote of each possible holder of a confirmed row:
        all voters except a majority may lack it.
        """
        context = self.context
        forced = context.ballot.forced_voters
        if not forced:
            return len(context.voter_uuids()) // 2 + 1
        lacking = (len(context.configuration.voters) - 1) // 2
        return max(len(forced) // 2 + 1, min(lacking + 1, len(forced)))

    def _wait(self, at_least_ns: int) -> None:
        spread = max(1, at_least_ns)
        self.deadline_ns = self.context.now_ns + at_least_ns + self.context.rng.randrange(spread)

    # --- transitions --------------------------------------------------------------------------

    def on_term(self, term: int) -> None:
        self.role = Role.FOLLOWER
        self.leader_uuid = ""
        self.replies = {}
        self.is_nominated = False
        self.is_read_only = False
        self._wait(max(SAFE_ROUND_NS, self.context.settings.heartbeat_ns))

    def on_won(self) -> None:
        assert self.role is Role.CANDIDATE, "E1: a vote of this term decides"
        self.role = Role.LEADER
        self.is_rollback_forced = False
        self.leader_uuid = self.context.uuid
        self.lost_rounds = 0
        self.is_read_only = not self.may_lead()

    def on_leadership_lost(self) -> None:
        self.role = Role.FOLLOWER
        self.leader_uuid = ""
        self.is_read_only = False
        self._wait(self.context.settings.election_timeout_ns)

    def on_leader_heard(self, uuid: str) -> None:
        """Record that a heartbeat or rows of this term's leader arrived."""
        self.heard_at_ns = self.context.now_ns
        self.lost_rounds = 0
        self.role = Role.FOLLOWER
        self._end_order()
        if self.leader_uuid != uuid:
            assert not self.leader_uuid, f"two leaders of term {self.context.term}"
            self.leader_uuid = uuid
        self._wait(self.context.settings.election_timeout_ns)

    def forget_removed_leader(self) -> None:
        """Forget a leader that was removed: an anonymous replica may not reach the next one (P1).

        A registered replica learns of a removal only from the leader of a later term.
        """
        if self.leader_uuid and self.context.is_removed(self.leader_uuid):
            self.leader_uuid = ""

    def _end_order(self) -> None:
        """End an order of an administrator that another leader has overtaken (E11).

        The quorum of that leader may count on rows that are not known to be confirmed here, and its
        term may have other voters than the order.
        """
        self.is_rollback_forced = False
        if self.context.ballot.forced_voters:
            self.context.store_ballot(replace(self.context.ballot, forced_voters=()))
            self.context.report("forced_configuration_overtaken")

    def on_link_up(self, uuid: str) -> None:
        if uuid in self.context.voter_uuids() and self.lost_rounds > 0:
            self.lost_rounds = 0
            self.deadline_ns = min(self.deadline_ns, self.context.now_ns + 4 * FIRST_WAIT_NS)

    def on_link_down(self, uuid: str) -> None:
        """Shorten the wait when the leader's link breaks; the highest priority stands first."""
        if uuid != self.leader_uuid or self.context.is_leading:
            return
        if self.context.link_to(uuid) is not None:
            return
        settings = self.context.settings
        highest = max(0, PRIORITY_MAX - settings.priority)
        wait = highest * settings.heartbeat_ns // 2
        self.deadline_ns = self.context.now_ns + wait + self.context.rng.randrange(FIRST_WAIT_NS)

    def tick(self) -> None:
        context = self.context
        if self.role is Role.CANDIDATE:
            self._count()
        if self.role is Role.LEADER or context.now_ns < self.deadline_ns:
            return
        if self.hears_leader() or not self.stands_by_itself():
            self._wait(context.settings.election_timeout_ns)
            return
        self.start_round(nominated=False)

    # --- candidate ----------------------------------------------------------------------------

    def start_round(self, nominated: bool) -> None:
        """Ask for votes: first for non-binding PreVotes, unless this member was nominated (E3)."""
        self.round += 1
        self.lost_rounds += 1
        step = min(SAFE_ROUND_NS * 2 ** min(self.lost_rounds - 1, 8), ROUND_WAIT_MAX_NS // 2)
        self._wait(min(step, ROUND_WAIT_MAX_NS))
        self.is_nominated = nominated
        self.replies = {}
        if nominated:
            self._stand()
            return
        self.role = Role.PREVOTING
        self._ask(self.context.term + 1, is_prevote=True)
        self._count()

    def _stand(self) -> None:
        context = self.context
        nominated, round_ = self.is_nominated, self.round
        self.transitions.adopt_term(context.term + 1, vote=context.uuid)
        assert context.ballot.vote == context.uuid, "E1: a candidate has its own vote"
        self.role = Role.CANDIDATE
        self.is_nominated = nominated
        self.round = round_
        term = context.term

        def ask() -> None:
            if context.term == term and self.role is Role.CANDIDATE:
                self._ask(term, is_prevote=False)
                self._count()

        context.when_settled(ask)

    def _ask(self, term: int, is_prevote: bool) -> None:
        self.asked_at_ns = self.context.now_ns
        tail = self.context.tail
        request = VoteRequest(
            term, tail.last_term, tail.last_index, is_prevote, self.is_nominated, self.round
        )
        send = self.context.send_to if self.lost_rounds <= 1 else self.context.send_by_all
        for uuid in self.context.voter_uuids():
            if uuid != self.context.uuid:
                send(uuid, request)

    def on_vote_reply(self, uuid: str, reply: VoteReply) -> None:
        context = self.context
        if reply.term > context.term:
            if not reply.is_prevote or not reply.is_granted:
                self.transitions.adopt_term(reply.term)
            return
        if reply.round != self.round or uuid not in context.voter_uuids():
            return
        if reply.is_prevote != (self.role is Role.PREVOTING):
            return
        if self.role not in (Role.PREVOTING, Role.CANDIDATE):
            return
        if not reply.is_prevote and reply.term != context.term:
            return
        self.replies[uuid] = reply
        self._count()

    def _count(self) -> None:
        voters = self.context.voter_uuids()
        granted = 1 if self.context.uuid in voters else 0
        granted += sum(1 for reply in self.replies.values() if reply.is_granted)
        if granted < self.majority():
            return
        if self.role is Role.PREVOTING:
            self._stand()
        elif self.role is Role.CANDIDATE and self.context.is_settled:
            if not self.context.is_leading and self.can_stand() and not self._awaits_proof():
                self.transitions.become_leader(self._keep_index())

    def _awaits_proof(self) -> bool:
        """Return whether to wait for more voters before judging the end of the log (E8).

        A voter that has not answered may hold every row, so a bare majority of answers proves
        nothing. The candidate waits at most one heartbeat interval, and only while an answer could
        matter.
        """
        context = self.context
        if context.settings.failover_unconfirmed != "rollback" or not context.limbo.entries:
            return False
        if context.now_ns - self.asked_at_ns >= context.settings.heartbeat_ns:
            return False
        others = [uuid for uuid in context.voter_uuids() if uuid != context.uuid]
        return any(
            uuid not in self.replies and context.link_to(uuid) is not None for uuid in others
        )

    def _keep_index(self) -> int:
        """Return the index of the last row to keep.

        That is the whole log, or the part before the first transaction that provably never had a
        quorum (E8, T7). A forced rollback keeps only confirmed rows (E11).
        """
        context = self.context
        limbo = context.limbo
        if self.is_rollback_forced:
            return limbo.confirmed_index
        if any(entry.kind is EntryKind.MEMBERSHIP for entry in limbo.entries):
            return context.tail.last_index
        wants_rollback = context.settings.failover_unconfirmed == "rollback"
        nacked = self._nacked_indexes()
        for entry in limbo.surviving():
            batch = entry.batch
            is_nacked = any(batch.first_index <= i <= batch.last_index for i in nacked.values())
            if not wants_rollback and not is_nacked:
                continue
            holders = self._possible_holders(batch.first_index, batch.last_index, nacked)
            if holders >= self._least_quorum():
                continue
            # An entry from a file holds transactions that were written at once. They may have
            # arrived separately: a quorum may hold the first of them only.
            for first, last in entry.transactions():
                if not wants_rollback and not any(first <= i <= last for i in nacked.values()):
                    continue
                if self._possible_holders(first, last, nacked) < self._least_quorum():
                    return first - 1
        return context.tail.last_index

    def _least_quorum(self) -> int:
        """Return the smallest quorum by which a former leader may have counted (E8).

        Its log may have one membership row that this log lacks. Without one of four voters, two
        are a quorum. With a further voter, four of six are, and the unknown one may be among them.
        """
        return (len(self.context.voter_uuids()) - 1) // 2 + 1

    def _nacked_indexes(self) -> dict[str, int]:
        """Return the first row that each voter could not apply, of the voters that answered."""
        context = self.context
        nacked = {
            uuid: reply.nack_index for uuid, reply in self.replies.items() if reply.nack_index
        }
        own = context.ballot.nack_in(context.tail.last_term)
        if own:
            nacked[context.uuid] = own
        return nacked

    def _possible_holders(self, first: int, last: int, nacked: dict[str, int]) -> int:
        """Return how many voters hold the rows `first` to `last` or may hold them.

        A voter that has not answered counts as a possible holder. A NACK of an earlier row does not
        count: that row may be confirmed, and then the ACKs of its voter counted for later rows.
        """
        context = self.context
        term = context.tail.term_at(last)
        decisions = effective(context.limbo.decisions)
        holders = 0
        for uuid in context.voter_uuids():
            nack = nacked.get(uuid)
            if nack is not None and first <= nack <= last:
                if not is_lifted(nack, last, decisions):
                    continue
            reply = self.replies.get(uuid)
            if uuid == context.uuid or reply is None:
                holders += 1
                continue
            holders += (reply.last_term, reply.last_index) >= (term, last)
        return holders

    # --- voter --------------------------------------------------------------------------------

    def is_up_to_date(self, last_term: int, last_index: int) -> bool:
        tail = self.context.tail
        return (last_term, last_index) >= (tail.last_term, tail.last_index)

    def on_vote_request(self, link: int, uuid: str, request: VoteRequest) -> None:
        context = self.context
        if context.is_removed(uuid) or context.is_stopped:
            return
        up_to_date = self.is_up_to_date(request.last_term, request.last_index)
        if request.is_prevote:
            granted = request.term > context.term and up_to_date and not self.hears_leader()
            self._note_refusal(up_to_date)
            context.send(link, self._reply(granted, request))
            return
        if request.term < context.term:
            context.send(link, self._reply(False, request))
            return
        if request.term > context.term:
            self.transitions.adopt_term(request.term)
        granted = up_to_date and context.ballot.vote in ("", uuid) and not context.is_leading
        granted = granted and self.leader_uuid in ("", uuid)
        self._note_refusal(up_to_date)
        if granted and context.ballot.vote != uuid:
            context.store_ballot(replace(context.ballot, vote=uuid))
            self._wait(context.settings.election_timeout_ns)
        assert not granted or context.ballot.vote == uuid, "E1: the vote is in the ballot first"
        reply = self._reply(granted, request)
        term = context.term

        def answer() -> None:
            if context.term == term:
                context.send(link, reply)

        context.when_settled(answer)

    def _note_refusal(self, up_to_date: bool) -> None:
        if not up_to_date:
            self.refused_term = self.context.term

    def _reply(self, granted: bool, request: VoteRequest) -> VoteReply:
        context = self.context
        tail = context.tail
        return VoteReply(
            context.term,
            granted,
            request.is_prevote,
            request.round,
            tail.last_term,
            tail.last_index,
            context.ballot.nack_in(tail.last_term),
            not self.is_up_to_date(request.last_term, request.last_index),
        )

    def force(self, lost: list[str], is_rollback: bool) -> str:
        """Continue without voters whose disks are lost or fenced off (E11).

        Returns:
            The reason for a refusal, or "" if a forced election has begun.
        """
        context = self.context
        # A rollback restores the confirmed configuration.
        in_force = context.configuration.voter_uuids
        confirmed = context.confirmed_configuration.voter_uuids
        voters = confirmed if is_rollback else in_force
        unknown = [uuid for uuid in lost if uuid not in {*voters, *in_force}]
        left = tuple(uuid for uuid in voters if uuid not in lost)
        if unknown:
            return f"instance {unknown[0]} is not a voter; name lost voters only"
        if is_rollback and context.uuid in in_force and context.uuid not in confirmed:
            return (
                "this member votes by a row that the order would roll back; send the order to "
                "another surviving voter, or use force-confirm"
            )
        if context.uuid not in left or context.ballot.divergent_index or not self.can_stand():
            return (
                "this member cannot stand for election; send the order to another surviving voter"
            )
        if self.hears_leader():
            return "a leader answers, so a forced election is not needed"
        connected = {link.peer_uuid for link in context.links.values()} | {context.uuid}
        # An election without an order counts by the configuration in force.
        if len(connected.intersection(in_force)) > len(in_force) // 2:
            return "a quorum of the voters answers, so a forced election is not needed"
        if len(set(in_force).difference(lost)) > len(in_force) // 2:
            return (
                "the voters that the order leaves are a quorum, and elect a leader without it: "
                "restore their connections"
            )
        context.store_ballot(replace(context.ballot, forced_voters=left, was_forced=True))
        context.report("forced", lost=lost, is_rollback=is_rollback, voters=list(left))
        self.start_round(nominated=True)
        self.is_rollback_forced = is_rollback
        return ""

    # --- nomination ---------------------------------------------------------------------------

    def on_nominate(self, message: NominationOrder) -> str:
        """Stand on an order from outside (E2).

        Returns:
            The reason for a refusal, or "" if the member stands or already leads.
        """
        context = self.context
        if message.term != context.term:
            return (
                f"the nomination is of term {message.term}, but the member is in term "
                f"{context.term}; read `status` and retry"
            )
        if context.is_leading:
            return ""
        if not self.can_stand() or not self.may_lead():
            return (
                "the member cannot stand for election: it is not a voter, is fenced, has "
                "election_mode voter, or its state is divergent; promote another member"
            )
        self.start_round(nominated=True)
        return ""
