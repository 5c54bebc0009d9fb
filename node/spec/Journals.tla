------------------------------ MODULE Journals ------------------------------
(***************************************************************************)
(* Appends to one journal, as docs/journals-protocol.md states them.       *)
(* Names in comments (J1, J2, ...) are its rules.                          *)
(*                                                                         *)
(* A byte is the epoch in which it was appended, and a number. The state   *)
(* of a spool is its epoch, the offset at which its fragment begins, its   *)
(* bytes, and how many of them are confirmed. Bytes that a broker lacks,   *)
(* because it joined after them, are Hole.                                 *)
(*                                                                         *)
(* Simplified, and why nothing is lost by it:                              *)
(*   - Any broker may reserve an epoch, with any route. Leases and the     *)
(*     allocator only restrict this, and so does the comparison of the     *)
(*     route by J1 and J5.                                                 *)
(*   - A transaction takes effect in one step, or fails. A transaction of  *)
(*     which the outcome is unknown equals one step and a failed primary.  *)
(*   - What the primary of an epoch has sent stands for messages under     *)
(*     way: a broker that serves this epoch receives them at any time.     *)
(*   - An acknowledgement is sent when the flush ends. It is a level, and  *)
(*     the primary may count it at any later time, or never.               *)
(*   - Acknowledged bytes are visible to readers at the same time. The     *)
(*     invariants speak of visible bytes.                                  *)
(*   - A peer that refuses, or a lost connection, equals one that is never *)
(*     heard again: the next synchronisation may begin at any time.        *)
(*                                                                         *)
(* Left out: registers, rolled back content (J7), full fragments (J9),     *)
(* stores, copies of fragments (J11) and accepted losses.                  *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Nodes,                  \* brokers
    EpochMax, AppendMax, CrashMax,  \* bounds of the model
    PromiseBeforeFlush,     \* planted: a promise returns a state that is not durable (against J2)
    AnyEpochChosen,         \* planted: the least end of all states is chosen (against J3)
    MissingAccepted,        \* planted: an older epoch than the recorded one is chosen (against J3)
    AllAdoptAtOnce,         \* planted: brokers without the bytes adopt their end first (against J4)
    AppendBeforeRecord,     \* planted: appends do not wait for the record (against J5)
    PrimaryAlone,           \* planted: the flush of the primary acknowledges (against J6)
    AckBeforeFlush,         \* planted: a peer acknowledges before its flush (against J6)
    ProposedVisible,        \* planted: peers show bytes when they have them (against J8)
    ForgetEpoch,            \* planted: a started broker has no epoch
    ConfirmRecovered        \* planted: a started broker confirms all of its bytes

VARIABLES
    row,        \* the journal's row: ballot, epoch, route
    crashes,
    memory, disk,   \* states of each broker's spool
    queue,      \* states that are being written, in their order
    promised,   \* greatest epoch that each broker has promised
    serving,    \* epoch whose stream each broker has, 0 for none
    lead,       \* lead[e]: the primary of epoch e
    promises,   \* promises[e][b]: the state that b returned, or NoState
    sent,       \* sent[e]: bytes that the primary has, with those that it proposed
    told,       \* told[e]: end that the primary has confirmed
    acks,       \* acks[e][b]: number of durable adoptions, and durable end
    seen        \* history: bytes that were visible, and their offsets

spools == <<memory, disk, queue>>
vars == <<row, crashes, spools, promised, serving, lead, promises, sent, told, acks, seen>>

Epochs == 1..EpochMax
Hole == <<0, 0>>
NoState == [epoch |-> 0, begin |-> 0, bytes |-> <<Hole>>, confirmed |-> 0]
NoLead == [phase |-> "none"]
NoAck == <<0, 0>>
Min(a, b) == IF a < b THEN a ELSE b
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
First(bytes, end) == SubSeq(bytes, 1, Min(end, Len(bytes)))
Fragment(state) == SubSeq(state.bytes, state.begin + 1, Len(state.bytes))
Visible(state) ==
    {<<i, state.bytes[i]>> : i \in {j \in 1..state.confirmed : state.bytes[j] # Hole}}

\* At first, a route of all brokers but one is recorded, and one of them is its primary.
Init ==
    \E spare, primary \in Nodes :
        LET route == Nodes \ {spare}
            begun == [epoch |-> 1, begin |-> 0, bytes |-> <<>>, confirmed |-> 0]
            empty == [begun EXCEPT !.epoch = 0]
        IN /\ spare # primary
           /\ row = [ballot |-> 1, epoch |-> 1, route |-> route]
           /\ crashes = 0
           /\ memory = [b \in Nodes |-> IF b \in route THEN begun ELSE empty]
           /\ disk = memory
           /\ queue = [b \in Nodes |-> <<>>]
           /\ promised = [b \in Nodes |-> memory[b].epoch]
           /\ serving = promised
           /\ lead = [e \in Epochs |->
                         IF e = 1 THEN [phase |-> "ready", node |-> primary, route |-> route,
                                        known |-> row, choice |-> [end |-> 0], first |-> route]
                         ELSE NoLead]
           /\ promises = [e \in Epochs |-> [b \in Nodes |-> NoState]]
           /\ sent = [e \in Epochs |-> <<>>]
           /\ told = [e \in Epochs |-> 0]
           /\ acks = [e \in Epochs |-> [b \in Nodes |-> IF e = 1 /\ b \in route THEN <<2, 0>>
                                                       ELSE NoAck]]
           /\ seen = {}

IsLeading(e) == lead[e].phase \notin {"none", "failed"} /\ serving[lead[e].node] = e

\* A broker serves one epoch: its role as the primary of others ends.
Ends(c, b, e) == c # e /\ lead[c].phase \notin {"none", "failed"} /\ lead[c].node = b
Leave(b, e, begun) ==
    /\ lead' = [c \in Epochs |-> IF c = e THEN begun
                                 ELSE IF Ends(c, b, e) THEN [phase |-> "failed"] ELSE lead[c]]
    /\ acks' = [c \in Epochs |-> IF Ends(c, b, e) THEN [x \in Nodes |-> NoAck] ELSE acks[c]]

Become(b, state) ==
    /\ memory' = [memory EXCEPT ![b] = state]
    /\ queue' = [queue EXCEPT ![b] = Append(@, state)]
    /\ UNCHANGED disk

\* Brokers that adopt, and how often they have done so then.
Adopters(e) == IF lead[e].phase = "adopting" THEN lead[e].first ELSE lead[e].route
Stage(e) == IF lead[e].phase = "adopting" THEN 1 ELSE 2

\* An acknowledgement of broker b arrives at the primary of the epoch that it serves.
IsHeard(b) ==
    serving[b] # 0 /\ lead[serving[b]].phase \in {"adopting", "joining", "ready"}
Heard(b, state) ==
    LET e == serving[b]
    IN IF state.epoch = e THEN [acks EXCEPT ![e][b] = <<Stage(e), Len(state.bytes)>>] ELSE acks

\* --- synchronisation ---------------------------------------------------------

\* J1: no two synchronisations have the same epoch.
Reserve(b) ==
    /\ row.ballot < EpochMax
    /\ LET e == row.ballot + 1
       IN /\ row' = [row EXCEPT !.ballot = e]
          /\ promised' = [promised EXCEPT ![b] = e]
          /\ serving' = [serving EXCEPT ![b] = e]
          /\ \E route \in {members \in SUBSET Nodes : b \in members} :
                 Leave(b, e, [phase |-> "preparing", node |-> b, route |-> route, known |-> row,
                              choice |-> [end |-> 0], first |-> {}])
    /\ UNCHANGED <<crashes, spools, promises, sent, told, seen>>

\* J2: the primary is asked for a promise like its peers.
Promise(b, e) ==
    /\ lead[e].phase = "preparing" /\ b \in lead[e].route
    /\ promised[b] < e \/ (lead[e].node = b /\ serving[b] = e)
    /\ promises[e][b] = NoState
    /\ queue[b] = <<>> \/ PromiseBeforeFlush
    /\ promised' = [promised EXCEPT ![b] = e]
    /\ serving' = [serving EXCEPT ![b] = e]
    /\ promises' = [promises EXCEPT ![e][b] = memory[b]]
    /\ Leave(b, e, lead[e])
    /\ UNCHANGED <<row, crashes, spools, sent, told, seen>>

\* J3, J4: the least end of the greatest epoch. The primary knows the row that it has
\* changed, and maybe no later one. Brokers without the chosen bytes adopt their end
\* after those that have them were recorded.
Choose(e) ==
    /\ lead[e].phase = "preparing" /\ IsLeading(e)
    /\ LET route == lead[e].route
           known == lead[e].known
           states == promises[e]
           source == Max({states[b].epoch : b \in route})
           holders == {b \in route : states[b].epoch = source}
           candidates == IF AnyEpochChosen THEN route ELSE holders
           least == CHOOSE b \in candidates :
                        \A c \in candidates : Len(states[b].bytes) <= Len(states[c].bytes)
           end == Len(states[least].bytes)
           isContinued == \A b, c \in route :
               /\ states[b].epoch = states[c].epoch /\ states[b].begin = states[c].begin
               /\ Fragment(states[b]) = Fragment(states[c])
           isProven == source = known.epoch /\ holders = route /\ known.route \subseteq route
           isWhole == isContinued \/ isProven \/ end = 0 \/ AllAdoptAtOnce
       IN /\ \A b \in route : states[b] # NoState
          /\ source >= known.epoch \/ MissingAccepted
          /\ lead' = [lead EXCEPT ![e].phase = "adopting",
                         ![e].first = IF isWhole THEN route ELSE holders,
                         ![e].choice = [end |-> end, source |-> source,
                             isContinued |-> IF isWhole THEN isContinued ELSE TRUE]]
          /\ promises' = [promises EXCEPT ![e] = [b \in Nodes |-> NoState]]
    /\ UNCHANGED <<row, crashes, spools, promised, serving, sent, told, acks, seen>>

\* J4: a broker takes over the chosen state, unless its confirmed bytes contradict it.
Adopt(b, e) ==
    /\ lead[e].phase \in {"adopting", "joining"} /\ b \in Adopters(e)
    /\ serving[b] = e /\ acks[e][b][1] < Stage(e) /\ queue[b] = <<>>
    /\ LET choice == lead[e].choice
           state == memory[b]
           isSource == state.epoch = choice.source
           end == IF isSource THEN choice.end ELSE Min(choice.end, state.confirmed)
           kept == First(state.bytes, Max({end, state.confirmed}))
           holes == [i \in 1 .. choice.end - Len(kept) |-> Hole]
       IN /\ Len(kept) <= choice.end
          /\ IF choice.isContinued
             THEN /\ isSource /\ Len(kept) = choice.end
                  /\ Become(b, [state EXCEPT !.epoch = e, !.bytes = kept])
             ELSE Become(b, [epoch |-> e, begin |-> choice.end, bytes |-> kept \o holes,
                             confirmed |-> choice.end])
          /\ seen' = seen \union Visible(memory'[b])
    /\ UNCHANGED <<row, crashes, promised, serving, lead, promises, sent, told, acks>>

\* J5: the transaction fails if the ballot has changed.
Record(e) ==
    /\ lead[e].phase \in {"adopting", "joining"} /\ IsLeading(e)
    /\ \A b \in Adopters(e) : acks[e][b][1] = Stage(e)
    /\ row.ballot = e \/ AppendBeforeRecord
    /\ row' = IF AppendBeforeRecord THEN row
              ELSE [row EXCEPT !.epoch = e, !.route = Adopters(e)]
    /\ LET primary == lead[e].node
           end == lead[e].choice.end
           isReady == Adopters(e) = lead[e].route
           known == [memory[primary] EXCEPT !.confirmed = end]
       IN IF isReady
          THEN /\ lead' = [lead EXCEPT ![e].phase = "ready"]
               /\ memory' = [memory EXCEPT ![primary] = known]
               /\ seen' = seen \union Visible(known)
               /\ sent' = [sent EXCEPT ![e] = known.bytes]
               /\ told' = [told EXCEPT ![e] = end]
               /\ acks' = [acks EXCEPT ![e] = [b \in Nodes |-> <<2, @[b][2]>>]]
          ELSE /\ lead' = [lead EXCEPT ![e].phase = "joining",
                              ![e].choice = [@ EXCEPT !.source = e, !.isContinued = FALSE]]
               /\ UNCHANGED <<memory, seen, sent, told, acks>>
    /\ UNCHANGED <<crashes, disk, queue, promised, serving, promises>>

\* --- appends -----------------------------------------------------------------

\* J6: the primary proposes a byte, and writes it to its own spool.
Propose(e) ==
    /\ lead[e].phase = "ready" /\ IsLeading(e)
    /\ LET primary == lead[e].node
           isNew(c, i) == i <= Len(sent[c]) /\ sent[c][i][1] = c
           count == Cardinality({one \in Epochs \X (1..AppendMax) : isNew(one[1], one[2])})
           bytes == Append(sent[e], <<e, Len(sent[e]) + 1>>)
       IN /\ count < AppendMax
          /\ sent' = [sent EXCEPT ![e] = bytes]
          /\ Become(primary, [memory[primary] EXCEPT !.bytes = bytes])
    /\ UNCHANGED <<row, crashes, promised, serving, lead, promises, told, acks, seen>>

\* A peer receives the next byte and its proposal.
Receive(b, e) ==
    /\ serving[b] = e /\ memory[b].epoch = e
    /\ lead[e].phase = "failed" \/ (lead[e].phase = "ready" /\ lead[e].node # b)
    /\ LET next == Len(memory[b].bytes) + 1
           bytes == Append(memory[b].bytes, sent[e][next])
       IN /\ next <= Len(sent[e])
          /\ Become(b, [memory[b] EXCEPT !.bytes = bytes,
                            !.confirmed = IF ProposedVisible THEN next ELSE @])
          /\ seen' = seen \union Visible(memory'[b])
    /\ acks' = IF AckBeforeFlush /\ IsHeard(b) THEN Heard(b, memory'[b]) ELSE acks
    /\ UNCHANGED <<row, crashes, promised, serving, lead, promises, sent, told>>

\* J6, J8: bytes that all brokers of the route have are acknowledged, and visible.
Confirm(e) ==
    /\ lead[e].phase = "ready" /\ IsLeading(e)
    /\ LET primary == lead[e].node
           end == told[e] + 1
           known == [memory[primary] EXCEPT !.confirmed = end]
       IN /\ end <= Len(sent[e])
          /\ \A b \in (IF PrimaryAlone THEN {primary} ELSE lead[e].route) : acks[e][b][2] >= end
          /\ told' = [told EXCEPT ![e] = end]
          /\ memory' = [memory EXCEPT ![primary] = known]
          /\ seen' = seen \union Visible(known)
    /\ UNCHANGED <<row, crashes, disk, queue, promised, serving, lead, promises, sent, acks>>

\* J8: peers learn the confirmed end.
Learn(b, e) ==
    /\ serving[b] = e /\ memory[b].epoch = e
    /\ lead[e].phase = "failed" \/ (lead[e].phase = "ready" /\ lead[e].node # b)
    /\ memory[b].confirmed < Min(told[e], Len(memory[b].bytes))
    /\ memory' = [memory EXCEPT ![b].confirmed = Min(told[e], Len(memory[b].bytes))]
    /\ seen' = seen \union Visible(memory'[b])
    /\ UNCHANGED <<row, crashes, disk, queue, promised, serving, lead, promises, sent, told, acks>>

\* --- disks and faults --------------------------------------------------------

\* A peer acknowledges an adoption or a proposal when it is durable.
Flush(b) ==
    /\ queue[b] # <<>>
    /\ disk' = [disk EXCEPT ![b] = Head(queue[b])]
    /\ queue' = [queue EXCEPT ![b] = Tail(@)]
    /\ acks' = IF IsHeard(b) THEN Heard(b, Head(queue[b])) ELSE acks
    /\ UNCHANGED <<row, crashes, memory, promised, serving, lead, promises, sent, told, seen>>

\* A broker ends and starts again: states that were not reported may have reached its
\* disk. Its streams are gone, and it has promised no more than its own epoch.
Crash(b) ==
    /\ crashes < CrashMax
    /\ crashes' = crashes + 1
    /\ \E count \in 0..Len(queue[b]) :
           LET found == IF count = 0 THEN disk[b] ELSE queue[b][count]
               state == [found EXCEPT !.epoch = IF ForgetEpoch THEN 0 ELSE @,
                             !.confirmed = IF ConfirmRecovered THEN Len(found.bytes) ELSE @]
           IN /\ memory' = [memory EXCEPT ![b] = state]
              /\ disk' = [disk EXCEPT ![b] = state]
              /\ promised' = [promised EXCEPT ![b] = state.epoch]
              /\ seen' = seen \union Visible(state)
    /\ queue' = [queue EXCEPT ![b] = <<>>]
    /\ serving' = [serving EXCEPT ![b] = 0]
    /\ Leave(b, 0, NoLead)
    /\ UNCHANGED <<row, promises, sent, told>>

Next ==
    \/ \E b \in Nodes : Reserve(b) \/ Flush(b) \/ Crash(b)
    \/ \E e \in Epochs :
           \/ Choose(e) \/ Record(e) \/ Propose(e) \/ Confirm(e)
           \/ \E b \in Nodes : Promise(b, e) \/ Adopt(b, e) \/ Receive(b, e) \/ Learn(b, e)

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Nodes)

-----------------------------------------------------------------------------
TypeOK ==
    \A b \in Nodes :
        /\ memory[b].confirmed <= Len(memory[b].bytes) /\ memory[b].begin <= Len(memory[b].bytes)
        /\ promised[b] >= memory[b].epoch /\ serving[b] <= promised[b]
        /\ queue[b] = <<>> => [disk[b] EXCEPT !.confirmed = 0] = [memory[b] EXCEPT !.confirmed = 0]

\* A visible byte is on the disk of a broker.
VisibleSurvives ==
    \A one \in seen : \E b \in Nodes :
        Len(disk[b].bytes) >= one[1] /\ disk[b].bytes[one[1]] = one[2]

\* No broker of the recorded route contradicts a visible byte, or ends before it: the
\* next synchronisation chooses the end of one of them.
RouteHasVisible ==
    \A one \in seen : \A b \in row.route :
        Len(disk[b].bytes) >= one[1] /\ disk[b].bytes[one[1]] \in {one[2], Hole}

\* An offset has one value, whichever broker shows it, and whenever.
OneValue == \A one, other \in seen : one[1] = other[1] => one[2] = other[2]
=============================================================================
