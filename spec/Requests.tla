------------------------------ MODULE Requests ------------------------------
(***************************************************************************)
(* Requests at a replicated site: instances of one family, which may begin *)
(* at any replica and are committed in one phase, by the log; and askers,  *)
(* who want to know what has become of the request, and have a fence       *)
(* ordered. An asker may refuse an instance by his fence.                  *)
(*                                                                         *)
(* Logs, disks and agents are those of Replica.tla. What an instance       *)
(* changes is left out: because of that it may be refused as well, and     *)
(* then is as good as one that was cancelled. So is that one is doomed     *)
(* where another one is applied: the log would refuse it.                  *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Replicas,
  Instances,
  Askers,
  Refused,  \* whom askers refuse: instances, and others that never begin; {}: nobody
  OneOwner, \* whether askers are of one role, or each of his own
  Window,
  Crashes,  \* how many there may be
  Broken    \* the rules that are left out: {}, but for showing that they are needed

VARIABLES
  home,    \* instance, asker -> its replica
  at,      \* instance, asker -> how far it is
  told,    \* instance, asker -> what its client was told
  begun,   \* instance -> position applied at its replica when it began
  anew,    \* instance -> who had asked, or been told, before it began
  refuses, \* asker -> the instance that he refuses, or Nobody
  sent,    \* instances and askers whose message an agent has
  log,     \* of them
  disk,    \* replica -> the verdicts up to where it has applied the log
  doing,   \* replica -> the position that it is about to apply, or 0
  from,    \* replica -> up to where its certifier knows of no fences: broken
  crashes

clients == <<home, at, told, begun, anew, refuses, sent>>
replicas == <<disk, doing, from, crashes>>
vars == <<clients, log, replicas>>

Kept(rule) == rule \notin Broken

Nobody == "nobody"
Nothing == "nothing"   \* has happened, nor will

Clients == Instances \cup Askers

(* "knows": its fence has been applied. *)
States == {"none", "runs", "waits", "commits", "knows", "gone"}

-----------------------------------------------------------------------------
Applied(r) == Len(disk[r])
Logged == {log[i] : i \in 1..Len(log)}

CommittedAt(r) == {log[p] : p \in {q \in 1..Applied(r) : disk[r][q]}} \cap Instances
Committed == UNION {CommittedAt(r) : r \in Replicas}

(* Fences that refuse somebody, up to where r has applied the log. A family belongs to the *)
(* role of the first one: those of others are kept out.                                    *)
RefusingAt(r) == {p \in 1..Applied(r) : log[p] \in Askers /\ refuses[log[p]] # Nobody}
NotedAt(r) ==
  IF OneOwner THEN RefusingAt(r) ELSE {p \in RefusingAt(r) : \A q \in RefusingAt(r) : p <= q}

RefusedAt(r) ==
  IF Kept("a refusal goes with its fence") THEN {refuses[log[p]] : p \in NotedAt(r)}
  ELSE {refuses[k] : k \in {j \in Askers : home[j] = r /\ told[j] = Nothing}}

-----------------------------------------------------------------------------
(* The certifier *)

(* Whoever is at position q keeps t away. *)
Meets(r, t, q) ==
  IF log[q] \in Askers
  THEN Kept("a fence refuses who has begun before it") /\ q > from[r]
  ELSE Kept("an XID is a key") /\ disk[r][q]

(* At position p, which is the next one *)
Stays(r, p) ==
  LET t == log[p]
  IN t \in Instances =>
       /\ Kept("who has begun before the window is refused") => begun[t] + Window >= p
       /\ \A q \in begun[t] + 1 .. p - 1 : q + Window > p => ~Meets(r, t, q)

(* What is about to be applied keeps the others away. *)
Decides(r) ==
  IF doing[r] # 0 THEN Stays(r, doing[r]) \/ ~Kept("who is refused has refused nobody")
  ELSE disk[r] # <<>> /\ ~Kept("what has been applied refuses nobody early")

-----------------------------------------------------------------------------
(* Instances *)

(* What nobody will ask for is forgotten. *)
Over(set, answer) ==
  LET forgotten(c) == c \in set /\ c \notin sent /\ answer[c] # "refused"
  IN /\ at' = [c \in Clients |-> IF c \in set THEN "gone" ELSE at[c]]
     /\ told' = [c \in Clients |-> IF c \in set THEN answer[c] ELSE told[c]]
     /\ home' = [c \in Clients |-> IF forgotten(c) THEN Nobody ELSE home[c]]
     /\ begun' = [t \in Instances |-> IF forgotten(t) THEN 0 ELSE begun[t]]
     /\ anew' = [t \in Instances |-> IF forgotten(t) THEN {} ELSE anew[t]]
     /\ UNCHANGED <<refuses, sent>>

(* Who finds it decided does not begin. The position is read first: what is applied until *)
(* it looks for its family it finds, and does not count as known.                         *)
Begin(t, r) ==
  /\ at[t] = "none" /\ CommittedAt(r) = {}
  /\ Kept("who is refused does not begin") => t \notin RefusedAt(r)
  /\ at' = [at EXCEPT ![t] = "runs"] /\ home' = [home EXCEPT ![t] = r]
  /\ begun' = [begun EXCEPT ![t] = Applied(r)]
  /\ anew' = [anew EXCEPT ![t] = {k \in Askers : k \in Logged \/ told[k] # "-"}]
  /\ UNCHANGED <<told, refuses, sent, log, replicas>>

(* It is to be committed, and an agent may have its message; beside what decides its family *)
(* it is refused at once.                                                                   *)
End(t) ==
  /\ at[t] = "runs" /\ UNCHANGED <<log, replicas>>
  /\ IF Decides(home[t]) THEN Over({t}, t :> "refused")
     ELSE /\ at' = [at EXCEPT ![t] = "waits"] /\ sent' = sent \cup {t}
          /\ begun' = [begun EXCEPT ![t] = IF Kept("an XID counts from the begin") THEN @ ELSE Applied(home[t])]
          /\ UNCHANGED <<home, told, anew, refuses>>

(* Cancelled, or its session is ended: it is told nothing that could be wrong. *)
Cancel(t) ==
  /\ at[t] \in {"waits", "commits"}
  /\ Over({t}, t :> "-")
  /\ UNCHANGED <<log, replicas>>

(* Who waits, while his family is decided, need not wait for his turn. *)
RefuseEarly(t) ==
  LET r == home[t]
  IN /\ at[t] = "waits" /\ doing[r] # 0 /\ Decides(r) /\ log[doing[r]] # t
     /\ Over({t}, t :> "refused")
     /\ UNCHANGED <<log, replicas>>

-----------------------------------------------------------------------------
(* Askers *)

(* Where an instance has been committed there is nothing to be asked. *)
Ask(k, r) ==
  /\ at[k] = "none" /\ CommittedAt(r) = {}
  /\ at' = [at EXCEPT ![k] = "waits"] /\ home' = [home EXCEPT ![k] = r]
  /\ \E t \in IF Refused = {} THEN {Nobody} ELSE Refused : refuses' = [refuses EXCEPT ![k] = t]
  /\ sent' = IF Kept("a fence is ordered") THEN sent \cup {k} ELSE sent
  /\ UNCHANGED <<told, begun, anew, log, replicas>>

(* Broken: without a fence, when all is here that the log has *)
MayTell(k) ==
  \/ at[k] = "knows"
  \/ at[k] = "waits" /\ k \in Logged /\ ~Kept("who asks is told behind his fence")
  \/ at[k] = "waits" /\ Applied(home[k]) = Len(log) /\ ~Kept("a fence is ordered")

(* His refusal is noted at all replicas, if at one. *)
IsNoted(k) ==
  \/ refuses[k] = Nobody \/ refuses[k] \in RefusedAt(home[k])
  \/ ~Kept("a refusal goes with its fence") \/ ~Kept("a refusal that is kept out is not told")

Tell(k) ==
  LET here == CommittedAt(home[k])
  IN /\ MayTell(k)
     /\ at' = [at EXCEPT ![k] = "gone"]
     /\ told' = [told EXCEPT ![k] =
                   IF here # {} THEN CHOOSE t \in here : TRUE ELSE IF IsNoted(k) THEN Nothing ELSE "-"]
     /\ UNCHANGED <<home, begun, anew, refuses, sent, log, replicas>>

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
     /\ UNCHANGED <<log, disk, from, crashes>>
     /\ IF ~(t \in Instances /\ home[t] = r /\ at[t] = "waits") THEN UNCHANGED clients
        ELSE IF Stays(r, p)
        THEN at' = [at EXCEPT ![t] = "commits"] /\ UNCHANGED <<home, told, begun, anew, refuses, sent>>
        ELSE Over({t}, t :> "refused")

Done(r, ok) ==
  /\ disk' = [disk EXCEPT ![r] = Append(@, ok)]
  /\ doing' = [doing EXCEPT ![r] = 0]
  /\ UNCHANGED <<log, from, crashes>>

Apply(r) ==
  LET c == log[doing[r]]
      waits == at[c] = "waits" /\ c \in Askers /\ home[c] = r
  IN /\ doing[r] # 0 /\ ~(home[c] = r /\ at[c] = "commits")
     /\ Done(r, Stays(r, doing[r]))
     /\ at' = IF waits THEN [at EXCEPT ![c] = "knows"] ELSE at
     /\ UNCHANGED <<home, told, begun, anew, refuses, sent>>

CommitOwn(t) ==
  /\ at[t] = "commits"
  /\ Done(home[t], TRUE)
  /\ Over({t}, t :> "committed")

(* Whoever was there hears nothing any more. *)
Crash(r) ==
  /\ crashes < Crashes /\ crashes' = crashes + 1
  /\ \E n \in 0..Applied(r) :
       /\ disk' = [disk EXCEPT ![r] = SubSeq(@, 1, n)]
       /\ from' = [from EXCEPT ![r] = IF Kept("fences are read again") THEN 0 ELSE n]
  /\ doing' = [doing EXCEPT ![r] = 0]
  /\ Over({c \in Clients : home[c] = r /\ at[c] \notin {"none", "gone"}}, [c \in Clients |-> "-"])
  /\ UNCHANGED log

-----------------------------------------------------------------------------
Init ==
  /\ home = [c \in Clients |-> Nobody] /\ at = [c \in Clients |-> "none"] /\ told = [c \in Clients |-> "-"]
  /\ begun = [t \in Instances |-> 0] /\ anew = [t \in Instances |-> {}]
  /\ refuses = [k \in Askers |-> Nobody]
  /\ sent = {} /\ log = <<>> /\ disk = [r \in Replicas |-> <<>>]
  /\ doing = [r \in Replicas |-> 0] /\ from = doing /\ crashes = 0

Next ==
  \/ \E t \in Instances :
       \/ End(t) \/ Cancel(t) \/ RefuseEarly(t) \/ CommitOwn(t)
       \/ \E r \in Replicas : Begin(t, r)
  \/ \E k \in Askers : Tell(k) \/ \E r \in Replicas : Ask(k, r)
  \/ \E c \in Clients : Publish(c)
  \/ \E r \in Replicas : Receive(r) \/ Apply(r) \/ Crash(r)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK == at \in [Clients -> States] /\ \A r \in Replicas : Applied(r) <= Len(log)

(* [one-winner]: of all instances, wherever they are *)
AtMostOnce == Cardinality(Committed) <= 1

SameVerdicts == \A r, s \in Replicas : \A p \in 1..Applied(r) : p <= Applied(s) => disk[r][p] = disk[s][p]

(* Whoever gets so far at any replica finds the result that others have been told, or his own. *)
ResultsAreTrue ==
  \A c \in Clients, t \in Instances :
    (told[c] = t \/ (c = t /\ told[c] = "committed")) =>
      \E p \in 1..Len(log) : log[p] = t /\ \A r \in Replicas : Applied(r) >= p => disk[r][p]

(* "Nothing has happened": nor does anything, unless it begins after that has been asked. *)
NothingHappens == \A k \in Askers : told[k] = Nothing => \A t \in Committed : k \in anew[t]

(* [refusal-stays], at all replicas: nor then, of an instance that he has refused *)
RefusalsAreTrue == \A k \in Askers : told[k] = Nothing => refuses[k] \notin Committed

(* Who fails, and is told so, does not come. *)
RefusedIsTrue == \A t \in Instances : told[t] = "refused" => t \notin Committed

(* And not without a reason: something has come behind its begin. *)
RefusedBehind == \A t \in Instances : told[t] = "refused" => \E p \in begun[t] + 1 .. Len(log) : log[p] # t

Alike == Permutations(Replicas) \cup Permutations(Instances) \cup Permutations(Askers)
=============================================================================
