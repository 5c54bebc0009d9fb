---------------------------- MODULE LeaderLease ----------------------------
(***************************************************************************)
(* The lease of a leader: rule E4 of docs/replication.md.                  *)
(*                                                                         *)
(* One term of one leader. Time is the time of the leader's clock: no      *)
(* other clock takes part. Members leave the term at any moment, because   *)
(* leases do not hold back votes, and answers arrive at any later time.    *)
(* What members do in later terms is in Qsync.tla, and what a leader may   *)
(* answer meanwhile is in Reads.tla.                                       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Nodes, Leader,
    TimeMax, RoundMax,  \* bounds of the model
    LeaseTime,
    CountFromReply,     \* planted: the lease runs from the arrival of an answer (against E4)
    RememberOneRound    \* planted: only the start of the newest round is remembered (against E4)

VARIABLES
    now,
    rounds,     \* number of rounds that the leader has begun
    began,      \* began[k]: time at which round k began
    started,    \* rounds whose beginning the leader remembers
    replied,    \* replied[m]: newest round that m has answered
    heard,      \* heard[m]: newest answer of m that has arrived
    from,       \* time from which the lease runs
    left        \* left[m]: time at which m has adopted a later term, or Never

vars == <<now, rounds, began, started, replied, heard, from, left>>
Never == TimeMax + 1
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
IsQuorum(S) == Cardinality(S) * 2 > Cardinality(Nodes)

Init ==
    /\ now = 0 /\ rounds = 0 /\ began = [k \in 1..RoundMax |-> 0] /\ started = {}
    /\ replied = [m \in Nodes |-> 0] /\ heard = [m \in Nodes |-> 0]
    /\ from = 0 /\ left = [m \in Nodes |-> Never]

IsLeading == now - from <= LeaseTime

Tick ==
    /\ now < TimeMax
    /\ now' = now + 1
    /\ UNCHANGED <<rounds, began, started, replied, heard, from, left>>

Begin ==
    /\ IsLeading /\ rounds < RoundMax
    /\ rounds' = rounds + 1
    /\ began' = [began EXCEPT ![rounds + 1] = now]
    /\ started' = IF RememberOneRound THEN {rounds + 1} ELSE started \union {rounds + 1}
    /\ UNCHANGED <<now, replied, heard, from, left>>

\* A member that is in the term answers a round, which may be an older one.
Answer(m) ==
    /\ m # Leader /\ left[m] = Never
    /\ \E k \in replied[m] + 1 .. rounds : replied' = [replied EXCEPT ![m] = k]
    /\ UNCHANGED <<now, rounds, began, started, heard, from, left>>

Leave(m) ==
    /\ m # Leader /\ left[m] = Never
    /\ left' = [left EXCEPT ![m] = now]
    /\ UNCHANGED <<now, rounds, began, started, replied, heard, from>>

Answered(k) == IsQuorum({m \in Nodes : heard'[m] >= k} \union {Leader})

\* An answer arrives. The lease runs from the start of the newest answered round.
Arrive(m) ==
    /\ IsLeading /\ heard[m] < replied[m]
    /\ \E k \in heard[m] + 1 .. replied[m] : heard' = [heard EXCEPT ![m] = k]
    /\ LET proven == {k \in started : Answered(k)}
       IN IF proven = {} THEN UNCHANGED <<from, started>>
          ELSE /\ from' = IF CountFromReply THEN now ELSE Max({began[k] : k \in proven} \union {from})
               /\ started' = started \ proven
    /\ UNCHANGED <<now, rounds, began, replied, left>>

Next == Tick \/ Begin \/ \E m \in Nodes : Answer(m) \/ Leave(m) \/ Arrive(m)
Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Nodes \ {Leader})

-----------------------------------------------------------------------------
TypeOK == \A m \in Nodes : heard[m] <= replied[m] /\ replied[m] <= rounds /\ from <= now

\* A leader leads no longer than a lease after a quorum is no more in its term.
EndsInTime ==
    IsLeading => IsQuorum({m \in Nodes : left[m] + LeaseTime >= now})

\* A quorum that has answered a round keeps the leader for a lease, however many
\* rounds have begun since then.
IsKept ==
    \A k \in 1..rounds :
        (IsQuorum({m \in Nodes : heard[m] >= k} \union {Leader}) /\ now - began[k] <= LeaseTime)
            => IsLeading
=============================================================================
