------------------------------- MODULE Trace -------------------------------
(***************************************************************************)
(* Recorded runs as behaviours of Steps.tla: each event names an action    *)
(* and its parameters, and TLC stops (deadlock) at one that the            *)
(* specification does not allow. `TraceData` is written by traces.py.      *)
(*                                                                         *)
(* A run begins when all members agree. Two rows stand for the log until   *)
(* then: the voters, and the PROMOTE of the leader.                        *)
(***************************************************************************)
EXTENDS Steps, TraceData

VARIABLES
    run,        \* index in Runs
    next        \* index of the next event

traceVars == <<stepVars, run, next>>

First(begun) == <<Row(1, "config", 0, begun.voters), Row(1, "promote", 2, {})>>

TraceInit ==
    \E r \in DOMAIN Runs :
        LET begun == Runs[r][1]
            members == DOMAIN begun.votes
        IN /\ run = r /\ next = 2
           /\ term = [n \in Nodes |-> IF n \in members THEN 1 ELSE 0]
           /\ vote = [n \in Nodes |-> IF n \in members THEN begun.votes[n] ELSE NoVote]
           /\ nacks = [n \in Nodes |-> {}] /\ refused = nacks
           /\ disk = [n \in Nodes |-> Ballot(n)]
           /\ role = [n \in Nodes |-> IF n = begun.at THEN "leader" ELSE "follower"]
           /\ votes = [n \in Nodes |-> {}]
           /\ log = [n \in Nodes |-> IF n \in members THEN First(begun) ELSE <<>>]
           /\ flushed = [n \in Nodes |-> IF n \in members THEN 2 ELSE 0]
           /\ confirmed = flushed
           /\ acks = [t \in 1..TermMax |-> [n \in Nodes |-> 0]]
           /\ committed = {} /\ discarded = {} /\ split = FALSE /\ stood = {}
           /\ led = [t \in 1..TermMax |-> IF t = 1 THEN First(begun) ELSE <<>>]
           /\ announced = [t \in 1..TermMax |-> IF t = 1 THEN 2 ELSE 0]
           /\ queued = [n \in Nodes |-> <<>>]
           /\ before = [n \in Nodes |-> <<>>]
           /\ installed = [n \in Nodes |-> 0]

\* What a member shows after each step.
See(e) ==
    /\ term[e.at] = e.term /\ vote[e.at] = e.vote
    /\ (role[e.at] = "leader") = e.leads
    /\ Position(log[e.at]) = <<e.last_term, e.last>>
    /\ confirmed[e.at] = e.known /\ nacks[e.at] = e.nacks
    /\ log[e.at] # <<>> => VotersOf(e.at) = e.voters
    /\ UNCHANGED stepVars

BallotOf(e) == [term |-> e.term, vote |-> e.vote, nacks |-> e.nacks]

Restarted(e) ==
    \E whole \in OnDisk(e.at) :
        /\ e.last <= Len(whole)
        /\ Position(SubSeq(whole, 1, e.last)) = <<e.last_term, e.last>>
        /\ Reopen(e.at, SubSeq(whole, 1, e.last), BallotOf(e), e.known)

Answered(e) ==
    /\ e.term = term[e.at]
    /\ Reply(e.at, e.candidate, e.granted, <<e.last_term, e.last>>, e.nack)

Acknowledged(e) ==
    /\ e.term = term[e.at] /\ e.last <= Len(log[e.at])
    /\ e.last > 0 => log[e.at][e.last].term = e.last_term
    /\ e.nack = NackIn(e.at, e.term)
    /\ Acknowledge(e.at, e.last)

Extended(e) == Extend(e.at, e.last) /\ log'[e.at][e.last].term = e.last_term

Won(e) ==
    \E arrived \in ChoicesOf(e.at, e.heard) : Win(e.at, arrived, e.kept)

Confirmed(e) ==
    IF role[e.at] = "leader" THEN ConfirmTo(e.at, e.last) ELSE Learn(e.at, e.last)

Do(e) ==
    CASE e.do = "see" -> See(e)
      [] e.do = "acknowledge" -> Acknowledged(e)
      [] e.do = "extend" -> Extended(e)
      [] e.do = "flush" -> Flushing(e.at, e.last)
      [] e.do = "confirmed" -> Confirmed(e)
      [] e.do = "rows" -> WriteTransactions(e.at, e.count)
      [] e.do = "confirm" -> WriteConfirm(e.at, e.position)
      [] e.do = "rollback" -> WriteRollback(e.at, e.position)
      [] e.do = "change" -> WriteChange(e.at, e.others, e.voters)
      [] e.do = "stand" -> StandUp(e.at)
      [] e.do = "adopt" -> Adopt(e.at, e.term)
      [] e.do = "stored" -> StoreBallot(e.at, BallotOf(e))
      [] e.do = "ask" -> Ask(e.at) /\ Position(log[e.at]) = <<e.last_term, e.last>>
      [] e.do = "nack" -> Refuse(e.at, e.last)
      [] e.do = "lift" -> Forget(e.at, e.nacks)
      [] e.do = "choose" -> Choose(e.at, e.candidate)
      [] e.do = "reply" -> Answered(e)
      [] e.do = "win" -> Won(e)
      [] e.do = "yield" -> StepDown(e.at)
      [] e.do = "truncate" -> Truncate(e.at) /\ Len(log'[e.at]) = e.last
      [] e.do = "forget" -> ForgetUnwritten(e.at) /\ Len(log'[e.at]) = e.last
      [] e.do = "install" -> Install(e.at, e.last)
      [] e.do = "replaced" -> Replaced(e.at)
      [] e.do = "reopen" -> Restarted(e)

TraceNext ==
    \/ /\ next <= Len(Runs[run])
       /\ Do(Runs[run][next])
       /\ next' = next + 1 /\ run' = run
    \/ next > Len(Runs[run]) /\ UNCHANGED traceVars

TraceSpec == TraceInit /\ [][TraceNext]_traceVars
=============================================================================
