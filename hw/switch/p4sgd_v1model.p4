// The switch's side of the AllReduce protocol (hw/net) for BMv2, architecture v1model.

#include <core.p4>
#include <v1model.p4>

#include "p4sgd_headers.p4"
#include "p4sgd_sizes.p4"

typedef bit<9> port_t;

struct headers_t {
    ethernet_t ethernet;
    p4sgd_t p4sgd;
}

struct metadata_t {
    mac_t mac; // the aggregator's own address
    // The packet's job
    bool is_served;
    place_t place;
    generation_t generation; // slots of another generation are fresh
    round_t before; // the round before the job's first
    bit<8> workers;
    bitmap_t everyone; // all shards of the job
    mac_t group_mac;
    bitmap_t whole; // all shards and, with the next bit, the parent
    // The job's parent, and this switch as a worker of it
    bool has_parent;
    mac_t parent_mac;
    port_t parent_port;
    bit<8> parent_workers;
    bitmap_t parent_everyone;
    bit<8> parent_shard;
    bitmap_t parent_bitmap;
    bool is_from_parent; // the packet is FULL or CLEAR of a job with a parent
    // The sender that the packet should have: the worker of its shard, or the parent
    bitmap_t member_bitmap;
    mac_t member_mac;
    port_t member_port;
    bitmap_t own; // the sender's bit in a slot
    // The result
    verdict_t verdict;
    outcome_t outcome;
}

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype, standard.packet_length) {
            (ETHERTYPE, FRAME_BYTES): parse_p4sgd;
            default: accept;
        }
    }
    state parse_p4sgd {
        packet.extract(hdr.p4sgd);
        transition accept;
    }
}

// Finds which of the checks that depend on its job a packet fails.
control Membership(in headers_t hdr, inout metadata_t meta, in port_t port) {
    action serve(
        place_t place,
        generation_t generation,
        round_t before,
        bit<8> workers,
        bitmap_t everyone,
        mac_t group_mac
    ) {
        meta.is_served = true;
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

    action member(bitmap_t bitmap, mac_t mac, port_t port_of_member) {
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

    apply {
        jobs.apply();
        if (!meta.is_served) {
            meta.verdict = FAILS_JOB;
        } else {
            bit<8> workers = meta.workers;
            bit<8> shard = hdr.p4sgd.shard;
            meta.whole = meta.has_parent ? meta.everyone | (meta.everyone + 1) : meta.everyone;
            if (meta.is_from_parent) {
                workers = meta.parent_workers;
                shard = hdr.ethernet.destination[40:40] == 1 ? 0 : meta.parent_shard;
                meta.member_bitmap = meta.parent_everyone;
                meta.member_mac = meta.parent_mac;
                meta.member_port = meta.parent_port;
                meta.own = meta.everyone + 1;
            } else {
                members.apply();
                meta.own = meta.member_bitmap;
            }
            if (hdr.p4sgd.workers != workers) {
                meta.verdict = meta.verdict | FAILS_WORKERS;
            }
            if ((bit<32>) hdr.p4sgd.slot >= SLOTS) {
                meta.verdict = meta.verdict | FAILS_SLOT;
            }
            if (meta.member_bitmap == 0 || hdr.p4sgd.bitmap != meta.member_bitmap || hdr.p4sgd.shard != shard) {
                meta.verdict = meta.verdict | FAILS_SHARD;
                meta.member_mac = 0; // an echo must not tell it
            } else if (hdr.ethernet.source != meta.member_mac || port != meta.member_port) {
                meta.verdict = meta.verdict | FAILS_SOURCE;
            }
        }
    }
}

// The slots of all jobs. A slot in which no packet of the job's generation has begun a round is fresh: it counts as
// finished, in the round before the job's first. So nothing needs to be cleared when a job begins.
control Slots(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(JOBS * SLOTS) rounds; // generation, then round
    register<bitmap_t>(JOBS * SLOTS) aggregated_shards;
    register<bitmap_t>(JOBS * SLOTS) acknowledged_shards;
    register<bit<256>>(JOBS * SLOTS) sums;

    bit<32> address = (bit<32>) (meta.place ++ hdr.p4sgd.slot[SLOT_BITS - 1:0]);
    bit<32> generation_and_round = 0;
    round_t round = 0;
    bitmap_t aggregated = 0; // empty only in a fresh slot
    bitmap_t acknowledged = 0;

    action write_sums() {
        sums.write(
            address,
            hdr.p4sgd.value0 ++ hdr.p4sgd.value1 ++ hdr.p4sgd.value2 ++ hdr.p4sgd.value3 ++
            hdr.p4sgd.value4 ++ hdr.p4sgd.value5 ++ hdr.p4sgd.value6 ++ hdr.p4sgd.value7
        );
    }

    action begin_round() {
        aggregated = meta.own;
        rounds.write(address, meta.generation ++ hdr.p4sgd.round);
        aggregated_shards.write(address, aggregated);
        acknowledged_shards.write(address, 0);
        write_sums();
    }

    // The parent's sums take the place of those that it was sent.
    action pass_on() {
        aggregated_shards.write(address, meta.whole);
        write_sums();
    }

    action read_sums() {
        bit<256> all;
        sums.read(all, address);
        hdr.p4sgd.value0 = all[255:224];
        hdr.p4sgd.value1 = all[223:192];
        hdr.p4sgd.value2 = all[191:160];
        hdr.p4sgd.value3 = all[159:128];
        hdr.p4sgd.value4 = all[127:96];
        hdr.p4sgd.value5 = all[95:64];
        hdr.p4sgd.value6 = all[63:32];
        hdr.p4sgd.value7 = all[31:0];
    }

    action add() {
        aggregated = aggregated | meta.own;
        aggregated_shards.write(address, aggregated);
        bit<256> all;
        sums.read(all, address);
        hdr.p4sgd.value0 = hdr.p4sgd.value0 + all[255:224];
        hdr.p4sgd.value1 = hdr.p4sgd.value1 + all[223:192];
        hdr.p4sgd.value2 = hdr.p4sgd.value2 + all[191:160];
        hdr.p4sgd.value3 = hdr.p4sgd.value3 + all[159:128];
        hdr.p4sgd.value4 = hdr.p4sgd.value4 + all[127:96];
        hdr.p4sgd.value5 = hdr.p4sgd.value5 + all[95:64];
        hdr.p4sgd.value6 = hdr.p4sgd.value6 + all[63:32];
        hdr.p4sgd.value7 = hdr.p4sgd.value7 + all[31:0];
        write_sums();
    }

    action read_slot() {
        rounds.read(generation_and_round, address);
        aggregated_shards.read(aggregated, address);
        acknowledged_shards.read(acknowledged, address);
        round = generation_and_round[15:0];
    }

    action echo() {
        hdr.p4sgd.round = round;
        hdr.p4sgd.bitmap = aggregated;
        hdr.p4sgd.ECHO_ACKNOWLEDGED = acknowledged;
        meta.outcome = ECHOED;
    }

    apply {
        if (meta.verdict & (FAILS_JOB | FAILS_SLOT) == 0) {
            read_slot();
            if (generation_and_round[31:16] != meta.generation) {
                round = meta.before;
                aggregated = 0;
                acknowledged = 0;
            }
        }
        if (hdr.p4sgd.type == PROBE) {
            echo();
        } else if (hdr.p4sgd.type == PARTIAL) {
            if (hdr.p4sgd.round == round + 1) {
                begin_round();
                meta.outcome = ADDED;
            } else if (hdr.p4sgd.round != round || aggregated == 0) {
                meta.outcome = DROPPED_STALE;
            } else if (aggregated & meta.own == 0) {
                add();
                meta.outcome = ADDED;
            } else if (aggregated == meta.whole) {
                read_sums();
                meta.outcome = FULL_TO_ONE;
            } else if (aggregated == meta.everyone) {
                read_sums();
                meta.outcome = PARTIAL_TO_PARENT_AGAIN;
            } else {
                meta.outcome = DROPPED_DUPLICATE;
            }
            if (meta.outcome == ADDED && aggregated == meta.everyone) {
                meta.outcome = meta.has_parent ? PARTIAL_TO_PARENT : FULL_TO_ALL;
            }
        } else if (meta.is_from_parent) {
            bitmap_t shards = hdr.p4sgd.type == FULL ? aggregated : acknowledged;
            if (hdr.p4sgd.round != round || (shards != meta.everyone && shards != meta.whole)) {
                meta.outcome = DROPPED_STALE;
            } else if (shards == meta.whole) {
                meta.outcome = DROPPED_DUPLICATE;
            } else if (hdr.p4sgd.type == FULL) {
                pass_on();
                meta.outcome = FULL_PASSED_ON;
            } else {
                acknowledged_shards.write(address, meta.whole);
                meta.outcome = CLEAR_PASSED_ON;
            }
        } else {
            bool is_repeated = acknowledged & meta.own != 0;
            if (aggregated == 0) {
                meta.outcome = DROPPED_STALE;
            } else if (hdr.p4sgd.round != round) {
                bool is_before = hdr.p4sgd.round - round >= 0x8000;
                meta.outcome = is_before ? CLEAR_TO_ONE : DROPPED_STALE;
            } else if (aggregated != meta.whole) {
                meta.outcome = DROPPED_STALE;
            } else if (acknowledged == meta.whole) {
                meta.outcome = CLEAR_TO_ONE;
            } else {
                acknowledged = acknowledged | meta.own;
                acknowledged_shards.write(address, acknowledged);
                if (acknowledged != meta.everyone) {
                    meta.outcome = is_repeated ? DROPPED_DUPLICATE : ACKNOWLEDGED;
                } else if (meta.has_parent) {
                    meta.outcome = is_repeated ? ACK_TO_PARENT_AGAIN : ACK_TO_PARENT;
                } else {
                    meta.outcome = CLEAR_TO_ALL;
                }
            }
        }
    }
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Membership() membership;
    Slots() slots;

    // Frames by outcome (5 bits), counted separately for each job: 32 counters for frames of no job, then 32 a place.
    counter(32 * (JOBS + 1), CounterType.packets) outcomes;

    action set_mac(mac_t mac) {
        meta.mac = mac;
    }

    table own {
        actions = { set_mac; }
        default_action = set_mac(0);
    }

    action parent(bitmap_t bitmap, bit<8> shard, bit<8> workers, bitmap_t everyone, mac_t mac, port_t port_of_parent) {
        meta.has_parent = true;
        meta.parent_mac = mac;
        meta.parent_port = port_of_parent;
        meta.parent_workers = workers;
        meta.parent_everyone = everyone;
        meta.parent_shard = shard;
        meta.parent_bitmap = bitmap;
        meta.is_from_parent = hdr.p4sgd.type == FULL || hdr.p4sgd.type == CLEAR;
    }

    // The aggregators above, of jobs that have one
    table parents {
        key = { hdr.p4sgd.job: exact @name("job"); }
        actions = { parent; NoAction; }
        const default_action = NoAction();
        size = JOBS;
    }

    action forward(port_t port) {
        standard.egress_spec = port;
    }

    action flood() {
        standard.mcast_grp = FLOOD_GROUP;
    }

    action drop() {
        mark_to_drop(standard);
    }

    table forwarding {
        key = { hdr.ethernet.destination: exact @name("destination"); }
        actions = { forward; flood; drop; }
        default_action = flood();
        size = 1024;
    }

    action answer(bit<4> kind) {
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.type = kind;
        hdr.p4sgd.workers = meta.workers;
        hdr.p4sgd.bitmap = meta.everyone;
    }

    action to_all() {
        hdr.ethernet.destination = meta.group_mac;
        hdr.p4sgd.shard = 0;
        standard.mcast_grp = JOB_GROUPS ++ meta.place;
    }

    action to_one() {
        hdr.ethernet.destination = meta.member_mac;
        standard.egress_spec = meta.member_port;
    }

    // As a worker there; with the values of the packet
    action to_parent() {
        hdr.ethernet.destination = meta.parent_mac;
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.shard = meta.parent_shard;
        hdr.p4sgd.workers = meta.parent_workers;
        hdr.p4sgd.bitmap = meta.parent_bitmap;
        standard.egress_spec = meta.parent_port;
    }

    action without_values() {
        hdr.p4sgd.value0 = 0;
        hdr.p4sgd.value1 = 0;
        hdr.p4sgd.value2 = 0;
        hdr.p4sgd.value3 = 0;
        hdr.p4sgd.value4 = 0;
        hdr.p4sgd.value5 = 0;
        hdr.p4sgd.value6 = 0;
        hdr.p4sgd.value7 = 0;
    }

    // Round, bitmap and acknowledged shards have been set from the slot.
    action echo() {
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = meta.mac;
        hdr.p4sgd.version = VERSION;
        hdr.p4sgd.type = ECHO;
        hdr.p4sgd.ECHO_VERDICT = (bit<32>) meta.verdict;
        hdr.p4sgd.ECHO_PORT = (bit<32>) standard.ingress_port;
        hdr.p4sgd.ECHO_WORKERS = (bit<32>) meta.workers;
        hdr.p4sgd.ECHO_SLOTS = SLOTS;
        hdr.p4sgd.ECHO_MAC_HIGH = (bit<32>) meta.member_mac[47:32];
        hdr.p4sgd.ECHO_MAC_LOW = meta.member_mac[31:0];
        standard.egress_spec = standard.ingress_port;
    }

    apply {
        mark_to_drop(standard); // unless a later statement sets a port or a group
        if (!hdr.ethernet.isValid()) {
            return;
        }
        if (hdr.ethernet.ethertype != ETHERTYPE) {
            forwarding.apply();
            return;
        }
        own.apply();
        parents.apply();

        // The checks, in the order of DROPPED_...
        bool is_probe = hdr.p4sgd.type == PROBE;
        bool is_to_all = is_probe && hdr.ethernet.destination == BROADCAST;
        if (meta.is_from_parent) {
            is_to_all = hdr.ethernet.destination[40:40] == 1; // a group
        }
        if (!hdr.p4sgd.isValid()) {
            meta.outcome = standard.packet_length < FRAME_BYTES ? DROPPED_RUNT : DROPPED_LONG;
        } else if (hdr.p4sgd.version != VERSION && !is_probe && hdr.p4sgd.type != ECHO) {
            meta.outcome = DROPPED_VERSION;
        } else if (hdr.p4sgd.reserved != 0) {
            meta.outcome = DROPPED_RESERVED;
        } else if (hdr.ethernet.destination != meta.mac && !is_to_all) {
            meta.outcome = DROPPED_ADDRESS;
        } else if (!is_probe && hdr.p4sgd.type != PARTIAL && hdr.p4sgd.type != ACK && !meta.is_from_parent) {
            meta.outcome = DROPPED_TYPE;
        } else {
            membership.apply(hdr, meta, standard.ingress_port);
            if (meta.verdict == 0 || is_probe) {
                slots.apply(hdr, meta);
            } else if (meta.verdict & FAILS_JOB != 0) {
                meta.outcome = DROPPED_JOB;
            } else if (meta.verdict & FAILS_WORKERS != 0) {
                meta.outcome = DROPPED_WORKERS;
            } else if (meta.verdict & FAILS_SHARD != 0) {
                meta.outcome = DROPPED_SHARD;
            } else if (meta.verdict & FAILS_SLOT != 0) {
                meta.outcome = DROPPED_SLOT;
            } else {
                meta.outcome = DROPPED_SOURCE;
            }
        }

        if (meta.outcome == FULL_TO_ALL || meta.outcome == FULL_PASSED_ON) {
            answer(FULL);
            to_all();
        } else if (meta.outcome == FULL_TO_ONE) {
            answer(FULL);
            to_one();
        } else if (meta.outcome == CLEAR_TO_ALL || meta.outcome == CLEAR_PASSED_ON) {
            answer(CLEAR);
            without_values();
            to_all();
        } else if (meta.outcome == CLEAR_TO_ONE) {
            answer(CLEAR);
            without_values();
            to_one();
        } else if (meta.outcome == PARTIAL_TO_PARENT || meta.outcome == PARTIAL_TO_PARENT_AGAIN) {
            to_parent();
        } else if (meta.outcome == ACK_TO_PARENT || meta.outcome == ACK_TO_PARENT_AGAIN) {
            without_values();
            to_parent();
        } else if (meta.outcome == ECHOED) {
            echo();
        }
        bit<4> owner = meta.is_served ? (bit<4>) meta.place + 1 : 0;
        outcomes.count((bit<32>) (owner ++ meta.outcome));
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.ethernet.ethertype != ETHERTYPE && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard); // never back to its own port
        }
    }
}

control NoChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.p4sgd);
    }
}

V1Switch(SwitchParser(), NoChecksums(), SwitchIngress(), SwitchEgress(), NoChecksums(), SwitchDeparser()) main;
