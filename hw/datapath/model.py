"""Round 3: the weights of an engine, and their update."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import ADDRESS_CARRY_BITS, BURST_INCR, RESPONSE_OKAY, Axi4Signature
from p4sgd.hw.datapath.backward import GRADIENT_BITS, GradientPort
from p4sgd.hw.primitives import Component, add, overflows, pipeline, ram_style, saturate
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT, Fixed
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT
from p4sgd.hw.spec.timing import forward_stages

__all__ = [
    "MODEL_READ_LATENCY",
    "HalfReadPort",
    "Model",
    "ModelLoader",
    "ModelStorer",
    "ReadPort",
    "Update",
    "half_layout",
    "weights_layout",
]

MODEL_READ_LATENCY = 2  # cycles from an address to its data: the memory has an output register


def weights_layout(config: WorkerConfig) -> data.ArrayLayout:
    """Layout of the weights of one chunk, lane 0 lowest."""
    return data.ArrayLayout(signed(WEIGHT.width), config.lanes)


def half_layout(config: WorkerConfig) -> data.ArrayLayout:
    """Layout of the weights of half a chunk: of the lower or of the higher half of its lanes."""
    return data.ArrayLayout(signed(WEIGHT.width), config.lanes // 2)


class ReadPort(wiring.Signature):
    """Read access of forward passes to the model, seen from the reader."""

    def __init__(self, config: WorkerConfig) -> None:
        ports = {
            # Chunk to read. Where the model holds two versions, the top bit selects the half that holds one.
            "address": Out(config.chunk_bits),
            "enable": Out(1),  # `address` is valid in this cycle
            # Weights of the chunk: the lowest lanes, those of stage 0 of the forward pass, `MODEL_READ_LATENCY` cycles
            # after the address, those of each further stage a cycle after the stage before. Each stays until the next.
            "data": In(weights_layout(config)),
        }
        super().__init__(ports)


class HalfReadPort(wiring.Signature):
    """Read access to the latest weights, half a chunk at a time, seen from the reader."""

    def __init__(self, config: WorkerConfig) -> None:
        ports = {
            # Half to read: twice the number of its chunk, and one more for the higher lanes.
            "address": Out(config.chunk_bits + 1),
            "enable": Out(1),  # `address` is valid in this cycle
            # Weights of the half whose address came `MODEL_READ_LATENCY` cycles before, until others are read.
            "data": In(half_layout(config)),
        }
        super().__init__(ports)


_LOW = 17  # bits of a weight that the first of two DSP48E2 multiplies: the cascade to the second shifts by 17 (UG579)
_RETAINED = Fixed(SHRINK.fraction + 1, SHRINK.fraction, signed=False)  # format of 1 − shrink, up to 1


class Update(Component):
    """Weight update ``w' = regularize(w − round(gradient · 2^-gradient_shift))`` on every lane, once a cycle.

    The stages, each ending in a register::

        1  >> 0, 8, 16, 24 of gradient_shift     6  low bits × retained
        2  >> 0, 2, 4, 6                         7  … + half; high bits × retained
        3  >> 0, 1 with rounding; w − …          8  high + low, >> 24
        4  overflow?                             9  ± threshold
        5  saturate, or load                    10  0 if the sign changed

    Rounding takes no adder: the highest bit that is dropped is the carry into the subtraction. L2 multiplies a weight
    by 1 − shrink in two DSP slices, which add the constant to round by as well, because in units of 2^-23 w −
    ⌊w·shrink + ½⌋ = ⌊w·(1 − shrink) + ½ − 2^-24⌋. L1 moves a weight towards 0 by the threshold, not past 0. Where
    ``regularize`` is low, and on an exempt lane, all of a weight is retained and the threshold is 0. A way around
    stages 6 to 9 for runs without penalties would take 988 LUTs, 6 % of an engine, and save 4 cycles of a mini-batch.
    """

    LATENCY = 10
    WEIGHTS_LATENCY = 2
    SATURATED_LATENCY = 5
    LOAD_LATENCY = 6

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        ports = {
            "gradients": In(data.ArrayLayout(signed(GRADIENT_BITS), lanes)),  # exact gradients
            # Weights of the same features, `WEIGHTS_LATENCY` cycles after its gradients.
            "weights": In(data.ArrayLayout(signed(WEIGHT.width), lanes)),
            "regularize": In(1),  # with the gradients: this is the end of a mini-batch
            "exempt": In(1),  # with the gradients: the weights of `exempt_lanes` are not regularised
            # Settings, stable: in `SHRINK`, in units of 2^-23, a bit for each lane.
            "gradient_shift": In(MAX_GRADIENT_SHIFT.bit_length()),
            "shrink": In(SHRINK.width),
            "threshold": In(WEIGHT.width - 1),
            "exempt_lanes": In(lanes),
            # With `load`, `loaded` enters at stage 5 and leaves as `updated` `LOAD_LATENCY` cycles later.
            # `regularize` must have been low `LATENCY` cycles before that.
            "load": In(1),
            "loaded": In(data.ArrayLayout(signed(WEIGHT.width), lanes)),
            # New weights, `LATENCY` cycles after the gradients.
            "updated": Out(data.ArrayLayout(signed(WEIGHT.width), lanes)),
            "saturated": Out(1),  # a lane was saturated, `SATURATED_LATENCY` cycles after gradients
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        final = pipeline(m, self.regularize, 7, "final", reset_less=True)
        exempt = pipeline(m, self.exempt, 8, "exempt", reset_less=True)
        any_shrink = self.shrink.any()
        retained = Signal(_RETAINED.width, reset_less=True)
        distance = Signal(WEIGHT.width - 1, reset_less=True)  # valid with the registers of stage 8
        m.d.sync += [
            # 1 − shrink, of whose bits above those of shrink the lanes' registers need to hold two only.
            retained.eq(
                Cat((-self.shrink)[: SHRINK.width], any_shrink.replicate(SHRINK.fraction - SHRINK.width), ~any_shrink)
            ),
            distance.eq(Mux(final[7], self.threshold, 0)),
        ]
        overflowed = []
        for lane, here in enumerate(self.exempt_lanes):
            low_factor = Signal(signed(_RETAINED.width + 1), name=f"low_factor_{lane}", reset_less=True)
            high_factor = Signal.like(low_factor, name=f"high_factor_{lane}", reset_less=True)
            m.d.sync += [  # low_factor is valid with the registers of stage 5
                low_factor.eq(Mux(final[4] & ~(exempt[4] & here), retained, _RETAINED.one)),
                high_factor.eq(low_factor),
            ]
            own_distance = Mux(exempt[8] & here, 0, distance)
            overflowed.append(self._lane(m, lane, low_factor, high_factor, own_distance))
        m.d.sync += self.saturated.eq(Cat(overflowed).any())
        return m

    def _lane(self, m: Module, lane: int, low_factor: Signal, high_factor: Signal, distance: Value) -> Signal:
        """Build one lane; returns its overflow flag, a register of stage 4."""

        def register(stage: str, width: int) -> Signal:
            return Signal(signed(width), name=f"{stage}_{lane}", reset_less=True)

        # Stages 1 to 3. One more bit at the low end holds the highest bit that was dropped, which decides the rounding.
        coarse = register("coarse", GRADIENT_BITS + 1)
        medium = register("medium", GRADIENT_BITS + 1)
        moved = register("moved", GRADIENT_BITS + 1)
        step = Signal(signed(GRADIENT_BITS + 1), name=f"step_{lane}")
        m.d.comb += step.eq(Mux(self.gradient_shift[0], medium >> 1, medium))
        m.d.sync += [
            coarse.eq(Cat(Const(0, 1), self.gradients[lane]).as_signed() >> (self.gradient_shift & 0b11000)),
            medium.eq(coarse >> (self.gradient_shift & 0b00110)),
            # w − (step >> 1) − half = w + ~(step >> 1) + ~half
            moved.eq(add(self.weights[lane], ~step[1:].as_signed(), carry=~step[0])),
        ]
        overflow = Signal(name=f"overflow_{lane}", reset_less=True)
        checked = register("checked", GRADIENT_BITS + 1)
        weight = register("weight", WEIGHT.width)
        m.d.sync += [
            overflow.eq(overflows(moved, WEIGHT)),
            checked.eq(moved),
            weight.eq(Mux(self.load, self.loaded[lane], saturate(checked, overflow, WEIGHT))),
        ]

        # Stages 6 to 8: weight × retained, 32 × 25 bits, in two DSP slices: the low 17 bits, unsigned, and the constant
        # to round by; a cycle later the high bits and the cascaded result.
        product_bits = WEIGHT.width - _LOW + len(low_factor)
        low_product = register("low_product", _LOW + 1 + len(low_factor))
        low_sum = register("low_sum", len(low_product) + 1)
        high_weight = register("high_weight", WEIGHT.width - _LOW)
        high_product = register("high_product", product_bits)
        product = register("product", product_bits + 1)
        shrunk = product[SHRINK.fraction - _LOW :][: WEIGHT.width].as_signed()
        m.d.sync += [
            low_product.eq(Cat(weight[:_LOW], 0).as_signed() * low_factor),
            low_sum.eq(low_product + ((1 << (SHRINK.fraction - 1)) - 1)),
            high_weight.eq(weight[_LOW:]),
            high_product.eq(high_weight * high_factor),
            product.eq(high_product + (low_sum >> _LOW)),
        ]
        lowered = register("lowered", WEIGHT.width)
        negative = Signal(name=f"negative_{lane}", reset_less=True)
        updated = register("updated", WEIGHT.width)
        inverted = Signal(signed(WEIGHT.width), name=f"inverted_{lane}")  # −distance − 1 unless negative
        m.d.comb += [
            inverted.eq(Mux(shrunk[-1], distance, ~Cat(distance, 0))),
            self.updated[lane].eq(updated),
        ]
        m.d.sync += [
            # Stages 9 and 10. A step towards 0 cannot overflow. If it changes the sign, it went past 0.
            lowered.eq(add(shrunk, inverted, carry=~shrunk[-1])),
            negative.eq(shrunk[-1]),
            updated.eq(Mux(lowered[-1] == negative, lowered, 0)),
        ]
        return overflow


class Model(Component):
    """Two sets of weights, and the update between them::

        read ◀──────────── w ◀────────────────────┬── load
                                   final only     │
        gradients ──▶ Update ─────────────────────┤
                        ▲                         ▼
                        └──────────────────────  w_next ──▶ halves

    ``w`` holds the weights that forward passes read, ``w_next`` collects the updates of a mini-batch. The last update
    (``final``) regularises and writes both, so they become equal without a copy. With staleness the next forward pass
    still reads the older weights meanwhile: ``w`` then holds two versions, one in each half. The final update writes
    that of ``write_half``, readers select theirs by the top bit of the address.

    ``w`` has a memory for each stage of the forward pass, read a cycle after that of the stage before: up to 7 cycles
    after its line was taken. So it is read after the final update that permitted the line; and before the next update
    of the same words, whose deltas follow from the dot product of that very line.

    A chunk has at least two planes in most runs, so half of its lanes are updated in a cycle: the lower half with its
    gradients, the higher half a cycle later. Gradients must be 2 cycles apart, and `UPDATE_SPACING` if of the same
    chunk. `WRITE_LATENCY` cycles after them the lower half is written, a cycle later the higher half, which is that of
    later stages and so read later, too. ``w_next`` has half a chunk in a word.
    """

    WRITE_LATENCY = Update.LATENCY
    UPDATE_SPACING = Update.LATENCY + 1

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        ports = {
            "read": In(ReadPort(config)),  # access to `w`
            "halves": In(HalfReadPort(config)),  # access to `w_next`, while no gradients are under way
            "gradients": In(GradientPort(config)),  # gradients to update by
            # Settings, as of an `Update`; stable.
            "gradient_shift": In(MAX_GRADIENT_SHIFT.bit_length()),
            "shrink": In(SHRINK.width),
            "threshold": In(WEIGHT.width - 1),
            # Settings, too: whether a weight is not regularised, and which.
            "exempt": In(1),
            "exempt_chunk": In(registers.EXEMPT["chunk"].bits),
            "exempt_lane": In(registers.EXEMPT["lane"].bits),
            # Half of `w` that final updates write; 0 unless the model has at most half of `WorkerConfig.chunks`.
            "write_half": In(1),
            # Halves of chunk 0, 1, 2, … to write to both memories, the lower first; always ready. Not while gradients
            # are under way.
            "load": In(stream.Signature(half_layout(config))),
            "load_clear": In(1),  # pulse while `load_busy` is low: the next half loaded is the lower one of chunk 0
            "load_busy": Out(1),  # a half was taken and is not yet written
            "updated": Out(1),  # Pulse: a final update is writing a chunk of `w`. Reads from the next cycle on see it.
            "updated_last": Out(1),  # with `updated`: it is the last chunk, so the mini-batch ends
            # Pulse: the first or the last chunk of a micro-batch is being written.
            "wrote_first": Out(1),
            "wrote_last": Out(1),
            "saturated": Out(1),  # pulse: a weight was saturated
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        lanes = config.lanes // 2
        m = Module()
        m.submodules.update = update = Update(lanes)
        stages = forward_stages(config.lanes)
        of_stage = data.ArrayLayout(signed(WEIGHT.width), config.lanes // stages)
        style = ram_style(config.chunks)
        w: list[Memory] = [Memory(shape=of_stage, depth=config.chunks, init=[], attrs=style) for _ in range(stages)]
        for stage, memory in enumerate(w):
            m.submodules[f"w{stage}"] = memory
        w_write, w_read = [memory.write_port() for memory in w], [memory.read_port() for memory in w]
        halves = 2 * config.chunks
        w_next: Memory = Memory(shape=half_layout(config), depth=halves, init=[], attrs=ram_style(halves))
        m.submodules.w_next = w_next
        next_write, next_read = w_next.write_port(), w_next.read_port()

        here = Signal(weights_layout(config), reset_less=True)  # the output registers of both memories
        old = Signal(half_layout(config), reset_less=True)
        m.d.comb += self.read.data.eq(here)
        m.d.sync += [here.eq(Cat(port.data for port in w_read)), old.eq(next_read.data)]
        addresses = pipeline(m, self.read.address, stages - 1, "read_address", reset_less=True)
        enables = pipeline(m, self.read.enable, stages - 1, "read_enable", reset_less=True)
        for port, read_address, read_enable in zip(w_read, addresses, enables, strict=True):
            m.d.comb += [port.addr.eq(read_address), port.en.eq(read_enable)]

        # Lower half with the gradients, higher half a cycle later. Only `valid` needs a reset: the others are ignored
        # where it is low.
        gradients = self.gradients
        flags = {"final": 1, "last": 1, "exempt": 1}
        lower: Any = Signal(data.StructLayout({"chunk": config.chunk_bits} | flags))
        higher: Any = Signal.like(lower, reset_less=True)
        entering: Any = Signal(data.StructLayout({"of_chunk": lower.shape(), "higher": 1}))
        higher_gradients: Any = Signal(data.ArrayLayout(signed(GRADIENT_BITS), lanes), reset_less=True)
        enters_higher = Signal()
        lane_bits = (lanes - 1).bit_length()
        lower_lanes, higher_lanes = ([gradients.values[first + lane] for lane in range(lanes)] for first in (0, lanes))
        m.d.sync += [enters_higher.eq(gradients.valid), higher.eq(lower), higher_gradients.eq(Cat(higher_lanes))]
        m.d.comb += [
            lower.chunk.eq(gradients.chunk),
            lower.final.eq(gradients.final),
            lower.last.eq(gradients.last),
            lower.exempt.eq(gradients.chunk == self.exempt_chunk),
            entering.of_chunk.eq(Mux(enters_higher, higher, lower)),
            entering.higher.eq(enters_higher),
        ]
        enters = gradients.valid | enters_higher
        exempt_lanes = Signal(lanes, reset_less=True)
        half_is_exempt = self.exempt_lane[lane_bits] == enters_higher
        m.d.comb += [
            next_read.addr.eq(
                Mux(self.halves.enable, self.halves.address, Cat(enters_higher, entering.of_chunk.chunk))
            ),
            next_read.en.eq(enters | self.halves.enable),
            self.halves.data.eq(old),
            update.gradients.eq(Mux(enters_higher, higher_gradients, Cat(lower_lanes))),
            update.weights.eq(old),
            update.regularize.eq(enters & entering.of_chunk.final),
            update.exempt.eq(entering.of_chunk.exempt & half_is_exempt),
            update.exempt_lanes.eq(exempt_lanes),
            update.gradient_shift.eq(self.gradient_shift),
            update.shrink.eq(self.shrink),
            update.threshold.eq(self.threshold),
        ]
        m.d.sync += exempt_lanes.eq(Mux(self.exempt, 1 << self.exempt_lane[:lane_bits], 0))
        valid = pipeline(m, enters, Update.LATENCY, "valid")
        leaving = pipeline(m, entering, Update.LATENCY, "leaving", reset_less=True)[-1]
        chunk, final, last = leaving.of_chunk.chunk, leaving.of_chunk.final, leaving.of_chunk.last
        writes_chunk = valid[-1] & ~leaving.higher

        begins = Signal(init=1)  # the next chunk is the first of its micro-batch
        with m.If(writes_chunk):
            m.d.sync += begins.eq(last)

        # Loaded weights enter the update at stage 5, so the memories need no multiplexer for their data.
        loading = Signal(Update.LOAD_LATENCY)
        loaded = loading[-1]
        load_half = Signal(config.chunk_bits + 1)
        m.d.sync += loading.eq(Cat(self.load.valid, loading))
        with m.If(self.load_clear):
            m.d.sync += load_half.eq(0)
        with m.Elif(loaded):
            m.d.sync += load_half.eq(load_half + 1)
        version = Signal(config.chunk_bits)
        lower_version = Signal.like(self.write_half)  # the last chunk changes `write_half` with its lower half
        m.d.sync += lower_version.eq(self.write_half)
        m.d.comb += [
            self.load.ready.eq(1),
            self.load_busy.eq(loading.any()),
            update.load.eq(self.load.valid),
            update.loaded.eq(self.load.payload),
            self.updated.eq(writes_chunk & final),
            self.updated_last.eq(last),
            self.wrote_first.eq(writes_chunk & begins),
            self.wrote_last.eq(writes_chunk & last),
            self.saturated.eq(valid[Update.SATURATED_LATENCY] & update.saturated),
            version[-1].eq(Mux(leaving.higher, lower_version, self.write_half)),
            next_write.addr.eq(Mux(loaded, load_half, Cat(leaving.higher, chunk))),
            next_write.data.eq(update.updated),
            next_write.en.eq(valid[-1] | loaded),
        ]
        writes_w = (valid[-1] & final) | loaded
        writes_higher = Mux(loaded, load_half[0], leaving.higher)
        m.d.comb += Cat(write.data for write in w_write).eq(Cat(update.updated, update.updated))
        for stage, write in enumerate(w_write):
            m.d.comb += [
                write.addr.eq(Mux(loaded, load_half[1:], chunk | version)),
                write.en.eq(writes_w & (writes_higher == (stage >= stages // 2))),
            ]
        return m


class ModelLoader(Component):
    """Joins half of `WorkerConfig.weight_beats` beats from memory port 0 to the weights of half a chunk, the first beat
    lowest.

    A half takes a cycle for each beat, and one more. The model is loaded once a run, so this need not be faster.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._beats = config.weight_beats // 2
        self._port_bits = config.port_bits
        ports = {
            "beats": In(stream.Signature(config.port_bits)),  # beats of memory
            "halves": Out(stream.Signature(half_layout(config))),  # weights, half a chunk at a time
            "zero": In(1),  # pulse while no beats come: set `halves.payload` to zeros, to clear the model
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = Signal(self._beats * self._port_bits, reset_less=True)
        count = Signal(range(self._beats))
        m.d.comb += [self.halves.payload.eq(word), self.beats.ready.eq(~self.halves.valid)]
        with m.If(self.halves.ready):
            m.d.sync += self.halves.valid.eq(0)
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += [word.eq(Cat(word, self.beats.payload)[self._port_bits :]), count.eq(count + 1)]
            with m.If(count == self._beats - 1):
                m.d.sync += [count.eq(0), self.halves.valid.eq(1)]
        with m.If(self.zero):
            m.d.sync += word.eq(0)
        return m


class ModelStorer(Component):
    """Writes the weights of ``chunks`` chunks to memory, one AXI burst a chunk.

    A chunk is at most 256 bytes and aligned to its size, so no burst crosses a 4 KiB boundary. Its halves are read one
    after the other. It takes 11 cycles, or 15 with two ports an engine, if the memory is always ready.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._bus = Axi4Signature(data_bits=config.port_bits, read=False)
        ports = {
            "memory": Out(self._bus),  # write channels of memory port 0
            "weights": Out(HalfReadPort(config)),  # access to the model
            "start": In(1),  # pulse while idle
            "chunks": In(17),  # chunks to store, at least 1; stable
            "base": In(64),  # byte address, a multiple of 4096; stable
            "done": Out(1),  # pulse: all is written and acknowledged
            "error": Out(1),  # pulse: a response was not OKAY
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        beats = config.weight_beats
        chunk_bytes = beats * config.port_bytes
        m = Module()
        chunk = Signal(17, reset_less=True)
        address = Signal(ADDRESS_CARRY_BITS, reset_less=True)
        beat = Signal(range(beats + 1))
        written: Any = Signal(self.memory.w.payload.shape(), reset_less=True)
        half_beats = beats // 2
        half_bits = (half_beats - 1).bit_length()
        weights = Value.cast(self.weights.data)
        data_beats = Array(weights.word_select(number, config.port_bits) for number in range(half_beats))
        wait = Signal(range(MODEL_READ_LATENCY + 1))
        request = self.memory.aw
        m.d.sync += self.done.eq(0)
        m.d.comb += [
            self.weights.address.eq(Cat(beat[half_bits], chunk)),
            request.payload.addr.eq(Cat(address, self.base[ADDRESS_CARRY_BITS:])),
            request.payload.len.eq(beats - 1),
            request.payload.size.eq(self._bus.size),
            request.payload.burst.eq(BURST_INCR),
            self.memory.w.payload.data.eq(written.data),
            self.memory.w.payload.last.eq(written.last),
            self.memory.w.payload.strb.eq(~0),
            self.memory.b.ready.eq(1),
        ]
        answered = self.memory.b.valid
        m.d.sync += self.error.eq(answered & (self.memory.b.payload.resp != RESPONSE_OKAY))
        with m.If(request.ready):
            m.d.sync += request.valid.eq(0)
        with m.If(self.memory.w.ready):
            m.d.sync += self.memory.w.valid.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [chunk.eq(0), address.eq(self.base), beat.eq(0), wait.eq(MODEL_READ_LATENCY)]
                with m.If(self.start):
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.weights.enable.eq(wait == MODEL_READ_LATENCY)
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.d.sync += wait.eq(MODEL_READ_LATENCY)
                    with m.If(beat == 0):
                        m.d.sync += request.valid.eq(1)
                    m.next = "WRITE"
            with m.State("WRITE"):
                with m.If((beat != beats) & (~self.memory.w.valid | self.memory.w.ready)):
                    m.d.sync += [
                        written.data.eq(data_beats[beat[:half_bits]]),
                        written.last.eq(beat == beats - 1),
                        self.memory.w.valid.eq(1),
                        beat.eq(beat + 1),
                    ]
                    with m.If(beat == half_beats - 1):
                        m.next = "READ"
                with m.If(answered):
                    m.d.sync += [chunk.eq(chunk + 1), address.eq(address + chunk_bytes), beat.eq(0)]
                    m.next = "READ"
                    with m.If(chunk + 1 == self.chunks):
                        m.d.sync += self.done.eq(1)
                        m.next = "IDLE"
        return m
