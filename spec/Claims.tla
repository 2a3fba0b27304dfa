------------------------------- MODULE Claims -------------------------------
(***************************************************************************)
(* Claims of rows by instances of one family at one site: src/family/lone.c *)
(* and src/tableam/claim.c. That two have none of the same row at a time   *)
(* is [one-claim].                                                         *)
(*                                                                         *)
(* Here a step is a load or a store. What a member stores others see later, *)
(* each location by itself and in any order, but before it gives a lock    *)
(* back; to take one makes nothing visible. That is less than any processor *)
(* promises for locks (x86 makes all visible that was stored before one is *)
(* taken). Heavyweight locks and condition variables are as PostgreSQL has *)
(* them. A member may leave and come back, as another instance. It may be   *)
(* stopped anywhere, for as long as it likes.                              *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Members,
  Rows,
  Broken    \* the rules that are left out: {}, but for showing that they are needed

VARIABLES
  at,        \* member -> its next step
  row,       \* member -> the row that it wants or has claimed, or NoRow
  way,       \* member -> what its look has come to: "alone", "beside" siblings, "wait"
  saw,       \* member -> how many siblings it has found
  memory,    \* location -> value
  pending,   \* member -> location -> values stored that others do not see yet
  spin,      \* who has the family's spinlock, or Nobody
  registry,  \* likewise, the registry lock
  mutex,     \* row -> likewise, the heavyweight lock
  line       \* who is in the line of the condition variable

local == <<at, row, way, saw>>
shared == <<memory, pending>>
vars == <<local, shared, spin, registry, mutex, line>>

Kept(rule) == rule \notin Broken

Nobody == "nobody"
NoRow == "no row"
NoClaim == <<Nobody, NoRow>>

Locations == {"ninstances", "claim"}

-----------------------------------------------------------------------------
(* Memory *)

Load(p, l) == IF pending[p][l] = << >> THEN memory[l] ELSE pending[p][l][Len(pending[p][l])]

Store(p, l, value) == pending' = [pending EXCEPT ![p][l] = Append(@, value)] /\ UNCHANGED memory

(* What p has stored first, of those that others do not see *)
Show(p, l) ==
  /\ pending[p][l] # << >>
  /\ memory' = [memory EXCEPT ![l] = Head(pending[p][l])]
  /\ pending' = [pending EXCEPT ![p][l] = Tail(@)]
  /\ UNCHANGED <<local, spin, registry, mutex, line>>

Shown(p) == \A l \in Locations : pending[p][l] = << >>

-----------------------------------------------------------------------------
(* The registry *)

Go(p, step) == at' = [at EXCEPT ![p] = step]

(* Siblings, without p, who is counted *)
Siblings(p) == Load(p, "ninstances") - (IF Kept("registered before it looks") THEN 1 ELSE 0)

Join(p) ==
  /\ at[p] = "out"
  /\ IF Kept("registered before it looks")
     THEN registry = Nobody /\ registry' = p /\ Go(p, "joins") /\ Store(p, "ninstances", Load(p, "ninstances") + 1)
     ELSE Go(p, "idle") /\ UNCHANGED <<registry, shared>>
  /\ UNCHANGED <<row, way, saw, spin, mutex, line>>

Leave(p) ==
  /\ Kept("registered before it looks")
  /\ at[p] \in {"idle", "fails"} /\ registry = Nobody /\ registry' = p
  /\ Go(p, IF at[p] = "idle" THEN "leaves" ELSE "leaves first")
  /\ Store(p, "ninstances", Load(p, "ninstances") - 1)
  /\ UNCHANGED <<row, way, saw, spin, mutex, line>>

UnlockRegistry(p) ==
  /\ at[p] \in {"joins", "leaves", "leaves first"} /\ Shown(p) /\ registry' = Nobody
  /\ Go(p, CASE at[p] = "joins" -> "idle" [] at[p] = "leaves" -> "out" [] OTHER -> "withdraws last")
  /\ UNCHANGED <<row, way, saw, shared, spin, mutex, line>>

-----------------------------------------------------------------------------
(* mip_lone_claim *)

Want(p, r) ==
  /\ at[p] = "idle" /\ Go(p, "looks") /\ row' = [row EXCEPT ![p] = r]
  /\ UNCHANGED <<way, saw, shared, spin, registry, mutex, line>>

Lock(p, rule) == IF Kept(rule) THEN spin = Nobody /\ spin' = p ELSE UNCHANGED spin

Unlock(p) ==
  /\ Kept("a section is seen by the next one") => Shown(p)
  /\ spin' = IF spin = p THEN Nobody ELSE spin

Look(p) ==
  /\ at[p] = "looks" /\ Lock(p, "to look is a section") /\ Go(p, "counts")
  /\ saw' = [saw EXCEPT ![p] = Siblings(p)]
  /\ UNCHANGED <<row, way, shared, registry, mutex, line>>

Claimed(p) ==
  LET claim == Load(p, "claim")
  IN claim # NoClaim /\ Kept("who has siblings looks") /\ (Kept("a claim is of one row") => claim[2] = row[p])

Note(p) ==
  /\ at[p] = "counts" /\ Go(p, "unlocks")
  /\ way' = [way EXCEPT ![p] = IF saw[p] = 0 THEN "alone" ELSE IF Claimed(p) THEN "wait" ELSE "beside"]
  /\ IF saw[p] = 0 THEN Store(p, "claim", <<p, row[p]>>) ELSE UNCHANGED shared
  /\ UNCHANGED <<row, saw, spin, registry, mutex, line>>

Looked(p) ==
  /\ at[p] = "unlocks" /\ Unlock(p)
  /\ CASE way[p] = "alone" ->
            /\ Go(p, IF Kept("a claim lasts until the change is made") THEN "acts" ELSE "withdraws first")
            /\ line' = line \ {p}
       [] way[p] = "beside" -> Go(p, "locks") /\ line' = line \ {p}
       [] p \in line -> Go(p, "sleeps") /\ UNCHANGED line
       [] OTHER -> Go(p, "lines up") /\ UNCHANGED line
  /\ UNCHANGED <<row, way, saw, shared, registry, mutex>>

LineUp(p) ==
  /\ at[p] = "lines up" \/ (at[p] = "sleeps" /\ p \notin line)
  /\ Go(p, IF at[p] = "sleeps" \/ Kept("in line before the last look") THEN "looks" ELSE "sleeps")
  /\ line' = line \cup {p}
  /\ UNCHANGED <<row, way, saw, shared, spin, registry, mutex>>

Mutex(p) ==
  /\ at[p] = "locks" /\ Go(p, "acts")
  /\ IF Kept("the mutex beside siblings") THEN mutex[row[p]] = Nobody /\ mutex' = [mutex EXCEPT ![row[p]] = p]
     ELSE UNCHANGED mutex
  /\ UNCHANGED <<row, way, saw, shared, spin, registry, line>>

-----------------------------------------------------------------------------
(* mip_release. An error is the same, and then p leaves. *)

Through(p) ==
  /\ at[p] = "acts" /\ UNCHANGED <<way, saw, shared, spin, registry, line>>
  /\ IF way[p] = "alone"
     THEN Go(p, "withdraws") /\ UNCHANGED <<row, mutex>>
     ELSE /\ Go(p, "idle") /\ row' = [row EXCEPT ![p] = NoRow]
          /\ mutex' = [mutex EXCEPT ![row[p]] = IF @ = p THEN Nobody ELSE @]

(* Broken: an error leaves the claim, for ever or until p has left. *)
Fail(p) ==
  /\ at[p] = "acts" /\ way[p] = "alone"
  /\ \/ ~Kept("an error takes the claim away") /\ Go(p, "idle") /\ row' = [row EXCEPT ![p] = NoRow]
     \/ ~Kept("a claim goes before who has it") /\ Go(p, "fails") /\ UNCHANGED row
  /\ UNCHANGED <<way, saw, shared, spin, registry, mutex, line>>

Withdraw(p) ==
  /\ at[p] \in {"withdraws", "withdraws first", "withdraws last"} /\ Lock(p, "to take away is a section")
  /\ Store(p, "claim", NoClaim)
  /\ saw' = [saw EXCEPT ![p] = Siblings(p)]
  /\ Go(p, CASE at[p] = "withdraws" -> "unlocks last"
             [] at[p] = "withdraws first" -> "unlocks first" [] OTHER -> "unlocks outside")
  /\ UNCHANGED <<row, way, registry, mutex, line>>

Withdrawn(p) ==
  /\ at[p] \in {"unlocks last", "unlocks first", "unlocks outside"} /\ Unlock(p)
  /\ IF at[p] = "unlocks first"
     THEN Go(p, "acts late") /\ UNCHANGED row
     ELSE IF at[p] = "unlocks last" /\ saw[p] > 0 /\ Kept("who is through wakes the others")
     THEN Go(p, "wakes") /\ UNCHANGED row
     ELSE Go(p, IF at[p] = "unlocks last" THEN "idle" ELSE "out") /\ row' = [row EXCEPT ![p] = NoRow]
  /\ UNCHANGED <<way, saw, shared, registry, mutex, line>>

(* Also the end of a change that was made behind its claim: broken *)
Wake(p) ==
  /\ at[p] \in {"wakes", "acts late"} /\ Go(p, "idle") /\ row' = [row EXCEPT ![p] = NoRow]
  /\ line' = IF at[p] = "wakes" THEN {} ELSE line
  /\ UNCHANGED <<way, saw, shared, spin, registry, mutex>>

-----------------------------------------------------------------------------
Init ==
  /\ at = [p \in Members |-> "out"] /\ row = [p \in Members |-> NoRow]
  /\ way = [p \in Members |-> "alone"] /\ saw = [p \in Members |-> 0]
  /\ memory = [l \in Locations |-> IF l = "claim" THEN NoClaim ELSE 0]
  /\ pending = [p \in Members |-> [l \in Locations |-> << >>]]
  /\ spin = Nobody /\ registry = Nobody /\ mutex = [r \in Rows |-> Nobody] /\ line = {}

(* What p does by itself, once it has begun *)
GoesOn(p) ==
  \/ UnlockRegistry(p) \/ Note(p) \/ Looked(p) \/ LineUp(p) \/ Through(p) \/ Withdrawn(p) \/ Wake(p)
  \/ \E l \in Locations : Show(p, l)

Next ==
  \E p \in Members :
    \/ GoesOn(p) \/ Join(p) \/ Leave(p) \/ (\E r \in Rows : Want(p, r)) \/ Fail(p)
    \/ Look(p) \/ Mutex(p) \/ Withdraw(p)

Spec == Init /\ [][Next]_vars

(* Nobody stops, and whoever wants a lock gets it some time. *)
FairSpec ==
  /\ Spec
  /\ \A p \in Members : WF_vars(GoesOn(p)) /\ SF_vars(Look(p)) /\ SF_vars(Mutex(p)) /\ SF_vars(Withdraw(p))

-----------------------------------------------------------------------------
Acts(p) == at[p] \in {"acts", "acts late"}

OneClaim == \A p, q \in Members : p # q /\ Acts(p) /\ Acts(q) => row[p] # row[q]

(* Who has claimed it, and will wake the others *)
Uses(p, r) ==
  row[p] = r /\ way[p] = "alone" /\ at[p] \in {"unlocks", "acts", "withdraws", "unlocks last", "wakes"}

(* Nobody sleeps but for a sibling at the same row: also, no wake-up is lost. *)
SleepsForARow ==
  \A p \in Members : at[p] = "sleeps" /\ p \in line => \E q \in Members \ {p} : Uses(q, row[p])

EverybodyGetsIt == \A p \in Members : at[p] = "looks" ~> at[p] = "acts"

Alike == Permutations(Members) \cup Permutations(Rows)
=============================================================================
