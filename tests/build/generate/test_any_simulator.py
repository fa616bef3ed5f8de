"""The generated Verilog, in a bench without our code, trains to the golden model's weights in every simulator."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.aggregator import MAC
from support.bench import default_seed
from support.jobs import configure, random_job
from support.own_top import MEMORY, TWO_ENGINES, own_top

from p4sgd.hw.spec import aggregator, registers
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.sim.verilator import environment

BENCH = """
`timescale 1ns / 1ps
module bench;
  // A line of the program: whether to write to the aggregator, offset, word.
  reg [44:0] script [0:LINES-1];
  reg clk, rst, done, finished, took_address, took_data, to_aggregator, awvalid, wvalid, arvalid;
  reg [11:0] offset;
  reg [31:0] word;
  wire [1:0] awready, wready, bvalid, rvalid;
  wire [31:0] worker_rdata, aggregator_rdata;
  wire idle;
  integer line;

  own own(
    .clk(clk), .rst(rst), .done(done), .worker_idle(idle),
    PINS
  );
  always #2 clk = ~clk;
  // All is driven at falling edges, so it does not matter in which order a simulator takes what happens at rising ones.
  initial begin
    $readmemh("script.hex", script);
    {clk, done, to_aggregator, awvalid, wvalid, arvalid} = 6'd0;
    rst = 1'b1;
    repeat (16) @(negedge clk);
    rst = 1'b0;
    @(negedge clk);
    for (line = 0; line < LINES; line = line + 1) begin
      {to_aggregator, offset, word} = script[line];
      {awvalid, wvalid} = 2'b11;
      finished = 1'b0;
      while (!finished) begin
        #1 {took_address, took_data} = {awready[to_aggregator], wready[to_aggregator]};
        @(negedge clk);
        if (took_address) awvalid = 1'b0;
        if (took_data) wvalid = 1'b0;
        finished = bvalid[to_aggregator];
      end
    end
    wait (!idle);
    wait (idle);
    @(negedge clk);
    offset = MAGIC;
    arvalid = 1'b1;
    @(negedge clk);
    arvalid = 1'b0;
    while (!(rvalid[0] & rvalid[1])) @(negedge clk);
    $display("magic %h %h", worker_rdata, aggregator_rdata);
    done = 1'b1;
    @(negedge clk);
    @(negedge clk) $finish;
  end
  initial begin
    repeat (20000) @(negedge clk);
    $display("still running");
    $finish;
  end
endmodule
"""
WRITES = {"awaddr": "offset", "wdata": "word", "wstrb": "4'd15", "araddr": "offset", "arvalid": "arvalid"}
PINS = [f".{short}_s_axi_control_{pin}({value})" for short in ("worker", "aggregator") for pin, value in WRITES.items()]
for number, short in enumerate(("worker", "aggregator")):
    named = f".{short}_s_axi_control_"
    PINS += [f"{named}{pin}({pin}[{number}])" for pin in ("awready", "wready", "bvalid", "rvalid")]
    PINS += [f"{named}{pin}({pin} & to_aggregator == 1'd{number})" for pin in ("awvalid", "wvalid")]
    PINS += [f"{named}{pin}(1'b1)" for pin in ("bready", "rready")] + [f"{named}rdata({short}_rdata)"]
    PINS += [f"{named}{pin}()" for pin in ("arready", "bresp", "rresp")]


class Recorder:
    """Takes what the host does with a worker, or with an aggregator, instead of doing it."""

    def __init__(self, config=None):
        self.config, self.writes, self.memories = config, [], {}

    def read_register(self, offset):
        return 0

    def write_register(self, offset, word):
        self.writes.append((offset, word))

    def write_memory(self, bank, address, data):
        self.memories.setdefault(bank, []).append((address, data.tobytes()))


def served(job):
    """Register writes by which an aggregator serves the job, whose only worker is behind port 0."""
    recorder = Recorder()
    client = RegisterClient(recorder.read_register, recorder.write_register)
    settings, *group_mac, ports = aggregator.job_registers(0)
    client.write_pair(aggregator.MAC, MAC)
    client.write_pair(aggregator.MEMBER_MAC, 0x02000000)
    client.write(aggregator.MEMBER, place=0, shard=0, port=0)
    client.write(settings, number=0, workers=1)
    client.write(ports, value=1)
    client.write_pair(group_mac, 0x0300_0000_0001)
    client.write(aggregator.BEGIN, place=0, round=1)
    return recorder.writes


def words(path, size):
    """Words of a memory by index, as ``$writememh`` has written it; those that are unknown are left out."""
    found, at = {}, 0
    for token in path.read_text().replace("//", "\n//").splitlines():
        for each in token.split() if not token.startswith("//") else ():
            if each.startswith("@"):
                at = int(each[1:], 16)
                continue
            if "x" not in each.lower():
                found[at] = int(each, 16).to_bytes(size, "little")
            at += 1
    return found


@pytest.fixture(scope="module")
def job():
    return random_job(TWO_ENGINES.config, 1, seed=default_seed(), chunks=2, micro_batches=2, mini_batches=2)


@pytest.fixture
def bench(generated, job, tmp_path):
    """Folder with all that a simulator needs, and its files of Verilog."""
    worker = Recorder(job.config)
    # What is read back must be what was written.
    worker.read_register = lambda offset: dict(worker.writes).get(offset, 0)
    configure([worker], job, aggregator_mac=MAC)
    client = RegisterClient(worker.read_register, worker.write_register)
    client.write(registers.RUN, model_source=ModelSource.MEMORY.value, model_store=1)
    client.write(registers.CTRL, start=1)
    lines = [1 << 44 | offset << 32 | word for offset, word in served(job)]
    lines += [offset << 32 | word for offset, word in worker.writes]
    (tmp_path / "script.hex").write_text("".join(f"{line:x}\n" for line in lines))
    for bank in range(job.config.memories):
        size = 32 if bank == job.config.labels_memory else job.config.port_bytes
        text = []
        for address, data in worker.memories[bank]:
            text.append(f"@{address // size:x}\n")
            text += [f"{int.from_bytes(data[at : at + size], 'little'):x}\n" for at in range(0, len(data), size)]
        (tmp_path / f"memory{bank}.hex").write_text("".join(text))
    text = BENCH.replace("LINES", str(len(lines))).replace("PINS", ",\n    ".join(PINS))
    text = text.replace("MAGIC", f"12'd{registers.MAGIC_WORD.offset}")
    (tmp_path / "bench.v").write_text(text + own_top(generated))
    return tmp_path, [
        tmp_path / "bench.v",
        MEMORY,
        *(generated / name for name in (generated / "files.f").read_text().split()),
    ]


def check(job, folder, output):
    """The bench has read both magic words, and memory holds the golden model's weights."""
    magic = f"magic {registers.MAGIC:08x} {aggregator.MAGIC:08x}"
    assert [line for line in output.splitlines() if line.startswith(("magic", "still"))] == [magic], output
    layout, config = job.layout(0), job.config
    address, size = job.model_address(0), config.port_bytes
    stored = []
    for engine in range(config.engines):
        after = words(folder / f"after{config.model_memory(engine)}.hex", size)
        beats = range(address // size, (address + layout.model_bytes) // size)
        stored.append(np.frombuffer(b"".join(after[beat] for beat in beats), "<i4"))
    weights = layout.unpad(layout.gather(np.stack(stored).astype(np.int64)))
    assert weights.tolist() == job.golden().weights[0].tolist()


def run(folder, *command, env=None):
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.rtl
@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is missing: apt-get install iverilog")
@pytest.mark.parametrize(
    "standard", ["2005", *(pytest.param(name, marks=pytest.mark.slow) for name in ("2005-sv", "2009")), "2012"]
)
def test_icarus(bench, job, standard):
    """Memories are x at first there."""
    folder, files = bench
    assert not run(folder, "iverilog", f"-g{standard}", "-Wall", "-Wno-timescale", "-o", "bench", "-s", "bench", *files)
    check(job, folder, run(folder, "vvp", "bench"))


@pytest.mark.slow
@pytest.mark.rtl
def test_verilator(bench, job):
    folder, files = bench
    command = [sys.executable, "-P", "-m", "verilator", "--binary", "--timing", "-Wno-fatal", "--x-initial", "unique"]
    env = os.environ | environment()
    env["MAKEFLAGS"] += " CFG_CXXFLAGS_COROUTINES=-fcoroutines"
    run(folder, *command, "--top-module", "bench", *files, env=env)
    check(job, folder, run(folder, "obj_dir/Vbench"))
