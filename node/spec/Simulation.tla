----------------------------- MODULE Simulation -----------------------------
(***************************************************************************)
(* Random behaviours of Steps.tla, for bounds that are too large for a     *)
(* search of all states (simulation mode of TLC).                          *)
(*                                                                         *)
(* TLC takes one of the possible actions at random, then one of its steps. *)
(* If each step of each member had the same weight, most would be crashes  *)
(* and elections, and hardly a row would be confirmed. Actions that answer *)
(* earlier ones are therefore listed several times: `IF TRUE` makes a      *)
(* group of them one action. Any behaviour of Steps.tla remains possible.  *)
(***************************************************************************)
EXTENDS Steps

\* Steps that answer earlier ones.
Continue(n) ==
    \/ Ask(n) \/ Truncate(n) \/ Replaced(n)
    \/ \E ballot \in Queued(n) : StoreBallot(n, ballot)
    \/ \E t \in 1..TermMax : Adopt(n, t)
    \/ \E c \in Nodes : Choose(n, c)
    \/ \E c \in Nodes :
           /\ WasAsked(n, c)
           /\ \A one \in votes[c] : one.term # term[n] \/ one.node # n
           /\ Reply(n, c, vote[n] = c, Position(log[n]),
                    NackIn(n, IF OlderNackProves THEN 0 ELSE LastTerm(log[n])))
    \/ \E members \in SUBSET Nodes : \E arrived \in ChoicesOf(n, members) :
           \E kept \in KeptBy(n, arrived) : Win(n, arrived, kept)
    \/ \E i \in DOMAIN Source(n) : Extend(n, i)
    \/ \E i \in DOMAIN log[n] : (i = Len(log[n]) /\ Flushing(n, i)) \/ Learn(n, i) \/ ConfirmTo(n, i)
    \/ term[n] > 0 /\ acks[term[n]][n] # flushed[n] /\ Acknowledge(n, flushed[n])
    \/ Forget(n, {one \in nacks[n] : one[2] > confirmed[n] /\ one[2] <= Len(log[n])})

SimulationNext ==
    \E n \in Nodes :
        \/ \E copy \in 1..40 : IF TRUE THEN Continue(n) ELSE FALSE
        \/ \E copy \in 1..8 : IF TRUE THEN WriteAny(n) ELSE FALSE
        \/ StandUp(n)
        \/ WithNacks /\ \E copy \in 1..2 : Refuse(n, Len(log[n]) + 1)
        \/ IF WithSnapshots THEN \E i \in DOMAIN Source(n) : i > Len(log[n]) /\ Install(n, i) ELSE FALSE
        \/ IF WithRestarts THEN Fail(n) ELSE FALSE

SimulationSpec == StepsInit /\ [][SimulationNext]_stepVars
=============================================================================
