"""BMv2 with the P4 program does as the vectors say, over pairs of virtual Ethernet interfaces."""

import contextlib
import shutil
import subprocess
import time

import pytest
from support.bench import default_seed, times
from support.namespace import Namespace

from conformance.controlled_subject import ControlledSubject, abilities_of, cables
from conformance.generate import committed
from conformance.random_sequences import random_cases
from conformance.runner import run
from conformance.vectors import Geometry, read
from p4sgd.build.generate.switch_program import COMPILER_VARIABLE, build, find_compiler
from p4sgd.host.aggregators.p4runtime import P4RuntimeController
from p4sgd.host.aggregators.tables import read_program
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec.aggregator import AggregatorConfig

SWITCH = "simple_switch_grpc"


@contextlib.contextmanager
def switch_of(geometry, folder):
    """A namespace in which BMv2 has its ends of cables, and the subject behind the others."""
    if not shutil.which(SWITCH):
        pytest.skip(f"{SWITCH} is not on the path")
    if not find_compiler():
        pytest.skip(f"p4c-bm2-ss is not on the path, nor is it named by {COMPILER_VARIABLE}")
    build("bmv2", AggregatorConfig(slots=geometry.slots, jobs=geometry.places), folder / "program")
    program = read_program(folder / "program", "bmv2")
    with contextlib.ExitStack() as stack:
        space = stack.enter_context(contextlib.closing(Namespace()))
        far, near = cables(space, geometry.ports)
        address = f"unix:{folder / 'grpc'}"
        command = [SWITCH, "--no-p4", "--log-file", folder / "log"]
        for port, interface in enumerate(near):
            command += ["-i", f"{port}@{interface}"]
        log = stack.enter_context((folder / "output").open("w+"))
        process = space.start(
            *command, "--", "--grpc-server-addr", address, "--cpu-port", 510, stdout=log, stderr=subprocess.STDOUT
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        controller = P4RuntimeController(address)
        end = time.monotonic() + 60
        while True:
            try:
                controller.deploy(program)
                break
            except P4sgdError:
                assert process.poll() is None, (folder / "output").read_text()
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        # A probe through the CPU port, which shows a slot, is a frame that the switch counts.
        abilities = abilities_of(geometry, looks=False)
        subject = space.call(ControlledSubject, controller, far, abilities, settle_s=0.002)
        stack.callback(subject.close)
        yield space, subject


@pytest.mark.slow
def test_committed_vectors(tmp_path):
    size = Geometry(parents=True)
    with switch_of(size, tmp_path) as (space, subject):
        for file in (file for file, its in committed().items() if its.version == 1 and size.holds(its)):
            done = space.call(run, subject, read(file))
            print(file.name, done)
            assert done.cases
            assert done.left_out < done.frames


@pytest.mark.slow
def test_long_random_sequences(tmp_path):
    geometry = Geometry(4096, 4, 6, parents=True)
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    with switch_of(geometry, tmp_path) as (space, subject):
        space.call(run, subject, random_cases(geometry, seed, times(5_000)))
