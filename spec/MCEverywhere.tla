---------------------------- MODULE MCEverywhere ----------------------------
(* Values for the constants that configuration files cannot write down *)
EXTENDS Everywhere

CONSTANTS a, b, x, y, z, t, u, v

Place == x :> a @@ y :> a @@ z :> b

Themselves == [w \in Txns |-> w]
Pair == [w \in Txns |-> IF w = u THEN t ELSE w]    \* t and u are siblings

OneSite == {{a}}
BothSites == {{a, b}}
AnySites == {{a}, {b}, {a, b}}

Symmetry == Permutations(Txns)
OfPair == Permutations({t, u})
=============================================================================
