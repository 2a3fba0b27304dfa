---------------------------- MODULE Definitions -----------------------------
(***************************************************************************)
(* Changes of definitions at a replicated site: each replica executes them *)
(* when it comes to them in the log. One is tried out, and undone, where   *)
(* it comes from.                                                          *)
(*                                                                         *)
(* Logs, disks and agents are those of Replica.tla; of the transactions,   *)
(* which are in no conflict with each other, there is only when they have  *)
(* changed rows. No definition waits for their locks, as there are some    *)
(* that lock nothing of theirs. What is in the tables follows from what    *)
(* has been applied.                                                       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Replicas,
  Txns,
  Defs,
  Window,
  Crashes,  \* how many there may be
  CanFail,  \* whether there may be definitions that no replica can execute
  Broken    \* the rules that are left out: {}, but for showing that they are needed

VARIABLES
  home,   \* transaction, definition -> its replica
  at,     \* transaction, definition -> how far it is
  told,   \* transaction, definition -> what its client was told
  first,  \* transaction -> position applied at its replica when it made its first change;
          \* definition -> ... when it was tried out
  under,  \* transaction -> under which definitions it has made changes: a set of sets
  tried,  \* definition -> what there was when it was tried out
  sent,   \* those whose message an agent has
  log,    \* of transactions and definitions
  disk,   \* replica -> the verdicts up to where it has applied the log
  doing,  \* replica -> the position that it is about to apply, or 0
  from,   \* replica -> up to where its certifier has read nothing, since it began anew
  out,    \* definitions that no replica can execute: each leaves them out
  crashes

clients == <<home, at, told, first, under, tried, sent>>
replicas == <<disk, doing, from, out, crashes>>
vars == <<clients, log, replicas>>

Kept(rule) == rule \notin Broken

Nobody == "nobody"

Clients == Txns \cup Defs

States == {"none", "runs", "waits", "commits", "gone"}

-----------------------------------------------------------------------------
Applied(r) == Len(disk[r])
Logged == {log[i] : i \in 1..Len(log)}

(* What has been applied before position p. What is left out has been certified, and is not there. *)
Before(r, p) == {log[q] : q \in {i \in 1..p - 1 : disk[r][i]}} \ out
Here(r) == Before(r, Applied(r) + 1)

-----------------------------------------------------------------------------
(* The certifier *)

(* What stays, at a position behind `first`, keeps it away. *)
Meets(c, d) ==
  \/ c \in Txns /\ d \in Defs /\ Kept("who has changed something before a definition is refused")
  \/ c \in Defs /\ d \in Txns /\ Kept("a definition stays if nothing has been changed since")
  \/ c \in Defs /\ d \in Defs /\ Kept("nor if anything has been defined")

(* At position p, which is the next one *)
Stays(r, p) ==
  LET c == log[p]
  IN /\ Kept("who knows less than the window is refused") => first[c] + Window >= p
     /\ \A q \in first[c] + 1 .. p - 1 : (disk[r][q] /\ q > from[r]) => ~Meets(c, log[q])

(* Whoever is at his end by then has changed something before. *)
Defines(r) ==
  /\ doing[r] # 0
  /\ IF log[doing[r]] \in Defs
     THEN Stays(r, doing[r]) \/ ~Kept("a definition that is refused refuses nobody") ELSE FALSE

-----------------------------------------------------------------------------
(* What nobody will ask for is forgotten. *)
Over(set, answer) ==
  LET forgotten(c) == c \in set /\ c \notin sent
  IN /\ at' = [c \in Clients |-> IF c \in set THEN "gone" ELSE at[c]]
     /\ told' = [c \in Clients |-> IF c \in set THEN answer[c] ELSE told[c]]
     /\ home' = [c \in Clients |-> IF forgotten(c) THEN Nobody ELSE home[c]]
     /\ first' = [c \in Clients |-> IF forgotten(c) THEN 0 ELSE first[c]]
     /\ under' = [t \in Txns |-> IF forgotten(t) THEN {} ELSE under[t]]
     /\ tried' = [d \in Defs |-> IF forgotten(d) THEN {} ELSE tried[d]]
     /\ UNCHANGED sent

(* One change after the other *)
Change(t, r) ==
  /\ \/ at[t] = "none"
     \/ at[t] = "runs" /\ home[t] = r
  /\ at' = [at EXCEPT ![t] = "runs"] /\ home' = [home EXCEPT ![t] = r]
  /\ first' = [first EXCEPT ![t] = IF at[t] = "none" THEN Applied(r) ELSE @]
  /\ under' = [under EXCEPT ![t] = @ \cup {Here(r) \cap Defs}]
  /\ UNCHANGED <<told, tried, sent, log, replicas>>

(* The position is read first: what is applied until it is tried out does not count as known. *)
Try(d, r) ==
  /\ at[d] = "none"
  /\ at' = [at EXCEPT ![d] = "runs"] /\ home' = [home EXCEPT ![d] = r]
  /\ first' = [first EXCEPT ![d] = Applied(r)]
  /\ tried' = [tried EXCEPT ![d] = Here(r)]
  /\ UNCHANGED <<told, under, sent, log, replicas>>

Counts(c) ==
  IF c \in Txns THEN Kept("a transaction counts from its first change")
  ELSE Kept("a definition counts from its trial")

(* An agent may have its message. *)
End(c) ==
  /\ at[c] = "runs" /\ UNCHANGED <<log, replicas>>
  /\ IF Defines(home[c]) THEN Over({c}, c :> "refused")
     ELSE /\ at' = [at EXCEPT ![c] = "waits"] /\ sent' = sent \cup {c}
          /\ first' = [first EXCEPT ![c] = IF Counts(c) THEN @ ELSE Applied(home[c])]
          /\ UNCHANGED <<home, told, under, tried>>

(* Cancelled, or its session is ended: it is told nothing that could be wrong. *)
Cancel(c) ==
  /\ at[c] \in {"waits", "commits"}
  /\ Over({c}, c :> "-")
  /\ UNCHANGED <<log, replicas>>

(* Who waits, while there is a definition, need not wait for his turn. *)
RefuseEarly(c) ==
  LET r == home[c]
  IN /\ at[c] = "waits" /\ Defines(r) /\ log[doing[r]] # c
     /\ Over({c}, c :> "refused")
     /\ UNCHANGED <<log, replicas>>

-----------------------------------------------------------------------------
(* The log, and who applies it *)

Publish(c) ==
  /\ c \in sent \ Logged /\ log' = Append(log, c)
  /\ UNCHANGED <<clients, replicas>>

Receive(r) ==
  LET p == Applied(r) + 1
      t == log[p]
  IN /\ doing[r] = 0 /\ p <= Len(log)
     /\ doing' = [doing EXCEPT ![r] = p]
     /\ UNCHANGED <<log, disk, from, out, crashes>>
     /\ IF ~(t \in Txns /\ home[t] = r /\ at[t] = "waits") THEN UNCHANGED clients
        ELSE IF Stays(r, p)
        THEN at' = [at EXCEPT ![t] = "commits"] /\ UNCHANGED <<home, told, first, under, tried, sent>>
        ELSE Over({t}, t :> "refused")

Done(r, ok) ==
  /\ disk' = [disk EXCEPT ![r] = Append(@, ok)]
  /\ doing' = [doing EXCEPT ![r] = 0]
  /\ UNCHANGED <<log, from, out, crashes>>

(* Who waits for his definition is told when it has been executed, or is left out. *)
Apply(r) ==
  LET c == log[doing[r]]
      stays == Stays(r, doing[r])
      ok == stays /\ c \notin out
  IN /\ doing[r] # 0 /\ ~(home[c] = r /\ at[c] = "commits")
     /\ Done(r, IF Kept("a definition that is left out is certified nevertheless") THEN stays ELSE ok)
     /\ IF c \in Defs /\ home[c] = r /\ at[c] = "waits"
        THEN Over({c}, c :> IF ok THEN "committed" ELSE "refused") ELSE UNCHANGED clients

CommitOwn(t) ==
  /\ at[t] = "commits"
  /\ Done(home[t], TRUE)
  /\ Over({t}, t :> "committed")

(* Its certifier reads one window again. *)
Crash(r) ==
  /\ crashes < Crashes /\ crashes' = crashes + 1
  /\ \E n \in 0..Applied(r) :
       /\ disk' = [disk EXCEPT ![r] = SubSeq(@, 1, n)]
       /\ from' = [from EXCEPT ![r] = IF n + 1 > Window THEN n + 1 - Window ELSE 0]
  /\ doing' = [doing EXCEPT ![r] = 0]
  /\ Over({c \in Clients : home[c] = r /\ at[c] \notin {"none", "gone"}}, [c \in Clients |-> "-"])
  /\ UNCHANGED <<log, out>>

-----------------------------------------------------------------------------
Init ==
  /\ home = [c \in Clients |-> Nobody] /\ at = [c \in Clients |-> "none"] /\ told = [c \in Clients |-> "-"]
  /\ first = [c \in Clients |-> 0]
  /\ under = [t \in Txns |-> {}] /\ tried = [d \in Defs |-> {}]
  /\ sent = {} /\ log = <<>> /\ disk = [r \in Replicas |-> <<>>]
  /\ doing = [r \in Replicas |-> 0] /\ from = doing /\ crashes = 0
  /\ out \in IF CanFail THEN SUBSET Defs ELSE {{}}

Next ==
  \/ \E t \in Txns : CommitOwn(t) \/ \E r \in Replicas : Change(t, r)
  \/ \E d \in Defs, r \in Replicas : Try(d, r)
  \/ \E c \in Clients : End(c) \/ Cancel(c) \/ RefuseEarly(c) \/ Publish(c)
  \/ \E r \in Replicas : Receive(r) \/ Apply(r) \/ Crash(r)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK == at \in [Clients -> States] /\ \A r \in Replicas : Applied(r) <= Len(log)

SameVerdicts == \A r, s \in Replicas : \A p \in 1..Applied(r) : p <= Applied(s) => disk[r][p] = disk[s][p]

AppliedAt(r, set) == {p \in 1..Applied(r) : disk[r][p] /\ log[p] \in set \ out}

(* What is applied has been made under the definitions that there are. *)
SameDefinitions ==
  \A r \in Replicas : \A p \in AppliedAt(r, Txns) : under[log[p]] = {Before(r, p) \cap Defs}

(* A definition meets, everywhere, what it has been tried out on. *)
SameRows == \A r \in Replicas : \A p \in AppliedAt(r, Defs) : tried[log[p]] = Before(r, p)

RefusedIsTrue == \A c \in Clients : told[c] = "refused" => \A r \in Replicas : c \notin Here(r)

(* It is in the log, and whoever gets so far has it. *)
CommittedIsTrue ==
  \A c \in Clients : told[c] = "committed" =>
    \E p \in 1..Len(log) : log[p] = c /\ \A r \in Replicas : Applied(r) >= p => disk[r][p]

Alike == Permutations(Replicas) \cup Permutations(Txns) \cup Permutations(Defs)
=============================================================================
