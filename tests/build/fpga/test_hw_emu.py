"""The design for Vitis' hardware emulator: workers behind stand-ins for their MACs, joined by an aggregator.

The driver and the command line train on it twice: on an imitation of XRT, and on the generated Verilog, whose kernels
are joined as the link configuration says.
"""

import contextlib
import dataclasses
import json
import random
import re
import shlex
import shutil
import signal
from pathlib import Path

import cocotb
import pytest
from cocotb.task import bridge
from cocotb.triggers import ClockCycles
from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner
from support.bench import FPGA_CELLS, default_seed, parameters, run_verilog_bench, start
from support.command_line import run
from support.foreign_axi import Buffer, HostMemory, RegisterWords
from support.jobs import configure, random_job
from support.jobs import start as start_job
from support.xrt import PLATFORM, Machine
from support.xrt_kernels import RUN_LINGERS_S

from p4sgd.build.check.folder import read_ports
from p4sgd.build.fpga.vitis import CLUSTER
from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.boards import mac
from p4sgd.host.boards.kernel import MissingKernelError
from p4sgd.host.boards.xrt import XrtAddress
from p4sgd.host.devices import board_worker
from p4sgd.hw.spec import cmac
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig


def lines_of(folder, key):
    """Values of a key of the link configuration, split at their colons."""
    text = (folder / "link_hw_emu.cfg").read_text()
    return [value.split(":", 2) for value in re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)]


def units(folder):
    """Kernel of each instance, by its name."""
    return {f"{kernel}_{n + 1}": kernel for kernel, count in lines_of(folder, "nk") for n in range(int(count))}


def readme_command(folder):
    """What the folder's README says after XRT's settings and ``p4sgd``."""
    (line,) = re.findall(r"^XCL_EMULATION_MODE=hw_emu .* p4sgd (train .*)$", (folder / "README.md").read_text(), re.M)
    return shlex.split(line)


def emulated_weights(command, *more):
    """Of the same command on the project's own emulator."""
    alone = [*command[: command.index("--device")], "--config", "tiny", "--workers", 2]
    return json.loads(run(*alone, *more, "--json").stdout)["weights_sha256"]


# -- on an imitation of XRT ----------------------------------------------------------------------------------------


@pytest.fixture
def emulator(vitis_folder, tmp_path, monkeypatch):
    """Vitis' emulator with an xclbin of the kernels that v++ would link, and the folder's cluster file."""
    manifest = json.loads((vitis_folder / "manifest.json").read_text())
    sizes = {
        "p4sgd_worker": dataclasses.asdict(WorkerConfig(**manifest["worker"])),
        "p4sgd_aggregator": dataclasses.asdict(AggregatorConfig(**manifest["aggregator"])),
        cmac.EMULATED_KERNEL: {},
    }
    kernels = {
        unit: {"config": sizes[kernel], "groups": [8, 9] if kernel == "p4sgd_worker" else [], "control": "hs"}
        for unit, kernel in units(vitis_folder).items()
    }
    # The imitation's aggregator is a program, which may have to be compiled first.
    text = (vitis_folder / CLUSTER).read_text().replace("resend_us = 20\n", "resend_us = 500_000\n")
    (tmp_path / CLUSTER).write_text(text)
    xclbin = tmp_path / "out" / "hw_emu" / "p4sgd_worker.xclbin"
    xclbin.parent.mkdir(parents=True)
    xclbin.write_text(json.dumps({"uuid": "ab" * 16, "platform": PLATFORM, "kernels": kernels}))
    with contextlib.closing(Machine(tmp_path, 1, emulation=True, links=2)) as machine:
        machine.install(monkeypatch)
        monkeypatch.chdir(tmp_path)
        yield machine
        assert not machine.open_handles


def test_the_command_of_the_readme_trains_to_the_emulators_weights(vitis_folder, emulator):
    command = readme_command(vitis_folder)
    done = json.loads(run(*command, "--epochs", 2, "--json").stdout)
    assert done["weights_sha256"] == emulated_weights(command, "--epochs", 2)
    assert all(counters["PACKETS_SENT"] > 0 for counters in done["epochs"][0]["counters"])
    assert emulator.calls.count("xrtDeviceLoadXclbinHandle") == 1, "or the emulator begins anew"


def test_the_doctor_sees_links(emulator):
    document = json.loads(run("doctor", "--device", "cluster", "--cluster", CLUSTER, "--json").stdout)
    assert document["healthy"]
    found = [(each["worker"], each["check"]) for each in document["findings"]]
    assert [worker for worker, check in found if check == "ethernet"] == [0, 1]


def test_seconds_mean_nothing_to_a_simulation(emulator, monkeypatch):
    """Links and aborted runs may take as long as they do; receivers are not reset meanwhile."""
    monkeypatch.setattr(mac, "_TRY_S", 0.0)
    monkeypatch.setattr(board_worker, "_END_S", RUN_LINGERS_S / 1000)
    addresses = [worker.board for worker in read_cluster(emulator.folder / CLUSTER).workers]
    assert [str(address) for address in addresses] == ["xrt:0", "xrt:0/2"]
    for number, address in enumerate(addresses, 1):
        worker = board_worker.BoardWorker(number - 1, address)
        mac.await_links([worker.mac])
        assert worker.link.status["up"]
        stand_in = emulator.boards[0].kernels[f"{cmac.EMULATED_KERNEL}_{number}"][0]
        assert (stand_in.resets, stand_in.rx_resets) == (0, 0)
        job = random_job(worker.config, 2, seed=1)
        start_job(configure([worker], job, aggregator_mac=5, resend_cycles=5_000_000), job)
        worker.close()
        assert not emulator.boards[0].runs


# -- on the generated Verilog --------------------------------------------------------------------------------------

_FIFO = """
module stream_fifo #(parameter DEPTH = 16, parameter BITS = 577) (
    input clk, input rst_n, input pause,
    input [BITS-1:0] i, input i_valid, output i_ready, output [BITS-1:0] o, output o_valid, input o_ready);
  reg [BITS-1:0] beats [DEPTH-1:0];
  reg [31:0] head = 0, tail = 0;
  assign i_ready = (head - tail != DEPTH) & ~pause;
  assign o_valid = head != tail;
  assign o = beats[tail % DEPTH];
  always @(posedge clk)
    if (~rst_n) {head, tail} <= 0;
    else begin
      if (i_valid & i_ready) begin beats[head % DEPTH] <= i; head <= head + 1; end
      if (o_valid & o_ready) tail <= tail + 1;
    end
endmodule
"""


def joined(folder):
    """Verilog of all instances, and of a top in which they are joined as v++ would join them.

    Streams pass FIFOs of the configured depth, which do not take a beat while their bit of ``pause`` is set. All other
    ports are the top's, with the instance's name before them.
    """
    tops = json.loads((folder / "manifest.json").read_text())["kernels"]
    texts = {kernel: (folder / f"{tops[kernel]}.v").read_text() for kernel in units(folder).values()}
    lines = lines_of(folder, "stream_connect")
    streams = [(source.split("."), sink.split("."), depth) for source, sink, depth in lines]
    ends = {f"{unit}_{bus}" for *both, _ in streams for unit, bus in both}
    ports, body = ["input ap_clk", "input ap_rst_n", f"input [{len(streams) - 1}:0] pause"], []
    for unit, kernel in units(folder).items():
        pins = []
        for port in read_ports(texts[kernel], tops[kernel]):
            name, size = f"{unit}_{port.name}", f"[{port.bits - 1}:0] " if port.bits > 1 else ""
            if port.name in ("ap_clk", "ap_rst_n"):
                name = port.name
            elif port.name.startswith("axis_"):
                assert name.rpartition("_")[0] in ends, f"{name} is not connected"
                body.append(f"wire {size}{name};")
            else:
                ports.append(f"{port.direction} {size}{name}")
            pins.append(f".{port.name}({name})")
        body.append(f"{tops[kernel]} {unit} ({', '.join(pins)});")
    for number, (source, sink, depth) in enumerate(streams):
        pins = [".clk(ap_clk)", ".rst_n(ap_rst_n)", f".pause(pause[{number}])"]
        for side, (unit, bus) in (("i", source), ("o", sink)):
            parts = ", ".join(f"{unit}_{bus}_t{part}" for part in ("data", "keep", "last"))
            pins += [f".{side}({{{parts}}})", *(f".{side}_{wire}({unit}_{bus}_t{wire})" for wire in ("valid", "ready"))]
        body.append(f"stream_fifo #(.DEPTH({depth})) fifo{number} ({', '.join(pins)});")
    lines = [f"module {TOP} ({', '.join(ports)});", *body, "endmodule"]
    return "\n".join([*texts.values(), _FIFO, FPGA_CELLS.read_text(), *lines]) + "\n"


TOP = "hw_emu"


class SimulatedKernel:
    """A `p4sgd.host.boards.kernel.Kernel` of the simulated design; to be used in a function that ``bridge`` runs."""

    def __init__(self, design, address, name, kernel):
        self._name, self._unit = name, f"{kernel}_{address.unit}"
        if self._unit not in design.registers:
            raise MissingKernelError(f"there is no {self._unit}")
        words, self._memories = design.registers[self._unit], design.memories
        self.client, self.read_register, self.write_register = words.client, words.read_register, words.write_register

    def __str__(self):
        return self._name

    def memories(self, count):
        return [HostMemory(self._memories[f"{self._unit}.m_axi_gmem{argument}"]) for argument in range(count)]

    def close(self):
        pass


class Design:
    """Registers and memories of the simulated design. Buffers of the same channels lie one after the other."""

    def __init__(self, dut, folder):
        self.registers = {unit: RegisterWords(dut, f"{unit}_s_axi_control", 0.0) for unit in units(folder)}
        self.memories = {}
        for number, (port, *channels) in enumerate(lines_of(folder, "sp")):
            last = int(re.findall(r"\d+", channels[-1])[-1])
            base, size = (last << 28) + (number << 22), 1 << 22
            self.memories[port] = Buffer(dut, port.replace(".", "_"), 0.0, base, size)

    @property
    def strays(self):
        return [stray for buffer in self.memories.values() for stray in buffer.strays]


async def pause(dut, chance, streams):
    while True:
        dut.pause.value = sum(1 << stream for stream in range(streams) if random.random() < chance)
        await ClockCycles(dut.ap_clk, 1)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def trains(dut, stall):
    """By the command of the folder's README; only what calls XRT is replaced."""
    asked = parameters()
    folder = Path(asked["folder"])
    cocotb.start_soon(pause(dut, stall, len(lines_of(folder, "stream_connect"))))
    design = Design(dut, folder)
    await start(dut)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which the command line cannot do in another thread
    macs = []

    class Mac(mac.BoardMac):
        def close(self):
            macs.append(self.link_state())
            super().close()

    @bridge
    def command():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(XrtAddress, "open_kernel", lambda *names: SimulatedKernel(design, *names))
            patch.setattr(mac, "BoardMac", Mac)
            patch.setattr(mac, "_POLL_S", 0.0)  # nothing is simulated meanwhile
            patch.setattr(board_worker, "_LONGEST_SLEEP_S", 0.0)
            patch.chdir(folder)
            return json.loads(run(*asked["command"], "--json").stdout)

    done = await command()
    assert done["weights_sha256"] == asked["weights"]
    assert not design.strays
    sent = [sum(epoch["counters"][worker]["PACKETS_SENT"] for epoch in done["epochs"]) for worker in range(2)]
    assert all(state.status["up"] and state.status["aligned"] for state in macs)
    assert len(macs) == 2
    for state, packets in zip(reversed(macs), sent, strict=True):
        assert state.counters["TX_FRAMES"] >= packets > 0
        wrong = [name for name in state.counters if not name.endswith("X_FRAMES")]
        assert not any(state.counters[name] for name in wrong), state.counters


@pytest.mark.slow
@pytest.mark.rtl
def test_the_verilog_joined_as_configured_trains_by_the_command_of_the_readme(vitis_folder):
    command = [*readme_command(vitis_folder), "--epochs", "1"]
    weights = emulated_weights(command, "--epochs", "1")
    run_verilog_bench(joined(vitis_folder), TOP, __file__, folder=str(vitis_folder), command=command, weights=weights)


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is missing: apt-get install iverilog")
def test_it_trains_where_words_of_memories_are_unknown_at_first(vitis_folder, tmp_path, monkeypatch):
    """Verilator knows 0 and 1 only; Icarus, as the simulator of Vitis, also x, which spreads where it is looked at."""
    seed = default_seed()
    command = ["train", "wine:class_0", "--lr", "0.1", "--epochs", "1", "--device", "cluster", "--cluster", CLUSTER]
    asked = {"folder": str(vitis_folder), "command": command, "weights": emulated_weights(command)}
    monkeypatch.setenv("P4SGD_BENCH", json.dumps(asked))
    monkeypatch.syspath_prepend(Path(__file__).parent)
    source = tmp_path / f"{TOP}.v"
    source.write_text(joined(vitis_folder))
    runner = get_runner("icarus")
    runner.build(sources=[source], hdl_toplevel=TOP, build_dir=tmp_path, timescale=("1ns", "1ps"))
    results = runner.test(
        test_module=Path(__file__).stem,
        hdl_toplevel=TOP,
        build_dir=tmp_path,
        test_filter="trains/stall=0.0",
        seed=seed,
        extra_env={"COCOTB_LOG_LEVEL": "WARNING"},
    )
    assert get_results(results) == (1, 0), f"P4SGD_SEED={seed}"
