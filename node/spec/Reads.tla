------------------------------- MODULE Reads -------------------------------
(***************************************************************************)
(* Linearizable reads of Qsync.tla: rule R2 of docs/replication.md.        *)
(*                                                                         *)
(* One request arrives at the leader of one term, at any time. It stands   *)
(* for a read, and for a write that changes nothing. `floor` is the newest *)
(* row that any leader considered confirmed by then: no client can have an *)
(* answer that reflects a later one.                                       *)
(*                                                                         *)
(* Clocks are absent, because no read depends on one: a leader may lead    *)
(* for any time after a later one was elected (see LeaderLease.tla).       *)
(*                                                                         *)
(* Simplified, and why nothing is lost by it:                              *)
(*   - Rounds of other terms are left out: no answer in them counts.       *)
(*   - Answers to heartbeats are a level like ACKs. Only the newest round  *)
(*     that a member answered is kept, and the leader may count it at any  *)
(*     later time.                                                         *)
(*   - A follower asks the leader for the index, and serves the read once  *)
(*     it has applied it. It then has the leader's rows (OneHistory).      *)
(***************************************************************************)
EXTENDS Qsync

CONSTANTS
    RoundMax,           \* number of heartbeat rounds
    ReadWithoutRound,   \* planted: a leader whose lease runs serves the read (against R2)
    RoundBeforeRead,    \* planted: a round that began before the read proves it (against R2)
    ReadBeforePromote,  \* planted: the PROMOTE need not be confirmed (against R2)
    AnyRowProves        \* planted: the confirmation of any row proves leadership (against R2)

VARIABLES
    watched,    \* the term whose leader gets the request
    rounds,     \* number of rounds that this leader has begun
    heard,      \* heard[m]: newest of them that m has answered
    request,    \* the request, or NoRequest
    known       \* index of the log up to which its answer reflects it, 0 before the proof

readVars == <<watched, rounds, heard, request, known>>
NoRequest == [node |-> NoVote]
NoRow == <<0, Row(0, "none", 0, {})>>
IsWatched(n) == role[n] = "leader" /\ term[n] = watched

ReadsInit ==
    /\ Init
    /\ watched \in 1..TermMax
    /\ rounds = 0 /\ heard = [n \in Nodes |-> 0]
    /\ request = NoRequest /\ known = 0

\* The leader begins a heartbeat round.
Beat(n) ==
    /\ IsWatched(n) /\ rounds < RoundMax
    /\ rounds' = rounds + 1
    /\ UNCHANGED <<vars, watched, heard, request, known>>

\* A member adopts the term of a heartbeat, and answers its round (D2).
Hear(n, l) ==
    /\ n # l /\ IsWatched(l) /\ term[n] <= term[l] /\ heard[n] < rounds
    /\ heard' = [heard EXCEPT ![n] = rounds]
    /\ term' = [term EXCEPT ![n] = term[l]]
    /\ vote' = [vote EXCEPT ![n] = IF term[n] < term[l] THEN NoVote ELSE @]
    /\ role' = [role EXCEPT ![n] = "follower"]
    /\ votes' = [votes EXCEPT ![n] = {}]
    /\ flushed' = [flushed EXCEPT ![n] = Len(log[n])]
    /\ UNCHANGED <<log, confirmed, acks, committed, discarded, split, watched, rounds, request,
                   known>>

\* A request arrives. A read notes the confirmed index; a write that changes nothing
\* runs over the pending state, and has seen all rows of the log (T8).
Arrive(n) ==
    /\ IsWatched(n) /\ request = NoRequest
    /\ request' =
           [node |-> n,
            confirmed |-> confirmed[n],
            last |-> Len(log[n]),
            round |-> rounds + (IF RoundBeforeRead THEN 0 ELSE 1),
            floor |-> LET last == Max({one[1] : one \in committed})
                      IN IF committed = {} THEN NoRow
                         ELSE CHOOSE row \in {<<one[1], one[2]>> : one \in committed} :
                                  row[1] = last]
    /\ UNCHANGED <<vars, watched, rounds, heard, known>>

IsAnswered(n) ==
    /\ rounds >= request.round
    /\ IsQuorum({m \in Nodes : heard[m] >= request.round} \union {n}, VotersOf(n))

\* A read waits for the confirmation of the PROMOTE, and for a round.
ProveRead(n) ==
    /\ ReadBeforePromote \/ confirmed[n] >= PromoteOf(n)
    /\ ReadWithoutRound \/ IsAnswered(n)
    /\ known' = Max({request.confirmed, IF ReadBeforePromote THEN 0 ELSE PromoteOf(n)})

\* A write that changes nothing waits until the rows that it has seen are decided,
\* and for a round, or for the confirmation of a row that was appended after it.
ProveWrite(n) ==
    /\ confirmed[n] >= request.last
    /\ \/ IsAnswered(n)
       \/ confirmed[n] > request.last
       \/ AnyRowProves /\ confirmed[n] > request.confirmed
    /\ known' = request.last

Prove(n) ==
    /\ request # NoRequest /\ request.node = n /\ IsWatched(n)
    /\ ProveRead(n) \/ ProveWrite(n)
    /\ UNCHANGED <<vars, watched, rounds, heard, request>>

ReadsNext ==
    \/ Next /\ UNCHANGED readVars
    \/ \E n \in Nodes :
           \/ Beat(n) \/ Arrive(n) \/ Prove(n)
           \/ \E m \in Nodes : Hear(n, m)

ReadsSpec == ReadsInit /\ [][ReadsNext]_<<vars, readVars>>

\* A constraint: the search ends with a proof, and where there can be none.
CanBeProven ==
    /\ known = 0
    /\ IF request = NoRequest THEN rounds < RoundMax ELSE IsWatched(request.node)

-----------------------------------------------------------------------------
ReadsTypeOK == TypeOK /\ \A n \in Nodes : heard[n] <= rounds

\* R2: an answer reflects every answer that was given before its request arrived.
Linearizable ==
    known > 0 =>
        LET index == request.floor[1]
        IN index > 0 => (index <= known /\ log[request.node][index] = request.floor[2])
=============================================================================
