--------------------------------- MODULE MC ---------------------------------
(* Values for the constants that configuration files cannot write down *)
EXTENDS Protocol

EverySite == [y \in Instances |-> Sites]
OldAndNew == [f \in Families |-> f]
SameTime == [f \in Families |-> 1]

(* Instance 1 declares the site `a` alone *)
OtherSet == [y \in Instances |-> IF y = 1 THEN {CHOOSE s \in Sites : TRUE} ELSE Sites]
=============================================================================
