------------------------------ MODULE MCReplica ------------------------------
(* Values for the constants that configuration files cannot write down *)
EXTENDS Replica

CONSTANTS a, b, c, p, q, x, y, z, t, u, v

(* q refers to p. *)
Refers == [w \in Rows |-> IF w = q THEN p ELSE w]

Does(f) == [w \in Rows |-> IF w \in DOMAIN f THEN f[w] ELSE "none"]

Update == Does(p :> "row")
Delete == Does(p :> "key")
Child == Does(q :> "key" @@ p :> "reference")
LockOnly == Does(p :> "lock" @@ x :> "row")
Other == Does(x :> "row")
Both == Does(p :> "row" @@ x :> "row")
Keyless == Does(y :> "keyless")

All == [Txns -> {Update, Delete, Child, LockOnly}]
OfRows == {f \in [Txns -> {Update, LockOnly, Keyless}] : \E w \in Txns : f[w] = Update}
References == [Txns -> {Update, Delete, Child}]

(* z is the table of p, whose key cannot be hashed where it is referred to. Either it is     *)
(* where it is changed; or it is not there either, and the reference is R, K as of types of  *)
(* extensions, or hidden by the N of another row.                                            *)
ChildBy(m) == Does(q :> "key" @@ p :> "share" @@ z :> m)
Unhashed ==
  [Txns -> {Does(p :> "key" @@ z :> "R"), ChildBy("K")}]
    \cup [Txns -> {Does(p :> "unhashed" @@ z :> "K"), ChildBy("R"), ChildBy("K"), ChildBy("N")}]

Orphans == [Txns -> {Delete, Child}]
NoKeys == [Txns -> {Keyless}]

(* One refers to what the other deletes; one updates what the other locks. *)
Waits == {t :> Child @@ u :> Delete, t :> Update @@ u :> LockOnly}

(* u is refused where t is in the log, and v is in conflict with u alone. *)
Chain == {t :> Update @@ u :> Both @@ v :> Other}

Nothing == <<>>
Certain == <<<<t, TRUE>>>>
ChainBegun == <<<<t, TRUE>>, <<u, FALSE>>>>

TxnsAlike == Permutations(Txns)
UVAlike == Permutations({u, v})
Alike == Permutations(Txns) \cup Permutations(Replicas)
=============================================================================
