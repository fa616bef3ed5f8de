"""AXI4 and AXI4-Lite ends for benches, with random stalls; payloads are the packed structs of hw/bus."""

from collections.abc import Mapping
from typing import Any

from p4sgd.hw.bus.axi import BURST_INCR, RESPONSE_OKAY
from p4sgd.hw.spec.register_map import Counter, Register
from support.streams import StreamSink, StreamSource


def _field(word: int, low: int, bits: int) -> int:
    return word >> low & ((1 << bits) - 1)


class Request:
    """A decoded payload of ``aw`` or ``ar``; checks the rules that every burst must keep."""

    def __init__(self, word: int, data_bits: int) -> None:
        self.address = _field(word, 0, 64)
        self.beats = _field(word, 64, 8) + 1
        size, burst = _field(word, 72, 3), _field(word, 75, 2)
        step = data_bits // 8
        assert 1 << size == step, "beats must have the width of the bus"
        assert burst == BURST_INCR
        assert self.address % step == 0, "unaligned"
        last = self.address + self.beats * step - 1
        assert self.address // 4096 == last // 4096, f"burst {self.address:#x} + {self.beats} crosses 4 KiB"


class ReadMemory:
    """Answers reads in order from ``word_at(address)``; notes every request."""

    def __init__(self, dut: Any, name: str, data_bits: int, word_at: Any, stall: float) -> None:
        self.requests: list[Request] = []
        self.bad_beats: set[int] = set()
        """Addresses that are answered with an error."""
        self.answers = StreamSource(dut, f"{name}__r", stall)
        self._data_bits = data_bits
        self._word_at = word_at
        StreamSink(dut, f"{name}__ar", stall, on_item=self._answer)

    def _answer(self, word: int) -> None:
        request = Request(word, self._data_bits)
        self.requests.append(request)
        step = self._data_bits // 8
        for beat in range(request.beats):
            address = request.address + beat * step
            last = int(beat == request.beats - 1)
            resp = 0b10 if address in self.bad_beats else RESPONSE_OKAY
            self.answers.send([self._word_at(address) | resp << self._data_bits | last << (self._data_bits + 2)])


class WriteMemory:
    """Takes writes into ``contents`` (address → byte)."""

    def __init__(self, dut: Any, name: str, data_bits: int, stall: float) -> None:
        self.contents: dict[int, int] = {}
        self.response = RESPONSE_OKAY
        self._data_bits = data_bits
        self._requests: list[Request] = []
        self._beats: list[int] = []
        self._responses = StreamSource(dut, f"{name}__b", stall)
        StreamSink(dut, f"{name}__aw", stall, on_item=lambda word: self._got(Request(word, data_bits)))
        StreamSink(dut, f"{name}__w", stall, on_item=self._got_beat)

    def _got(self, request: Request) -> None:
        self._requests.append(request)
        self._settle()

    def _got_beat(self, word: int) -> None:
        self._beats.append(word)
        self._settle()

    def _settle(self) -> None:
        while self._requests and len(self._beats) >= self._requests[0].beats:
            request = self._requests.pop(0)
            step = self._data_bits // 8
            for beat in range(request.beats):
                word = self._beats.pop(0)
                strobe = _field(word, self._data_bits, step)
                last = _field(word, self._data_bits + step, 1)
                assert last == (beat == request.beats - 1)
                for byte in range(step):
                    if strobe >> byte & 1:
                        self.contents[request.address + beat * step + byte] = _field(word, 8 * byte, 8)
            self._responses.send([self.response])


class Registers:
    """Registers by fields, through ``master``, which moves words."""

    def __init__(self, master: Any) -> None:
        self._master = master

    async def read(self, register: Register) -> dict[str, int]:
        return register.decode(await self._master.read(register.offset))

    async def write(self, register: Register, **fields: int) -> None:
        await self._master.write(register.offset, register.encode(**fields))

    async def read_counters(self, counters: Mapping[str, Counter]) -> dict[str, int]:
        """The values of counters, by name."""
        found = {}
        for name, counter in counters.items():
            low, high = [(await self.read(half))["value"] for half in counter.registers]
            found[name] = low | high << 32
        return found


class LiteMaster:
    """Single AXI4-Lite reads and writes with random pauses on every channel."""

    def __init__(self, dut: Any, name: str, stall: float, *, clock: Any = None) -> None:
        self._aw = StreamSource(dut, f"{name}__aw", stall, clock=clock)
        self._w = StreamSource(dut, f"{name}__w", stall, clock=clock)
        self._ar = StreamSource(dut, f"{name}__ar", stall, clock=clock)
        self._b = StreamSink(dut, f"{name}__b", stall, clock=clock)
        self._r = StreamSink(dut, f"{name}__r", stall, clock=clock)

    async def write(self, offset: int, word: int, strobes: int = 0xF) -> None:
        """Write and wait for the response, which must be OKAY."""
        count = len(self._b.items) + 1
        self._aw.send([offset])
        self._w.send([word | strobes << 32])
        assert list(await self._b.receive(count))[-1] == RESPONSE_OKAY

    async def read(self, offset: int) -> int:
        """Read a word; the response must be OKAY."""
        count = len(self._r.items) + 1
        self._ar.send([offset])
        item = list(await self._r.receive(count))[-1]
        assert item >> 32 == RESPONSE_OKAY
        return item & 0xFFFFFFFF
