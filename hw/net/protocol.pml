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

/* Packets of a job that were sent by or to a worker: one bit for each round. */
typedef Network {
    byte partials;
    byte acks;
    byte fulls;
    byte clears
};

Worker worker[WORKERS];
Slot slot;
Network network[JOBS * WORKERS];
int told[JOBS * TAGS]; /* the sum in the FULLs of each round; one is enough, as they must not differ */
bool healed;           /* the network has become a good one */
bool restarted;

/* These have a meaning only within a step, so they are no part of a state. */
hidden byte i;
hidden byte answer;       /* bitmap of the workers that the aggregator answers */
hidden byte answer_round;
hidden byte changed;      /* whether a state machine has changed */

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

#define NET(j, w) network[(j) * WORKERS + (w)]

/* ---- the aggregator's side (spin allows no parameter of an inline to be the beginning of a field's name) ---- */

inline add(in_job, w, in_round) {
    if
    :: slot.sum & VALUE(in_job, w, in_round) -> slot.sum = slot.sum | TWICE
    :: else -> slot.sum = slot.sum | VALUE(in_job, w, in_round)
    fi;
    slot.aggregated = slot.aggregated | BIT(w);
    changed = true;
    answer = (slot.aggregated == ALL -> ALL : 0)
}

/* Begin a round: the values replace the sum. */
inline begin_round(in_round) {
    slot.round = in_round;
    slot.aggregated = 0;
    slot.acknowledged = 0;
    slot.sum = 0;
#if !OPERATIONS
    /* Packets that are more than ROUNDS / 2 rounds late are removed, and what they carried. */
#define GONE(r) (((r) + ROUNDS / 2 - 1) % ROUNDS)
    for (i : 0 .. WORKERS - 1) {
        NET(slot.job, i).partials = NET(slot.job, i).partials & ~BIT(GONE(in_round));
        NET(slot.job, i).acks = NET(slot.job, i).acks & ~BIT(GONE(in_round));
        NET(slot.job, i).fulls = NET(slot.job, i).fulls & ~BIT(GONE(in_round));
        NET(slot.job, i).clears = NET(slot.job, i).clears & ~BIT(GONE(in_round))
    }
    told[GROUP(slot.job, GONE(in_round))] = 0
#endif
}

#ifdef MUTANT_TAKES_ANY_JOB
#define IS_FOREIGN(j) false
#else
#define IS_FOREIGN(j) ((j) != slot.job)
#endif

/* PARTIAL(r) of worker w arrives at the aggregator; `answer` is the bitmap of the workers that get FULL(r). */
inline take_partial(in_job, w, in_round) {
    answer = 0;
    answer_round = in_round;
    if
    :: IS_FOREIGN(in_job) -> skip
#ifdef FORGETFUL
    :: else ->
        if
        :: slot.acknowledged == ALL || slot.aggregated == 0 -> begin_round(in_round)
        :: else -> slot.round = in_round
        fi;
        if
        :: !(slot.aggregated & BIT(w)) -> add(in_job, w, in_round)
        :: else -> answer = (slot.aggregated == ALL -> BIT(w) : 0)
        fi
#else
    :: !IS_FOREIGN(in_job) && in_round == AFTER(slot.round) ->
        begin_round(in_round);
        add(in_job, w, in_round)
    :: !IS_FOREIGN(in_job) && in_round == slot.round && slot.aggregated != 0 ->
#ifdef MUTANT_ADDS_TWICE
        slot.aggregated = (slot.aggregated == ALL -> ALL : slot.aggregated & ~BIT(w));
#endif
        if
        :: !(slot.aggregated & BIT(w)) -> add(in_job, w, in_round)
#ifdef MUTANT_TELLS_ONCE
        :: else -> skip
#else
        :: else -> answer = (slot.aggregated == ALL -> BIT(w) : 0)
#endif
        fi
    :: else -> skip
#endif
    fi
}

/* ACK(r) of worker w arrives at the aggregator; `answer` is the bitmap of the workers that get CLEAR. */
inline take_ack(in_job, w, in_round) {
    answer = 0;
#ifdef MUTANT_COUNTS_LATE_ACKS
    answer_round = slot.round;
#else
    answer_round = in_round;
#endif
    if
    :: IS_FOREIGN(in_job) -> skip
#ifdef FORGETFUL
    :: else ->
        changed = changed || !(slot.acknowledged & BIT(w));
        slot.acknowledged = slot.acknowledged | BIT(w);
        answer = (slot.acknowledged == ALL -> ALL : 0)
#else
    :: !IS_FOREIGN(in_job) && answer_round == slot.round && slot.aggregated == ALL ->
        if
        :: slot.acknowledged & BIT(w) -> answer = (slot.acknowledged == ALL -> BIT(w) : 0)
        :: else ->
            slot.acknowledged = slot.acknowledged | BIT(w);
            changed = true;
            answer = (slot.acknowledged == ALL -> ALL : 0)
        fi
#ifndef MUTANT_IGNORES_LATE_ACKS
    :: !IS_FOREIGN(in_job) && answer_round != slot.round && slot.aggregated != 0 && IS_BEFORE(in_round, slot.round) ->
        answer = BIT(w)
#endif
    :: else -> skip
#endif
    fi
}

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

/* FULL(r) arrives at worker w. Its sums are handed on at once: there is no other slot to wait for. */
inline take_full(in_job, w, in_round, sums) {
    if
#ifdef MUTANT_TAKES_ANY
    :: IS_MINE(w, in_job) && worker[w].phase == PARTIAL ->
#else
    :: IS_MINE(w, in_job) && worker[w].phase == PARTIAL && worker[w].round == in_round ->
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

/* ---- what may happen at any time while the network is bad: packets to and from each worker ---- */

#define SEND(set, r) set = set | BIT(r)
#define IS_SENT(set, r) (!healed && ((set) & BIT(r)))

/* The last statement does nothing: a d_step must not end with a loop. */
#define SEND_TO_ANSWERED(set, r) \
    for (i : 0 .. WORKERS - 1) { \
        if \
        :: answer & BIT(i) -> SEND(NET(slot.job, i).set, r) \
        :: else -> skip \
        fi \
    } \
    skip

inline partial_arrives(in_job, w, in_round) {
    printf("PARTIAL(%d) of worker %d, job %d, comes to the aggregator\n", in_round, w, in_job);
    take_partial(in_job, w, in_round);
    if
    :: answer ->
        /* No two FULLs of a round differ. */
        assert(told[GROUP(slot.job, in_round)] == 0 || told[GROUP(slot.job, in_round)] == slot.sum);
        told[GROUP(slot.job, in_round)] = slot.sum
    :: else -> skip
    fi;
    SEND_TO_ANSWERED(fulls, in_round)
}

inline ack_arrives(in_job, w, in_round) {
    printf("ACK(%d) of worker %d, job %d, comes to the aggregator\n", in_round, w, in_job);
    take_ack(in_job, w, in_round);
    SEND_TO_ANSWERED(clears, answer_round)
}

inline full_arrives(in_job, w, in_round) {
    changed = false;
    take_full(in_job, w, in_round, told[GROUP(in_job, in_round)]);
    if
    :: changed -> SEND(NET(worker[w].job, w).acks, worker[w].round)
    :: else -> skip
    fi
}

#define ARRIVE(j, r) \
    :: d_step { IS_SENT(NET(j, _pid).partials, r) -> partial_arrives(j, _pid, r) } \
    :: d_step { IS_SENT(NET(j, _pid).acks, r) -> ack_arrives(j, _pid, r) } \
    :: d_step { IS_SENT(NET(j, _pid).fulls, r) -> full_arrives(j, _pid, r) } \
    :: d_step { IS_SENT(NET(j, _pid).clears, r) -> take_clear(j, _pid, r) }
#ifdef RESTART
#define ARRIVE_IN_ANY_JOB(r) ARRIVE(0, r) ARRIVE(1, r)
#else
#define ARRIVE_IN_ANY_JOB(r) ARRIVE(0, r)
#endif

active [WORKERS] proctype anything() {
end:
    do
    :: d_step {
        !healed && CAN_BEGIN(_pid) ->
        printf("worker %d begins round %d of job %d\n", _pid, worker[_pid].round, worker[_pid].job);
        worker[_pid].phase = PARTIAL;
        SEND(NET(worker[_pid].job, _pid).partials, worker[_pid].round)
    }
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

inline run_out(w) {
    printf("worker %d sends again what is not answered\n", w);
    changed = false;
    if
    :: CAN_BEGIN(w) ->
        worker[w].phase = PARTIAL;
        changed = true
    :: else -> skip
    fi;
    if
    :: worker[w].phase == PARTIAL ->
        take_partial(worker[w].job, w, worker[w].round);
        for (i : 0 .. WORKERS - 1) {
            if
            :: answer & BIT(i) -> take_full(slot.job, i, answer_round, slot.sum)
            :: else -> skip
            fi
        }
#ifndef MUTANT_SENDS_ACK_ONCE
    :: worker[w].phase == ACK ->
        take_ack(worker[w].job, w, worker[w].round);
        for (i : 0 .. WORKERS - 1) {
            if
            :: answer & BIT(i) -> take_clear(slot.job, i, answer_round)
            :: else -> skip
            fi
        }
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
        for (i : 0 .. JOBS * WORKERS - 1) {
            network[i].partials = 0;
            network[i].acks = 0;
            network[i].fulls = 0;
            network[i].clears = 0
        }
        for (i : 0 .. JOBS * TAGS - 1) {
            told[i] = 0
        }
    }
accept:
    do
    EACH_WORKER(TIMER)
    :: ALL_DONE -> break
    od
}
#endif

/* ---- joining a job, and restarts ---- */

#define FRESH_SLOT(j) \
    slot.job = j; \
    slot.round = BEFORE_FIRST; \
    slot.aggregated = 0; \
    slot.acknowledged = 0; \
    slot.sum = 0
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

active proctype host() {
end:
    do
    EACH_WORKER(MAY_RESTART)
    EACH_WORKER(MAY_JOIN)
    :: d_step {
        restarted && slot.job != 1 ->
        printf("the aggregator begins job 1\n");
        FRESH_SLOT(1);
        quiet = 0
    }
    od
}
#endif
