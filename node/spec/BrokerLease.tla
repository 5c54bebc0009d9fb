---------------------------- MODULE BrokerLease ----------------------------
(***************************************************************************)
(* The lease of a broker: section Leases of docs/journals-protocol.md.     *)
(*                                                                         *)
(* One broker renews its row, and leaders remove a row that was not        *)
(* renewed. Renewals and removals are rows of the replicated log, of which *)
(* the leader knows all, and the broker a confirmed prefix. A renewal      *)
(* names the row that it replaces, and fails if it finds another one.      *)
(*                                                                         *)
(* `now` is the time of the leaders' clocks, and `local` that of the       *)
(* broker's. Only durations are compared, so that they may begin together. *)
(***************************************************************************)
EXTENDS Naturals, Sequences, TLC

CONSTANTS
    TimeMax, RenewalMax, ProcessMax, TermMax,   \* bounds of the model
    LeaseTime,
    CountFromConfirmation,  \* planted: the lease runs from the confirmation of a renewal
    RemoveWhilePending,     \* planted: a row is removed while a renewal waits in the log
    CountOnElection,        \* planted: a new leader grants no full period
    IgnoreProcess,          \* planted: the row of an earlier process of the broker counts
    SlowClock               \* the broker's clock may lose a unit of time

VARIABLES
    now, local,
    term,       \* number of leaders so far
    rows,       \* the log: renewals, and Removed
    confirmed,  \* number of rows that are confirmed
    sent,       \* renewals under way: the new row, and the row that it replaces
    process,    \* number of processes of the broker so far
    renewals,   \* number of renewals of this process
    sentAt,     \* sentAt[k]: local time of renewal k
    learned,    \* number of rows that the broker knows
    until,      \* local time at which the lease ends
    seen, since \* the row that the leader knows, and since when

vars == <<now, local, term, rows, confirmed, sent, process, renewals, sentAt, learned, until,
          seen, since>>
broker == <<process, renewals, sentAt, learned, until>>
leader == <<term, seen, since>>

Removed == <<0, 0>>
Max(a, b) == IF a > b THEN a ELSE b
RowAt(index) == IF index = 0 THEN Removed ELSE rows[index]

Init ==
    /\ now = 0 /\ local = 0 /\ term = 1 /\ rows = <<>> /\ confirmed = 0 /\ sent = {}
    /\ process = 1 /\ renewals = 0 /\ sentAt = [k \in 1..RenewalMax |-> 0]
    /\ learned = 0 /\ until = 0 /\ seen = Removed /\ since = 0

Tick ==
    /\ now < TimeMax
    /\ now' = now + 1
    /\ local' \in {local + 1} \union (IF SlowClock /\ local = now THEN {local} ELSE {})
    /\ UNCHANGED <<rows, confirmed, sent, broker, leader>>

\* --- the broker --------------------------------------------------------------

\* Earlier renewals may still be under way: their outcome is unknown.
Renew ==
    /\ renewals < RenewalMax
    /\ renewals' = renewals + 1
    /\ sentAt' = [sentAt EXCEPT ![renewals + 1] = local]
    /\ sent' = sent \union {[row |-> <<process, renewals + 1>>, expected |-> RowAt(learned)]}
    /\ UNCHANGED <<now, local, rows, confirmed, process, learned, until, leader>>

IsOwn(row) == row # Removed /\ (row[1] = process \/ IgnoreProcess) /\ row[2] <= renewals

\* The broker learns confirmed rows in their order.
Learn ==
    /\ learned < confirmed
    /\ learned' = learned + 1
    /\ until' = IF ~IsOwn(rows[learned + 1]) THEN until
                ELSE (IF CountFromConfirmation THEN local ELSE sentAt[rows[learned + 1][2]])
                         + LeaseTime
    /\ UNCHANGED <<now, local, rows, confirmed, sent, process, renewals, sentAt, leader>>

Restart ==
    /\ process < ProcessMax
    /\ process' = process + 1
    /\ renewals' = 0 /\ sentAt' = [k \in 1..RenewalMax |-> 0] /\ until' = 0
    /\ \E index \in 0..confirmed : learned' = index
    /\ UNCHANGED <<now, local, rows, confirmed, sent, leader>>

\* --- the leader --------------------------------------------------------------

Write(one) ==
    /\ one \in sent
    /\ sent' = sent \ {one}
    /\ rows' = IF one.expected = RowAt(Len(rows)) THEN Append(rows, one.row) ELSE rows
    /\ UNCHANGED <<now, local, confirmed, broker, leader>>

Confirm ==
    /\ confirmed < Len(rows)
    /\ confirmed' = confirmed + 1
    /\ UNCHANGED <<now, local, rows, sent, broker, leader>>

\* The leader looks at the confirmed row, notes since when it has it, and removes it
\* after a lease, unless another row waits for its confirmation.
Look ==
    LET row == RowAt(confirmed)
        begun == IF seen = row THEN since ELSE IF CountOnElection /\ term > 1 THEN 0 ELSE now
    IN /\ row # Removed
       /\ seen' = row /\ since' = begun
       /\ rows' = IF now - begun >= LeaseTime /\ (RemoveWhilePending \/ RowAt(Len(rows)) = row)
                  THEN Append(rows, Removed) ELSE rows
       /\ <<seen, since, rows>> # <<seen', since', rows'>>
       /\ UNCHANGED <<now, local, term, confirmed, sent, broker>>

\* Another leader has the confirmed rows, and as many of the pending ones as it likes.
NewLeader ==
    /\ term < TermMax
    /\ term' = term + 1
    /\ seen' = Removed /\ since' = 0
    /\ \E last \in confirmed .. Len(rows) : rows' = SubSeq(rows, 1, last)
    /\ UNCHANGED <<now, local, confirmed, sent, broker>>

Next ==
    \/ Tick \/ Renew \/ Learn \/ Restart \/ Confirm \/ Look \/ NewLeader
    \/ \E one \in sent : Write(one)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK == learned <= confirmed /\ confirmed <= Len(rows)

\* A broker that serves has its row: it stops before the row is removed.
IsServing == local < until /\ RowAt(learned) # Removed
ServesWithItsRow == IsServing => RowAt(confirmed) # Removed
=============================================================================
