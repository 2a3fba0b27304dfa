------------------------------ MODULE Decision ------------------------------
(***************************************************************************)
(* The decision, as in python/pgmip/decision.py: which instance of a       *)
(* family wins, given its MIPTs.                                           *)
(*                                                                         *)
(* A MIPT is a function from the instances to their states, "none" where   *)
(* it has no entry. `mipts` is a function from the sites of the family to  *)
(* their MIPTs, each read at any time; Unread stands for a site that has   *)
(* not been read.                                                          *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Instances,  \* the XINSTs: 1..n
  Broken      \* the rules that are left out: {}, but for showing that they are needed

Kept(rule) == rule \notin Broken

State == {"active", "prepared", "committed", "aborted"}

Unread == [y \in Instances |-> "unread"]

Min(S) == CHOOSE y \in S : \A z \in S : y <= z
Max(S) == CHOOSE y \in S : \A z \in S : y >= z

In(mipt, states) == {y \in Instances : mipt[y] \in states}

Somewhere(mipts, states) == UNION {In(mipts[s], states) : s \in DOMAIN mipts}

Committed(mipts) == Somewhere(mipts, {"committed"})

Read(mipts) == {s \in DOMAIN mipts : mipts[s] # Unread}

(* Prepared at every site *)
Complete(mipts) ==
  LET asked == IF Kept("a MIPT from every site") THEN DOMAIN mipts ELSE Read(mipts)
  IN IF asked = {} THEN {}
     ELSE {y \in Instances : \A s \in asked : mipts[s][y] = "prepared"}

(* Which rule gives the decision, or why there is none *)
Rule(mipts) ==
  IF Committed(mipts) # {} /\ Kept("a committed instance first")
  THEN IF Cardinality(Committed(mipts)) = 1 THEN "committed" ELSE "violation"
  ELSE IF Complete(mipts) # {} THEN "complete"
  ELSE IF Read(mipts) # DOMAIN mipts THEN "unread" ELSE "undecided"

(* The winner as a set: of one, or empty while there is none. After a       *)
(* violation, which Python refuses to decide, of all that are committed.    *)
Decide(mipts) ==
  CASE Rule(mipts) \in {"committed", "violation"} -> Committed(mipts)
    [] Rule(mipts) = "complete" ->
         {IF Kept("the smallest complete instance") THEN Min(Complete(mipts))
          ELSE Max(Complete(mipts))}
    [] OTHER -> {}

(* A retry has to be above it. *)
Highest(mipts) ==
  LET known == Somewhere(mipts, State) IN IF known = {} THEN 0 ELSE Max(known)

(* May still take effect *)
Live(mipts) == Somewhere(mipts, {"active", "prepared"})
=============================================================================
