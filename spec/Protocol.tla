------------------------------ MODULE Protocol ------------------------------
(***************************************************************************)
(* Clients, coordinators, sites, the sweeper, clean-up and crashes.        *)
(*                                                                         *)
(* Sites have state. The others have none that matters: whatever a client, *)
(* a coordinator or a sweeper does rests on what somebody has read of the  *)
(* sites' MIPTs, now or long ago. So there are no processes here, and no   *)
(* messages: a step at a site may happen whenever somebody can know enough *)
(* to ask for it. That covers requests that are lost, delayed and          *)
(* repeated, retries that overtake each other, and processes that crash    *)
(* (their steps do not happen) or come back late. README.md has more, and  *)
(* which code each action stands for.                                      *)
(***************************************************************************)
EXTENDS Decision, TLC

CONSTANTS
  Sites,
  Families,     \* the XIDs
  Time,         \* the times that they carry: positive numbers, or 0 for none
  SitesOf,      \* the site set that each instance declares
  Empty,        \* the instances that do nothing and have the result "cancelled"
  HorizonMoves  \* whether clocks, and families that are not in the model, move it

VARIABLES
  state,         \* site, family, instance -> its state there
  unflushed,     \* site -> families whose commit a crash of the site would lose
  acknowledged,  \* site -> families whose entry is marked so
  horizon,       \* site -> XIDs up to this time are expired, for ever
  reads,         \* site, family -> the MIPTs that somebody may have read
  decided,       \* family -> the instances that somebody may have found to win
  ended          \* <<family, site set>>s that somebody may have found to be impossible

vars == <<state, unflushed, acknowledged, horizon, reads, decided, ended>>

(* "none" is also an instance that is active. "aborted" is also one that    *)
(* the site has refused, of which it keeps no entry. "removed" was          *)
(* committed; the site knows no more of it than its horizon tells, and where *)
(* it was "forgotten", because its XID carries no time, nothing at all.      *)
States == {"none", "prepared", "committed", "aborted", "removed", "forgotten"}

-----------------------------------------------------------------------------
(* What a site knows *)

Is(s, f, set) == {y \in Instances : state[s][f][y] \in set}
Prepared(s, f) == Is(s, f, {"prepared"})
CommittedAt(s, f) == Is(s, f, {"committed"})
TookEffect(s, f) == Is(s, f, {"committed", "removed", "forgotten"})

(* What a MIPT tells; nobody decides by entries that are aborted. *)
Shown == [none |-> "none", prepared |-> "prepared", committed |-> "committed",
          aborted |-> "none", removed |-> "none", forgotten |-> "none"]
Mipt(of) == [y \in Instances |-> Shown[of[y]]]

Timed(f) == Time[f] > 0
Expired(s, f) == Timed(f) /\ Time[f] <= horizon[s]

(* What mip.retention_timeless promises, since no site can see to it. An     *)
(* instance that comes to a site that has forgotten the request has not been  *)
(* anywhere that has not, nor there before: nobody works on one for so long.  *)
(* And nobody sends a request again that all sites have forgotten; who does   *)
(* makes a new one of it.                                                     *)
HasForgotten(s, f) == Is(s, f, {"forgotten"}) # {}
IsNew(f, y) ==
  \A q \in Sites :
    \/ state[q][f][y] = "none"
    \/ HasForgotten(q, f) /\ state[q][f][y] = "prepared"
Forgotten(f) == \E w \in Instances : \A s \in SitesOf[w] : state[s][f][w] = "forgotten"
Promised(s, f, y) ==
  /\ (Kept("nobody is older than the retention") /\ HasForgotten(s, f)) => IsNew(f, y)
  /\ Kept("what all have forgotten is not sent again") => ~Forgotten(f)

-----------------------------------------------------------------------------
(* Reading MIPTs and deciding need no steps of their own: with each change  *)
(* of a MIPT everybody may have read it, and may hold on to that for ever.  *)

SiteSets == {SitesOf[y] : y \in Instances}

(* Everybody decides from the sites of the own instance, or those that he    *)
(* has been given, and not at all if an entry names other sites.             *)
Comparable(mipts) ==
  \A s \in DOMAIN mipts, y \in Instances :
    mipts[s][y] \in {"prepared", "committed"} => SitesOf[y] = DOMAIN mipts

Decisions(s, f, new) ==
  LET compared == Kept("the same sites") /\ Kept("given sites are compared")
      given == IF Kept("given sites are compared") THEN SiteSets ELSE SUBSET Sites
      decisions(set) ==
        LET others == set \ {s}
            all == UNION {reads[q][f] : q \in others} \cup {Unread}
            read == {m \in [others -> all] : \A q \in others : m[q] \in reads[q][f] \cup {Unread}}
            mipts == {m @@ (s :> new) : m \in read}
        IN UNION {IF compared => Comparable(m) THEN Decide(m) ELSE {} : m \in mipts}
  IN UNION {decisions(set) : set \in {sites \in given : s \in sites}}

(* A MIPT with a committed entry tells what has been decided already. *)
Show(s, f, mipt) ==
  LET says_more == In(mipt, {"committed"}) = {} \/ ~Kept("a committed instance first")
  IN IF mipt \in reads[s][f] THEN UNCHANGED <<reads, decided>>
     ELSE /\ reads' = IF says_more THEN [reads EXCEPT ![s][f] = @ \cup {mipt}] ELSE reads
          /\ decided' = [decided EXCEPT ![f] = @ \cup Decisions(s, f, mipt)]

Change(s, f, y, to) ==
  /\ state' = [state EXCEPT ![s][f][y] = to]
  /\ Show(s, f, Mipt([state[s][f] EXCEPT ![y] = to]))

-----------------------------------------------------------------------------
(* Instances *)

OtherSites(s, f, y) ==
  \E z \in Prepared(s, f) \cup CommittedAt(s, f) : SitesOf[z] # SitesOf[y]

(* [no-cancel-of-done] *)
RefusedAsExpired(s, f, y) ==
  /\ Kept("horizon") /\ Expired(s, f)
  /\ \/ y \notin Empty
     \/ Kept("cancel beside a prepared instance only") /\ Prepared(s, f) = {}

(* [none-below] is the second one. *)
MustRefuse(s, f, y) ==
  \/ Kept("not after a commit") /\ CommittedAt(s, f) # {}
  \/ Kept("not below a prepared instance") /\ \E z \in Prepared(s, f) : z > y
  \/ Kept("the same sites") /\ OtherSites(s, f, y)
  \/ RefusedAsExpired(s, f, y)

Refused(s, f, y) == state[s][f][y] = "aborted" \/ MustRefuse(s, f, y)

Prepare(s, f, y) ==
  /\ s \in SitesOf[y] /\ state[s][f][y] = "none" /\ ~MustRefuse(s, f, y)
  /\ Promised(s, f, y)
  /\ Change(s, f, y, "prepared")
  /\ UNCHANGED <<unflushed, acknowledged, horizon, ended>>

(* By whoever knows that site q will never prepare y: its coordinator, which *)
(* has been refused for one of the reasons above or because the transaction  *)
(* failed, or anybody who has asked q to refuse it. A refusal that no        *)
(* rollback follows needs no step of its own: nobody can tell it from an     *)
(* instance that has not been prepared yet.                                  *)
RollBack(s, f, y, q) ==
  /\ state[s][f][y] = "prepared" /\ q \in SitesOf[y] /\ state[q][f][y] \in {"none", "aborted"}
  /\ state' = [state EXCEPT ![s][f][y] = "aborted", ![q][f][y] = "aborted"]
  /\ Show(s, f, Mipt([state[s][f] EXCEPT ![y] = "aborted"]))
  /\ UNCHANGED <<unflushed, acknowledged, horizon, ended>>

(* Broken: q has not refused y, and may still prepare it *)
RollBackTooEarly(s, f, y, q) ==
  /\ state[s][f][y] = "prepared" /\ q \in SitesOf[y] /\ state[q][f][y] = "none"
  /\ \/ ~Kept("no rollback on an unknown outcome")
     \/ ~Kept("no rollback by others without a refusal") /\ \E z \in Prepared(q, f) : z > y
  /\ Change(s, f, y, "aborted")
  /\ UNCHANGED <<unflushed, acknowledged, horizon, ended>>

(* An XID has been given to several requests, over sites that overlap. Once *)
(* an instance over others has won that shares a site with y, that site has *)
(* never prepared y, or it could not have prepared the winner; and it never *)
(* will. So anybody may roll y back.                                        *)
Overlap(y, z) == SitesOf[y] # SitesOf[z] /\ SitesOf[y] \cap SitesOf[z] # {}

Lost(f, y) ==
  \E z \in {w \in Instances : Overlap(y, w)} :
    \/ z \in decided[f] \/ \E q \in SitesOf[z] : state[q][f][z] \in {"committed", "removed"}
    \/ ~Kept("lost to a winner only") /\ \E q \in SitesOf[z] : state[q][f][z] = "prepared"

Lose(s, f, y) ==
  /\ state[s][f][y] = "prepared" /\ Lost(f, y)
  /\ Change(s, f, y, "aborted")
  /\ UNCHANGED <<unflushed, acknowledged, horizon, ended>>

-----------------------------------------------------------------------------
(* Commit *)

Commit(s, f, w) ==
  /\ w \in decided[f] /\ s \in SitesOf[w]
  /\ \/ state[s][f][w] = "prepared"
     \/ ~Kept("commit only what is prepared") /\ state[s][f][w] # "committed"
  /\ CommittedAt(s, f) = {}
  /\ Change(s, f, w, "committed")
  /\ unflushed' = [unflushed EXCEPT ![s] = @ \cup {f}]
  /\ UNCHANGED <<acknowledged, horizon, ended>>

CommitOnePhase(s, f, y) ==
  /\ SitesOf[y] = {s} /\ state[s][f][y] = "none" /\ ~MustRefuse(s, f, y)
  /\ Promised(s, f, y)
  /\ Kept("one phase beside no prepared instance") => Prepared(s, f) = {}
  /\ Change(s, f, y, "committed")
  /\ unflushed' = [unflushed EXCEPT ![s] =
                    IF Kept("one phase is durable") THEN @ ELSE @ \cup {f}]
  /\ UNCHANGED <<acknowledged, horizon, ended>>

(* Losers are rolled back before the winner's commit, after its hand-over,   *)
(* and not durably so: whatever else becomes durable makes that durable, too, *)
(* but until then a MIPT may have been read without them that a crash        *)
(* brings back (`state' = state`). Where the winner has been committed, for   *)
(* those that have come to light since, durably.                              *)
RollBackLosers(s, f) ==
  /\ \E w \in Instances :
       /\ \/ state[s][f][w] = "committed"
          \/ /\ state[s][f][w] = "prepared"
             /\ w \in decided[f] \/ ~Kept("losers of the winner only")
       /\ Prepared(s, f) \ {w} # {}
       /\ LET new == [y \in Instances |->
                       IF y # w /\ state[s][f][y] = "prepared" THEN "aborted" ELSE state[s][f][y]]
          IN /\ \/ state' = [state EXCEPT ![s][f] = new]
                \/ /\ state[s][f][w] = "prepared"
                   /\ state' = state
             /\ Show(s, f, Mipt(new))
       /\ unflushed' = IF state[s][f][w] = "committed"
                        THEN [unflushed EXCEPT ![s] = @ \ {f}] ELSE unflushed
  /\ UNCHANGED <<acknowledged, horizon, ended>>

-----------------------------------------------------------------------------
(* Crashes of sites. Those of processes are steps that never come. *)

LoseCommit(s, f) ==
  /\ f \in unflushed[s]
  /\ \E w \in CommittedAt(s, f) : Change(s, f, w, "prepared")
  /\ unflushed' = [unflushed EXCEPT ![s] = @ \ {f}]
  /\ acknowledged' = [acknowledged EXCEPT ![s] = @ \ {f}]
  /\ UNCHANGED <<horizon, ended>>

(* Broken: [prepared-stays], and what is told of a commit in one phase *)
LosePrepare(s, f, y) ==
  /\ \/ ~Kept("prepare is durable") /\ state[s][f][y] = "prepared"
     \/ ~Kept("one phase is durable") /\ state[s][f][y] = "committed" /\ SitesOf[y] = {s}
  /\ Change(s, f, y, "aborted")
  /\ UNCHANGED <<unflushed, acknowledged, horizon, ended>>

(* Broken: [refusal-stays] *)
LoseRefusal(s, f, y) ==
  /\ ~Kept("a refusal is durable") /\ state[s][f][y] = "aborted"
  /\ Change(s, f, y, "none")
  /\ UNCHANGED <<unflushed, acknowledged, horizon, ended>>

LoseHorizon(s) ==
  /\ ~Kept("the horizon is durable") /\ horizon' = [horizon EXCEPT ![s] = 0]
  /\ UNCHANGED <<state, unflushed, acknowledged, reads, decided, ended>>

-----------------------------------------------------------------------------
(* Clean-up *)

(* Whoever acknowledges knows that it is committed, durably, at every site. *)
(* A site that has removed the family says so, too. [told-is-durable]       *)
FinishedAt(s, f, w) ==
  \/ state[s][f][w] = "committed"
  \/ state[s][f][w] \in {"removed", "forgotten"} /\ Kept("removed counts as finished")

Finished(f) ==
  \E w \in Instances : \A s \in SitesOf[w] : FinishedAt(s, f, w)

Acknowledge(s, f) ==
  /\ f \notin acknowledged[s] /\ CommittedAt(s, f) # {}
  /\ Kept("acknowledge what is finished everywhere") => Finished(f)
  /\ Kept("acknowledge beside no prepared instance") => Prepared(s, f) = {}
  /\ acknowledged' = [acknowledged EXCEPT ![s] = @ \cup {f}]
  /\ unflushed' = [q \in Sites |-> IF q = s \/ Kept("acknowledge what is durable")
                                    THEN unflushed[q] \ {f} ELSE unflushed[q]]
  /\ UNCHANGED <<state, horizon, reads, decided, ended>>

(* At any time, since clocks may show any time. [horizon-first]: here in one  *)
(* step; where a crash comes between, MoveHorizon alone.                      *)
Expire(s, f) ==
  /\ \/ f \in acknowledged[s]
     \/ ~Kept("expire what is acknowledged")
     \/ \E w \in CommittedAt(s, f) : SitesOf[w] = {s} /\ Prepared(s, f) = {}
  /\ \E w \in CommittedAt(s, f) :
       Change(s, f, w, IF Timed(f) THEN "removed" ELSE "forgotten")
  /\ horizon' = [horizon EXCEPT ![s] = IF @ < Time[f] THEN Time[f] ELSE @]
  /\ acknowledged' = [acknowledged EXCEPT ![s] = @ \ {f}]
  /\ unflushed' = [unflushed EXCEPT ![s] = @ \ {f}]
  /\ UNCHANGED ended

(* Another family is removed, or the site's clock refuses an XID *)
MoveHorizon(s) ==
  /\ HorizonMoves
  /\ \E f \in Families : horizon[s] < Time[f] /\ horizon' = [horizon EXCEPT ![s] = Time[f]]
  /\ UNCHANGED <<state, unflushed, acknowledged, reads, decided, ended>>

(* A cancelling instance has been refused by a site as expired: nothing is  *)
(* prepared there, and nothing of the family ever will be. So nothing that  *)
(* is not committed by now ever will be, and anybody may roll it back.      *)
Hopeless(f, y) ==
  \E q \in SitesOf[y] :
    /\ Expired(q, f) \/ ~Kept("close for ever only")
    /\ Prepared(q, f) = {} /\ CommittedAt(q, f) = {}

Close(s, f, y) ==
  /\ Kept("horizon")
  /\ state[s][f][y] = "prepared" /\ Hopeless(f, y)
  /\ Kept("close beside no committed instance") => CommittedAt(s, f) = {}
  /\ Change(s, f, y, "aborted")
  /\ ended' = ended \cup {<<f, SitesOf[y]>>}
  /\ UNCHANGED <<unflushed, acknowledged, horizon>>

-----------------------------------------------------------------------------
Init ==
  /\ state = [s \in Sites |-> [f \in Families |-> [y \in Instances |-> "none"]]]
  /\ unflushed = [s \in Sites |-> {}]
  /\ acknowledged = [s \in Sites |-> {}]
  /\ horizon = [s \in Sites |-> 0]
  /\ reads = [s \in Sites |-> [f \in Families |-> {[y \in Instances |-> "none"]}]]
  /\ decided = [f \in Families |-> {}]
  /\ ended = {}

(* `disturbed`: the instances that may fail at any time; others are refused only *)
(* where they have to be.                                                        *)
Steps(disturbed) ==
  \E s \in Sites :
    \/ MoveHorizon(s) \/ LoseHorizon(s)
    \/ \E f \in Families :
         \/ LoseCommit(s, f) \/ Acknowledge(s, f) \/ Expire(s, f)
         \/ RollBackLosers(s, f)
         \/ \E y \in Instances :
              \/ Prepare(s, f, y)
              \/ \E q \in Sites : (y \in disturbed \/ Refused(q, f, y)) /\ RollBack(s, f, y, q)
              \/ \E q \in Sites : RollBackTooEarly(s, f, y, q)
              \/ Commit(s, f, y) \/ CommitOnePhase(s, f, y)
              \/ LosePrepare(s, f, y) \/ LoseRefusal(s, f, y) \/ Close(s, f, y) \/ Lose(s, f, y)

Next == Steps(Instances)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Fairness: a retry that nothing disturbs, a sweeper, and clean-up *)

Retry == IF Kept("a retry is above all others") THEN Max(Instances) ELSE Min(Instances)

(* Without it a crash after each commit could undo them for ever. Spec has no *)
(* need of it: what relies on a flush includes it.                            *)
Flush(s, f) ==
  /\ f \in unflushed[s]
  /\ unflushed' = [unflushed EXCEPT ![s] = @ \ {f}]
  /\ UNCHANGED <<state, acknowledged, horizon, reads, decided, ended>>

Fairness ==
  \A s \in Sites, f \in Families :
    /\ Kept("requests are retried") =>
         /\ WF_vars(Prepare(s, f, Retry))
         /\ WF_vars(\E q \in Sites : Refused(q, f, Retry) /\ RollBack(s, f, Retry, q))
    /\ \A y \in Instances :
         /\ WF_vars(Commit(s, f, y))
         /\ Kept("what is hopeless is closed") => WF_vars(Close(s, f, y))
    /\ SF_vars(Flush(s, f))
    /\ WF_vars(RollBackLosers(s, f)) /\ WF_vars(Acknowledge(s, f)) /\ WF_vars(Expire(s, f))

FairNext == Steps(Instances \ {Retry}) \/ \E s \in Sites, f \in Families : Flush(s, f)

FairSpec == Init /\ [][FairNext]_vars /\ Fairness

(* Whoever settles what is over some sites, beside what is over others *)
InTheWay(q, f, y) == \E z \in Prepared(q, f) : SitesOf[z] # SitesOf[y]

WayOut ==
  \A s \in Sites, f \in Families, y \in Instances :
    /\ Kept("what has lost is rolled back") => WF_vars(Lose(s, f, y))
    /\ Kept("what others are in the way of gives way") =>
         WF_vars(\E q \in SitesOf[y] : InTheWay(q, f, y) /\ RollBack(s, f, y, q))

WayOutSpec == Init /\ [][Next]_vars /\ WayOut

EveryFamilyIsDecided == \A f \in Families : <>(decided[f] # {})

NothingStaysInDoubt == \A f \in Families : <>[](\A s \in Sites : Prepared(s, f) = {})

(* Nobody waits for a site where an instance over other sites stands or has won. *)
NothingStaysInTheWay ==
  \A f \in Families : <>[](\A s \in Sites : \A y \in Prepared(s, f) : ~\E q \in SitesOf[y] : OtherSites(q, f, y))

EverythingIsRemoved == \A f \in Families : <>[](\A s \in Sites : CommittedAt(s, f) = {})

-----------------------------------------------------------------------------
(* Invariants *)

Winners(f) == decided[f] \cup UNION {TookEffect(s, f) : s \in Sites}

(* [one-winner] *)
OneWinner == \A f \in Families : Cardinality(Winners(f)) <= 1

(* What clients may have been told of a request; "never" after Close *)
Results(f, set) ==
  {IF y \in Empty THEN "cancelled" ELSE ToString(y) : y \in {w \in Winners(f) : SitesOf[w] = set}}
    \cup (IF <<f, set>> \in ended THEN {"never"} ELSE {})

OneResult == \A f \in Families, set \in SiteSets : Cardinality(Results(f, set)) <= 1

(* [entry-or-horizon] *)
AtMostOnce == \A s \in Sites, f \in Families : Cardinality(TookEffect(s, f)) <= 1

Atomic ==
  \A s \in Sites, f \in Families : \A w \in TookEffect(s, f) :
    \A q \in SitesOf[w] : state[q][f][w] \in {"prepared", "committed", "removed", "forgotten"}

(* Whoever commits a winner finds it, however late the request arrives:      *)
(* [prepared-stays]                                                          *)
WinnersArePrepared ==
  \A f \in Families : \A w \in decided[f] : \A s \in SitesOf[w] :
    state[s][f][w] \in {"prepared", "committed", "removed", "forgotten"}

(* [only-prepared] *)
OnlyPreparedCommits ==
  [][\A s \in Sites, f \in Families : \A w \in Instances :
       state[s][f][w] # "committed" /\ state'[s][f][w] = "committed" =>
         state[s][f][w] = "prepared" \/ SitesOf[w] = {s}]_vars

TypeOK ==
  /\ state \in [Sites -> [Families -> [Instances -> States]]]
  /\ unflushed \in [Sites -> SUBSET Families]
  /\ acknowledged \in [Sites -> SUBSET Families]
  /\ \A s \in Sites : unflushed[s] \cap acknowledged[s] = {}
  /\ decided \in [Families -> SUBSET Instances]
  /\ ended \subseteq Families \X SiteSets

-----------------------------------------------------------------------------
(* What TLC compares states by: two that differ only in reads from which    *)
(* the same will ever be decided, or in instances that cannot be prepared   *)
(* any more, have the same future.                                          *)

(* Once a commit is durable, neither it nor the horizon after it goes away, *)
(* where there is one.                                                      *)
Settled(s, f) == Broken = {} /\ Timed(f) /\ TookEffect(s, f) # {} /\ f \notin unflushed[s]

MayStillPrepare(s, f, y) == state[s][f][y] = "none" /\ ~Settled(s, f)

Seen(s, f, y) == \E m \in reads[s][f] : m[y] = "prepared"

(* What a read can still contribute to: others, at every site, may name y *)
Shared(f) ==
  {y \in Instances : \A s \in SitesOf[y] : Seen(s, f, y) \/ MayStillPrepare(s, f, y)}

(* There may be reads to come that contain y, and it is not decided yet *)
Open(f) ==
  {y \in Shared(f) \ decided[f] : \E s \in SitesOf[y] :
     \/ MayStillPrepare(s, f, y)
     \/ state[s][f][y] = "prepared" /\ ~Settled(s, f)}

(* For each open y, the smallest sets of lower instances that were prepared *)
(* beside it: a read with more of them can only decide less for y.          *)
Telling(s, f, shared, open) ==
  LET all == UNION {LET p == In(m, {"prepared"}) \cap shared
                    IN {<<y, {z \in p : z < y}>> : y \in p \cap open} : m \in reads[s][f]}
  IN {p \in all : \A q \in all : q[1] = p[1] /\ q[2] \subseteq p[2] => q = p}

View ==
  LET shared == [f \in Families |-> Shared(f)]
      open == [f \in Families |-> Open(f)]
  IN <<[s \in Sites |-> [f \in Families |-> [y \in Instances |->
        IF state[s][f][y] = "none" /\ ~MayStillPrepare(s, f, y) THEN "aborted" ELSE state[s][f][y]]]],
    unflushed, acknowledged, horizon,
    [s \in Sites |-> [f \in Families |-> Telling(s, f, shared[f], open[f])]], decided, ended>>

SitesAlike == Permutations(Sites)

Symmetry == Permutations(Sites) \cup Permutations(Families)
=============================================================================
