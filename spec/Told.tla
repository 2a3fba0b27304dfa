-------------------------------- MODULE Told --------------------------------
(***************************************************************************)
(* What callers are told of one family, and whether it is true.            *)
(*                                                                         *)
(* Protocol.tla has no processes: there a step happens whenever somebody   *)
(* can know enough to ask for it. But "nothing has happened" rests on what *)
(* is NOT there, and so on who may be about to begin: here there are       *)
(* coordinators, at work for a caller who has submitted the request        *)
(* (`Servers`), or because they have found it in doubt (`Sweepers`). Of    *)
(* the sites this has what Protocol.tla has proven: an instance that is    *)
(* prepared everywhere stays so, and the smallest one wins, whoever comes. *)
(* A coordinator or a client that dies takes no more steps.                *)
(***************************************************************************)
EXTENDS Decision, Sequences, TLC

CONSTANTS
  Sites,
  Servers,     \* coordinators, each for one submission
  Sweepers,    \* coordinators, each because it has found the request in doubt, to repeat it
  Cancellers,  \* likewise, but without its handler: their instances are empty
  Callers,
  OneRequest,  \* whether all callers ask for the same under this XID
  OwnXid,      \* whether the XID is of a server's own making: then there is one submission only
  Expiry,      \* whether sites may come to refuse the XID as expired
  Refuses      \* whether the handler may refuse the request

Coordinators == Servers \cup Sweepers \cup Cancellers

Nobody == "nobody"

VARIABLES
  state,      \* site, instance -> its state there: "none" before it has begun; "aborted": never to be prepared
  closed,     \* the sites that refuse the XID as expired
  phase,      \* instance -> "unused", "begun", "waits" (its handler, for whatever), "asked" to prepare, "failed"
  of,         \* instance -> its coordinator
  cancels,    \* the instances that are empty
  wrote,      \* those that may have written something when they are asked to prepare
  refusals,   \* those whose result is that the handler has refused the request
  exposed,    \* the instances that have been prepared somewhere
  at,         \* coordinator -> "idle", "taken" (the request), "running", "between" (two instances), "answered";
              \* "refusing": its handler has refused, which is to be recorded
  now,        \* coordinator -> its latest instance
  caller,     \* coordinator -> who has submitted
  sure,       \* coordinator -> whether its latest instance may run unasked
  quiet,      \* coordinator -> the sites where it has looked since, and found nobody
  overtaken,  \* coordinator -> whether a submission has become known since it began to look
  late,       \* coordinator -> whether its latest instance was refused as expired
  told,       \* <<caller, what it was told>>
  denied,     \* requests of which nothing may take effect, until a submission becomes known
  denied_all  \* whether nothing may take effect, until somebody submits

sites == <<state, closed, exposed>>
results == <<cancels, wrote, refusals>>
instances == <<phase, of, results>>
looks == <<quiet, overtaken, late>>
answers == <<told, denied, denied_all>>
vars == <<sites, instances, at, now, caller, sure, looks, answers>>

-----------------------------------------------------------------------------
Winner == Decide(state)
TakesEffect == Winner \ cancels # {}

Is(s, set) == {y \in Instances : state[s][y] \in set}
OwnOf(c) == {y \in Instances : of[y] = c}
Gone(y) == \A s \in Sites : state[s][y] = "aborted"
Begun(y) == \E s \in Sites : state[s][y] \in {"active", "prepared"}

RequestOf(k) == IF OneRequest THEN "the request" ELSE k

AskedOf(c) == IF caller[c] = Nobody THEN Nobody ELSE RequestOf(caller[c])

(* Somebody knows that it is being worked on: a site, or whoever watches a  *)
(* handler that takes its time. A submission counts from then on; where a   *)
(* site has lost it, and no other one has it, it is as if it had not begun.  *)
Known(y) == Begun(y) \/ (phase[y] = "waits" /\ \A s \in Sites : state[s][y] = "none")

StopLooking(c) ==
  /\ quiet' = [quiet EXCEPT ![c] = {}]
  /\ overtaken' = [overtaken EXCEPT ![c] = FALSE]
  /\ late' = [late EXCEPT ![c] = FALSE]

Answer(c, what) ==
  /\ at' = [at EXCEPT ![c] = "answered"] /\ now' = [now EXCEPT ![c] = 0]
  /\ told' = told \cup {<<caller[c], what>>}
  /\ StopLooking(c)

(* With every step by which instance y of coordinator c may become known    *)
BecomesKnown(c, y) ==
  LET anew == c \in Servers /\ ~Known(y)
      same(d) == AskedOf(d) = AskedOf(c)
  IN /\ denied' = IF anew THEN denied \ {AskedOf(c)} ELSE denied
     /\ overtaken' = [d \in Coordinators |-> overtaken[d] \/ (anew /\ same(d) /\ at[d] = "between")]

-----------------------------------------------------------------------------
(* Callers and coordinators *)

Submit(k, c) ==
  /\ at[c] = "idle"
  /\ OwnXid => \A d \in Servers : at[d] = "idle"
  /\ at' = [at EXCEPT ![c] = "taken"] /\ caller' = [caller EXCEPT ![c] = k]
  /\ denied_all' = FALSE
  /\ UNCHANGED <<sites, instances, now, sure, looks, told, denied>>

Adopt(c, y) ==
  /\ at[c] = "idle" /\ \E s \in Sites : state[s][y] = "prepared"
  /\ at' = [at EXCEPT ![c] = "taken"] /\ caller' = [caller EXCEPT ![c] = caller[of[y]]]
  /\ UNCHANGED <<sites, instances, now, sure, looks, answers>>

(* Instances are numbered as they begin. Their order is no matter here:      *)
(* whatever a site refuses because of it, it may refuse for no reason.       *)
Attempt(c, y) ==
  /\ at[c] \in {"taken", "between", "refusing"}
  /\ phase[y] = "unused" /\ \A z \in Instances : z < y => phase[z] # "unused"
  /\ phase' = [phase EXCEPT ![y] = "begun"] /\ of' = [of EXCEPT ![y] = c]
  /\ cancels' = IF c \in Cancellers THEN cancels \cup {y} ELSE cancels
  /\ refusals' = IF at[c] = "refusing" THEN refusals \cup {y} ELSE refusals
  /\ at' = [at EXCEPT ![c] = "running"] /\ now' = [now EXCEPT ![c] = y]
  /\ sure' = [sure EXCEPT ![c] = c \notin Sweepers \/ (at[c] = "refusing" /\ ~Kept("a refusal looks again"))]
  /\ StopLooking(c)
  /\ UNCHANGED <<sites, caller, wrote, answers>>

Begin(c, s) ==
  LET y == now[c]
  IN /\ at[c] = "running" /\ phase[y] \in {"begun", "waits"} /\ state[s][y] = "none"
     /\ state' = [state EXCEPT ![s][y] = "active"]
     /\ BecomesKnown(c, y)
     /\ UNCHANGED <<closed, exposed, instances, at, now, caller, sure, quiet, late, told, denied_all>>

(* The handler waits for something. *)
Wait(c) ==
  LET y == now[c]
  IN /\ c \in Servers /\ ~OwnXid /\ at[c] = "running" /\ phase[y] = "begun"
     /\ Kept("a handler that waits is seen") => \E s \in Sites : state[s][y] # "none"
     /\ phase' = [phase EXCEPT ![y] = "waits"]
     /\ BecomesKnown(c, y)
     /\ UNCHANGED <<sites, of, results, at, now, caller, sure, quiet, late, told, denied_all>>

(* What is empty was to be cancelled. *)
ToRepeat(c, s) ==
  {y \in Is(s, {"prepared"}) :
     /\ Kept("what is empty is not repeated") => y \notin cancels
     /\ AskedOf(of[y]) = AskedOf(c)}

(* Whoever repeats unasked looks whether there is still something in doubt *)
LookAgain(c) ==
  LET y == now[c]
      first == IF Kept("begin everywhere, then look again") THEN \A s \in Sites : state[s][y] # "none"
               ELSE \E s \in Sites : state[s][y] # "none"
  IN /\ at[c] = "running" /\ ~sure[c]
     /\ Kept("look again") => first /\ \E s \in Sites : ToRepeat(c, s) \ {y} # {}
     /\ sure' = [sure EXCEPT ![c] = TRUE]
     /\ UNCHANGED <<sites, instances, at, now, caller, looks, answers>>

(* What prepares it may be on its way for long. Broken: so may its begin.    *)
Ask(c) ==
  /\ at[c] = "running" /\ phase[now[c]] \in {"begun", "waits"} /\ sure[c]
  /\ Kept("all sites know of what may be prepared") => \A s \in Sites : state[s][now[c]] # "none"
  /\ phase' = [phase EXCEPT ![now[c]] = "asked"]
  /\ wrote' = IF now[c] \in cancels \cup refusals THEN wrote ELSE wrote \cup {now[c]}
  /\ UNCHANGED <<sites, of, cancels, refusals, at, now, caller, sure, looks, answers>>

(* The handler has refused: another instance, that writes nothing, is to say *)
(* so. Broken: this one does, with what it has written.                      *)
RefuseRequest(c) ==
  LET y == now[c]
  IN /\ Refuses /\ c \notin Cancellers
     /\ at[c] = "running" /\ phase[y] \in {"begun", "waits"} /\ sure[c] /\ y \notin refusals
     /\ IF Kept("a refusal has written nothing")
        THEN /\ phase' = [phase EXCEPT ![y] = "failed"]
             /\ state' = [s \in Sites |-> [state[s] EXCEPT ![y] = "aborted"]]
             /\ at' = [at EXCEPT ![c] = "refusing"] /\ now' = [now EXCEPT ![c] = 0]
             /\ UNCHANGED <<wrote, refusals>>
        ELSE /\ \A s \in Sites : state[s][y] # "none"
             /\ phase' = [phase EXCEPT ![y] = "asked"]
             /\ wrote' = wrote \cup {y} /\ refusals' = refusals \cup {y}
             /\ UNCHANGED <<state, at, now>>
     /\ UNCHANGED <<closed, exposed, of, cancels, caller, sure, looks, answers>>

BeginToLook(c) ==
  /\ at' = [at EXCEPT ![c] = "between"] /\ now' = [now EXCEPT ![c] = 0]
  /\ late' = [late EXCEPT ![c] = \E s \in closed : state[s][now[c]] = "aborted"]

(* The handler has raised, or a statement has failed: the transactions end. *)
Fail(c) ==
  LET y == now[c]
  IN /\ at[c] = "running" /\ phase[y] \in {"begun", "waits"}
     /\ phase' = [phase EXCEPT ![y] = "failed"]
     /\ state' = [s \in Sites |-> [state[s] EXCEPT ![y] = "aborted"]]
     /\ BeginToLook(c)
     /\ UNCHANGED <<closed, exposed, of, results, caller, sure, quiet, overtaken, answers>>

(* Asked, and not complete as far as is known; the requests may still arrive. *)
GiveUp(c) ==
  /\ at[c] = "running" /\ phase[now[c]] = "asked"
  /\ BeginToLook(c)
  /\ UNCHANGED <<sites, instances, caller, sure, quiet, overtaken, answers>>

-----------------------------------------------------------------------------
(* Sites *)

Prepare(s, y) ==
  /\ phase[y] = "asked"
  /\ state[s][y] = "active" \/ (~Kept("all sites know of what may be prepared") /\ state[s][y] = "none")
  /\ s \in closed => y \in cancels /\ Is(s, {"prepared"}) # {}
  /\ state' = [state EXCEPT ![s][y] = "prepared"] /\ exposed' = exposed \cup {y}
  /\ UNCHANGED <<closed, instances, at, now, caller, sure, looks, answers>>

(* A session ends, a statement fails, prepare is refused; mip.refuse *)
Refuse(s, y) ==
  /\ phase[y] \in {"begun", "waits", "asked"} /\ state[s][y] = "active"
  /\ state' = [state EXCEPT ![s][y] = "aborted"]
  /\ UNCHANGED <<closed, exposed, instances, at, now, caller, sure, looks, answers>>

RollBack(s, y) ==
  /\ state[s][y] = "prepared" /\ \E q \in Sites : state[q][y] = "aborted"
  /\ state' = [state EXCEPT ![s][y] = "aborted"]
  /\ UNCHANGED <<closed, exposed, instances, at, now, caller, sure, looks, answers>>

Close(s) ==
  /\ Expiry /\ s \notin closed /\ closed' = closed \cup {s}
  /\ UNCHANGED <<state, exposed, instances, at, now, caller, sure, looks, answers>>

-----------------------------------------------------------------------------
(* Telling. "Unknown" is always true, and needs no step. *)

(* Only when nothing of its own is left does a coordinator look. *)
Look(c, s) ==
  /\ c \in Servers /\ at[c] = "between" /\ s \notin quiet[c]
  /\ Kept("nothing of one's own is left") => \A y \in OwnOf(c) : Gone(y)
  /\ Kept("nobody else is there") => Is(s, {"active", "prepared"}) \ OwnOf(c) = {}
  /\ quiet' = [quiet EXCEPT ![c] = @ \cup {s}]
  /\ overtaken' = [overtaken EXCEPT ![c] = @ /\ quiet[c] # {}]
  /\ UNCHANGED <<sites, instances, at, now, caller, sure, late, answers>>

(* Who alone knows the XID, and has never been prepared, need not look.      *)
Unseen(c) == OwnXid /\ (Kept("unseen only if never prepared") => OwnOf(c) \cap exposed = {})

HasLooked(c) ==
  /\ at[c] = "between"
  /\ \A y \in OwnOf(c) : Gone(y) \/ ~Kept("nothing of one's own is left")
  /\ quiet[c] = Sites \/ Unseen(c) \/ ~Kept("a look at every site")

TellNothing(c) ==
  /\ c \in Servers /\ HasLooked(c)
  /\ Answer(c, "nothing")
  /\ denied' = IF overtaken[c] THEN denied ELSE denied \cup {AskedOf(c)}
  /\ UNCHANGED <<sites, instances, caller, sure, denied_all>>

(* The client has an XID of its own, and sends it to several servers. *)
TellClient(k) ==
  LET mine == {c \in Servers : caller[c] = k}
  IN /\ Callers = {k} /\ <<k, "nothing">> \in told
     /\ Kept("the client hears all") => \A c \in mine : at[c] = "answered"
     /\ denied_all' = TRUE
     /\ UNCHANGED <<sites, instances, at, now, caller, sure, looks, told, denied>>

(* Broken: another transmission comes to a server that works on the request. *)
TellInProgress(c) ==
  /\ ~Kept("in progress is no failure")
  /\ c \in Servers /\ at[c] = "running" /\ Known(now[c])
  /\ denied' = denied \cup {AskedOf(c)}
  /\ UNCHANGED <<sites, instances, at, now, caller, sure, looks, told, denied_all>>

TellExpired(c) ==
  /\ c \in Servers /\ HasLooked(c)
  /\ Kept("expired is what a site refuses as such") => late[c]
  /\ Answer(c, "expired")
  /\ UNCHANGED <<sites, instances, caller, sure, denied, denied_all>>

(* Broken: another request under this XID is there, but not decided. *)
TellReused(c) ==
  /\ ~Kept("reused is what is decided") /\ c \in Servers /\ at[c] \in {"running", "between"}
  /\ \E y \in Instances : Begun(y) /\ AskedOf(of[y]) # AskedOf(c)
  /\ Answer(c, "reused")
  /\ UNCHANGED <<sites, instances, caller, sure, denied, denied_all>>

Refusal(w) == "refused " \o ToString(w)

(* The winner, whose result everybody is told *)
TellResult(c) ==
  /\ c \in Servers /\ at[c] \in {"running", "between"}
  /\ \E w \in Winner :
       Answer(c, IF AskedOf(of[w]) # AskedOf(c) THEN "reused"
                 ELSE IF w \in cancels /\ Kept("cancelled is told as such") THEN "cancelled"
                 ELSE IF w \in refusals /\ Kept("refused is told as such") THEN Refusal(w) ELSE ToString(w))
  /\ UNCHANGED <<sites, instances, caller, sure, denied, denied_all>>

-----------------------------------------------------------------------------
Init ==
  /\ state = [s \in Sites |-> [y \in Instances |-> "none"]]
  /\ closed = {} /\ cancels = {} /\ wrote = {} /\ refusals = {} /\ exposed = {}
  /\ phase = [y \in Instances |-> "unused"]
  /\ of = [y \in Instances |-> Nobody]
  /\ at = [c \in Coordinators |-> "idle"]
  /\ now = [c \in Coordinators |-> 0]
  /\ caller = [c \in Coordinators |-> Nobody]
  /\ sure = [c \in Coordinators |-> FALSE]
  /\ quiet = [c \in Coordinators |-> {}]
  /\ overtaken = [c \in Coordinators |-> FALSE]
  /\ late = [c \in Coordinators |-> FALSE]
  /\ told = {} /\ denied = {} /\ denied_all = FALSE

Steps ==
  \/ \E k \in Callers : TellClient(k) \/ (\E c \in Servers : Submit(k, c))
  \/ \E c \in Coordinators :
       \/ Wait(c) \/ LookAgain(c) \/ Ask(c) \/ RefuseRequest(c) \/ Fail(c) \/ GiveUp(c)
       \/ TellNothing(c) \/ TellInProgress(c) \/ TellExpired(c) \/ TellReused(c)
       \/ \E s \in Sites : Begin(c, s) \/ Look(c, s)
       \/ \E y \in Instances :
            \/ c \notin Servers /\ Adopt(c, y)
            \/ Attempt(c, y)
  \/ \E s \in Sites :
       \/ Close(s)
       \/ \E y \in Instances : Prepare(s, y) \/ Refuse(s, y) \/ RollBack(s, y)

(* Once there is a winner, there is only its result to be told. *)
Next == IF Winner = {} THEN Steps ELSE \E c \in Coordinators : TellResult(c)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants *)

Told(what) == \E k \in Callers : <<k, what>> \in told

(* "Nothing has happened": the request takes no effect unless somebody submits it anew. *)
NothingHappens == \A w \in Winner \ cancels : AskedOf(of[w]) \notin denied

(* Of an XID that only this client knows: nor what is still on its way *)
NothingAtAll == denied_all => ~TakesEffect

NothingAfterExpiry == Told("expired") => ~TakesEffect

(* Results are the winner's; two callers of the same request are told the same. *)
ResultsAreTrue ==
  \A y \in Instances : Told(ToString(y)) => Winner = {y} /\ y \notin cancels \cup refusals

(* So are refusals, and nothing is there of what a handler has written.     *)
RefusalsAreTrue == \A y \in Instances : Told(Refusal(y)) => Winner = {y} /\ y \in refusals \ wrote

CancelledIsTrue == Told("cancelled") => Winner # {} /\ ~TakesEffect

ReusedIsTrue ==
  \A k \in Callers : <<k, "reused">> \in told => \A w \in Winner : AskedOf(of[w]) # RequestOf(k)

(* Coordinators and sites are interchangeable. *)
Alike == Permutations(Sites) \cup Permutations(Servers) \cup Permutations(Sweepers) \cup Permutations(Cancellers)
=============================================================================
