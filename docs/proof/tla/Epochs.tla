------------------------------- MODULE Epochs -------------------------------
(* Register, look, claim, decide: the order of steps by which runs of a job that overlap, stall and die make every epoch
   visible once. After src/penstock/engine/protocol.py and src/penstock/checkpoint/decision.py.

   A run is known by its generation. A crash is a run that takes no further step; a zombie is one that takes a step after
   a newer run has registered. A look is three reads, and sweeps, preparations and commits go transaction by transaction:
   others act between. Plans are deterministic here, so a repair writes the rows of the writers that were lost once more.
   `Bug` leaves out or moves one step; the invariants must then fail. *)
EXTENDS Integers, FiniteSets

CONSTANTS Runs,     \* how many runs there may be
          Epochs,   \* how many epochs are to become visible
          Writers,  \* of each epoch
          Expiries, \* how many transactions the other system ends by itself
          Bug

VARIABLES newest,    \* the newest registered generation
          log,       \* Spark's log: the epoch that comes next
          decisions, \* durable; `at` names the generation that prepared each writer's transaction
          claims,    \* durable
          tx,        \* transactions by epoch, generation and writer
          expired,   \* how many have expired
          run        \* the memory of each run

vars == <<newest, log, decisions, claims, tx, expired, run>>

Generations == 1..Runs
None == [epoch |-> -1, gen |-> 0, at |-> [w \in Writers |-> 0]]
Idle == [pc |-> IF Bug = "look, then register" THEN "read log" ELSE "register", epoch |-> 0, dec |-> None, seen |-> {},
         todo |-> {}, lost |-> {}, recovers |-> TRUE]

Init == /\ newest = 0
        /\ log = 0
        /\ decisions = {}
        /\ claims = {}
        /\ tx = [e \in 0..Epochs-1 |-> [g \in Generations |-> [w \in Writers |-> "none"]]]
        /\ expired = 0
        /\ run = [g \in Generations |-> Idle]

Max(S) == CHOOSE n \in S : \A m \in S : m <= n
At(g, pc) == run[g].pc = pc
Go(g, pc) == run' = [run EXCEPT ![g].pc = pc]

\* Which decision is in force: `counts`, `next_epoch` and `honoured` of checkpoint/decision.py

NewestClaim == IF claims = {} THEN [gen |-> 0, epoch |-> 0, honours |-> <<>>]
               ELSE CHOOSE c \in claims : \A other \in claims : other.gen <= c.gen
Counts(d) == d.gen >= NewestClaim.gen \/ <<d.epoch, d.gen>> = NewestClaim.honours

\* A start

Register(g) == /\ At(g, "register")
               /\ newest = g - 1
               /\ newest' = g
               /\ Go(g, IF Bug = "look, then register" THEN "claim" ELSE "read log")
               /\ UNCHANGED <<log, decisions, claims, tx, expired>>

ReadLog(g) == /\ At(g, "read log")
              /\ newest >= g - 1  \* runs come one after the other, also where one looks before it has registered
              /\ run' = [run EXCEPT ![g].epoch = log, ![g].pc = "read decisions"]
              /\ UNCHANGED <<newest, log, decisions, claims, tx, expired>>

ReadDecisions(g) == /\ At(g, "read decisions")
                    /\ run' = [run EXCEPT ![g].seen = {d \in decisions : d.epoch >= run[g].epoch},
                                          ![g].pc = "read claims"]
                    /\ UNCHANGED <<newest, log, decisions, claims, tx, expired>>

ReadClaims(g) ==
    /\ At(g, "read claims")
    /\ LET counting == {d \in run[g].seen : Counts(d)}
           complete == {d.epoch + 1 : d \in {d \in run[g].seen : d.epoch < NewestClaim.epoch}}
           next == Max({run[g].epoch} \cup {d.epoch : d \in counting} \cup complete)
           valid == {d \in counting : d.epoch = next}
       IN run' = [run EXCEPT ![g].epoch = next,
                             ![g].dec = IF valid = {} THEN None
                                        ELSE CHOOSE d \in valid : \A other \in valid : other.gen <= d.gen,
                             ![g].seen = {},
                             ![g].pc = IF Bug = "look, then register" THEN "register" ELSE "claim"]
    /\ UNCHANGED <<newest, log, decisions, claims, tx, expired>>

Claim(g) ==
    /\ At(g, "claim")
    /\ LET honours == IF run[g].dec = None THEN <<>> ELSE <<run[g].dec.epoch, run[g].dec.gen>>
       IN claims' = claims \cup {[gen |-> g, epoch |-> run[g].epoch, honours |-> honours]}
    /\ Go(g, "check claim")
    /\ UNCHANGED <<newest, log, decisions, tx, expired>>

CheckClaim(g) ==
    /\ At(g, "check claim")
    /\ IF newest > g /\ Bug # "no check after the claim" THEN Go(g, "dead") /\ UNCHANGED log
       ELSE /\ log' = Max({log, run[g].epoch})
            /\ run' = [run EXCEPT ![g].todo = IF run[g].dec = None THEN {} ELSE Writers,
                                  ![g].pc = IF run[g].dec = None THEN "sweep" ELSE "commit"]
    /\ UNCHANGED <<newest, decisions, claims, tx, expired>>

\* All that this and older generations have left open is aborted, except what the decision in hand names

Left(g) == {t \in (0..Epochs-1) \X (1..g) \X Writers :
              /\ tx[t[1]][t[2]][t[3]] = "open"
              /\ ~(run[g].dec # None /\ run[g].dec.epoch = t[1] /\ run[g].dec.at[t[3]] = t[2])}

Sweep(g) == /\ At(g, "sweep")
            /\ \/ \E t \in Left(g) : tx' = [tx EXCEPT ![t[1]][t[2]][t[3]] = "aborted"] /\ UNCHANGED run
               \/ Left(g) = {} /\ Go(g, "open") /\ UNCHANGED tx
            /\ UNCHANGED <<newest, log, decisions, claims, expired>>

\* An epoch

Open(g) ==
    /\ At(g, "open")
    /\ IF run[g].epoch = Epochs THEN Go(g, "done")
       ELSE IF newest > g THEN Go(g, "dead")
       ELSE run' = [run EXCEPT ![g].todo = IF run[g].dec = None THEN Writers ELSE run[g].lost, ![g].pc = "prepare"]
    /\ UNCHANGED <<newest, log, decisions, claims, tx, expired>>

Prepare(g) ==
    /\ At(g, "prepare")
    /\ \E w \in run[g].todo :
          /\ tx' = [tx EXCEPT ![run[g].epoch][g][w] = "open"]
          /\ run' = [run EXCEPT ![g].todo = run[g].todo \ {w},
                                ![g].pc = IF run[g].todo = {w} THEN "decide" ELSE "prepare"]
    /\ UNCHANGED <<newest, log, decisions, claims, expired>>

Chosen(g) == [epoch |-> run[g].epoch, gen |-> g,
              at |-> [w \in Writers |-> IF run[g].dec # None /\ w \notin run[g].lost THEN run[g].dec.at[w] ELSE g]]

Decide(g) ==
    /\ At(g, "decide")
    /\ decisions' = IF Bug = "commit, then decide" THEN decisions ELSE decisions \cup {Chosen(g)}
    /\ run' = [run EXCEPT ![g].dec = Chosen(g), ![g].pc = "confirm"]
    /\ UNCHANGED <<newest, log, claims, tx, expired>>

Confirm(g) ==
    /\ At(g, "confirm")
    /\ IF newest > g /\ Bug # "no check after the decision" THEN Go(g, "dead")
       ELSE run' = [run EXCEPT ![g].todo = Writers, ![g].lost = {}, ![g].recovers = FALSE, ![g].pc = "commit"]
    /\ UNCHANGED <<newest, log, decisions, claims, tx, expired>>

Commit(g) ==
    /\ At(g, "commit")
    /\ \E w \in run[g].todo :
          LET e == run[g].dec.epoch
              by == run[g].dec.at[w]
              gone == tx[e][by][w] = "aborted"
          IN /\ tx' = IF gone THEN tx ELSE [tx EXCEPT ![e][by][w] = "committed"]
             /\ run' = [run EXCEPT ![g].lost = IF gone THEN run[g].lost \cup {w} ELSE run[g].lost,
                                   ![g].todo = run[g].todo \ {w},
                                   ![g].pc = IF run[g].todo = {w} THEN "outcome" ELSE "commit"]
    /\ UNCHANGED <<newest, log, decisions, claims, expired>>

Outcome(g) ==
    /\ At(g, "outcome")
    /\ decisions' = IF Bug = "commit, then decide" THEN decisions \cup {run[g].dec} ELSE decisions
    /\ IF run[g].lost = {} THEN Go(g, "finish")
       ELSE IF ~run[g].recovers THEN Go(g, "dead")
       ELSE IF run[g].lost = Writers  \* nothing of it is visible: void, and run afresh
            THEN run' = [run EXCEPT ![g].dec = None, ![g].lost = {}, ![g].pc = "sweep"]
            ELSE Go(g, "sweep")       \* repair
    /\ UNCHANGED <<newest, log, claims, tx, expired>>

Finish(g) ==
    /\ At(g, "finish")
    /\ log' = Max({log, run[g].epoch + 1})
    /\ run' = [run EXCEPT ![g].epoch = run[g].epoch + 1, ![g].dec = None,
                          ![g].pc = IF run[g].recovers THEN "sweep" ELSE "open"]
    /\ UNCHANGED <<newest, decisions, claims, tx, expired>>

Expire == /\ expired < Expiries
          /\ \E e \in 0..Epochs-1, g \in Generations, w \in Writers :
                tx[e][g][w] = "open" /\ tx' = [tx EXCEPT ![e][g][w] = "aborted"]
          /\ expired' = expired + 1
          /\ UNCHANGED <<newest, log, decisions, claims, run>>

Step(g) == \/ Register(g) \/ ReadLog(g) \/ ReadDecisions(g) \/ ReadClaims(g) \/ Claim(g) \/ CheckClaim(g) \/ Sweep(g)
           \/ Open(g) \/ Prepare(g) \/ Decide(g) \/ Confirm(g) \/ Commit(g) \/ Outcome(g) \/ Finish(g)

Next == Expire \/ \E g \in Generations : Step(g)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

Committed(e, w) == {g \in Generations : tx[e][g][w] = "committed"}

NothingDoubled == \A e \in 0..Epochs-1, w \in Writers : Cardinality(Committed(e, w)) <= 1
NothingLost == \A e \in 0..Epochs-1, w \in Writers : e < log => Committed(e, w) # {}
OnlyDecided == \A e \in 0..Epochs-1, w \in Writers : \A g \in Committed(e, w) :
                  \E d \in decisions : d.epoch = e /\ d.at[w] = g
=============================================================================
