"""The register map of a worker: of its register file, the emulated worker, the host and the documents.

The first four words are the control block of an ``ap_ctrl_hs`` kernel (UG1393, "RTL kernel control requirements").
"""

import functools
from collections.abc import Iterator
from enum import Enum

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import INTERCEPT, RATE_MANTISSA, SHRINK, SLOPE
from p4sgd.hw.spec.packet import KEY_BITS, ROUND_BITS, DropReason, KeyedDrop
from p4sgd.hw.spec.register_map import (
    Access,
    Counter,
    Declarations,
    Field,
    Register,
    RegisterMap,
    counter_block,
    halves,
    pair,
)
from p4sgd.hw.spec.run import COUNT_BITS, UNIT_CHUNKS_BITS

MAGIC = int.from_bytes(b"P4SG", "big")  # first word of the identification block
ABI_VERSION = 7  # raised whenever the meaning of a register changes


PAGE_BYTES = 4096  # addresses of images are multiples of this many bytes, which no burst of AXI4 may cross
SPARSE_PORTS = 128  # added to GEOMETRY.ports of a sparse worker: a field of its own would change the Verilog of others


class ModelSource(Enum):
    """Where the first weights of a run come from (``RUN.model_source``)."""

    KEEP = 0  # the weights that the last run left on chip, for no more chunks than that run had
    ZERO = 1  # zeros
    MEMORY = 2  # the model buffers


_RO, _RW, _W1C, _W1S = Access.RO, Access.RW, Access.W1C, Access.W1S
_RC, _STROBE = Access.RC, Access.STROBE

_board, _program = Declarations(), Declarations()

CTRL = _board.register("CTRL", 0x000, "Kernel control (ap_ctrl_hs)")(
    Field("start", 0, 1, _W1S, "set by the host to start a run; the worker clears it when it begins"),
    Field("done", 1, 1, _RC, "a run has ended; cleared by reading"),
    Field("idle", 2, 1, _RO, "no run is in progress"),
    Field("ready", 3, 1, _RC, "a start was accepted; cleared by reading"),
)
# 0x004, 0x008 and 0x00C are Vitis' interrupt registers. This kernel is polled; they read as 0.
MAGIC_WORD = _board.word("MAGIC", 0x010, _RO, "0x50345347, 'P4SG'")
ABI = _board.word("ABI_VERSION", 0x014, _RO, "version of this register map")
CONFIG_HASH = _board.word("CONFIG_HASH", 0x018, _RO, "hash of the worker's configuration")
BUILD_ID = _board.word("BUILD_ID", 0x01C, _RO, "number given at generation, 0 if none")
GEOMETRY = _board.register("GEOMETRY", 0x020, "Size of the worker")(
    Field("engines", 0, 8, _RO, "engines"),
    Field("lanes", 8, 8, _RO, "lanes of an engine"),
    Field("banks", 16, 8, _RO, "samples of a micro-batch"),
    Field("ports", 24, 8, _RO, "memory ports of an engine; 128 more on a sparse worker, which is a program"),
)
CHUNKS_MAX = _board.word("CHUNKS_MAX", 0x024, _RO, "chunks that an engine's model memory holds")
LINE_FIFO_DEPTH = _board.word("LINE_FIFO_DEPTH", 0x028, _RO, "lines that an engine keeps")
SLOTS = _board.word("SLOTS", 0x02C, _RO, "AllReduce operations in flight")
SEGMENTS = _board.word("SEGMENTS", 0x030, _RO, "segments of the loss table")

STATUS = _board.register("STATUS", 0x034, "Sticky flags: set by any run until they are cleared")(
    Field("partial_clamped", 0, 1, _W1C, "a partial activation was clamped"),
    Field("residual_saturated", 1, 1, _W1C, "Round 2 saturated a margin or a residual"),
    Field("weight_saturated", 2, 1, _W1C, "Round 3 saturated a weight"),
    Field("memory_error", 3, 1, _W1C, "a memory response was an error; the run's result is void, the next needs JOIN"),
    Field(
        "network_error",
        4,
        1,
        _W1C,
        "the network did not answer, see GIVEN_UP; the run's result is void, the next needs JOIN",
    ),
    Field("aborted", 5, 1, _W1C, "the host ended the run; its result is void, the next needs JOIN"),
    Field("not_joined", 6, 1, _W1C, "a run was started outside of a job and did nothing: write JOIN first"),
    Field(
        "refused",
        7,
        1,
        _W1C,
        "a run was started with bad settings and did nothing: see FORMAT, CHUNKS to MINI_BATCHES, PARTIAL_LIMIT and "
        "the registers of addresses and lines",
    ),
)
FORMAT = _board.register(
    "FORMAT",
    0x040,
    "Feature format of the run; precision · CHUNKS, or all lines of a micro-batch, are 1 to LINE_FIFO_DEPTH",
)(
    Field("precision", 0, 4, _RW, "planes to read (P), 1 to 8", reset=1),
    Field("stored", 4, 4, _RW, "planes in the image (S), P to 8", reset=1),
    Field("signed", 8, 1, _RW, "features are two's complement"),
    Field("unit_chunks", 9, UNIT_CHUNKS_BITS, _RW, "log2 of the chunks of a unit, which has at most 64 features"),
    Field("directory", 11, 1, _RW, "the image has directories and no lines of zeros; P is S, see LINES"),
)
CHUNKS = _board.word(
    "CHUNKS",
    0x044,
    _RW,
    "chunks of each engine in the image (C), 1 to CHUNKS_MAX, or to half of it with RUN.stale",
    bits=17,
)
MICRO_BATCHES = _board.word("MICRO_BATCHES", 0x048, _RW, "micro-batches of a mini-batch (B/8), at least 1", bits=16)
MINI_BATCHES = _board.word(
    "MINI_BATCHES",
    0x04C,
    _RW,
    "mini-batches of the run, at least 1; CHUNKS · MICRO_BATCHES · MINI_BATCHES is below 2^40",
)
LABEL_MODE = _board.register("LABEL_MODE", 0x050, "Role of the label y in g = s·psi(s·z - o) - c")(
    Field("sign", 0, 1, _RW, "s = -1 where y < 0, else s = 1"),
    Field("offset", 1, 1, _RW, "o = y, else o = 0"),
    Field("constant", 2, 1, _RW, "c = y, else c = 0"),
    Field("weighted", 3, 1, _RW, "the labels of each micro-batch are followed by the weights of its samples"),
)
RATE = _board.register("RATE", 0x054, "Learning rate / B = mantissa · 2^-exponent; B are the samples of a mini-batch")(
    Field("mantissa", 0, RATE_MANTISSA.width, _RW, "mantissa, most exact with its highest bit set"),
    Field("gradient_shift", 8, 5, _RW, "exponent + P - 7 of P planes, or exponent + P - 8 if signed: shift of Round 3"),
)
SHRINK_FACTOR = _board.word(
    "SHRINK", 0x058, _RW, "L2: w -= round(w · SHRINK · 2^-24) once a mini-batch", bits=SHRINK.width
)
THRESHOLD = _board.word(
    "THRESHOLD", 0x05C, _RW, "L1: soft threshold once a mini-batch, in weight steps of 2^-23", bits=31
)
PARTIAL_LIMIT = _board.word(
    "PARTIAL_LIMIT",
    0x060,
    _RW,
    "largest |partial|: floor((2^31 - 1) / workers), the same in all workers of the job; at least 1",
    bits=31,
)
RUN = _board.register("RUN", 0x064, "Model transfers and staleness of the run")(
    Field(
        "model_source",
        0,
        2,
        _RW,
        "first weights: 0 those on chip (for no more chunks than the last run had), 1 zeros, 2 the model buffers",
    ),
    Field("model_store", 2, 1, _RW, "write the weights to the model buffers at the end"),
    Field("stale", 3, 1, _RW, "a mini-batch's forward pass reads weights that lack one update"),
)
TABLE_SHIFT = _board.word(
    "TABLE_SHIFT", 0x068, _RW, "log2 of the width of a segment of the loss table, in steps of 2^-16", bits=5
)
TABLE_INDEX = _board.word(
    "TABLE_INDEX",
    0x06C,
    _STROBE,
    "segment that the next write of TABLE_INTERCEPT stores; segment i begins at (i - SEGMENTS / 2) · 2^TABLE_SHIFT, "
    "the first and the last have no other end",
    bits=10,
)
TABLE_SLOPE = _board.word(
    "TABLE_SLOPE",
    0x070,
    _RW,
    f"slope of that segment, {SLOPE.fraction} fraction bits",
    bits=SLOPE.width,
    signed=True,
)
TABLE_INTERCEPT = _board.word(
    "TABLE_INTERCEPT",
    0x074,
    _STROBE,
    f"value of its line at 0, {INTERCEPT.fraction} fraction bits; the write stores the segment and advances the index "
    "by one",
    bits=INTERCEPT.width,
    signed=True,
)
LABELS_ADDRESS = _board.pair("LABELS_ADDRESS", 0x078, _RW, f"byte address of the labels, a multiple of {PAGE_BYTES}")

JOB = _board.register("JOB", 0x080, "The worker's identity in its job; changed only between runs, before JOIN")(
    Field("job", 0, 8, _RW, "job number"),
    Field("shard", 8, 5, _RW, "shard index"),
    Field("workers", 16, 6, _RW, "workers of the job, 1 to 32", reset=1),
)
RESEND_CYCLES = _board.word(
    "RESEND_CYCLES",
    0x084,
    _RW,
    "cycles without an answer before a packet is sent again, several times what an answer takes; 0, as after reset, "
    "sends again at once and always. Changed only between runs",
)
LOCAL_MAC = _board.pair("LOCAL_MAC", 0x088, _RW, "the worker's MAC address", bits=48)
PEER_MAC = _board.pair("PEER_MAC", 0x090, _RW, "the aggregator's MAC address", bits=48)
JOIN = _board.register(
    "JOIN",
    0x098,
    "A write joins the job: it forgets all slots; the next AllReduce uses slot 0 in this round. Only while idle",
)(
    Field("round", 0, ROUND_BITS, _STROBE, "first round, 1 for a new aggregator"),
)
IN_FLIGHT = _board.register(
    "IN_FLIGHT",
    0x09C,
    "Micro-batches of engine 0 between the start of their forward pass and that of their backward pass",
)(
    Field("now", 0, 16, _RO, "present number"),
    Field("most", 16, 16, _RO, "largest number in the last run"),
)
SNAPSHOT = _board.register("SNAPSHOT", 0x0A0, "Counters of a run in progress")(
    Field("take", 0, 1, _STROBE, "a write of any value copies the counters to the registers that show them"),
)
RESEND = _board.register(
    "RESEND", 0x0A4, "When the worker gives up; changed only between runs. RESEND_CYCLES · 2^doublings is below 2^31"
)(
    Field(
        "limit",
        0,
        8,
        _RW,
        "resends of a packet before the worker gives up; with 0, as after reset, it never does, and without an answer "
        "only ABORT ends the run. If it is lowered during a run, a packet that has been sent again more often never "
        "reaches it",
    ),
    Field("doublings", 8, 4, _RW, "how often the time between resends of a packet doubles"),
)
GIVEN_UP = _board.register(
    "GIVEN_UP", 0x0A8, "Slot given up since the last join; the worker probes the aggregator about it, see ECHO"
)(
    Field("slot", 0, 12, _RO, "slot whose packet had no answer"),
    Field("partial", 12, 1, _RO, "the packet is its PARTIAL, which may never have been sent; else its ACK"),
    Field("given_up", 13, 1, _RO, "a slot was given up; until the next join only a packet under way and probes leave"),
    Field("round", 16, ROUND_BITS, _RO, "round of the slot"),
)
ABORT = _board.register(
    "ABORT",
    0x0AC,
    "A write ends the run as soon as memory allows; a model being stored is stored entirely. The next run needs JOIN; "
    "ignored while there is no run, and in its last cycles: STATUS.aborted says whether it ended the run",
)(
    Field("abort", 0, 1, _STROBE, "a write of any value ends the run"),
)
PROBE = _board.register(
    "PROBE", 0x0B0, "A write sends a probe; ignored while another waits to be sent, as on a link that is down"
)(
    Field("slot", 0, 16, _STROBE, "slot to ask about"),
    Field("number", 16, 8, _STROBE, "number of the probe; the probe after GIVEN_UP has 0"),
    Field("broadcast", 24, 1, _STROBE, "to any aggregator; else to the one of PEER_MAC"),
)
ECHO = _board.register(
    "ECHO", 0x0B4, "Answer to the last probe, the host's or the one after GIVEN_UP; number tells which"
)(
    Field("number", 0, 8, _RO, "number of the probe"),
    Field("verdict", 8, 8, _RO, "checks failed: bit 0 job, 1 workers, 2 shard, 3 slot, 4 source"),
    Field("port", 16, 8, _RO, "the aggregator's port that the probe came in through"),
    Field("version", 24, 4, _RO, "the aggregator's version of the packet format"),
    Field("came", 31, 1, _RO, "the answer has come"),
)
ECHO_JOB = _board.register("ECHO_JOB", 0x0B8, "Job and round in the answer")(
    Field("round", 0, ROUND_BITS, _RO, "round of the slot"),
    Field("workers", 16, 8, _RO, "workers of the job; 0 if there is no such job"),
)
ECHO_AGGREGATED = _board.word("ECHO_AGGREGATED", 0x0BC, _RO, "bitmap of the shards whose partials the slot has")
ECHO_ACKNOWLEDGED = _board.word("ECHO_ACKNOWLEDGED", 0x0C0, _RO, "bitmap of the shards that have acknowledged its sums")
ECHO_SLOTS = _board.word("ECHO_SLOTS", 0x0C4, _RO, "slots of a job at the aggregator")
ECHO_SOURCE = _board.pair("ECHO_SOURCE", 0x0C8, _RO, "the aggregator's own MAC address", bits=48)
ECHO_EXPECTED = _board.pair(
    "ECHO_EXPECTED", 0x0D0, _RO, "MAC address that the aggregator expects of this shard", bits=48
)
ECHO_CYCLES = _board.word("ECHO_CYCLES", 0x0D8, _RO, "cycles from the probe to the answer")
EXEMPT = _board.register("EXEMPT", 0x0DC, "The weight that SHRINK and THRESHOLD leave alone: that of the bias")(
    Field("chunk", 0, 16, _RW, "its chunk"),
    Field("lane", 16, 6, _RW, "its lane"),
    Field("engine", 24, 5, _RW, "its engine"),
    Field("exempt", 31, 1, _RW, "there is one"),
)
MERGE_MOST = _program.word(
    "MERGE_MOST", 0x0F0, _RO, "most micro-batches in a packet of version 2; 0: only version 1 is spoken, as by boards"
)
MERGE = _program.word(
    "MERGE",
    0x0F4,
    _RW,
    "micro-batches in a packet of version 2, 1 to MERGE_MOST; 0: packets are of version 1. Changed only between runs, "
    "from or to 0 only before JOIN",
    bits=16,
)
JOB_KEY = _program.pair(
    "JOB_KEY", 0x0F8, _RW, "key of the job in packets of version 2; changed only before JOIN", bits=KEY_BITS
)

COUNTERS = counter_block(
    0x100,
    {
        "CYCLES": "cycles of the last run",
        "CYCLES_BUSY": "cycles in which engine 0 took a line",
        "CYCLES_MEMORY": "cycles in which engine 0 waited for a line from memory",
        "CYCLES_NETWORK": "cycles in which it waited for sums from the network",
        "CYCLES_CHAINING": "cycles in which it waited for the backward pass to update the model, or passed over zeros",
        "CYCLES_DRAIN": "cycles after its last line until the run's end",
        "CYCLES_MODEL": "cycles in which the run was prepared, or the model loaded or stored",
        "PACKETS_SENT": "packets sent",
        "PACKETS_RESENT": "of those, sent again",
        "PACKETS_RECEIVED": "packets received",
        "PACKETS_DROPPED": "of those, dropped",
    }
    | {f"DROPPED_{drop.name}": f"packets dropped: {drop.help}" for drop in DropReason},
)
"""Counters of a run. The counters CYCLES_… add up to CYCLES, in a snapshot too."""

KEYED_COUNTERS = counter_block(
    0x100 + 8 * len(COUNTERS), {f"DROPPED_{drop.name}": f"packets dropped: {drop.help}" for drop in KeyedDrop}
)
"""Further counters of a worker that speaks version 2."""

ECHO_MOST = _program.word(
    "ECHO_MOST",
    0x100 + 8 * (len(COUNTERS) + len(KEYED_COUNTERS)),
    _RO,
    "most micro-batches in a packet that the aggregator takes, by its answer to the last probe",
)


def _base(engine: int) -> int:
    """Offset of the registers of an engine."""
    return 0x200 + 0x40 * engine


def engine_counters(engine: int) -> dict[str, Counter]:
    """Counters of a run, of one engine."""
    meanings = {
        f"ENGINE{engine}_LINES": f"lines that engine {engine} took",
        f"ENGINE{engine}_STARVED": f"cycles in which engine {engine} waited for a line from memory",
    }
    return counter_block(_base(engine) + 0x18, meanings)


@functools.cache  # the host reads all of all workers after each epoch
def counters(config: WorkerConfig) -> dict[str, Counter]:
    """All counters of a worker by name: `COUNTERS`, then those of each engine."""
    found = dict(COUNTERS)
    for engine in range(config.engines):
        found |= engine_counters(engine)
    return found


def lines_address(engine: int, port: int) -> tuple[Register, Register]:
    """Byte address of the lines, or parts of lines, that a port of an engine reads; a multiple of `PAGE_BYTES`."""
    text = f"byte address of the lines of engine {engine}, port {port}, a multiple of {PAGE_BYTES}"
    return pair(f"LINES{engine}_{port}_ADDRESS", _base(engine) + 8 * port, _RW, text)


def model_address(engine: int) -> tuple[Register, Register]:
    """Byte address of an engine's weights, a multiple of `PAGE_BYTES`."""
    text = f"byte address of the weights of engine {engine}, a multiple of {PAGE_BYTES}"
    return pair(f"MODEL{engine}_ADDRESS", _base(engine) + 0x10, _RW, text)


def engine_addresses(config: WorkerConfig, engine: int) -> list[tuple[Register, Register]]:
    """Registers of an engine with addresses: those of lines, by port, then that of weights."""
    return [*(lines_address(engine, port) for port in range(config.ports)), model_address(engine)]


def lines_count(engine: int) -> tuple[Register, Register]:
    """Lines of the run that an engine reads, directories included, if the image has some."""
    text = f"lines of engine {engine} in a run with FORMAT.directory, directories included; at least 1"
    return pair(f"LINES{engine}", _base(engine) + 0x28, _RW, text, bits=COUNT_BITS)


WRITE_ORDER = (
    "All settings may change while CTRL.idle is 1, and stay as they are for later runs.",
    "Memory: LABELS_ADDRESS, and of each engine MODEL0_ADDRESS, LINES0_0_ADDRESS of each port and, with "
    "FORMAT.directory, LINES0.",
    "Loss table: TABLE_SHIFT, TABLE_INDEX, then TABLE_SLOPE and TABLE_INTERCEPT for each of SEGMENTS segments.",
    "Run, in any order: FORMAT, CHUNKS, MICRO_BATCHES, MINI_BATCHES, LABEL_MODE, RATE, SHRINK, THRESHOLD, EXEMPT, "
    "PARTIAL_LIMIT, RUN.",
    "Job, once the aggregator serves it: JOB, RESEND_CYCLES, RESEND, LOCAL_MAC and PEER_MAC in any order, then JOIN. "
    "Again after ABORT, and after a run whose STATUS says so; then all workers join a new job.",
    "Start: write 1 to the flags of STATUS, then to CTRL.start.",
    "End: read CTRL until done is 1, which clears it, then STATUS: with memory_error, network_error, aborted, "
    "not_joined or refused there is no result. Else the weights are in memory, if RUN.model_store is 1.",
)
"""Steps of a driver, in order, by the names of registers; those of engine 0 and port 0 stand for all."""


def worker_map(config: WorkerConfig) -> RegisterMap:
    """All registers of a worker."""
    found = [*_board, *halves(counters(config))]
    for engine in range(config.engines):
        found += lines_count(engine)
        found += [half for address in engine_addresses(config, engine) for half in address]
    return RegisterMap(found)


@functools.cache  # an emulator makes one for every run
def program_map(config: WorkerConfig) -> RegisterMap:
    """All registers of a worker that is a program. Boards lack some: there they read as 0, and writes are ignored."""
    return RegisterMap([*worker_map(config), *_program, *halves(KEYED_COUNTERS)])


def identity(config: WorkerConfig, build_id: int = 0) -> dict[str, int]:
    """The words of the identification block by register name, as RTL and emulator show them."""
    ports = config.ports + SPARSE_PORTS * config.sparse
    return {
        "MAGIC": MAGIC,
        "ABI_VERSION": ABI_VERSION,
        "CONFIG_HASH": config.config_hash,
        "BUILD_ID": build_id,
        "GEOMETRY": GEOMETRY.encode(engines=config.engines, lanes=config.lanes, banks=BANKS, ports=ports),
        "CHUNKS_MAX": config.chunks,
        "LINE_FIFO_DEPTH": config.line_fifo_depth,
        "SLOTS": config.slots,
        "SEGMENTS": config.table_segments,
    }


def after_reset(config: WorkerConfig, build_id: int = 0) -> Iterator[Register]:
    """All registers of a worker as a first read finds them: words that the worker drives count as reset values."""
    return worker_map(config).after_reset(identity(config, build_id) | {"CTRL": CTRL.encode(idle=1)})
