------------------------------- MODULE Steps -------------------------------
(***************************************************************************)
(* The protocol of Qsync.tla in the steps of an implementation, to which   *)
(* Trace.tla compares recorded runs.                                       *)
(*                                                                         *)
(* What Qsync.tla does in one step happens in several here, and messages   *)
(* are under way for any time:                                             *)
(*   - A member decides in memory, and its disk follows: ballots, rows,    *)
(*     truncations and snapshots. A crash returns to the disk.             *)
(*   - A vote request, the vote and its arrival are steps of their own.    *)
(*   - Rows of a leader can arrive after its term. Its log, as it was when *)
(*     it last led, stands for them.                                       *)
(*   - A leader may confirm what a quorum holds in parts (G1).             *)
(*   - A follower may refuse a row that it cannot apply (T7). What happens *)
(*     to its state then is no part of the specification.                  *)
(* `votes` holds all replies that were sent to a member. The invariants    *)
(* are those of Qsync.tla.                                                 *)
(***************************************************************************)
EXTENDS Qsync

CONSTANTS
    WithSnapshots,      \* whether snapshots replace logs
    WithNacks,          \* whether followers refuse rows
    CountRefused,       \* planted: the ACK of a refused row counts (against T7)
    OlderNackProves     \* planted: a row that was acknowledged in full later counts as
                        \* refused in the proof of lost rows (against T7)

VARIABLES
    nacks,      \* NACKs of a member: terms and indexes (T7)
    refused,    \* history: NACKs that a member may have sent
    disk,       \* the ballot on disk: term, vote and NACKs (D2, T7)
    queued,     \* ballots that wait for the disk, oldest first
    stood,      \* vote requests: term, candidate, position of its log
    led,        \* led[t]: log of the leader of term t
    announced,  \* announced[t]: greatest index that it confirmed
    before,     \* before[n]: the log that a truncation or a snapshot replaces on disk, if any
    installed   \* index of the newest snapshot that replaced the log (S3)

ballots == <<term, vote, nacks, refused, disk, queued>>
elections == <<role, votes, stood>>
logs == <<log, flushed, before, installed>>
leaders == <<led, announced>>
history == <<committed, discarded>>
stepVars == <<ballots, elections, logs, leaders, history, confirmed, acks, split>>

Ballot(n) == [term |-> term[n], vote |-> vote[n], nacks |-> nacks[n]]
IsSettled(n) == disk[n] = Ballot(n)
Queued(n) == {queued[n][i] : i \in DOMAIN queued[n]}
Min1(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : x <= y
\* The first row that a member has refused in a term, or later.
NackIn(n, t) == Min1({one[2] : one \in {x \in nacks[n] : x[1] >= t}})
\* A decision that covers a refused row ends the refusal, from the decision on (T7).
IsLifted(rows, nack, i) ==
    \E d \in DOMAIN rows : /\ IsDecision(rows[d]) /\ d \notin Covered(rows)
                          /\ rows[d].from <= nack /\ nack < d /\ d <= i
Position(rows) == <<LastTerm(rows), Len(rows)>>
IsAtLeast(one, other) == one[1] > other[1] \/ (one[1] = other[1] /\ one[2] >= other[2])
IsPrefix(rows, others) == Len(rows) <= Len(others) /\ rows = SubSeq(others, 1, Len(rows))
Source(n) == IF term[n] = 0 THEN <<>> ELSE led[term[n]]
IsMatched(n) == Source(n) # <<>> /\ IsPrefix(log[n], Source(n))
IsReplacing(n) == before[n] # <<>>

StepsInit ==
    /\ Init
    /\ nacks = [n \in Nodes |-> {}] /\ refused = nacks
    /\ disk = [n \in Nodes |-> Ballot(n)]
    /\ queued = [n \in Nodes |-> <<>>]
    /\ stood = {}
    /\ led = [t \in 1..TermMax |-> IF t = 1 /\ LedBy # NoVote THEN log[LedBy] ELSE <<>>]
    /\ announced = [t \in 1..TermMax |-> IF t = 1 /\ LedBy # NoVote THEN confirmed[LedBy] ELSE 0]
    /\ before = [n \in Nodes |-> <<>>]
    /\ installed = [n \in Nodes |-> 0]

\* --- elections ---------------------------------------------------------------

\* A member decides in memory, and submits the ballot to its disk.
Decide(n, t, v) ==
    /\ term' = [term EXCEPT ![n] = t]
    /\ vote' = [vote EXCEPT ![n] = v]
    /\ queued' = [queued EXCEPT ![n] = Append(@, [term |-> t, vote |-> v, nacks |-> nacks[n]])]
    /\ UNCHANGED <<nacks, refused, disk, votes, stood, logs, leaders, history, confirmed, acks, split>>

StandUp(n) ==
    /\ term[n] < TermMax /\ role[n] # "leader" /\ n \in VotersOf(n)
    /\ role' = [role EXCEPT ![n] = "candidate"]
    /\ Decide(n, term[n] + 1, n)

\* All activity of older terms ends at this moment (D2).
Adopt(n, t) ==
    /\ t > term[n] /\ \E m \in Nodes : term[m] >= t
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ Decide(n, t, NoVote)

\* A member decides for a candidate whose log is up to date (E1).
Choose(n, c) ==
    /\ n # c /\ role[n] # "leader" /\ vote[n] = NoVote
    /\ \E one \in stood :
           /\ one.term = term[n] /\ one.node = c
           /\ (IsAtLeast(one.position, Position(log[n])) \/ VoteForShorterLogs)
    /\ UNCHANGED role
    /\ Decide(n, term[n], c)

\* A ballot is on disk, and with it all that were decided before it.
StoreBallot(n, ballot) ==
    /\ ballot \in Queued(n)
    /\ disk' = [disk EXCEPT ![n] = ballot]
    /\ LET first == Min1({i \in DOMAIN queued[n] : queued[n][i] = ballot})
       IN queued' = [queued EXCEPT ![n] = SubSeq(@, first + 1, Len(@))]
    /\ UNCHANGED <<term, vote, nacks, refused, elections, logs, leaders, history, confirmed, acks, split>>

\* A candidate asks for votes once its own is durable.
Ask(n) ==
    /\ role[n] = "candidate" /\ IsSettled(n)
    /\ stood' = stood \union {[term |-> term[n], node |-> n, position |-> Position(log[n])]}
    /\ UNCHANGED <<ballots, role, votes, logs, leaders, history, confirmed, acks, split>>

\* A reply is sent when the ballot is durable, whether it grants the vote or not
\* (D2). Its position is this member's, or a later one: to the proof of lost rows,
\* a greater position means that it may hold more (E8). It may name a row that it has
\* refused, unless it has acknowledged rows of a later term since then (T7).
Reply(n, c, isGranted, position, nack) ==
    /\ n # c /\ IsSettled(n) /\ IsAtLeast(position, Position(log[n]))
    /\ isGranted => vote[n] = c
    /\ nack # 0 => \E one \in refused[n] :
                       one[2] = nack /\ (one[1] >= position[1] \/ OlderNackProves)
    /\ votes' = [votes EXCEPT ![c] = @ \union {[term |-> term[n], node |-> n,
                    isGranted |-> isGranted, position |-> position, nack |-> nack]}]
    /\ UNCHANGED <<ballots, role, stood, logs, leaders, history, confirmed, acks, split>>

WasAsked(n, c) == \E one \in stood : one.term = term[n] /\ one.node = c

\* Sets of replies that a candidate may have of these members, one of each.
ChoicesOf(n, members) ==
    {arrived \in SUBSET {one \in votes[n] : one.term = term[n] /\ one.node \in members} :
        /\ \A one, other \in arrived : one.node = other.node => one = other
        /\ \A m \in members : \E one \in arrived : one.node = m}

\* The last rows that a PROMOTE may keep (E8), by replies that have arrived.
KeptBy(n, arrived) ==
    LET voters == VotersOf(n)
        pending == confirmed[n] + 1 .. Len(log[n])
        counted == {one \in arrived : one.node \in voters}
        silent == voters \ {one.node : one \in counted}
        holders(i) == {one.node : one \in {x \in counted :
                            IsAtLeast(x.position, <<log[n][i].term, i>>)}}
        own == NackIn(n, IF OlderNackProves THEN 0 ELSE LastTerm(log[n]))
        isRefused(nack, i) == nack # 0 /\ nack = i /\ ~IsLifted(log[n], nack, i)
        without(i) == {one.node : one \in {x \in counted : isRefused(x.nack, i)}}
                          \union (IF isRefused(own, i) THEN {n} ELSE {})
        least == (Cardinality(voters) - (IF ProveByOwnMajority THEN 0 ELSE 1)) \div 2 + 1
        isLost(i) == Cardinality((holders(i) \union silent) \ without(i)) < least
        isChanging == \E i \in pending : log[n][i].kind = "config"
    IN {Len(log[n])} \union
       (IF WithRollbacks /\ ~isChanging
        THEN {i - 1 : i \in {j \in pending \ Covered(log[n]) : isLost(j)}} ELSE {})

\* An elected candidate opens its term with a PROMOTE (L2). It does not stand
\* while its log is being replaced (V4).
Win(n, arrived, kept) ==
    /\ role[n] = "candidate" /\ IsSettled(n) /\ ~IsReplacing(n) /\ Len(log[n]) < LogMax
    /\ IsQuorum({one.node : one \in {x \in arrived : x.isGranted}} \union {n}, VotersOf(n))
    /\ kept \in KeptBy(n, arrived)
    /\ log' = [log EXCEPT ![n] = Append(@, Row(term[n], "promote", kept + 1, {}))]
    /\ led' = [led EXCEPT ![term[n]] = log'[n]]
    /\ announced' = [announced EXCEPT ![term[n]] = confirmed[n]]
    /\ role' = [role EXCEPT ![n] = "leader"]
    /\ UNCHANGED <<ballots, votes, stood, flushed, before, installed, history, confirmed, acks, split>>

\* A leader stops by itself: its lease has ended, or its disk hangs (E4, E5).
StepDown(n) ==
    /\ role[n] # "follower"
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ UNCHANGED <<ballots, votes, stood, logs, leaders, history, confirmed, acks, split>>

\* --- writes of a leader ------------------------------------------------------

\* While a decision is in flight, nothing but decisions is written (E6).
WriteRows(n, rows) ==
    /\ role[n] = "leader" /\ Len(log[n]) + Len(rows) <= LogMax
    /\ ~IsDeciding(n) \/ \A i \in DOMAIN rows : IsDecision(rows[i])
    /\ log' = [log EXCEPT ![n] = @ \o rows]
    /\ led' = [led EXCEPT ![term[n]] = log'[n]]
    /\ UNCHANGED <<ballots, elections, flushed, before, installed, announced, history, confirmed,
                   acks, split>>

WriteTransactions(n, count) == WriteRows(n, [i \in 1..count |-> Row(term[n], "row", 0, {})])

WriteConfirm(n, index) ==
    /\ confirmed[n] >= PromoteOf(n) /\ index <= confirmed[n] /\ index > 0
    /\ WriteRows(n, <<Row(term[n], "confirm", index, {})>>)

\* A leader rolls back only what it wrote itself after its PROMOTE (T4).
WriteRollback(n, first) ==
    /\ role[n] = "leader" /\ first \in DOMAIN log[n]
    /\ first > confirmed[n] /\ first > PromoteOf(n)
    /\ log[n][first].kind = "row" /\ first \notin Covered(log[n])
    /\ WriteRows(n, <<Row(term[n], "rollback", first, {})>>)

\* One change at a time, by one voter; a change may register members that do not
\* vote. A removal has further rows in its transaction (M2, M3).
WriteChange(n, others, voters) ==
    /\ role[n] = "leader" /\ confirmed[n] >= PromoteOf(n)
    /\ \A i \in confirmed[n] + 1 .. Len(log[n]) : log[n][i].kind # "config"
    /\ LET now == VotersOf(n)
       IN Cardinality((now \ voters) \union (voters \ now)) <= 1
    /\ WriteRows(n, [i \in 1..others |-> Row(term[n], "removal", 0, {})]
                        \o <<Row(term[n], "config", 0, voters)>>)

\* Rows reach the disk in order: before them, so has what replaced the log.
Flushing(n, index) ==
    /\ index > flushed[n] /\ index <= Len(log[n])
    /\ flushed' = [flushed EXCEPT ![n] = index]
    /\ before' = [before EXCEPT ![n] = <<>>]
    /\ UNCHANGED <<ballots, elections, log, installed, leaders, history, confirmed, acks, split>>

\* --- replication -------------------------------------------------------------

\* Rows of this term's leader arrive, and continue a matched log (L4).
Extend(n, last) ==
    /\ role[n] # "leader" /\ IsMatched(n)
    /\ last > Len(log[n]) /\ last <= Len(Source(n))
    /\ log' = [log EXCEPT ![n] = SubSeq(Source(n), 1, last)]
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ UNCHANGED <<ballots, votes, stood, flushed, before, installed, leaders, history, confirmed,
                   acks, split>>

\* What differs from the leader's log is truncated, and no more (L4).
Truncate(n) ==
    /\ role[n] # "leader" /\ Source(n) # <<>> /\ ~IsPrefix(log[n], Source(n))
    /\ LET common == Common(log[n], Source(n))
       IN /\ split' = (split \/ common < confirmed[n])
          /\ before' = [before EXCEPT ![n] = IF @ = <<>> THEN <<log[n]>> ELSE @]
          /\ log' = [log EXCEPT ![n] = SubSeq(@, 1, common)]
          /\ flushed' = [flushed EXCEPT ![n] = Min(@, common)]
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ UNCHANGED <<ballots, votes, stood, installed, leaders, history, confirmed, acks>>

\* A snapshot at a confirmed index replaces a log that is too short (S3).
Install(n, index) ==
    /\ role[n] # "leader" /\ Source(n) # <<>> /\ IsPrefix(log[n], Source(n))
    /\ index >= Len(log[n]) /\ index <= announced[term[n]] /\ index \notin Covered(Source(n))
    /\ before' = [before EXCEPT ![n] = <<log[n]>>]
    /\ installed' = [installed EXCEPT ![n] = index]
    /\ log' = [log EXCEPT ![n] = SubSeq(Source(n), 1, index)]
    /\ confirmed' = [confirmed EXCEPT ![n] = index]
    /\ UNCHANGED <<ballots, elections, flushed, leaders, history, acks, split>>

\* The truncation, or the snapshot, is on disk.
Replaced(n) ==
    /\ IsReplacing(n)
    /\ before' = [before EXCEPT ![n] = <<>>]
    /\ flushed' = [flushed EXCEPT ![n] = Len(log[n])]
    /\ UNCHANGED <<ballots, elections, log, installed, leaders, history, confirmed, acks, split>>

\* A write fails because the disk is full: it has left nothing there (D5).
ForgetUnwritten(n) ==
    /\ role[n] # "leader" /\ ~IsReplacing(n)
    /\ flushed[n] < Len(log[n]) /\ flushed[n] >= confirmed[n]
    /\ log' = [log EXCEPT ![n] = SubSeq(@, 1, flushed[n])]
    /\ UNCHANGED <<ballots, elections, flushed, before, installed, leaders, history, confirmed, acks,
                   split>>

\* A follower refuses the row that it is about to append: it has not acknowledged it (T7).
Refuse(n, index) ==
    /\ role[n] # "leader" /\ IsMatched(n)
    /\ index = Len(log[n]) + 1 /\ index <= Len(Source(n)) /\ index > acks[term[n]][n]
    /\ \A one \in nacks[n] : one[1] = term[n] => one[2] > index
    /\ nacks' = [nacks EXCEPT ![n] = @ \union {<<term[n], index>>}]
    /\ refused' = [refused EXCEPT ![n] = @ \union {<<term[n], index>>}]
    /\ queued' = [queued EXCEPT ![n] = Append(@, [Ballot(n) EXCEPT !.nacks = nacks'[n]])]
    /\ UNCHANGED <<term, vote, disk, elections, logs, leaders, history, confirmed, acks, split>>

\* NACKs of rows that are decided, or no more in the log, are forgotten.
Forget(n, kept) ==
    /\ kept # nacks[n]
    /\ kept = {one \in nacks[n] : one[2] > confirmed[n] /\ (one \in kept \/ one[2] <= Len(log[n]))}
    /\ nacks' = [nacks EXCEPT ![n] = kept]
    /\ queued' = [queued EXCEPT ![n] = Append(@, [Ballot(n) EXCEPT !.nacks = kept])]
    /\ UNCHANGED <<term, vote, refused, disk, elections, logs, leaders, history, confirmed, acks,
                   split>>

\* An ACK names what is durable and matched (T2, D1, D2).
Acknowledge(n, index) ==
    /\ role[n] # "leader" /\ IsSettled(n) /\ IsMatched(n) /\ ~IsReplacing(n)
    /\ index <= flushed[n]
    /\ acks' = [acks EXCEPT ![term[n]][n] = Max({@, index})]
    /\ UNCHANGED <<ballots, elections, logs, leaders, history, confirmed, split>>

\* A follower learns a confirmed index, up to a safe point: from its leader, or
\* from a CONFIRM row on its disk (T3).
Learn(n, index) ==
    /\ role[n] # "leader" /\ index > confirmed[n] /\ index <= Len(log[n])
    /\ index \notin Covered(log[n])
    /\ \/ index <= Recorded(SubSeq(log[n], 1, flushed[n]))
       \/ IsMatched(n) /\ index <= announced[term[n]] /\ index \notin Covered(Source(n))
    /\ confirmed' = [confirmed EXCEPT ![n] = index]
    /\ UNCHANGED <<ballots, elections, logs, leaders, history, acks, split>>

\* A leader confirms up to an index if a quorum holds that row, or a later one,
\* of its own term (L2, T3, T5). A refused row does not count in its term, nor do those
\* after it (T7).
ConfirmTo(n, index) ==
    LET rows == log[n]
        covered == Covered(rows)
        decided == CoveredBy(rows, index, {})
        fresh == confirmed[n] + 1 .. index
        isRefused(m, i) ==
            \E one \in refused[m] : /\ one[1] = term[n] /\ one[2] > confirmed[n] /\ one[2] <= i
                                    /\ ~IsLifted(rows, one[2], i)
        holders(i) == {m \in Nodes \ {n} : acks[term[n]][m] >= i
                                              /\ (CountRefused \/ ~isRefused(m, i))}
                          \union (IF flushed[n] >= i THEN {n} ELSE {})
    IN /\ role[n] = "leader" /\ IsSettled(n) /\ index > confirmed[n] /\ index <= Len(rows)
       /\ index \notin covered \/ CountCovered
       /\ \E i \in index .. Len(rows) :
              /\ rows[i].term = term[n] \/ CountInherited
              /\ i \notin covered \/ CountCovered
              /\ IsQuorum(holders(i), VotersOf(n))
       /\ confirmed' = [confirmed EXCEPT ![n] = index]
       /\ announced' = [announced EXCEPT ![term[n]] = index]
       /\ committed' = committed \union {<<j, rows[j], term[n]>> : j \in fresh \ decided}
       /\ discarded' = discarded \union {<<j, rows[j]>> : j \in fresh \intersect decided}
       /\ UNCHANGED <<ballots, elections, logs, led, acks, split>>

\* --- faults ------------------------------------------------------------------

\* A process ends and starts again with what is on its disk (D3, E7): a ballot or
\* rows that were not reported yet may have reached it. A truncation leaves a part
\* of the old log, and a snapshot replaces it at once.
Reopen(n, rows, ballot, known) ==
    /\ \/ \E i \in DOMAIN before[n] : IsPrefix(rows, before[n][i])
       \/ rows = log[n]
       \/ ~IsReplacing(n) /\ IsPrefix(rows, log[n])
    /\ Len(rows) >= flushed[n]
    /\ ballot \in {disk[n]} \union Queued(n)
    /\ known >= Recorded(rows) /\ known <= Max({confirmed[n], Recorded(rows)})
    /\ ~IsReplacing(n) => known >= installed[n]
    /\ log' = [log EXCEPT ![n] = rows]
    /\ flushed' = [flushed EXCEPT ![n] = Len(rows)]
    /\ before' = [before EXCEPT ![n] = <<>>]
    /\ installed' = [installed EXCEPT ![n] = Min(@, known)]
    /\ confirmed' = [confirmed EXCEPT ![n] = known]
    /\ term' = [term EXCEPT ![n] = ballot.term]
    /\ vote' = [vote EXCEPT ![n] = ballot.vote]
    /\ nacks' = [nacks EXCEPT ![n] = ballot.nacks]
    /\ LET unsent == nacks[n] \union UNION {one.nacks : one \in Queued(n)}
       IN refused' = [refused EXCEPT ![n] = (@ \ unsent) \union disk[n].nacks \union ballot.nacks]
    /\ disk' = [disk EXCEPT ![n] = ballot]
    /\ queued' = [queued EXCEPT ![n] = <<>>]
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ UNCHANGED <<votes, stood, leaders, history, acks, split>>

\* --- all behaviours, within bounds -------------------------------------------

\* Logs of which the disk has a part.
OnDisk(n) == {log[n]} \union {before[n][i] : i \in DOMAIN before[n]}

Elect(n) ==
    \/ StandUp(n) \/ Ask(n)
    \/ \E ballot \in Queued(n) : StoreBallot(n, ballot)
    \/ \E t \in 1..TermMax : Adopt(n, t)
    \/ \E c \in Nodes : Choose(n, c)
    \/ \E c \in Nodes : WasAsked(n, c) /\ Reply(n, c, vote[n] = c, Position(log[n]),
                                            NackIn(n, IF OlderNackProves THEN 0 ELSE LastTerm(log[n])))
    \/ \E members \in SUBSET Nodes : \E arrived \in ChoicesOf(n, members) :
           \E kept \in KeptBy(n, arrived) : Win(n, arrived, kept)

WriteAny(n) ==
    \/ WriteTransactions(n, 1)
    \/ WithConfirms /\ confirmed[n] > Recorded(log[n]) /\ WriteConfirm(n, confirmed[n])
    \/ WithRollbacks /\ \E i \in DOMAIN log[n] : WriteRollback(n, i)
    \/ WithChanges /\ \E m \in Nodes \ {n} :
           LET now == VotersOf(n)
           IN WriteChange(n, 0, IF m \in now THEN now \ {m} ELSE now \union {m})

Replicate(n) ==
    \/ Truncate(n) \/ Replaced(n)
    \/ \E i \in DOMAIN Source(n) : Extend(n, i)
    \/ WithNacks /\ Refuse(n, Len(log[n]) + 1)
    \/ WithNacks /\ Forget(n, {one \in nacks[n] : one[2] > confirmed[n] /\ one[2] <= Len(log[n])})
    \/ WithSnapshots /\ \E i \in DOMAIN Source(n) : i > Len(log[n]) /\ Install(n, i)
    \/ \E i \in DOMAIN log[n] : (i = Len(log[n]) /\ Flushing(n, i)) \/ Learn(n, i) \/ ConfirmTo(n, i)
    \/ term[n] > 0 /\ acks[term[n]][n] # flushed[n] /\ Acknowledge(n, flushed[n])

Fail(n) ==
    \/ StepDown(n) \/ ForgetUnwritten(n)
    \/ \E whole \in OnDisk(n) : \E last \in flushed[n] .. Len(whole) :
           LET rows == SubSeq(whole, 1, last)
           IN \E ballot \in {disk[n]} \union Queued(n) :
                  Reopen(n, rows, ballot, Max({Recorded(rows),
                             IF IsReplacing(n) /\ rows # log[n] THEN 0 ELSE installed[n]}))

StepsNext ==
    \E n \in Nodes : Elect(n) \/ WriteAny(n) \/ Replicate(n) \/ (WithRestarts /\ Fail(n))

StepsTypeOK ==
    \A n \in Nodes :
        /\ flushed[n] <= Len(log[n]) /\ confirmed[n] <= Len(log[n])
        /\ disk[n].term <= term[n]
        /\ IsSettled(n) \/ Ballot(n) \in Queued(n)

StepsSpec == StepsInit /\ [][StepsNext]_stepVars
=============================================================================
