----------------------------- MODULE Everywhere -----------------------------
(***************************************************************************)
(* mip.serializable = everywhere: SERIALIZABLE transactions over several   *)
(* sites, or of one, beside each other.                                    *)
(*                                                                         *)
(* Sites run snapshot isolation, in which the first who updates a row wins *)
(* it. What a transaction reads it reads as of its snapshot there, and     *)
(* what it writes nobody sees before its commit there; so when it reads    *)
(* and writes between the two makes no difference, and it says what it has *)
(* read and written when it ends at a site. A transaction that several     *)
(* sites have prepared is decided when all have, and then committed at     *)
(* each of them at any time. Of siblings one is decided.                   *)
(*                                                                         *)
(* src/transam/README says why the rules leave no cycle, src/transam/      *)
(* across.c is what is modelled.                                           *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
  Txns,
  FamilyOf,   \* of an instance, those with the same one are siblings; itself for others
  Sites,
  Rows,
  SiteOf,     \* of a row
  Choices,    \* the site sets that a family may have
  AtOnce,     \* whether who ends is seen and checked in one step
  Broken      \* the rules that are left out: {}, but for showing that they are needed

VARIABLES
  sites,   \* transaction -> its sites
  at,      \* transaction, site -> how far it is there
  sees,    \* transaction, site -> who was committed there at its snapshot
  beside,  \* transaction, site -> who was prepared there at its snapshot
  reads,   \* transaction -> rows
  writes,  \* transaction -> rows
  told,    \* transaction -> who was over, for his client, before it began
  last,    \* site -> whose commit there a crash may lose: nothing durable has come behind it
  forgot   \* site -> of whom a crash has lost what he has read: broken

vars == <<sites, at, sees, beside, reads, writes, told, last, forgot>>

Kept(rule) == rule \notin Broken

(* "ends": taken for prepared by the others, not yet checked *)
States == {"none", "runs", "ends", "prepared", "committed", "aborted"}

Nobody == {}

-----------------------------------------------------------------------------
Siblings(t) == {u \in Txns : FamilyOf[u] = FamilyOf[t]} \ {t}

(* Ends with COMMIT, and is no instance *)
Plain == {t \in Txns : Siblings(t) = {} /\ Cardinality(sites[t]) = 1}

Is(s, set) == {u \in Txns : at[u][s] \in set}
Over(t) == \E s \in sites[t] : at[t][s] = "aborted"

(* It takes effect, at the latest when whoever has read so commits it. *)
Lost(t) == \E u \in Siblings(t), s \in Sites : at[u][s] = "committed"
Complete(t) ==
  /\ \A s \in sites[t] : at[t][s] \in {"prepared", "committed"}
  /\ t \in Plain => \A s \in sites[t] : at[t][s] = "committed"
Takes(t) == Complete(t) /\ ~Lost(t)
            /\ \/ \E s \in sites[t] : at[t][s] = "committed"
               \/ Siblings(t) = {}
Effective == {t \in Txns : Takes(t)}

Here(set, s) == {x \in set : SiteOf[x] = s}

(* Nothing is written, nor can be at another site *)
OnlyReads(t) == t \in Plain /\ writes[t] = {}

-----------------------------------------------------------------------------
(* The rules. `who` is asked when it ends at s, `state` being how far the others are. *)

Rivals(who) == Txns \ ({who} \cup Siblings(who))

(* "seen before it is checked": else two that end at once miss each other. *)
Marked == IF Kept("seen before it is checked") THEN {"ends", "prepared"} ELSE {"prepared"}

(* R1: what I have read has not been replaced. *)
Current(who, s) ==
  \A u \in Rivals(who) :
    (Here(reads[who] \cap writes[u], s) # {} /\ u \notin sees[who][s])
      => at[u][s] \notin Marked \cup {"committed"}

(* R3: nobody who is undecided, or on his way, has read what I replace. Of a reader *)
(* that writes nothing the snapshot is his moment.                                 *)
Unread(who, s) ==
  \A u \in Rivals(who) :
    Here(writes[who] \cap reads[u], s) # {} =>
      \/ at[u][s] \notin Marked \/ u \in forgot[s]
      \/ OnlyReads(u)
      \/ u \in Plain /\ ~Kept("who is being committed has read it, too")

(* RO: I have not missed what had been prepared when I began to read. *)
Early(who, s) ==
  \A u \in Rivals(who) :
    (Here(reads[who] \cap writes[u], s) # {} /\ u \notin sees[who][s]) =>
      \/ u \notin beside[who][s] \/ u \in Plain
      \/ ~Kept("a reader fails, though what it has missed was committed since") /\ at[u][s] = "committed"

Valid(who, s) ==
  IF OnlyReads(who) \/ (writes[who] = {} /\ ~Kept("readers of several sites read what stays"))
  THEN Kept("readers miss nothing that was prepared") => Early(who, s)
  ELSE /\ Kept("what was read is current") => Current(who, s)
       /\ Kept("what is written was not read by the undecided") => Unread(who, s)

-----------------------------------------------------------------------------
Begin(t, s) ==
  /\ s \in sites[t] /\ at[t][s] = "none" /\ ~Over(t)
  /\ at' = [at EXCEPT ![t][s] = "runs"]
  /\ sees' = [sees EXCEPT ![t][s] = Is(s, {"committed"})]
  /\ beside' = [beside EXCEPT ![t][s] = Is(s, {"ends", "prepared"})]
  /\ told' = IF \A q \in Sites : at[t][q] = "none" THEN [told EXCEPT ![t] = Effective] ELSE told
  /\ UNCHANGED <<sites, reads, writes, last, forgot>>

(* First updater wins; siblings have versions of their own. *)
MayWrite(t, s, x) ==
  \A u \in Txns \ {t} :
    x \in writes[u] =>
      /\ at[u][s] = "committed" => u \in sees[t][s]
      /\ at[u][s] \in {"ends", "prepared"} => u \in Siblings(t)

Prepared(t, s) == last' = IF OnlyReads(t)' THEN last ELSE [last EXCEPT ![s] = Nobody]

(* It is seen to end before it is checked, so that of two who do so at once one sees *)
(* the other.                                                                        *)
End(t, s) ==
  /\ at[t][s] = "runs" /\ ~Over(t)
  /\ \E r \in SUBSET Here(Rows, s), w \in SUBSET Here(Rows, s) :
       /\ r \cap w = {} /\ r \cup w # {}    \* who replaces what he has read is first to do so
       /\ \A x \in w : MayWrite(t, s, x)
       /\ reads' = [reads EXCEPT ![t] = @ \cup r]
       /\ writes' = [writes EXCEPT ![t] = @ \cup w]
  /\ at' = [at EXCEPT ![t][s] = IF AtOnce THEN "prepared" ELSE "ends"]
  /\ UNCHANGED <<sites, sees, beside, told, forgot>>
  /\ IF AtOnce \/ ~Kept("seen before it is checked") THEN Valid(t, s)' ELSE TRUE
  /\ IF AtOnce THEN Prepared(t, s) ELSE last' = last

Check(t, s) ==
  /\ at[t][s] = "ends" /\ ~Over(t)
  /\ Kept("seen before it is checked") => Valid(t, s)
  /\ at' = [at EXCEPT ![t][s] = "prepared"]
  /\ UNCHANGED <<sites, sees, beside, reads, writes, told, forgot>>
  /\ Prepared(t, s)

Commit(t, s) ==
  /\ s \in sites[t] /\ at[t][s] = "prepared" /\ ~Lost(t)
  /\ \A q \in sites[t] : at[t][q] \in {"prepared", "committed"}
  /\ at' = [u \in Txns |-> IF u = t THEN [at[u] EXCEPT ![s] = "committed"]
                           ELSE IF u \in Siblings(t) THEN [at[u] EXCEPT ![s] = "aborted"]
                           ELSE at[u]]
  /\ last' = [last EXCEPT ![s] = IF OnlyReads(t) THEN @ ELSE IF t \in Plain THEN Nobody ELSE {t}]
  /\ UNCHANGED <<sites, sees, beside, reads, writes, told, forgot>>

(* Who runs there is gone, and a commit that was not flushed may be in doubt again. *)
Dies(u, s) ==
  \/ at[u][s] \in {"runs", "ends"}
  \/ u \in Plain /\ at[u][s] = "prepared"

Crash(s) ==
  /\ \E lost \in {Nobody, last[s]} :
       /\ lost # Nobody \/ ~Kept("what was read outlives a crash")
       /\ at' = [u \in Txns |->
                   IF Dies(u, s) THEN [q \in Sites |-> IF q \in sites[u] THEN "aborted" ELSE at[u][q]]
                   ELSE IF u \in lost THEN [at[u] EXCEPT ![s] = "prepared"] ELSE at[u]]
  /\ forgot' = IF Kept("what was read outlives a crash") THEN forgot
               ELSE [forgot EXCEPT ![s] = Is(s, {"prepared"})]
  /\ last' = [last EXCEPT ![s] = Nobody]
  /\ UNCHANGED <<sites, sees, beside, reads, writes, told>>

-----------------------------------------------------------------------------
Init ==
  /\ sites \in {f \in [Txns -> Choices] : \A t \in Txns : \A u \in Siblings(t) : f[u] = f[t]}
  /\ at = [t \in Txns |-> [s \in Sites |-> "none"]]
  /\ sees = [t \in Txns |-> [s \in Sites |-> {}]] /\ beside = sees
  /\ reads = [t \in Txns |-> {}] /\ writes = reads /\ told = reads
  /\ last = [s \in Sites |-> Nobody] /\ forgot = last

Next ==
  \E s \in Sites :
    \/ Crash(s)
    \/ \E t \in Txns : Begin(t, s) \/ End(t, s) \/ Check(t, s) \/ Commit(t, s)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK == at \in [Txns -> [Sites -> States]]

(* In every serial order that gives the same answers u is before t. *)
Before(u, t) ==
  \/ u \in told[t]
  \/ \E x \in Rows :
       LET s == SiteOf[x]
       IN \/ x \in writes[u] \cap (reads[t] \cup writes[t]) /\ u \in sees[t][s]
          \/ x \in reads[u] \cap writes[t] /\ t \notin sees[u][s]

(* There is such an order, and it is that of real time: who begins when another is *)
(* over comes behind him.                                                          *)
Serializable ==
  \A set \in SUBSET Effective \ {{}} : \E t \in set : \A u \in set \ {t} : ~Before(u, t)
=============================================================================
