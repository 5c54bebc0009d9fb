------------------------------- MODULE Qsync -------------------------------
(***************************************************************************)
(* Quorum-synchronous replication, as docs/replication.md states it.       *)
(* Names in comments (L2, M2, ...) are its rules.                          *)
(*                                                                         *)
(* A row is identified by its index and the term in which it was written.  *)
(* PROMOTE and ROLLBACK are decisions: each covers the rows from its field *)
(* `from` to the row before it, and discards them once it is confirmed.    *)
(*                                                                         *)
(* Simplified, and why nothing is lost by it:                              *)
(*   - A follower appends, flushes and acknowledges in one step. A crash   *)
(*     between them equals a lost ACK, and no leader has to count an ACK.  *)
(*   - An ACK is a level (T2): only the greatest one of a member and term  *)
(*     is kept. A leader may count it at any later time, also after the    *)
(*     member has adopted another term: an ACK may be late.                *)
(*   - A vote request and its answer are one step: the log and the         *)
(*     configuration of a candidate do not change while it is one.         *)
(* A transaction may have an idempotency key. A leader that has a row with *)
(* it, pending or confirmed, answers with the outcome of that row (T9).    *)
(*                                                                         *)
(* Snapshots are in Steps.tla, linearizable reads in Reads.tla, and leases *)
(* in LeaderLease.tla and BrokerLease.tla.                                 *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Nodes,              \* members, all of them voters at first
    NoVote,              \* no vote
    TermMax, LogMax,    \* bounds of the model
    KeyMax,             \* number of idempotency keys
    LedBy,              \* leader of term 1 in the initial state, or NoVote
    WithChanges,        \* whether leaders change the set of voters
    WithRollbacks,      \* whether leaders write ROLLBACK, and failovers discard rows
    WithConfirms,       \* whether leaders write CONFIRM
    WithRestarts,       \* whether members restart
    RestoreOnConfirm,   \* the old rule: a decision restores the configuration when it
                        \* is confirmed, not when it is written
    CountInherited,     \* planted: rows of earlier terms are counted (against L2)
    VoteForShorterLogs, \* planted: a vote compares terms only (against E1)
    CountCovered,       \* planted: an ACK confirms a covered row (against T5)
    ProveByOwnMajority, \* planted: the former leader has counted by the same voters (against E8)
    ForgetPendingKeys   \* planted: only confirmed rows are looked up (against T9)

VARIABLES
    term, vote,         \* durable before they are used (D2)
    role, votes,
    log, flushed,       \* rows, and the number of them on this member's disk
    confirmed,          \* the confirmed index that a member knows
    acks,               \* acks[t][m]: greatest index that m acknowledged in term t
    committed,          \* history: rows that a leader considered confirmed, and its term
    discarded,          \* history: rows whose decision a leader considered confirmed
    split               \* history: whether a member truncated a confirmed row

vars == <<term, vote, role, votes, log, flushed, confirmed, acks,
          committed, discarded, split>>

Row(t, kind, from, voters) == [term |-> t, kind |-> kind, from |-> from, voters |-> voters]
IsDecision(row) == row.kind \in {"promote", "rollback"}
Min(a, b) == IF a < b THEN a ELSE b
Max(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
LastTerm(rows) == IF rows = <<>> THEN 0 ELSE rows[Len(rows)].term

\* Rows that effective decisions up to an index cover. Decisions are read newest
\* first, and a decision that is itself covered has no effect (T5).
RECURSIVE CoveredBy(_, _, _)
CoveredBy(rows, i, covered) ==
    IF i = 0 THEN covered
    ELSE CoveredBy(rows, i - 1,
                   IF IsDecision(rows[i]) /\ i \notin covered
                   THEN covered \union (rows[i].from .. i - 1)
                   ELSE covered)
Covered(rows) == CoveredBy(rows, Len(rows), {})

\* The configuration in force (M2): the newest `_cluster` row that no effective
\* decision in the log covers, whether it is confirmed or not.
Voters(rows, known) ==
    LET covered == IF RestoreOnConfirm THEN CoveredBy(rows, known, {}) ELSE Covered(rows)
        changes == {i \in DOMAIN rows : rows[i].kind = "config" /\ i \notin covered}
    IN IF changes = {} THEN Nodes ELSE rows[Max(changes)].voters
VotersOf(n) == Voters(log[n], confirmed[n])
IsQuorum(S, voters) == Cardinality(S \intersect voters) * 2 > Cardinality(voters)

IsUpToDate(rows, others) ==
    \/ LastTerm(rows) > LastTerm(others)
    \/ LastTerm(rows) = LastTerm(others) /\ (Len(rows) >= Len(others) \/ VoteForShorterLogs)

\* The number of rows that two logs have in common. Histories of terms give the
\* same answer (L5), because a term has one leader.
Common(a, b) == Max({i \in 0..Min(Len(a), Len(b)) : \A j \in 1..i : a[j] = b[j]})

PromoteOf(n) ==
    Max({i \in DOMAIN log[n] : log[n][i].kind = "promote" /\ log[n][i].term = term[n]})
\* Whether a decision that the leader writes is in flight: neither on its disk nor
\* confirmed by the others (E6).
IsDeciding(n) == \E i \in Max({flushed[n], confirmed[n]}) + 1 .. Len(log[n]) : IsDecision(log[n][i])
\* The index that CONFIRM rows record.
Recorded(rows) ==
    Min(Len(rows), Max({rows[i].from : i \in {j \in DOMAIN rows : rows[j].kind = "confirm"}}))

-----------------------------------------------------------------------------
Init ==
    /\ vote = [n \in Nodes |-> LedBy]
    /\ role = [n \in Nodes |-> IF n = LedBy THEN "leader" ELSE "follower"]
    /\ votes = [n \in Nodes |-> {}]
    /\ acks = [t \in 1..TermMax |-> [n \in Nodes |-> 0]]
    /\ committed = {} /\ discarded = {} /\ split = FALSE
    /\ IF LedBy = NoVote
       THEN /\ term = [n \in Nodes |-> 0]
            /\ log = [n \in Nodes |-> <<>>]
            /\ flushed = [n \in Nodes |-> 0]
            /\ confirmed = [n \in Nodes |-> 0]
       ELSE /\ term = [n \in Nodes |-> 1]
            /\ log = [n \in Nodes |-> <<Row(1, "promote", 1, {})>>]
            /\ flushed = [n \in Nodes |-> 1]
            /\ confirmed = [n \in Nodes |-> 1]

\* --- elections ---------------------------------------------------------------

\* A voter stands in a new term, and votes for itself (E1, D2).
Stand(n) ==
    /\ term[n] < TermMax /\ role[n] # "leader" /\ n \in VotersOf(n)
    /\ term' = [term EXCEPT ![n] = @ + 1]
    /\ vote' = [vote EXCEPT ![n] = n]
    /\ role' = [role EXCEPT ![n] = "candidate"]
    /\ votes' = [votes EXCEPT ![n] = {n}]
    /\ UNCHANGED <<log, flushed, confirmed, acks, committed, discarded, split>>

\* A member adopts a candidate's term (D2), and votes for it if it may (E1). A
\* leader that does so has finished its write: the logs are compared afterwards.
Vote(n, c) ==
    /\ n # c /\ role[c] = "candidate"
    /\ LET isNew == term[n] < term[c]
           isGranted == IsUpToDate(log[c], log[n])
       IN /\ isNew \/ (isGranted /\ term[n] = term[c] /\ vote[n] = NoVote)
          /\ term' = [term EXCEPT ![n] = term[c]]
          /\ vote' = [vote EXCEPT ![n] = IF isGranted THEN c ELSE NoVote]
          /\ votes' = [votes EXCEPT ![c] = IF isGranted THEN @ \union {n} ELSE @, ![n] = {}]
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ flushed' = [flushed EXCEPT ![n] = Len(log[n])]
    /\ UNCHANGED <<log, confirmed, acks, committed, discarded, split>>

\* The last rows that the PROMOTE of an elected candidate may keep (E8): all, or
\* those before a row that provably never had a quorum. The former leader may
\* have counted by one voter less or more.
Kept(n) ==
    LET voters == VotersOf(n)
        pending == confirmed[n] + 1 .. Len(log[n])
        holders(i) == {v \in votes[n] \intersect voters :
                          Len(log[v]) >= i /\ log[v][i] = log[n][i]}
        unreachable == voters \ votes[n]
        least == (Cardinality(voters) - (IF ProveByOwnMajority THEN 0 ELSE 1)) \div 2 + 1
        isLost(i) == Cardinality(holders(i) \union unreachable) < least
        isChanging == \E i \in pending : log[n][i].kind = "config"
    IN {Len(log[n])} \union
       (IF WithRollbacks /\ ~isChanging THEN {i - 1 : i \in {j \in pending : isLost(j)}} ELSE {})

\* An elected candidate opens its term with a PROMOTE (L2).
Lead(n) ==
    /\ role[n] = "candidate" /\ IsQuorum(votes[n], VotersOf(n)) /\ Len(log[n]) < LogMax
    /\ \E kept \in Kept(n) :
           log' = [log EXCEPT ![n] = Append(@, Row(term[n], "promote", kept + 1, {}))]
    /\ role' = [role EXCEPT ![n] = "leader"]
    /\ votes' = [votes EXCEPT ![n] = {}]
    /\ UNCHANGED <<term, vote, flushed, confirmed, acks, committed, discarded, split>>

\* --- writes of a leader ------------------------------------------------------

\* While a decision is in flight, nothing but decisions is written (E6).
Write(n, row) ==
    /\ role[n] = "leader" /\ Len(log[n]) < LogMax /\ ~IsDeciding(n)
    /\ log' = [log EXCEPT ![n] = Append(@, row)]
    /\ UNCHANGED <<term, vote, role, votes, flushed, confirmed, acks,
                   committed, discarded, split>>

\* `from` of a row is its key, 0 for none.
IsKnown(n, key) ==
    \E i \in DOMAIN log[n] : /\ log[n][i].kind = "row" /\ log[n][i].from = key
                            /\ i \notin Covered(log[n])
                            /\ (i <= confirmed[n] \/ ~ForgetPendingKeys)

Transaction(n) ==
    \E key \in 0..KeyMax :
        /\ key # 0 => ~IsKnown(n, key)
        /\ Write(n, Row(term[n], "row", key, {}))

Confirm(n) ==
    /\ WithConfirms /\ confirmed[n] >= PromoteOf(n) /\ confirmed[n] > Recorded(log[n])
    /\ Write(n, Row(term[n], "confirm", confirmed[n], {}))

\* A leader rolls back only what it wrote itself after its PROMOTE (T4).
Rollback(n) ==
    /\ WithRollbacks /\ role[n] = "leader"
    /\ LET own == {i \in DOMAIN log[n] : /\ i > confirmed[n] /\ i > PromoteOf(n)
                                         /\ log[n][i].kind = "row"
                                         /\ i \notin Covered(log[n])}
       IN \E i \in own : /\ \A j \in own : i <= j
                         /\ Write(n, Row(term[n], "rollback", i, {}))

\* The set of voters changes by one member at a time (M2, M3).
Change(n) ==
    /\ WithChanges /\ role[n] = "leader" /\ confirmed[n] >= PromoteOf(n)
    /\ \A i \in confirmed[n] + 1 .. Len(log[n]) : log[n][i].kind # "config"
    /\ \E m \in Nodes \ {n} :
           LET now == VotersOf(n)
               next == IF m \in now THEN now \ {m} ELSE now \union {m}
           IN Write(n, Row(term[n], "config", 0, next))

Flush(n) ==
    /\ role[n] = "leader" /\ flushed[n] < Len(log[n])
    /\ flushed' = [flushed EXCEPT ![n] = Len(log[n])]
    /\ UNCHANGED <<term, vote, role, votes, log, confirmed, acks, committed, discarded, split>>

\* --- replication -------------------------------------------------------------

\* A member follows the leader: it adopts the term, truncates what differs (L4),
\* appends at most one row, flushes it, and acknowledges its log (T2).
Follow(n, l) ==
    /\ n # l /\ role[l] = "leader" /\ term[n] <= term[l]
    /\ LET common == Common(log[n], log[l])
           rows == SubSeq(log[l], 1, Min(common + 1, Len(log[l])))
       IN /\ term[n] < term[l] \/ log[n] # rows \/ acks[term[l]][n] # Len(rows)
          /\ split' = (split \/ common < confirmed[n])
          /\ log' = [log EXCEPT ![n] = rows]
          /\ flushed' = [flushed EXCEPT ![n] = Len(rows)]
          /\ confirmed' = [confirmed EXCEPT ![n] = Max({@, Recorded(rows)})]
          /\ acks' = [acks EXCEPT ![term[l]][n] = Len(rows)]
    /\ term' = [term EXCEPT ![n] = term[l]]
    /\ vote' = [vote EXCEPT ![n] = IF term[n] < term[l] THEN NoVote ELSE @]
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ votes' = [votes EXCEPT ![n] = {}]
    /\ UNCHANGED <<committed, discarded>>

\* A follower learns the confirmed index, up to a safe point (T3).
Announce(n, l) ==
    /\ n # l /\ role[l] = "leader" /\ term[n] = term[l]
    /\ Common(log[n], log[l]) = Len(log[n])
    /\ LET most == Min(confirmed[l], Len(log[n]))
           safe == Max({i \in 0..most : i \notin Covered(log[l])})
       IN /\ safe > confirmed[n]
          /\ confirmed' = [confirmed EXCEPT ![n] = safe]
    /\ UNCHANGED <<term, vote, role, votes, log, flushed, acks, committed, discarded, split>>

\* A leader counts (T3). Its own rows confirm those of earlier terms (L2), and
\* no ACK confirms a row that a decision in its log covers (T5).
Count(n) ==
    /\ role[n] = "leader"
    /\ \E i \in confirmed[n] + 1 .. Len(log[n]) :
           LET holders == {m \in Nodes \ {n} : acks[term[n]][m] >= i}
                              \union (IF flushed[n] >= i THEN {n} ELSE {})
               decided == CoveredBy(log[n], i, {})
           IN /\ log[n][i].term = term[n] \/ CountInherited
              /\ i \notin Covered(log[n]) \/ CountCovered
              /\ IsQuorum(holders, VotersOf(n))
              /\ confirmed' = [confirmed EXCEPT ![n] = i]
              /\ committed' = committed \union
                     {<<j, log[n][j], term[n]>> : j \in (1..i) \ decided}
              /\ discarded' = discarded \union {<<j, log[n][j]>> : j \in decided}
    /\ UNCHANGED <<term, vote, role, votes, log, flushed, acks, split>>

\* --- faults ------------------------------------------------------------------

\* A process ends and starts again with what was on its disk (D3, E7).
Restart(n) ==
    /\ WithRestarts
    /\ role[n] # "follower" \/ confirmed[n] # Recorded(log[n])
    /\ LET rows == SubSeq(log[n], 1, flushed[n])
       IN /\ log' = [log EXCEPT ![n] = rows]
          /\ confirmed' = [confirmed EXCEPT ![n] = Recorded(rows)]
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ votes' = [votes EXCEPT ![n] = {}]
    /\ UNCHANGED <<term, vote, flushed, acks, committed, discarded, split>>

Next ==
    \E n \in Nodes :
        \/ Stand(n) \/ Lead(n) \/ Transaction(n) \/ Confirm(n) \/ Rollback(n) \/ Change(n)
        \/ Flush(n) \/ Count(n) \/ Restart(n)
        \/ \E m \in Nodes : Vote(n, m) \/ Follow(n, m) \/ Announce(n, m)

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Nodes)
Others == Permutations(Nodes \ {LedBy})

\* A constraint for models of four voters, whose unconstrained search is too long:
\* the leader of term 1 writes these rows, and later ones their PROMOTE only.
Script == <<"promote", "row", "config", "rollback", "config">>
Scripted ==
    \A n \in Nodes : \A i \in DOMAIN log[n] :
        log[n][i].kind = IF log[n][i].term = 1 THEN Script[i] ELSE "promote"

-----------------------------------------------------------------------------
TypeOK ==
    \A n \in Nodes :
        /\ flushed[n] <= Len(log[n]) /\ confirmed[n] <= Len(log[n])
        /\ role[n] # "leader" => flushed[n] = Len(log[n])

OneLeaderPerTerm ==
    \A n, m \in Nodes :
        (role[n] = "leader" /\ role[m] = "leader" /\ n # m) => term[n] # term[m]

\* L3: a row that a leader considered confirmed is in the log of every later
\* leader, and no decision there covers it.
CommittedSurvives ==
    \A n \in Nodes : role[n] = "leader" =>
        LET covered == Covered(log[n])
        IN \A one \in committed : one[3] < term[n] =>
               /\ Len(log[n]) >= one[1] /\ log[n][one[1]] = one[2]
               /\ one[1] \notin covered

\* No two members confirm different histories.
OneHistory ==
    \A n, m \in Nodes : \A i \in 1..Min(confirmed[n], confirmed[m]) : log[n][i] = log[m][i]

\* T5, T6: a row is committed or rolled back, and stays so.
OneOutcome == {<<one[1], one[2]>> : one \in committed} \intersect discarded = {}

\* T9: no two committed rows have one key.
OneRowPerKey ==
    \A one, other \in committed :
        (one[2].kind = "row" /\ other[2].kind = "row" /\ one[2].from = other[2].from
            /\ one[2].from # 0) => one[1] = other[1]

\* L4: no member has to truncate a row that it knows to be confirmed.
NoSplitBrain == ~split
=============================================================================
