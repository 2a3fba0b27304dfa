------------------------------ MODULE Replica ------------------------------
(***************************************************************************)
(* A site that is replicated by certified writesets: one log of messages,  *)
(* replicas that run transactions by themselves, and decide by the same    *)
(* rule, in the log's order, which of them take effect.                    *)
(*                                                                         *)
(* No agents: an agent carries bytes. Once it has taken a message it may   *)
(* append it at any time, be it for the second time, or long after its     *)
(* session has ended; and it tells nobody what the log has answered.       *)
(*                                                                         *)
(* A replica's disk is the sequence of its commits, of which a crash loses *)
(* the end. What is in its tables follows from it. A history is the        *)
(* sequence of messages and verdicts, where the code has a hash of it.     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Replicas,
  Founders,   \* who has been there from the start; others join
  Late,       \* those of them who have not read anything yet
  Txns,
  Rows,
  Parent,     \* row -> what it refers to, or itself
  AtFirst,    \* the rows that there are in the beginning
  Choices,    \* what they may do: transaction -> row -> mode, see Modes
  Past,       \* messages and verdicts with which it begins
  Window,
  IdIsKey,    \* whether a message has its own id for a key
  Trims,      \* whether the log is trimmed
  Crashes,    \* how many there may be, of replicas and of appliers
  Failures,   \* how many messages the log may lose, or double
  Broken      \* the rules that are left out: {}, but for showing that they are needed

VARIABLES
  does,     \* transaction -> row -> mode
  home,     \* transaction -> its replica
  at,       \* transaction -> how far its backend is
  told,     \* transaction -> what its client was told
  taken,    \* transaction -> whether its replica takes it for taken by an agent
  sent,     \* transaction -> whether an agent has its message
  first,    \* transaction -> position applied at its replica when it changed something
  snap,     \* transaction -> likewise, when it was extracted
  seen,     \* transaction -> history there
  base,     \* transaction -> row -> the version that it has replaced
  due,      \* transaction -> the position at which its backend is to commit
  log,      \* of transactions
  trimmed,  \* how many of them are gone
  status,   \* replica -> whether it is a member
  disk,     \* replica -> commits
  flushed,  \* replica -> how many of them
  doing,    \* replica -> what is being applied: position and message, or Idle
  from,     \* replica -> up to where its certifier knows less after a restart: broken
  crashes, failures

of_txns == <<does, home, at, told, taken, sent, first, snap, seen, base, due>>
backends == <<does, home, taken, sent, first, snap, seen, base>>
of_log == <<log, trimmed, failures>>
of_replicas == <<status, disk, flushed, doing, from, crashes>>
vars == <<of_txns, of_log, of_replicas>>

Kept(rule) == rule \notin Broken

(* What is done to a row. "key": it is inserted or deleted; "row": updated; "reference": *)
(* a child of it is inserted; "lock": it is locked (FOR UPDATE), and not changed;        *)
(* "keyless": a row without any key is inserted. Where a key cannot be hashed, its       *)
(* table's stands for it, here a row of its own: then a row has "unhashed" or "share"    *)
(* for "key" or "reference", and the table "K", "N" or "R".                              *)
Modes == {"none", "key", "row", "reference", "lock", "keyless", "unhashed", "share", "K", "N", "R"}

States == {"none", "runs", "waits", "commits", "gone"}

Old == "old"      \* the version of a row that was there
Absent == "absent"
Unknown == "unknown"

Idle == <<0, "nothing">>

-----------------------------------------------------------------------------
(* What is on a disk *)

(* A commit: its position (0: none), of which transaction, whether certified *)
Commit(p, t, ok) == [p |-> p, t |-> t, ok |-> ok]

(* The position is in the transaction of the changes. *)
Commits(p, t, ok) ==
  IF ~ok \/ Kept("the position commits with the changes") THEN <<Commit(p, t, ok)>>
  ELSE <<Commit(0, t, TRUE), Commit(p, t, FALSE)>>

Version(t, x, old) ==
  CASE does[t][x] = "row" -> t
    [] does[t][x] \in {"key", "unhashed"} -> IF base[t][x] = Absent THEN t ELSE Absent
    [] OTHER -> old

RECURSIVE RowsOf(_)
RowsOf(commits) ==
  IF commits = <<>> THEN [x \in Rows |-> IF x \in AtFirst THEN Old ELSE Absent]
  ELSE LET before == RowsOf(SubSeq(commits, 1, Len(commits) - 1))
           c == commits[Len(commits)]
       IN IF c.ok THEN [x \in Rows |-> Version(c.t, x, before[x])] ELSE before

RowsAt(r) == RowsOf(disk[r])

Max(set) == CHOOSE n \in set : \A m \in set : m <= n
Min(set) == CHOOSE n \in set : \A m \in set : n <= m

Last(commits) == Max({commits[i].p : i \in 1..Len(commits)} \cup {0})
Applied(r) == Last(disk[r])

Positions(r) == {disk[r][i].p : i \in 1..Len(disk[r])} \ {0}
CommitAt(r, p) == disk[r][CHOOSE i \in 1..Len(disk[r]) : disk[r][i].p = p]

(* Messages and verdicts up to a position *)
History(r, p) ==
  LET of(c) == <<c.t, c.ok>>
  IN [q \in 1..p |-> IF q \in Positions(r) THEN of(CommitAt(r, q)) ELSE <<>>]

(* What transactions see of it. *)
Shown(r) ==
  IF doing[r] # Idle /\ ~Kept("a position is shown when it has committed") THEN doing[r][1] ELSE Applied(r)

-----------------------------------------------------------------------------
(* Locks and keys *)

Touches(t) == {x \in Rows : does[t][x] # "none"}

Changes == {"key", "unhashed", "row"}

(* Of rows, as PostgreSQL has them: FOR UPDATE, FOR NO KEY UPDATE, FOR KEY SHARE *)
Lock(m) ==
  CASE m \in {"key", "unhashed", "lock"} -> "K"
    [] m = "row" -> "N"
    [] m \in {"reference", "share"} -> "R"
    [] OTHER -> "none"

LocksMeet(m, n) == {Lock(m), Lock(n)} \in {{"K"}, {"N"}, {"K", "N"}, {"K", "R"}}

(* Keys are sent, locks are not. *)
Key(m) ==
  CASE m \in {"key", "K"} -> "K"
    [] m \in {"row", "N"} -> "N"
    [] m \in {"reference", "R"} -> "R"
    [] OTHER -> "none"

(* m is asked for, n is in the log before. *)
KeysMeet(m, n) ==
  \/ {Key(m), Key(n)} = {"N"} /\ Kept("changes of a row conflict")
  \/ {Key(m), Key(n)} \in {{"K"}, {"K", "N"}} /\ Kept("changes of a key conflict with all changes")
  \/ Key(m) = "R" /\ Key(n) = "K" /\ Kept("references conflict with changes of their key")
  \/ Key(m) = "K" /\ Key(n) = "R" /\ Kept("changes of a key conflict with references")

(* Who is applied locks what he changes, not what he refers to: so locks do not keep him *)
(* apart from who deletes that. As a table's key, a reference may be K, or be in an N.    *)
FromFirst(m, n) ==
  \/ Key(m) = "K" /\ Key(n) = "R" /\ Kept("references count from the first change")
  \/ Key(n) = "K" /\ Kept("so do those that are sent as K")
  \/ Key(m) = "K" /\ Key(n) = "N" /\ Kept("so do those that are sent with N")

(* Message u is at position q, and certified. *)
Conflict(t, u, q) ==
  \/ t = u /\ IdIsKey /\ q > snap[t] /\ Kept("a message is a key of its own")
  \/ \E x \in Rows :
       LET m == does[t][x]
           n == does[u][x]
       IN KeysMeet(m, n) /\ q > IF FromFirst(m, n) THEN first[t] ELSE snap[t]

(* Of the positions in the window, those are known whose keys have been read. *)
Certified(r, t, p) ==
  /\ Kept("what is older than the window is refused") =>
       /\ snap[t] + Window >= p
       /\ Kept("so is who changed something before") => first[t] + Window >= p
  /\ \A q \in Positions(r) :
       LET c == CommitAt(r, q)
           known == q > from[r] \/ Kept("keys are read again")
           ok == c.ok \/ (q <= from[r] /\ ~Kept("verdicts are kept"))
       IN (q < p /\ q + Window > p /\ known /\ ok) => ~Conflict(t, c.t, q)

(* What has been seen where it comes from is what is here. A snapshot that is not before *)
(* its position cannot be.                                                               *)
SameHistory(r, t, p) ==
  \/ snap[t] + Window < p    \* too old to tell, and refused
  \/ IF snap[t] < p THEN Kept("histories are compared") => seen[t] = History(r, snap[t])
     ELSE ~Kept("a snapshot is before its position")

Seen(r) ==
  LET here == History(r, Applied(r))
      next == <<doing[r][2], Certified(r, doing[r][2], doing[r][1])>>
  IN IF Shown(r) = Applied(r) THEN here ELSE Append(here, next)

-----------------------------------------------------------------------------
(* Transactions *)

Here(r) == {t \in Txns : home[t] = r /\ at[t] \in {"runs", "waits", "commits"}}

Blank == [x \in Rows |-> "-"]
Replaced(t, rows) == [x \in Rows |-> IF does[t][x] \in Changes THEN rows[x] ELSE "-"]

(* What nobody will ask for is forgotten. *)
End(set, answer) ==
  /\ at' = [t \in Txns |-> IF t \in set THEN "gone" ELSE at[t]]
  /\ told' = [t \in Txns |-> IF t \in set THEN answer[t] ELSE told[t]]
  /\ due' = [t \in Txns |-> IF t \in set THEN 0 ELSE due[t]]
  /\ taken' = [t \in Txns |-> taken[t] /\ t \notin set]
  /\ first' = [t \in Txns |-> IF t \in set /\ ~sent[t] THEN 0 ELSE first[t]]
  /\ snap' = [t \in Txns |-> IF t \in set /\ ~sent[t] THEN 0 ELSE snap[t]]
  /\ seen' = [t \in Txns |-> IF t \in set /\ ~sent[t] THEN <<>> ELSE seen[t]]
  /\ base' = [t \in Txns |-> IF t \in set /\ ~sent[t] THEN Blank ELSE base[t]]
  /\ home' = [t \in Txns |-> IF t \in set /\ ~sent[t] THEN "nowhere" ELSE home[t]]
  /\ UNCHANGED <<does, sent>>

(* It is there to be changed; a child has a parent, and who is deleted no child: by the *)
(* latest rows, as foreign keys are checked.                                            *)
May(t, r) ==
  LET now == RowsAt(r)
      there(x) == now[x] # Absent
  IN \A x \in Touches(t) :
       /\ does[t][x] \in {"row", "reference", "lock", "share"} => there(x)
       /\ (does[t][x] \in {"key", "unhashed"} /\ there(x)) => \A y \in Rows \ {x} : Parent[y] = x => ~there(y)
       /\ \A u \in Here(r) : ~LocksMeet(does[t][x], does[u][x])

Change(t, r) ==
  /\ status[r] = "in" /\ at[t] = "none" /\ May(t, r)
  /\ home' = [home EXCEPT ![t] = r] /\ at' = [at EXCEPT ![t] = "runs"]
  /\ first' = [first EXCEPT ![t] = Shown(r)]
  /\ base' = [base EXCEPT ![t] = Replaced(t, RowsAt(r))]
  /\ UNCHANGED <<does, told, taken, sent, snap, seen, due, of_log, of_replicas>>

(* At its COMMIT, with all its locks *)
Extract(t) ==
  /\ at[t] = "runs" /\ status[home[t]] = "in"
  /\ at' = [at EXCEPT ![t] = "waits"]
  /\ snap' = [snap EXCEPT ![t] = Shown(home[t])]
  /\ seen' = [seen EXCEPT ![t] = Seen(home[t])]
  /\ UNCHANGED <<does, home, told, taken, sent, first, base, due, of_log, of_replicas>>

Take(t) ==
  /\ at[t] = "waits" /\ ~taken[t]
  /\ taken' = [taken EXCEPT ![t] = TRUE] /\ sent' = [sent EXCEPT ![t] = TRUE]
  /\ UNCHANGED <<does, home, at, told, first, snap, seen, base, due, of_log, of_replicas>>

(* The agent's session ends: what it has taken is taken again. *)
GiveBack(t) ==
  /\ ~Kept("taken once is taken") /\ taken[t]
  /\ taken' = [taken EXCEPT ![t] = FALSE]
  /\ UNCHANGED <<does, home, at, told, sent, first, snap, seen, base, due, of_log, of_replicas>>

Withdrawn(t) == IF taken[t] THEN Unknown ELSE "did not happen"

(* The client's doing, or an administrator's. Before its COMMIT it might as well not have begun. *)
Cancel(t) ==
  /\ at[t] \in {"waits", "commits"}
  /\ End({t}, t :> IF Kept("what was taken is not withdrawn") THEN Withdrawn(t) ELSE "did not happen")
  /\ UNCHANGED <<of_log, of_replicas>>

(* An agent had no answer from the log. *)
Guess(t) ==
  /\ ~Kept("unknown answers are not guessed") /\ at[t] = "waits" /\ taken[t]
  /\ End({t}, t :> "did not happen")
  /\ UNCHANGED <<of_log, of_replicas>>

-----------------------------------------------------------------------------
(* The log *)

Logged == {log[i] : i \in 1..Len(log)}

Publish(t) ==
  /\ sent[t]
  /\ t \notin Logged \/ (~Kept("append is idempotent") /\ Len(log) < Cardinality(Txns))
  /\ log' = Append(log, t)
  /\ UNCHANGED <<of_txns, trimmed, failures, of_replicas>>

Without(i) == SubSeq(log, 1, i - 1) \o SubSeq(log, i + 1, Len(log))
Doubled(i) == SubSeq(log, 1, i) \o SubSeq(log, i, Len(log))

LogFails ==
  /\ failures < Failures /\ failures' = failures + 1
  /\ \E i \in 1..Len(log) : log' \in {Without(i), Doubled(i)}
  /\ UNCHANGED <<of_txns, trimmed, of_replicas>>

(* Where to read on, for one at position p: the next message may have seen no more than *)
(* what is `Window` before it, and conflicts with what came since.                      *)
ReadAfter(p) == IF p + 1 > Window THEN p + 1 - Window ELSE 0

Keeps(r) ==
  LET safe == Last(SubSeq(disk[r], 1, flushed[r]))
      p == IF Kept("what is not flushed is not trimmed") THEN safe ELSE Applied(r)
  IN IF Kept("the window is not trimmed") THEN ReadAfter(p) ELSE p

Counted == {r \in Replicas : status[r] = "in" \/ (status[r] = "joins" /\ Kept("who joins is counted"))}

Trim ==
  LET upto == Min({Keeps(r) : r \in Counted})
  IN /\ Trims /\ upto > trimmed /\ trimmed' = upto
     /\ UNCHANGED <<of_txns, log, failures, of_replicas>>

-----------------------------------------------------------------------------
(* Application *)

NextOf(r) ==
  LET p == Applied(r)
  IN IF from[r] > p /\ ~Kept("a crash goes on behind what is left") THEN from[r] + 1 ELSE p + 1

Receive(r) ==
  LET p == NextOf(r)
      t == log[p]
      own == home[t] = r /\ at[t] = "waits"
      ok == Certified(r, t, p)
  IN /\ status[r] = "in" /\ doing[r] = Idle /\ p \in trimmed + 1 .. Len(log)
     /\ Kept("who begins anew waits for who commits") => \A u \in Here(r) : at[u] # "commits"
     /\ UNCHANGED <<of_log, disk, flushed, from, crashes>>
     /\ IF ~SameHistory(r, t, p)
        THEN status' = [status EXCEPT ![r] = "stopped"] /\ UNCHANGED <<of_txns, doing>>
        ELSE /\ doing' = [doing EXCEPT ![r] = <<p, t>>] /\ UNCHANGED status
             /\ IF ~own THEN UNCHANGED of_txns
                ELSE IF ok
                THEN /\ at' = [at EXCEPT ![t] = "commits"] /\ due' = [due EXCEPT ![t] = p]
                     /\ UNCHANGED <<backends, told>>
                ELSE End({t}, t :> "did not happen")

InTheWay(u, t) == \E x \in Rows : does[t][x] \in Changes /\ LocksMeet(does[t][x], does[u][x])
WouldFail(u, t) == \E x \in Rows : KeysMeet(does[u][x], does[t][x])

(* A local transaction that is in the way. One at its COMMIT has to give way, too, even  *)
(* if its keys are not in conflict: but then its message may be certified.               *)
GivesWay(r, u) ==
  LET p == doing[r][1]
      t == doing[r][2]
      waits == at[u] = "waits"
      locks == InTheWay(u, t)
      fails == waits /\ WouldFail(u, t)
  IN /\ doing[r] # Idle /\ u \in Here(r) \ {t} /\ at[u] \in {"runs", "waits"}
     /\ Certified(r, t, p) \/ ~Kept("what refuses early is certified")
     /\ locks \/ fails
     /\ Kept("who is in the way gives way")
     /\ End({u}, u :> IF fails \/ ~Kept("refused early is who would fail")
                       THEN "did not happen" ELSE Withdrawn(u))
     /\ UNCHANGED <<of_log, of_replicas>>

Apply(r) ==
  LET p == doing[r][1]
      t == doing[r][2]
      ok == Certified(r, t, p)
      own == home[t] = r /\ at[t] = "commits"
  IN /\ doing[r] # Idle /\ p = NextOf(r) /\ ~own
     /\ Kept("what its backend has not committed is applied") \/ home[t] # r
     /\ ok => \A u \in Here(r) \ {t} : ~InTheWay(u, t)
     /\ disk' = [disk EXCEPT ![r] = @ \o Commits(p, t, ok)]
     /\ doing' = [doing EXCEPT ![r] = Idle]
     /\ UNCHANGED <<of_txns, of_log, status, flushed, from, crashes>>

(* By its own backend, and the client is told. *)
CommitOwn(t) ==
  LET r == home[t]
  IN /\ at[t] = "commits"
     /\ disk' = [disk EXCEPT ![r] = @ \o Commits(due[t], t, TRUE)]
     /\ doing' = [doing EXCEPT ![r] = IF @[1] = due[t] THEN Idle ELSE @]
     /\ End({t}, t :> "committed")
     /\ UNCHANGED <<of_log, status, flushed, from, crashes>>

(* Broken: the applier does not wait for a backend. *)
Overtake(r) ==
  LET p == doing[r][1] + 1
      t == log[p]
      ok == Certified(r, t, p)
  IN /\ ~Kept("a position waits for the one before")
     /\ doing[r] # Idle /\ p <= Len(log) /\ due[doing[r][2]] = p - 1 /\ home[t] # r
     /\ ok => \A u \in Here(r) : ~InTheWay(u, t)
     /\ disk' = [disk EXCEPT ![r] = @ \o Commits(p, t, ok)]
     /\ doing' = [doing EXCEPT ![r] = Idle]
     /\ UNCHANGED <<of_txns, of_log, status, flushed, from, crashes>>

(* The applier's session ends, and another one begins. *)
Again(r) ==
  /\ doing[r] # Idle /\ doing' = [doing EXCEPT ![r] = Idle]
  /\ crashes < Crashes /\ crashes' = crashes + 1
  /\ UNCHANGED <<of_txns, of_log, status, disk, flushed, from>>

-----------------------------------------------------------------------------
(* Replicas *)

Flush(r) ==
  /\ Trims /\ status[r] = "in" /\ flushed[r] < Len(disk[r])
  /\ flushed' = [flushed EXCEPT ![r] = Len(disk[r])]
  /\ UNCHANGED <<of_txns, of_log, status, disk, doing, from, crashes>>

(* What a certifier that begins anew does not know *)
Ignorance(commits) ==
  IF {"keys are read again", "verdicts are kept"} \cap Broken = {} THEN 0 ELSE Last(commits)

Crash(r) ==
  /\ status[r] = "in" /\ crashes < Crashes /\ crashes' = crashes + 1
  /\ \E n \in flushed[r]..Len(disk[r]) :
       /\ disk' = [disk EXCEPT ![r] = SubSeq(@, 1, n)]
       /\ from' = [from EXCEPT ![r] = IF Kept("a crash goes on behind what is left")
                                      THEN Ignorance(SubSeq(disk[r], 1, n)) ELSE Applied(r)]
  /\ doing' = [doing EXCEPT ![r] = Idle]
  /\ End(Here(r), [t \in Txns |-> "nothing"])
  /\ UNCHANGED <<of_log, status, flushed>>

(* By a physical copy, which it begins with later *)
Copy(r, q) ==
  /\ status[r] = "out" /\ status[q] = "in"
  /\ status' = [status EXCEPT ![r] = "joins"]
  /\ \E n \in flushed[q]..Len(disk[q]) :
       /\ disk' = [disk EXCEPT ![r] = SubSeq(disk[q], 1, n)]
       /\ flushed' = [flushed EXCEPT ![r] = IF Trims THEN n ELSE 0]
       /\ from' = [from EXCEPT ![r] = Ignorance(SubSeq(disk[q], 1, n))]
  /\ UNCHANGED <<of_txns, of_log, doing, crashes>>

Join(r) ==
  /\ status[r] = "joins" /\ status' = [status EXCEPT ![r] = "in"]
  /\ UNCHANGED <<of_txns, of_log, disk, flushed, doing, from, crashes>>

-----------------------------------------------------------------------------
Init ==
  LET past == [i \in 1..Len(Past) |-> Past[i][1]]
      over == {past[i] : i \in 1..Len(Past)}
      commits == [i \in 1..Len(Past) |-> Commit(i, Past[i][1], Past[i][2])]
  IN /\ does \in Choices
     /\ home = [t \in Txns |-> "nowhere"]
     /\ at = [t \in Txns |-> IF t \in over THEN "gone" ELSE "none"]
     /\ told = [t \in Txns |-> "nothing"]
     /\ taken = [t \in Txns |-> FALSE] /\ sent = [t \in Txns |-> t \in over]
     /\ first = [t \in Txns |-> 0] /\ snap = first /\ due = first
     /\ seen = [t \in Txns |-> <<>>]
     /\ base = [t \in Txns |-> IF t \in over THEN Replaced(t, RowsOf(<<>>)) ELSE Blank]
     /\ log = past /\ trimmed = 0 /\ failures = 0 /\ crashes = 0
     /\ status = [r \in Replicas |-> IF r \in Founders THEN "in" ELSE "out"]
     /\ disk = [r \in Replicas |-> IF r \in Founders \ Late THEN commits ELSE <<>>]
     /\ doing = [r \in Replicas |-> Idle]
     /\ flushed = [r \in Replicas |-> 0] /\ from = flushed

Next ==
  \/ \E t \in Txns :
       \/ Extract(t) \/ Take(t) \/ GiveBack(t) \/ Cancel(t) \/ Guess(t) \/ Publish(t) \/ CommitOwn(t)
       \/ \E r \in Replicas : Change(t, r) \/ GivesWay(r, t)
  \/ \E r \in Replicas :
       \/ Receive(r) \/ Apply(r) \/ Overtake(r) \/ Again(r) \/ Flush(r) \/ Crash(r)
       \/ Join(r) \/ \E q \in Replicas : Copy(r, q)
  \/ Trim \/ LogFails

Spec == Init /\ [][Next]_vars

(* Appliers go on, and backends that are to commit do. *)
Applies(r) == Receive(r) \/ Apply(r) \/ \E t \in Txns : GivesWay(r, t)

Fairness ==
  /\ \A r \in Replicas : WF_vars(Applies(r))
  /\ \A t \in Txns : WF_vars(CommitOwn(t))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
  /\ does \in [Txns -> [Rows -> Modes]] /\ at \in [Txns -> States]
  /\ told \in [Txns -> {"nothing", "committed", "did not happen", Unknown}]
  /\ \A t \in Txns : taken[t] => sent[t]

Members == {r \in Replicas : status[r] = "in"}

Same(a, b) == \A p \in 1..Applied(a) : p <= Applied(b) => History(a, p) = History(b, p)

(* As long as the log does not fail, whoever is at the same position has the same. *)
SameVerdicts == \A a, b \in Members : Same(a, b)
SameRows == \A a, b \in Members : Applied(a) = Applied(b) => RowsAt(a) = RowsAt(b)

(* Nor has anybody stopped. *)
NobodyStops == \A r \in Replicas : status[r] # "stopped"

(* Each position once, in order *)
NoGap == \A r \in Members : \A i \in 1..Len(disk[r]) : disk[r][i].p = i

NothingTwice ==
  \A r \in Members : \A i, j \in 1..Len(disk[r]) :
    (disk[r][i].ok /\ disk[r][j].ok /\ disk[r][i].t = disk[r][j].t) => i = j

(* Whoever changes a row has seen who changed it before. *)
NoLostUpdate ==
  \A r \in Members : \A i \in 1..Len(disk[r]) :
    LET c == disk[r][i]
        before == RowsOf(SubSeq(disk[r], 1, i - 1))
    IN c.ok => \A x \in Rows : does[c.t][x] \in Changes => base[c.t][x] = before[x]

NoOrphan ==
  \A r \in Members :
    LET now == RowsAt(r)
    IN \A x \in Rows : now[x] # Absent => now[Parent[x]] # Absent

CertifiedSomewhere(t) == \E r \in Members : \E i \in 1..Len(disk[r]) : disk[r][i].ok /\ disk[r][i].t = t

(* It is in the log, and whoever is there has it. *)
CommittedIsTrue ==
  \A t \in Txns : told[t] = "committed" =>
    \E p \in 1..Len(log) :
      /\ log[p] = t
      /\ \A r \in Members : Applied(r) >= p => p \in Positions(r) /\ CommitAt(r, p) = Commit(p, t, TRUE)

DidNotHappenIsTrue == \A t \in Txns : told[t] = "did not happen" => ~CertifiedSomewhere(t)

(* Whoever begins anew finds what it needs. *)
LogSuffices == \A r \in Members : trimmed <= ReadAfter(Applied(r))

(* Nothing is applied but where its transaction could have run: what it has seen is *)
(* what there is. All that can be asked of a log that fails.                        *)
AppliedWhereSeen ==
  \A r \in Members : \A p \in Positions(r) :
    LET c == CommitAt(r, p)
    IN c.ok => snap[c.t] < p /\ seen[c.t] = History(r, snap[c.t])

(* No transaction comes twice, so the log comes to an end. *)
EverythingIsDecided == []<>(\A r \in Members : Applied(r) >= Len(log))
=============================================================================
