// The switch's side of the AllReduce protocol (hw/net) for Tofino, architecture TNA.
//
// A packet passes the pipeline once and accesses each register once. Each step needs the result of the one before, so
// each is a stage:
//   0  look up the job and the shard's worker; is the packet well-formed?
//   1  compare its fields with what they should be
//   2  admit: do all checks pass? If so, read the slot's round, and write it if a new round begins
//   3  subtract the rounds
//   4  read and update the bitmap of shards whose partials the slot has
//   5  compare: was the shard in it, are others missing?
//   6  read and update the bitmap of shards that have acknowledged; sums
//   7  compare in the same way; sums
//   8  decide on the answer; the rest of the sums

#include <core.p4>
#include <tna.p4>

#include "p4sgd_headers.p4"
#include "p4sgd_sizes.p4"

// Tofino prunes copies to the excluded port only if the packet's replication ID is that of the group's nodes, or 0.
// Answers have another ID, so that no copy of them is pruned.
const bit<16> OTHER_RID = NODE_RID + 1;

typedef bit<(SLOT_BITS + 3)> address_t;

// Bits that are 0 in every valid slot number
const bit<16> SLOT_MASK = (bit<16>) (65536 - SLOTS);

// What a packet is, by its own bytes
typedef bit<4> kind_t;
const kind_t HAS_OTHER_VERSION = 0;
const kind_t HAS_RESERVED_BITS = 1;
const kind_t IS_PARTIAL = 2;
const kind_t IS_ACK = 3;
const kind_t IS_PROBE = 4;
const kind_t IS_PROBE_TO_EVERYBODY = 5;
const kind_t IS_OTHER = 6;

// What an admitted packet asks of its slot
typedef bit<4> request_t;
const request_t NOTHING = 0;
const request_t TAKE_FIRST = 1; // PARTIAL of the job's first round; the slot may be fresh
const request_t TAKE = 2;
const request_t CONFIRM = 3;
const request_t LOOK = 4;
const request_t LOOK_NOWHERE = 5;

// What is done with the slot
typedef bit<4> step_t;
const step_t LEAVE = 0;
const step_t BEGIN_ROUND = 1;
const step_t ADD = 2;
const step_t CONFIRM_ROUND = 3;
const step_t CONFIRM_LATE = 4;
const step_t SHOW = 5;
const step_t SHOW_FRESH = 6;
const step_t SHOW_NOTHING = 7;

struct headers_t {
    ethernet_t ethernet;
    p4sgd_t p4sgd;
}

struct metadata_t {
    mac_t mac; // the aggregator's own address
    kind_t kind;
    // The packet's job
    bit<1> is_served;
    place_t place;
    generation_t generation; // slots of another generation are fresh
    round_t before; // the round before the job's first
    bit<8> workers;
    bitmap_t everyone;
    mac_t group_mac;
    // The worker of the packet's shard
    bit<1> is_member;
    bitmap_t member_bitmap;
    mac_t member_mac;
    PortId_t member_port;
    // Differences from what the packet should have; 0 if there is none
    mac_t destination_off;
    mac_t source_off;
    bit<8> workers_off;
    bitmap_t bitmap_off;
    PortId_t port_off;
    // The slot
    address_t address;
    request_t request;
    step_t step;
    round_t round_before; // the packet's round less 1
    round_t since_before; // the packet's round less `before`
    bit<32> tag; // the packet's round, then the generation
    bit<32> tag_before; // the round before the packet's, then the generation
    bit<32> carried; // the slot's tag
    bit<32> since; // tag less carried: difference of the rounds, then 0 if the slot is of this generation
    bitmap_t others; // all shards but the packet's
    bitmap_t aggregated;
    bitmap_t seen; // the packet's bit, if the slot has its shard's partial
    bitmap_t missing; // other shards whose partials the slot lacks
    bitmap_t acknowledged;
    bitmap_t repeated; // the packet's bit, if its shard has acknowledged
    bitmap_t unacknowledged; // other shards that have not acknowledged
    verdict_t verdict;
    outcome_t outcome; // of a packet that is dropped
}

struct slot_tags_t {
    bit<32> carried; // round and generation
    bit<32> first; // the tag of the job's first round, once it has begun in this slot: tells generations apart
}

parser IngressParser(
    packet_in packet,
    out headers_t hdr,
    out metadata_t meta,
    out ingress_intrinsic_metadata_t ig_intr_md
) {
    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE: parse_p4sgd;
            default: accept;
        }
    }
    state parse_p4sgd {
        packet.extract(hdr.p4sgd);
        // Defaults for fields that no table may set
        meta.is_served = 0;
        meta.workers = 0;
        meta.is_member = 0;
        meta.aggregated = 0;
        meta.acknowledged = 0;
        transition accept;
    }
}

// One of the eight sums, for all slots: the first PARTIAL of a round overwrites it, the others are added.
control Sum(inout bit<32> value, in address_t address, in step_t step, in bitmap_t seen) {
    Register<bit<32>, address_t>(JOBS * SLOTS) sums;

    RegisterAction<bit<32>, address_t, bit<32>>(sums) overwriting = {
        void apply(inout bit<32> sum) {
            sum = value;
        }
    };
    RegisterAction<bit<32>, address_t, bit<32>>(sums) adding = {
        void apply(inout bit<32> sum, out bit<32> result) {
            sum = sum + value;
            result = sum;
        }
    };
    RegisterAction<bit<32>, address_t, bit<32>>(sums) reading = {
        void apply(inout bit<32> sum, out bit<32> result) {
            result = sum;
        }
    };

    action overwrite() {
        overwriting.execute(address);
    }
    action add() {
        value = adding.execute(address);
    }
    action read() {
        value = reading.execute(address);
    }
    action clear() {
        value = 0;
    }

    table update {
        key = { step: ternary; seen: ternary; }
        actions = { overwrite; add; read; clear; NoAction; }
        const default_action = NoAction();
        const entries = {
            (BEGIN_ROUND, _): overwrite();
            (ADD, 0): add();
            (ADD, _): read();
            (CONFIRM_ROUND, _): clear();
            (CONFIRM_LATE, _): clear();
        }
        size = 8;
    }

    apply {
        update.apply();
    }
}

// Tables of one stage must not write to the same PHV container, and those of stage 0 write these fields.
@pa_solitary("ingress", "meta.kind")
@pa_solitary("ingress", "meta.place")
@pa_solitary("ingress", "meta.is_served")
@pa_solitary("ingress", "meta.is_member")
control SwitchIngress(
    inout headers_t hdr,
    inout metadata_t meta,
    in ingress_intrinsic_metadata_t ig_intr_md,
    in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
    inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
    inout ingress_intrinsic_metadata_for_tm_t ig_tm_md
) {
    // Other protocols

    action forward(PortId_t port) {
        ig_tm_md.ucast_egress_port = port;
        meta.port_off = ig_intr_md.ingress_port ^ port;
    }
    action flood() {
        ig_tm_md.mcast_grp_a = FLOOD_GROUP;
        ig_tm_md.rid = NODE_RID;
        ig_tm_md.level2_exclusion_id = ig_intr_md.ingress_port; // never back to its own port
        meta.port_off = 1; // it goes to other ports
    }
    action drop() {
        ig_dprsr_md.drop_ctl = 1;
    }
    table forwarding {
        key = { hdr.ethernet.destination: exact @name("destination"); }
        actions = { forward; flood; drop; }
        default_action = flood();
        size = 1024;
    }

    // Stage 0

    action set_mac(mac_t mac) {
        meta.mac = mac;
        ig_tm_md.bypass_egress = 1; // the egress pipeline has nothing to do
    }
    table own {
        actions = { set_mac; }
        default_action = set_mac(0);
        size = 1;
    }

    action serve(
        place_t place,
        generation_t generation,
        round_t before,
        bit<8> workers,
        bitmap_t everyone,
        mac_t group_mac
    ) {
        meta.is_served = 1;
        meta.place = place;
        meta.generation = generation;
        meta.before = before;
        meta.workers = workers;
        meta.everyone = everyone;
        meta.group_mac = group_mac;
    }
    // The entry of the last job stays: it holds the generation that the next job must not have.
    action retire(generation_t generation) { }
    table jobs {
        key = { hdr.p4sgd.job: exact @name("job"); }
        actions = { serve; retire; NoAction; }
        const default_action = NoAction();
        size = 2 * JOBS;
    }

    action member(bitmap_t bitmap, mac_t mac, PortId_t port_of_member) {
        meta.is_member = 1;
        meta.member_bitmap = bitmap;
        meta.member_mac = mac;
        meta.member_port = port_of_member;
    }
    table members {
        key = { hdr.p4sgd.job: exact @name("job"); hdr.p4sgd.shard: exact @name("shard"); }
        actions = { member; NoAction; }
        const default_action = NoAction();
        size = 32 * JOBS;
    }

    action is_of(kind_t kind) {
        meta.kind = kind;
        meta.round_before = hdr.p4sgd.round - 1;
    }
    table format {
        key = {
            hdr.p4sgd.version: ternary;
            hdr.p4sgd.type: ternary;
            hdr.p4sgd.reserved: ternary;
            hdr.ethernet.destination: ternary;
        }
        actions = { is_of; }
        const default_action = is_of(HAS_OTHER_VERSION);
        const entries = {
            (_, PROBE, 0, BROADCAST): is_of(IS_PROBE_TO_EVERYBODY);
            (_, PROBE, 0, _): is_of(IS_PROBE);
            (_, PROBE, _, _): is_of(HAS_RESERVED_BITS);
            (_, ECHO, 0, _): is_of(IS_OTHER);
            (_, ECHO, _, _): is_of(HAS_RESERVED_BITS);
            (VERSION, PARTIAL, 0, _): is_of(IS_PARTIAL);
            (VERSION, ACK, 0, _): is_of(IS_ACK);
            (VERSION, _, 0, _): is_of(IS_OTHER);
            (VERSION, _, _, _): is_of(HAS_RESERVED_BITS);
        }
        size = 16;
    }

    // Stage 1

    action compare() {
        meta.destination_off = hdr.ethernet.destination ^ meta.mac;
        meta.source_off = hdr.ethernet.source ^ meta.member_mac;
        meta.workers_off = hdr.p4sgd.workers ^ meta.workers;
        meta.bitmap_off = hdr.p4sgd.bitmap ^ meta.member_bitmap;
        meta.port_off = ig_intr_md.ingress_port ^ meta.member_port;
        meta.others = meta.everyone & ~hdr.p4sgd.bitmap;
        meta.since_before = hdr.p4sgd.round - meta.before;
        meta.tag = hdr.p4sgd.round ++ meta.generation;
        meta.tag_before = meta.round_before ++ meta.generation;
        meta.address = meta.place ++ hdr.p4sgd.slot[SLOT_BITS - 1:0];
    }

    // Stage 2

    Register<slot_tags_t, address_t>(JOBS * SLOTS, {0, 0}) tags; // no generation is 0

    // The first round begins in a fresh slot, and again when round numbers have wrapped.
    RegisterAction<slot_tags_t, address_t, bit<32>>(tags) taking_first = {
        void apply(inout slot_tags_t slot, out bit<32> carried) {
            carried = slot.carried;
            if (slot.first != meta.tag || slot.carried == meta.tag_before) {
                slot.carried = meta.tag;
                slot.first = meta.tag;
            }
        }
    };
    RegisterAction<slot_tags_t, address_t, bit<32>>(tags) taking = {
        void apply(inout slot_tags_t slot, out bit<32> carried) {
            carried = slot.carried;
            if (slot.carried == meta.tag_before) {
                slot.carried = meta.tag;
            }
        }
    };
    RegisterAction<slot_tags_t, address_t, bit<32>>(tags) looking = {
        void apply(inout slot_tags_t slot, out bit<32> carried) {
            carried = slot.carried;
        }
    };

    action take_first() {
        meta.request = TAKE_FIRST;
        meta.carried = taking_first.execute(meta.address);
    }
    action take() {
        meta.request = TAKE;
        meta.carried = taking.execute(meta.address);
    }
    action confirm() {
        meta.request = CONFIRM;
        meta.carried = looking.execute(meta.address);
    }
    action look() {
        meta.request = LOOK;
        meta.carried = looking.execute(meta.address);
    }
    action look_nowhere() {
        meta.request = LOOK_NOWHERE;
    }
    action refuse(outcome_t outcome) {
        meta.request = NOTHING;
        meta.outcome = outcome;
    }

    table admission {
        key = {
            meta.kind: ternary;
            meta.destination_off: ternary;
            meta.is_served: ternary;
            meta.workers_off: ternary;
            meta.is_member: ternary;
            meta.bitmap_off: ternary;
            hdr.p4sgd.slot: ternary;
            meta.source_off: ternary;
            meta.port_off: ternary;
            meta.since_before: ternary;
        }
        actions = { take_first; take; confirm; look; look_nowhere; refuse; }
        const default_action = refuse(DROPPED_ADDRESS);
        const entries = {
            (HAS_OTHER_VERSION, _, _, _, _, _, _, _, _, _): refuse(DROPPED_VERSION);
            (HAS_RESERVED_BITS, _, _, _, _, _, _, _, _, _): refuse(DROPPED_RESERVED);
            (IS_PROBE_TO_EVERYBODY, _, 1, _, _, _, 0 &&& SLOT_MASK, _, _, _): look();
            (IS_PROBE_TO_EVERYBODY, _, _, _, _, _, _, _, _, _): look_nowhere();
            (IS_PROBE, 0, 1, _, _, _, 0 &&& SLOT_MASK, _, _, _): look();
            (IS_PROBE, 0, _, _, _, _, _, _, _, _): look_nowhere();
            (IS_OTHER, 0, _, _, _, _, _, _, _, _): refuse(DROPPED_TYPE);
            (IS_PARTIAL, 0, 1, 0, 1, 0, 0 &&& SLOT_MASK, 0, 0, 1): take_first();
            (IS_PARTIAL, 0, 1, 0, 1, 0, 0 &&& SLOT_MASK, 0, 0, _): take();
            (IS_ACK, 0, 1, 0, 1, 0, 0 &&& SLOT_MASK, 0, 0, _): confirm();
            (_, 0, 1, 0, 1, 0, 0 &&& SLOT_MASK, _, _, _): refuse(DROPPED_SOURCE);
            (_, 0, 1, 0, 1, 0, _, _, _, _): refuse(DROPPED_SLOT);
            (_, 0, 1, 0, _, _, _, _, _, _): refuse(DROPPED_SHARD);
            (_, 0, 1, _, _, _, _, _, _, _): refuse(DROPPED_WORKERS);
            (_, 0, _, _, _, _, _, _, _, _): refuse(DROPPED_JOB);
        }
        size = 16;
    }

    action judge(verdict_t verdict) {
        meta.verdict = verdict;
    }
    // If the shard is wrong, an echo must not tell its address.
    action judge_stranger(verdict_t verdict) {
        meta.verdict = verdict;
        meta.member_mac = 0;
    }
    table judgement {
        key = {
            meta.is_served: ternary;
            meta.workers_off: ternary;
            meta.is_member: ternary;
            meta.bitmap_off: ternary;
            hdr.p4sgd.slot: ternary;
            meta.source_off: ternary;
            meta.port_off: ternary;
        }
        actions = { judge; judge_stranger; }
        const default_action = judge(0);
        const entries = {
            (0, _, _, _, _, _, _): judge_stranger(FAILS_JOB);
            (_, 0, 1, 0, 0 &&& SLOT_MASK, 0, 0): judge(0);
            (_, 0, 1, 0, 0 &&& SLOT_MASK, _, _): judge(FAILS_SOURCE);
            (_, 0, 1, 0, _, 0, 0): judge(FAILS_SLOT);
            (_, 0, 1, 0, _, _, _): judge(FAILS_SLOT | FAILS_SOURCE);
            (_, 0, _, _, 0 &&& SLOT_MASK, _, _): judge_stranger(FAILS_SHARD);
            (_, 0, _, _, _, _, _): judge_stranger(FAILS_SHARD | FAILS_SLOT);
            (_, _, 1, 0, 0 &&& SLOT_MASK, 0, 0): judge(FAILS_WORKERS);
            (_, _, 1, 0, 0 &&& SLOT_MASK, _, _): judge(FAILS_WORKERS | FAILS_SOURCE);
            (_, _, 1, 0, _, 0, 0): judge(FAILS_WORKERS | FAILS_SLOT);
            (_, _, 1, 0, _, _, _): judge(FAILS_WORKERS | FAILS_SLOT | FAILS_SOURCE);
            (_, _, _, _, 0 &&& SLOT_MASK, _, _): judge_stranger(FAILS_WORKERS | FAILS_SHARD);
            (_, _, _, _, _, _, _): judge_stranger(FAILS_WORKERS | FAILS_SHARD | FAILS_SLOT);
        }
        size = 16;
    }

    // Stage 3

    action subtract_rounds() {
        meta.since = meta.tag - meta.carried;
    }
    action tell_prober() {
        hdr.p4sgd.ECHO_VERDICT = (bit<32>) meta.verdict;
        hdr.p4sgd.ECHO_PORT = (bit<32>) ig_intr_md.ingress_port;
        hdr.p4sgd.ECHO_WORKERS = (bit<32>) meta.workers;
        hdr.p4sgd.ECHO_SLOTS = SLOTS;
        hdr.p4sgd.ECHO_MAC_HIGH = (bit<32>) meta.member_mac[47:32];
        hdr.p4sgd.ECHO_MAC_LOW = meta.member_mac[31:0];
    }

    // Stage 4

    Register<bitmap_t, address_t>(JOBS * SLOTS) aggregated_shards;

    RegisterAction<bitmap_t, address_t, bitmap_t>(aggregated_shards) aggregation_start = {
        void apply(inout bitmap_t shards) {
            shards = hdr.p4sgd.bitmap;
        }
    };
    RegisterAction<bitmap_t, address_t, bitmap_t>(aggregated_shards) aggregation_join = {
        void apply(inout bitmap_t shards, out bitmap_t old) {
            old = shards;
            shards = shards | hdr.p4sgd.bitmap;
        }
    };
    RegisterAction<bitmap_t, address_t, bitmap_t>(aggregated_shards) aggregation_read = {
        void apply(inout bitmap_t shards, out bitmap_t old) {
            old = shards;
        }
    };

    action begin_round() {
        meta.step = BEGIN_ROUND;
        aggregation_start.execute(meta.address);
    }
    action add_partial() {
        meta.step = ADD;
        meta.aggregated = aggregation_join.execute(meta.address);
    }
    action confirm_round() {
        meta.step = CONFIRM_ROUND;
        meta.aggregated = aggregation_read.execute(meta.address);
    }
    action confirm_late() {
        meta.step = CONFIRM_LATE;
    }
    action show() {
        meta.step = SHOW;
        meta.aggregated = aggregation_read.execute(meta.address);
    }
    action show_fresh() {
        meta.step = SHOW_FRESH;
    }
    action show_nothing() {
        meta.step = SHOW_NOTHING;
    }
    action refuse_stale() {
        meta.step = LEAVE;
        meta.outcome = DROPPED_STALE;
    }
    action leave_alone() {
        meta.step = LEAVE;
    }
    table aggregation {
        key = { meta.request: ternary; meta.since: ternary; }
        actions = {
            begin_round;
            add_partial;
            confirm_round;
            confirm_late;
            show;
            show_fresh;
            show_nothing;
            refuse_stale;
            leave_alone;
        }
        const default_action = leave_alone();
        const entries = {
            (TAKE_FIRST, 0x00010000): begin_round();
            (TAKE_FIRST, 0x00000000): add_partial();
            (TAKE_FIRST, 0 &&& 0x0000ffff): refuse_stale();
            (TAKE_FIRST, _): begin_round();
            (TAKE, 0x00010000): begin_round();
            (TAKE, 0x00000000): add_partial();
            (TAKE, _): refuse_stale();
            (CONFIRM, 0x00000000): confirm_round();
            (CONFIRM, 0x80000000 &&& 0x8000ffff): confirm_late();
            (CONFIRM, _): refuse_stale();
            (LOOK, 0 &&& 0x0000ffff): show();
            (LOOK, _): show_fresh();
            (LOOK_NOWHERE, _): show_nothing();
        }
        size = 16;
    }

    // Stage 5

    action compare_aggregated() {
        meta.seen = meta.aggregated & hdr.p4sgd.bitmap;
        meta.missing = meta.others & ~meta.aggregated;
    }

    // Stage 6

    Register<bitmap_t, address_t>(JOBS * SLOTS) acknowledged_shards;

    RegisterAction<bitmap_t, address_t, bitmap_t>(acknowledged_shards) acknowledgement_clear = {
        void apply(inout bitmap_t shards) {
            shards = 0;
        }
    };
    RegisterAction<bitmap_t, address_t, bitmap_t>(acknowledged_shards) acknowledgement_join = {
        void apply(inout bitmap_t shards, out bitmap_t old) {
            old = shards;
            shards = shards | hdr.p4sgd.bitmap;
        }
    };
    RegisterAction<bitmap_t, address_t, bitmap_t>(acknowledged_shards) acknowledgement_read = {
        void apply(inout bitmap_t shards, out bitmap_t old) {
            old = shards;
        }
    };

    action clear_acknowledged() {
        acknowledgement_clear.execute(meta.address);
    }
    action join_acknowledged() {
        meta.acknowledged = acknowledgement_join.execute(meta.address);
    }
    action read_acknowledged() {
        meta.acknowledged = acknowledgement_read.execute(meta.address);
    }
    table acknowledgement {
        key = { meta.step: ternary; meta.seen: ternary; meta.missing: ternary; }
        actions = { clear_acknowledged; join_acknowledged; read_acknowledged; NoAction; }
        const default_action = NoAction();
        const entries = {
            (BEGIN_ROUND, _, _): clear_acknowledged();
            (CONFIRM_ROUND, 0, _): NoAction();
            (CONFIRM_ROUND, _, 0): join_acknowledged();
            (SHOW, _, _): read_acknowledged();
        }
        size = 8;
    }

    // Stages 6 to 8

    Sum() sum0;
    Sum() sum1;
    Sum() sum2;
    Sum() sum3;
    Sum() sum4;
    Sum() sum5;
    Sum() sum6;
    Sum() sum7;

    // Stage 7

    action compare_acknowledged() {
        meta.repeated = meta.acknowledged & hdr.p4sgd.bitmap;
        meta.unacknowledged = meta.others & ~meta.acknowledged;
    }

    // Stage 8

    Counter<bit<64>, outcome_t>(32, CounterType_t.PACKETS) outcomes;

    action leave(outcome_t outcome) {
        ig_dprsr_md.drop_ctl = 1;
        outcomes.count(outcome);
    }
    action answer_all(outcome_t outcome, bit<4> kind) {
        hdr.ethernet.destination = meta.group_mac;
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.type = kind;
        hdr.p4sgd.shard = 0;
        hdr.p4sgd.bitmap = meta.everyone;
        ig_tm_md.mcast_grp_a = JOB_GROUPS ++ meta.place;
        ig_tm_md.rid = OTHER_RID;
        outcomes.count(outcome);
    }
    action answer_one(outcome_t outcome, bit<4> kind) {
        hdr.ethernet.destination = meta.member_mac;
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.type = kind;
        hdr.p4sgd.bitmap = meta.everyone;
        ig_tm_md.ucast_egress_port = meta.member_port;
        outcomes.count(outcome);
    }
    action echo(outcome_t outcome) {
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.version = VERSION;
        hdr.p4sgd.type = ECHO;
        hdr.p4sgd.round = meta.carried[31:16];
        hdr.p4sgd.bitmap = meta.aggregated;
        hdr.p4sgd.ECHO_ACKNOWLEDGED = meta.acknowledged;
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port;
        outcomes.count(outcome);
    }
    action echo_fresh(outcome_t outcome) {
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.version = VERSION;
        hdr.p4sgd.type = ECHO;
        hdr.p4sgd.round = meta.before;
        hdr.p4sgd.bitmap = 0;
        hdr.p4sgd.ECHO_ACKNOWLEDGED = 0;
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port;
        outcomes.count(outcome);
    }
    action echo_nothing(outcome_t outcome) {
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.version = VERSION;
        hdr.p4sgd.type = ECHO;
        hdr.p4sgd.round = 0;
        hdr.p4sgd.bitmap = 0;
        hdr.p4sgd.ECHO_ACKNOWLEDGED = 0;
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port;
        outcomes.count(outcome);
    }
    table decision {
        key = {
            meta.step: ternary;
            meta.outcome: ternary;
            meta.seen: ternary;
            meta.missing: ternary;
            meta.repeated: ternary;
            meta.unacknowledged: ternary;
        }
        actions = { leave; answer_all; answer_one; echo; echo_fresh; echo_nothing; }
        const default_action = leave(DROPPED_ADDRESS);
        const entries = {
            (LEAVE, DROPPED_VERSION, _, _, _, _): leave(DROPPED_VERSION);
            (LEAVE, DROPPED_RESERVED, _, _, _, _): leave(DROPPED_RESERVED);
            (LEAVE, DROPPED_TYPE, _, _, _, _): leave(DROPPED_TYPE);
            (LEAVE, DROPPED_JOB, _, _, _, _): leave(DROPPED_JOB);
            (LEAVE, DROPPED_WORKERS, _, _, _, _): leave(DROPPED_WORKERS);
            (LEAVE, DROPPED_SHARD, _, _, _, _): leave(DROPPED_SHARD);
            (LEAVE, DROPPED_SLOT, _, _, _, _): leave(DROPPED_SLOT);
            (LEAVE, DROPPED_SOURCE, _, _, _, _): leave(DROPPED_SOURCE);
            (LEAVE, DROPPED_STALE, _, _, _, _): leave(DROPPED_STALE);
            (BEGIN_ROUND, _, _, 0, _, _): answer_all(FULL_TO_ALL, FULL);
            (BEGIN_ROUND, _, _, _, _, _): leave(ADDED);
            (ADD, _, 0, 0, _, _): answer_all(FULL_TO_ALL, FULL);
            (ADD, _, 0, _, _, _): leave(ADDED);
            (ADD, _, _, 0, _, _): answer_one(FULL_TO_ONE, FULL);
            (ADD, _, _, _, _, _): leave(DROPPED_DUPLICATE);
            (CONFIRM_ROUND, _, 0, _, _, _): leave(DROPPED_STALE);
            (CONFIRM_ROUND, _, _, 0, 0, 0): answer_all(CLEAR_TO_ALL, CLEAR);
            (CONFIRM_ROUND, _, _, 0, 0, _): leave(ACKNOWLEDGED);
            (CONFIRM_ROUND, _, _, 0, _, 0): answer_one(CLEAR_TO_ONE, CLEAR);
            (CONFIRM_ROUND, _, _, 0, _, _): leave(DROPPED_DUPLICATE);
            (CONFIRM_ROUND, _, _, _, _, _): leave(DROPPED_STALE);
            (CONFIRM_LATE, _, _, _, _, _): answer_one(CLEAR_TO_ONE, CLEAR);
            (SHOW, _, _, _, _, _): echo(ECHOED);
            (SHOW_FRESH, _, _, _, _, _): echo_fresh(ECHOED);
            (SHOW_NOTHING, _, _, _, _, _): echo_nothing(ECHOED);
        }
        size = 32;
    }

    apply {
        own.apply();
        if (!hdr.p4sgd.isValid()) {
            forwarding.apply();
            if (meta.port_off == 0) {
                drop(); // never back to its own port
            }
        } else {
            jobs.apply();
            members.apply();
            format.apply();
            compare();
            judgement.apply();
            admission.apply();
            subtract_rounds();
            if (meta.kind == IS_PROBE || meta.kind == IS_PROBE_TO_EVERYBODY) {
                tell_prober();
            }
            aggregation.apply();
            compare_aggregated();
            acknowledgement.apply();
            sum0.apply(hdr.p4sgd.value0, meta.address, meta.step, meta.seen);
            sum1.apply(hdr.p4sgd.value1, meta.address, meta.step, meta.seen);
            sum2.apply(hdr.p4sgd.value2, meta.address, meta.step, meta.seen);
            sum3.apply(hdr.p4sgd.value3, meta.address, meta.step, meta.seen);
            sum4.apply(hdr.p4sgd.value4, meta.address, meta.step, meta.seen);
            sum5.apply(hdr.p4sgd.value5, meta.address, meta.step, meta.seen);
            sum6.apply(hdr.p4sgd.value6, meta.address, meta.step, meta.seen);
            sum7.apply(hdr.p4sgd.value7, meta.address, meta.step, meta.seen);
            compare_acknowledged();
            decision.apply();
        }
    }
}

control IngressDeparser(
    packet_out packet,
    inout headers_t hdr,
    in metadata_t meta,
    in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md
) {
    apply {
        packet.emit(hdr);
    }
}

struct nothing_t { }

parser EgressParser(
    packet_in packet,
    out nothing_t hdr,
    out nothing_t meta,
    out egress_intrinsic_metadata_t eg_intr_md
) {
    state start {
        packet.extract(eg_intr_md);
        transition accept;
    }
}

control SwitchEgress(
    inout nothing_t hdr,
    inout nothing_t meta,
    in egress_intrinsic_metadata_t eg_intr_md,
    in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
    inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
    inout egress_intrinsic_metadata_for_output_port_t eg_oport_md
) {
    apply { }
}

control EgressDeparser(
    packet_out packet,
    inout nothing_t hdr,
    in nothing_t meta,
    in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md
) {
    apply { }
}

Pipeline(IngressParser(), SwitchIngress(), IngressDeparser(), EgressParser(), SwitchEgress(), EgressDeparser()) pipe;

Switch(pipe) main;
