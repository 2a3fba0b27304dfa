--------------------------------- MODULE MC ---------------------------------
(* Values for the constants that configuration files cannot write down *)
EXTENDS Protocol

EverySite == [y \in Instances |-> Sites]
OldAndNew == [f \in Families |-> f]
SameTime == [f \in Families |-> 1]
NoTime == [f \in Families |-> 0]

(* Instance 1 declares the site `a` alone *)
OtherSet == [y \in Instances |-> IF y = 1 THEN {CHOOSE s \in Sites : TRUE} ELSE Sites]

(* Instance 1 declares all sites but one *)
SmallAndLarge == [y \in Instances |-> IF y = 1 THEN Sites \ {CHOOSE s \in Sites : TRUE} ELSE Sites]
=============================================================================
