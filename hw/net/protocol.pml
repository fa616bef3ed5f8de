/*
 * The protocol of README.md for the model checker spin (spinroot.com): one slot, every order of events.
 *
 * Slots share nothing but the order in which a worker hands on their sums, so one slot is enough.
 *
 * The network is a set: packets that were sent stay in it, and each may arrive at any time: soon, late, again or never.
 * That covers loss, repetition, delay and reordering. A resend adds nothing, as the packet is in the set already.
 *
 * The model checker shows
 *   - that no worker takes a wrong sum, and no two FULLs of a round differ (assertions);
 *   - that each worker finishes: no invalid end state, no acceptance cycle (see `timers`).
 *
 * Parameters (spin -a -DNAME=VALUE):
 *   WORKERS     2, 3 or 4
 *   RACKS       2 or 3: worker w is behind an aggregator of rack w mod RACKS, and those are behind another one; else 1
 *   STAND_INS   worker w may send the PARTIAL of worker w + 1 mod WORKERS, while its own waits; there are no racks
 *   ROUNDS      round numbers, a power of two up to 8; they stand for the 2^16 of the protocol
 *   FIRST       first round; its default lies just before the wrap
 *   OPERATIONS  operations of each worker, less than ROUNDS; 0 is without end. Without end, packets that are more than
 *               ROUNDS / 2 rounds late are removed: the protocol relies on that, with its 2^16 rounds.
 *   RESTART     one worker may forget everything at any time. The host then begins the next job, with the same first
 *               round and fresh slots; the news reaches the aggregator and each worker at different times.
 *   FORGETFUL   the aggregator of the published prototypes, which ignores rounds: wrong
 *   MUTANT_...  one rule is missing: wrong, to show that the rule is needed and that spin finds it
 *   NO_END      do not check that workers finish; spin then visits the states of tests/sim/network/test_every_order.py
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef RACKS
#define RACKS 1
#endif
#ifndef ROUNDS
#define ROUNDS 8
#endif
#ifndef FIRST
#define FIRST (ROUNDS - 2)
#endif
#ifndef OPERATIONS
#define OPERATIONS 3
#endif
#if OPERATIONS
#define TAGS OPERATIONS
#else
#define TAGS ROUNDS
#endif
#ifdef RESTART
#define JOBS 2
#else
#define JOBS 1
#endif
#if ROUNDS > 8 || OPERATIONS >= ROUNDS || JOBS * TAGS * WORKERS > 30
#error "more than the sets and sums of this model can hold"
#endif

#define AFTER(r) (((r) + 1) % ROUNDS)
#define BEFORE_FIRST ((FIRST + ROUNDS - 1) % ROUNDS)
#define OPERATION(r) (((r) + ROUNDS - FIRST) % ROUNDS) /* number of the operation in this round */
#ifdef MUTANT_FORGETS_THE_WRAP
#define IS_BEFORE(r, s) ((r) < (s))
#else
#define IS_BEFORE(r, s) (((r) + ROUNDS - (s)) % ROUNDS >= ROUNDS / 2)
#endif
#define BIT(n) (1 << (n))
#define ALL (BIT(WORKERS) - 1)

/* Aggregators, the top one last. Cables lead up from each worker and, numbered after these, from each rack. */
#if RACKS == 1
#define TOP 0
#define CABLES WORKERS
#define HOME(e) 0
#define MEMBERS(at) ALL
#define WHOLE(at) ALL
#else
#define TOP RACKS
#define CABLES (WORKERS + RACKS)
#define UP(at) (WORKERS + (at)) /* the cable that leads up from a rack */
#define HOME(e) ((e) < WORKERS -> (e) % RACKS : TOP) /* where a cable leads */
#if RACKS == 2
#define OF_RACK(at) ((BIT(0) | BIT(2)) << (at) & ALL)
#else
#define OF_RACK(at) ((BIT(0) | BIT(3)) << (at) & ALL)
#endif
#define MEMBERS(at) ((at) == TOP -> BIT(CABLES) - BIT(WORKERS) : OF_RACK(at))
#define WHOLE(at) ((at) == TOP -> MEMBERS(TOP) : OF_RACK(at) | BIT(UP(at))) /* the parent has a bit, too */
#endif

/*
 * A sum is the set of the partials in it: one bit for each job, operation and worker, so different sets have different
 * sums. A partial that is added twice sets the bit TWICE.
 */
#define GROUP(j, r) ((j) * TAGS + OPERATION(r))
#define VALUE(j, w, r) (1 << (GROUP(j, r) * WORKERS + (w)))
#define RIGHT_SUM(j, r) (ALL << (GROUP(j, r) * WORKERS))
#define TWICE (1 << 30)

#define IDLE 0 /* phases of a worker */
#define PARTIAL 1
#define ACK 2

#define NO_JOB JOBS /* job of a worker that has restarted and not joined yet */

typedef Worker {
    byte job;
    byte phase;
    byte round = FIRST /* round of the present operation; if idle, of the next */
};

typedef Slot {
    byte job;
    byte round = BEFORE_FIRST;
    byte aggregated;
    byte acknowledged;
    int sum
};

/* Packets of a job on a cable, up and down: one bit for each round. */
typedef Network {
    byte partials;
#ifdef STAND_INS
    byte stand_ins; /* PARTIALs of the worker of this cable that its stand-in has sent */
#endif
    byte acks;
    byte fulls;
    byte clears
};

Worker worker[WORKERS];
Slot slot[TOP + 1];
Network network[JOBS * CABLES];
int told[(TOP + 1) * JOBS * TAGS]; /* the sum in an aggregator's FULLs of each round, which must not differ */
#if RACKS > 1
int asked[RACKS * JOBS * TAGS]; /* and in a rack's PARTIALs */
#endif
bool healed; /* the network has become a good one */
bool restarted;

/* These have a meaning only within a step, so they are no part of a state. */
hidden byte i;
hidden byte answer;       /* bitmap of the cables that an aggregator answers on */
hidden byte answer_round;
hidden byte here;         /* the aggregator that a packet comes to */
hidden int carried;       /* and its values */
hidden byte asks;         /* whether it sends what it has got on to its parent */
hidden byte changed;      /* whether a state machine has changed */
#if RACKS > 1
hidden byte k;
hidden byte top_answer;      /* bitmap of the racks' cables that the top aggregator answers on */
hidden byte top_round;
#endif

/* The preprocessor has no loops. */
#if WORKERS == 2
#define EACH_WORKER(DO) DO(0) DO(1)
#define ALL_WORKERS(IS) (IS(0) && IS(1))
#define ANY_WORKER(IS, w) (IS(0, w) || IS(1, w))
#elif WORKERS == 3
#define EACH_WORKER(DO) DO(0) DO(1) DO(2)
#define ALL_WORKERS(IS) (IS(0) && IS(1) && IS(2))
#define ANY_WORKER(IS, w) (IS(0, w) || IS(1, w) || IS(2, w))
#elif WORKERS == 4
#define EACH_WORKER(DO) DO(0) DO(1) DO(2) DO(3)
#define ALL_WORKERS(IS) (IS(0) && IS(1) && IS(2) && IS(3))
#define ANY_WORKER(IS, w) (IS(0, w) || IS(1, w) || IS(2, w) || IS(3, w))
#endif

#define STANDS_FOR(w) (((w) + 1) % WORKERS)
#define NET(j, e) network[(j) * CABLES + (e)]
#define TOLD(at, j, r) told[(at) * JOBS * TAGS + GROUP(j, r)]
#define ASKED(at, j, r) asked[(at) * JOBS * TAGS + GROUP(j, r)]

/* ---- the aggregator's side (spin allows no parameter of an inline to be the beginning of a field's name) ---- */

/* All of its members have sent a packet: those of the top one get the answer, those of a rack when the parent's comes. */
inline members_are_complete(at) {
#if RACKS > 1
    asks = (at) != TOP;
    answer = (asks -> 0 : MEMBERS(at))
#else
    answer = ALL
#endif
}

inline add(at, e, value) {
    if
    :: slot[at].sum & (value) -> slot[at].sum = slot[at].sum | TWICE
    :: else -> slot[at].sum = slot[at].sum | (value)
    fi;
    slot[at].aggregated = slot[at].aggregated | BIT(e);
    changed = true;
    if
    :: slot[at].aggregated == MEMBERS(at) -> members_are_complete(at)
    :: else -> skip
    fi
}

/* Begin a round: the values replace the sum. */
inline begin_round(at, in_round) {
    slot[at].round = in_round;
    slot[at].aggregated = 0;
    slot[at].acknowledged = 0;
    slot[at].sum = 0;
#if !OPERATIONS
    /* Packets that are more than ROUNDS / 2 rounds late are removed, and what they carried. */
#define GONE(r) (((r) + ROUNDS / 2 - 1) % ROUNDS)
    for (i : 0 .. CABLES - 1) {
        if
        :: MEMBERS(at) & BIT(i) ->
            NET(slot[at].job, i).partials = NET(slot[at].job, i).partials & ~BIT(GONE(in_round));
#ifdef STAND_INS
            NET(slot[at].job, i).stand_ins = NET(slot[at].job, i).stand_ins & ~BIT(GONE(in_round));
#endif
            NET(slot[at].job, i).acks = NET(slot[at].job, i).acks & ~BIT(GONE(in_round));
            NET(slot[at].job, i).fulls = NET(slot[at].job, i).fulls & ~BIT(GONE(in_round));
            NET(slot[at].job, i).clears = NET(slot[at].job, i).clears & ~BIT(GONE(in_round));
#if RACKS > 1
            if
            :: (at) == TOP -> ASKED(i - WORKERS, slot[at].job, GONE(in_round)) = 0
            :: else -> skip
            fi
#endif
        :: else -> skip
        fi
    }
    TOLD(at, slot[at].job, GONE(in_round)) = 0
#endif
}

#ifdef MUTANT_TAKES_ANY_JOB
#define IS_FOREIGN(at, j) false
#else
#define IS_FOREIGN(at, j) ((j) != slot[at].job)
#endif

/* PARTIAL(r) arrives by cable e; `answer` is the bitmap of the cables that get FULL(r). */
inline take_partial(at, in_job, e, in_round, value) {
    answer = 0;
    asks = false;
    answer_round = in_round;
    if
    :: IS_FOREIGN(at, in_job) -> skip
#ifdef FORGETFUL
    :: else ->
        if
        :: slot[at].acknowledged == ALL || slot[at].aggregated == 0 -> begin_round(at, in_round)
        :: else -> slot[at].round = in_round
        fi;
        if
        :: !(slot[at].aggregated & BIT(e)) -> add(at, e, value)
        :: else -> answer = (slot[at].aggregated == ALL -> BIT(e) : 0)
        fi
#else
    :: !IS_FOREIGN(at, in_job) && in_round == AFTER(slot[at].round) ->
        begin_round(at, in_round);
        add(at, e, value)
    :: !IS_FOREIGN(at, in_job) && in_round == slot[at].round && slot[at].aggregated != 0 ->
#ifdef MUTANT_ADDS_TWICE
        slot[at].aggregated = (slot[at].aggregated == ALL -> ALL : slot[at].aggregated & ~BIT(e));
#endif
        if
        :: !(slot[at].aggregated & BIT(e)) -> add(at, e, value)
#ifdef MUTANT_TELLS_ONCE
        :: else -> skip
#else
        :: else ->
            answer = (slot[at].aggregated == WHOLE(at) -> BIT(e) : 0);
#if RACKS > 1 && !defined(MUTANT_ASKS_ONCE)
            asks = slot[at].aggregated != WHOLE(at) && slot[at].aggregated == MEMBERS(at)
#endif
#endif
        fi
    :: else -> skip
#endif
    fi
}

/* ACK(r) arrives by cable e; `answer` is the bitmap of the cables that get CLEAR. */
inline take_ack(at, in_job, e, in_round) {
    answer = 0;
    asks = false;
#ifdef MUTANT_COUNTS_LATE_ACKS
    answer_round = slot[at].round;
#else
    answer_round = in_round;
#endif
    if
    :: IS_FOREIGN(at, in_job) -> skip
#ifdef FORGETFUL
    :: else ->
        changed = changed || !(slot[at].acknowledged & BIT(e));
        slot[at].acknowledged = slot[at].acknowledged | BIT(e);
        answer = (slot[at].acknowledged == ALL -> ALL : 0)
#else
    :: !IS_FOREIGN(at, in_job) && answer_round == slot[at].round && slot[at].aggregated == WHOLE(at) ->
        if
        :: slot[at].acknowledged & BIT(e) ->
            answer = (slot[at].acknowledged == WHOLE(at) -> BIT(e) : 0);
#if RACKS > 1 && !defined(MUTANT_ACKNOWLEDGES_ONCE)
            asks = slot[at].acknowledged != WHOLE(at) && slot[at].acknowledged == MEMBERS(at)
#endif
        :: else ->
            slot[at].acknowledged = slot[at].acknowledged | BIT(e);
            changed = true;
            if
            :: slot[at].acknowledged == MEMBERS(at) ->
                members_are_complete(at);
#ifdef MUTANT_CLEARS_FIRST
                slot[at].acknowledged = WHOLE(at);
                asks = false;
                answer = MEMBERS(at)
#endif
            :: else -> skip
            fi
        fi
#ifndef MUTANT_IGNORES_LATE_ACKS
    :: !IS_FOREIGN(at, in_job) && answer_round != slot[at].round && slot[at].aggregated != 0 &&
       IS_BEFORE(in_round, slot[at].round) ->
        answer = BIT(e)
#endif
    :: else -> skip
#endif
    fi
}

#if RACKS > 1
#ifdef MUTANT_TAKES_ANY_FULL
#define IS_ROUND_OF_FULL(at, r) true
#else
#define IS_ROUND_OF_FULL(at, r) ((r) == slot[at].round)
#endif
#ifdef MUTANT_TAKES_ANY_CLEAR_FROM_ABOVE
#define IS_ROUND_OF_CLEAR(at, r) true
#else
#define IS_ROUND_OF_CLEAR(at, r) ((r) == slot[at].round)
#endif

/* FULL(r) of the parent arrives at a rack: its sums take the place of those that it was sent. */
inline take_parents_full(at, in_job, in_round, sums) {
    answer = 0;
    answer_round = slot[at].round;
    if
    :: !IS_FOREIGN(at, in_job) && IS_ROUND_OF_FULL(at, in_round) && slot[at].aggregated == MEMBERS(at) ->
        slot[at].aggregated = WHOLE(at);
#ifdef MUTANT_ADDS_FULL
        slot[at].sum = (slot[at].sum & (sums) -> TWICE : 0) | slot[at].sum | (sums);
#else
#ifndef MUTANT_KEEPS_SUMS
        slot[at].sum = sums;
#endif
#endif
        changed = true;
        answer = MEMBERS(at)
    :: else -> skip
    fi
}

/* CLEAR(r) of the parent arrives at a rack. */
inline take_parents_clear(at, in_job, in_round) {
    answer = 0;
    answer_round = slot[at].round;
    if
    :: !IS_FOREIGN(at, in_job) && IS_ROUND_OF_CLEAR(at, in_round) && slot[at].acknowledged == MEMBERS(at) ->
        slot[at].acknowledged = WHOLE(at);
        changed = true;
        answer = MEMBERS(at)
    :: else -> skip
    fi
}
#endif

/* ---- the worker's side ---- */

/* Without end, the good network is asked only for the operations that the furthest worker has begun. */
#define IS_AT_WORK_WITH(v, w) \
    (worker[v].phase != IDLE && worker[v].round == worker[w].round && worker[v].job == worker[w].job)
#if OPERATIONS
#define HAS_NEXT(w) (OPERATION(worker[w].round) < OPERATIONS)
#else
#define HAS_NEXT(w) (!healed || ANY_WORKER(IS_AT_WORK_WITH, w))
#endif

#define CAN_BEGIN(w) (worker[w].phase == IDLE && worker[w].job != NO_JOB && HAS_NEXT(w))
#define IS_DONE(w) \
    (worker[w].phase == IDLE && worker[w].job == restarted && worker[w].round == worker[0].round && !HAS_NEXT(w))
#define ALL_DONE ALL_WORKERS(IS_DONE)

#ifdef MUTANT_TAKES_ANSWERS_OF_ANY_JOB
#define IS_MINE(w, j) true
#else
#define IS_MINE(w, j) (worker[w].job == (j))
#endif

/* FULL(r) may come before worker w begins round r, if its stand-in has. */
#ifndef STAND_INS
#define IS_EARLY(w, r) false
#else
#ifdef MUTANT_TAKES_ANY_EARLY
#define IS_EARLY(w, r) (worker[w].phase == IDLE)
#else
#define IS_EARLY(w, r) (worker[w].phase == IDLE && worker[w].round == (r))
#endif
#endif

/* FULL(r) arrives at worker w. Its sums are handed on at once: there is no other slot to wait for. */
inline take_full(in_job, w, in_round, sums) {
    if
#ifdef MUTANT_TAKES_ANY
    :: IS_MINE(w, in_job) && worker[w].phase == PARTIAL ->
#else
    :: IS_MINE(w, in_job) && (IS_EARLY(w, in_round) || worker[w].phase == PARTIAL && worker[w].round == in_round) ->
#endif
        printf("worker %d takes FULL(%d) in round %d of job %d\n", w, in_round, worker[w].round, worker[w].job);
        assert(sums == RIGHT_SUM(worker[w].job, worker[w].round)); /* no wrong sum */
        worker[w].phase = ACK;
        changed = true
    :: else -> skip
    fi
}

/* CLEAR(r) arrives at worker w. */
inline take_clear(in_job, w, in_round) {
    if
#ifdef MUTANT_TAKES_ANY_CLEAR
    :: IS_MINE(w, in_job) && worker[w].phase == ACK ->
#else
    :: IS_MINE(w, in_job) && worker[w].phase == ACK && worker[w].round == in_round ->
#endif
        printf("worker %d takes CLEAR(%d) in round %d of job %d\n", w, in_round, worker[w].round, worker[w].job);
        worker[w].phase = IDLE;
        worker[w].round = AFTER(worker[w].round);
        changed = true
    :: else -> skip
    fi
}

/* ---- what may happen at any time while the network is bad: packets on each cable ---- */

#define SEND(set, r) set = set | BIT(r)
#define IS_SENT(set, r) (!healed && ((set) & BIT(r)))

/* The last statement does nothing: a d_step must not end with a loop. */
#define SEND_TO_ANSWERED(at, set, r) \
    for (i : 0 .. CABLES - 1) { \
        if \
        :: answer & BIT(i) -> SEND(NET(slot[at].job, i).set, r) \
        :: else -> skip \
        fi \
    } \
    skip

/* No two FULLs of a round differ. */
inline send_fulls(at) {
    if
    :: answer ->
        assert(TOLD(at, slot[at].job, answer_round) == 0 || TOLD(at, slot[at].job, answer_round) == slot[at].sum);
        TOLD(at, slot[at].job, answer_round) = slot[at].sum
    :: else -> skip
    fi;
    SEND_TO_ANSWERED(at, fulls, answer_round)
}

inline partial_arrives(in_job, e, in_round) {
    here = HOME(e);
    carried = VALUE(in_job, e, in_round);
#if RACKS > 1
    if
    :: here == TOP -> carried = ASKED(e - WORKERS, in_job, in_round)
    :: else -> skip
    fi;
#endif
    printf("PARTIAL(%d) of cable %d, job %d, comes to aggregator %d\n", in_round, e, in_job, here);
    take_partial(here, in_job, e, in_round, carried);
#if RACKS > 1
    if
    :: asks ->
        /* No two PARTIALs of a rack and a round differ. */
        assert(ASKED(here, in_job, in_round) == 0 || ASKED(here, in_job, in_round) == slot[here].sum);
        ASKED(here, in_job, in_round) = slot[here].sum;
        SEND(NET(in_job, UP(here)).partials, in_round)
    :: else -> skip
    fi;
#endif
    send_fulls(here)
}

#ifdef STAND_INS
/* PARTIAL(r) of worker e arrives from its stand-in, which gets no answer to itself. */
inline stand_in_arrives(in_job, e, in_round) {
    printf("PARTIAL(%d) of worker %d, job %d, comes from its stand-in\n", in_round, e, in_job);
    carried = VALUE(in_job, e, in_round);
#ifdef MUTANT_ADDS_BOTH
    if
    :: slot[0].job == in_job && slot[0].round == in_round && slot[0].aggregated & BIT(e) && slot[0].aggregated != ALL ->
        slot[0].sum = slot[0].sum | TWICE
    :: else -> skip
    fi;
#endif
    take_partial(0, in_job, e, in_round, carried);
    answer = (answer == ALL -> ALL : 0);
    send_fulls(0)
}
#define STAND_IN_ARRIVES(j, r) :: d_step { IS_SENT(NET(j, _pid).stand_ins, r) -> stand_in_arrives(j, _pid, r) }
#else
#define STAND_IN_ARRIVES(j, r)
#endif

inline ack_arrives(in_job, e, in_round) {
    here = HOME(e);
    printf("ACK(%d) of cable %d, job %d, comes to aggregator %d\n", in_round, e, in_job, here);
    take_ack(here, in_job, e, in_round);
#if RACKS > 1
    if
    :: asks -> SEND(NET(in_job, UP(here)).acks, in_round)
    :: else -> skip
    fi;
#endif
    SEND_TO_ANSWERED(here, clears, answer_round)
}

inline full_arrives_at_worker(in_job, w, in_round) {
    changed = false;
    here = HOME(w);
    take_full(in_job, w, in_round, TOLD(here, in_job, in_round));
    if
    :: changed -> SEND(NET(worker[w].job, w).acks, worker[w].round)
    :: else -> skip
    fi
}

inline full_arrives(in_job, e, in_round) {
#if RACKS > 1
    if
    :: e < WORKERS -> full_arrives_at_worker(in_job, e, in_round)
    :: else ->
        here = e - WORKERS;
        printf("FULL(%d) of job %d comes to rack %d\n", in_round, in_job, here);
        take_parents_full(here, in_job, in_round, TOLD(TOP, in_job, in_round));
        send_fulls(here)
    fi
#else
    full_arrives_at_worker(in_job, e, in_round)
#endif
}

inline clear_arrives(in_job, e, in_round) {
#if RACKS > 1
    if
    :: e < WORKERS -> take_clear(in_job, e, in_round)
    :: else ->
        here = e - WORKERS;
        printf("CLEAR(%d) of job %d comes to rack %d\n", in_round, in_job, here);
        take_parents_clear(here, in_job, in_round);
        SEND_TO_ANSWERED(here, clears, answer_round)
    fi
#else
    take_clear(in_job, e, in_round)
#endif
}

#define ARRIVE(j, r) \
    :: d_step { IS_SENT(NET(j, _pid).partials, r) -> partial_arrives(j, _pid, r) } \
    :: d_step { IS_SENT(NET(j, _pid).acks, r) -> ack_arrives(j, _pid, r) } \
    :: d_step { IS_SENT(NET(j, _pid).fulls, r) -> full_arrives(j, _pid, r) } \
    :: d_step { IS_SENT(NET(j, _pid).clears, r) -> clear_arrives(j, _pid, r) } \
    STAND_IN_ARRIVES(j, r)
#ifdef RESTART
#define ARRIVE_IN_ANY_JOB(r) ARRIVE(0, r) ARRIVE(1, r)
#else
#define ARRIVE_IN_ANY_JOB(r) ARRIVE(0, r)
#endif

active [CABLES] proctype anything() { /* process w is worker w, the others are the racks' cables */
end:
    do
    :: d_step {
        !healed && _pid < WORKERS && CAN_BEGIN(_pid) ->
        printf("worker %d begins round %d of job %d\n", _pid, worker[_pid].round, worker[_pid].job);
        worker[_pid].phase = PARTIAL;
        SEND(NET(worker[_pid].job, _pid).partials, worker[_pid].round)
    }
#ifdef STAND_INS
    :: d_step {
        !healed && worker[_pid].phase == PARTIAL ->
        printf("worker %d stands in in round %d of job %d\n", _pid, worker[_pid].round, worker[_pid].job);
        SEND(NET(worker[_pid].job, STANDS_FOR(_pid)).stand_ins, worker[_pid].round)
    }
#ifdef MUTANT_STANDS_IN_TOO_SOON
    :: d_step {
        !healed && worker[_pid].phase == ACK && OPERATION(AFTER(worker[_pid].round)) < TAGS ->
        SEND(NET(worker[_pid].job, STANDS_FOR(_pid)).stand_ins, AFTER(worker[_pid].round))
    }
#endif
#endif
    ARRIVE_IN_ANY_JOB(FIRST)
#if TAGS > 1
    ARRIVE_IN_ANY_JOB((FIRST + 1) % ROUNDS)
#endif
#if TAGS > 2
    ARRIVE_IN_ANY_JOB((FIRST + 2) % ROUNDS)
#endif
#if TAGS > 3
    ARRIVE_IN_ANY_JOB((FIRST + 3) % ROUNDS)
#endif
#if TAGS > 4
    ARRIVE_IN_ANY_JOB((FIRST + 4) % ROUNDS)
#endif
#if TAGS > 5
    ARRIVE_IN_ANY_JOB((FIRST + 5) % ROUNDS)
#endif
#if TAGS > 6
    ARRIVE_IN_ANY_JOB((FIRST + 6) % ROUNDS)
#endif
#if TAGS > 7
    ARRIVE_IN_ANY_JOB((FIRST + 7) % ROUNDS)
#endif
    od
}

/*
 * ---- the end ----
 *
 * At any time the network may become good: packets under way are lost, and all packets sent from then on arrive at once.
 * So each state is checked: do resends alone lead to the end? Timers expire in any order, but one that changed nothing
 * does not expire again until something has changed. If none is left to expire before the end, this process is stuck,
 * and spin reports an invalid end state. If changes never end, it reports an acceptance cycle.
 *
 * That is enough for any network that sometimes delivers a packet that is sent again and again, late packets or not.
 * State machines only go forward, so they stop changing at some time. If that were before the end, some resend would
 * change one of them; so would its repetitions, of which one arrives, and so does one of the answers.
 */

byte quiet; /* bitmap of workers whose timers have changed nothing since the last change */

/* What an aggregator answers comes to its workers. */
inline deliver_fulls(at) {
    for (i : 0 .. WORKERS - 1) {
        if
        :: answer & BIT(i) -> take_full(slot[at].job, i, answer_round, slot[at].sum)
        :: else -> skip
        fi
    }
}

inline deliver_clears(at) {
    for (i : 0 .. WORKERS - 1) {
        if
        :: answer & BIT(i) -> take_clear(slot[at].job, i, answer_round)
        :: else -> skip
        fi
    }
}

#if RACKS > 1
/* What a rack sends up comes to the top, whose answers come to racks and through these to workers. */
inline ask_for_full(at) {
    if
    :: asks ->
        take_partial(TOP, slot[at].job, UP(at), answer_round, slot[at].sum);
        top_answer = answer;
        for (k : 0 .. RACKS - 1) {
            if
            :: top_answer & BIT(UP(k)) ->
                take_parents_full(k, slot[TOP].job, slot[TOP].round, slot[TOP].sum);
                deliver_fulls(k)
            :: else -> skip
            fi
        }
    :: else -> skip
    fi
}

inline ask_for_clear(at) {
    if
    :: asks ->
        i = answer_round;
        take_ack(TOP, slot[at].job, UP(at), i);
        top_answer = answer;
        top_round = answer_round;
        for (k : 0 .. RACKS - 1) {
            if
            :: top_answer & BIT(UP(k)) ->
                take_parents_clear(k, slot[TOP].job, top_round);
                deliver_clears(k)
            :: else -> skip
            fi
        }
    :: else -> skip
    fi
}
#endif

inline run_out(w) {
    printf("worker %d sends again what is not answered\n", w);
    changed = false;
    here = HOME(w);
    if
    :: CAN_BEGIN(w) ->
        worker[w].phase = PARTIAL;
        changed = true
    :: else -> skip
    fi;
    if
    :: worker[w].phase == PARTIAL ->
        carried = VALUE(worker[w].job, w, worker[w].round);
        take_partial(here, worker[w].job, w, worker[w].round, carried);
        deliver_fulls(here)
#if RACKS > 1
        ;
        ask_for_full(here)
#endif
#ifndef MUTANT_SENDS_ACK_ONCE
    :: worker[w].phase == ACK ->
        take_ack(here, worker[w].job, w, worker[w].round);
        deliver_clears(here)
#if RACKS > 1
        ;
        ask_for_clear(here)
#endif
#endif
    :: else -> skip
    fi;
    quiet = (changed -> 0 : quiet | BIT(w))
}

#define TIMER(w) :: d_step { !ALL_DONE && !(quiet & BIT(w)) -> run_out(w) }

#ifndef NO_END
active proctype timers() {
    d_step {
        printf("the network becomes a good one\n");
        healed = true;
        for (i : 0 .. JOBS * CABLES - 1) {
            network[i].partials = 0;
#ifdef STAND_INS
            network[i].stand_ins = 0;
#endif
            network[i].acks = 0;
            network[i].fulls = 0;
            network[i].clears = 0
        }
        for (i : 0 .. (TOP + 1) * JOBS * TAGS - 1) {
            told[i] = 0
        }
#if RACKS > 1
        for (i : 0 .. RACKS * JOBS * TAGS - 1) {
            asked[i] = 0
        }
#endif
    }
accept:
    do
    EACH_WORKER(TIMER)
    :: ALL_DONE -> break
    od
}
#endif

/* ---- joining a job, and restarts ---- */

#define FRESH_SLOT(at, j) \
    slot[at].job = j; \
    slot[at].round = BEFORE_FIRST; \
    slot[at].aggregated = 0; \
    slot[at].acknowledged = 0; \
    slot[at].sum = 0
#define JOIN(w, j) \
    worker[w].job = j; \
    worker[w].phase = IDLE; \
    worker[w].round = FIRST

#ifdef RESTART
#define MAY_RESTART(w) \
    :: d_step { \
        !restarted && !healed -> \
        printf("worker %d restarts\n", w); \
        restarted = true; \
        JOIN(w, NO_JOB) \
    }
#define MAY_JOIN(w) \
    :: d_step { \
        restarted && worker[w].job != 1 -> \
        printf("worker %d joins job 1\n", w); \
        JOIN(w, 1); \
        quiet = 0 \
    }
#define MAY_BEGIN(at) \
    :: d_step { \
        restarted && slot[at].job != 1 -> \
        printf("aggregator %d begins job 1\n", at); \
        FRESH_SLOT(at, 1); \
        quiet = 0 \
    }

active proctype host() {
end:
    do
    EACH_WORKER(MAY_RESTART)
    EACH_WORKER(MAY_JOIN)
    MAY_BEGIN(TOP)
#if RACKS > 1
    MAY_BEGIN(0)
    MAY_BEGIN(1)
#endif
#if RACKS > 2
    MAY_BEGIN(2)
#endif
    od
}
#endif
