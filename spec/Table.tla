------------------------------- MODULE Table --------------------------------
(* Prints what Decision says of all MIPTs of two sites; `run` compares it   *)
(* with what python/pgmip/decision.py says. That everybody decides alike is *)
(* half of [one-winner].                                                    *)
EXTENDS Decision, TLC

Read2 == [Instances -> State \cup {"none"}] \cup {Unread}

ASSUME \A a \in Read2, b \in Read2 :
  LET mipts == [a |-> a, b |-> b]
  IN PrintT(<<"decision", a, b, Rule(mipts), Decide(mipts), Highest(mipts), Live(mipts)>>)
=============================================================================
