"""Peers over MPI: an AllReduce, and SGD with 32-bit floats; the programs of ranks, and running them."""

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from p4sgd.host.errors import P4sgdError
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table
from p4sgd.host.serve.local_cluster import python_command

_TIMEOUT_S = 600


def mpiexec() -> str | None:
    """The program that starts ranks: that of the package mpich, which mpi4py finds too, or that of the system."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def why_no_ranks() -> str:
    """What is missing to start ranks, and the remedy; empty if nothing is."""
    try:
        importlib.util.find_spec("mpi4py.MPI")
    except ModuleNotFoundError:
        return "mpi4py is not installed (pip install 'p4sgd[mpi]')"
    except RuntimeError:  # of mpi4py
        return "mpi4py finds no MPI library (pip install mpich)"
    return "" if mpiexec() else "there is no mpiexec (pip install mpich)"


def run_ranks(count: int, program: Callable[..., None], *arguments: int | str) -> str:
    """The standard output of a function of a module, run by so many ranks of one thread each with texts."""
    source = f"import sys; from {program.__module__} import {program.__name__} as run; run(*sys.argv[1:])"
    return run_command(count, python_command(source, *map(str, arguments)))


def run_command(count: int, command: list[str]) -> str:
    """The standard output of a command that so many ranks run; a `P4sgdError` if it fails."""
    environment = os.environ | {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    words = [str(mpiexec()), "-n", str(count), *command]
    done = subprocess.run(words, capture_output=True, check=False, text=True, env=environment, timeout=_TIMEOUT_S)
    if done.returncode:
        raise P4sgdError(f"ranks of MPI have failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def allreduce(values: str, operations: str) -> None:
    """A rank's program: prints the median of the µs of sums of int32, and what 99 % of them take."""
    from mpi4py import MPI

    world, ours = MPI.COMM_WORLD, np.ones(int(values), np.int32)
    sums, times = np.zeros_like(ours), []
    for _ in range(int(operations)):
        world.Barrier()
        begin = time.perf_counter()
        world.Allreduce(ours, sums)
        times.append((time.perf_counter() - begin) * 1e6)
    assert (sums == world.size).all()
    if world.rank == 0:
        times.sort()
        print(statistics.median(times), times[len(times) * 99 // 100])


def sgd(divided: str, samples: str, features: str, batch: str) -> None:
    """A rank's program: SGD of a logistic regression with its part of the columns, or of each mini-batch's samples.

    Prints the median of the µs of a mini-batch, and the loss after an epoch.
    """
    from mpi4py import MPI

    world, size, rows = MPI.COMM_WORLD, int(batch), int(samples)
    x = np.random.default_rng(0).standard_normal((rows, int(features)), np.float32)
    y = np.where(x[:, 0] > 0, 1, 0).astype(np.float32)
    if divided == "columns":
        own = x[:, world.rank :: world.size].copy()
        w = np.zeros(own.shape[1], np.float32)
    else:
        mine = np.arange(rows) % size * world.size // size == world.rank
        own, y_own, w = x[mine].copy(), y[mine], np.zeros(x.shape[1], np.float32)
    rate, times, count = np.float32(0.1 / size), [], size // world.size
    sums = np.zeros(size if divided == "columns" else w.size, np.float32)
    for number in range(rows // size):
        begin = time.perf_counter()
        if divided == "columns":
            part = own[number * size : (number + 1) * size]
            world.Allreduce(part @ w, sums)
            w -= rate * (part.T @ (1 / (1 + np.exp(-sums)) - y[number * size : (number + 1) * size]))
        else:
            here = slice(number * count, (number + 1) * count)
            part = own[here]
            world.Allreduce(part.T @ (1 / (1 + np.exp(-(part @ w))) - y_own[here]), sums)
            w -= rate * sums
        times.append((time.perf_counter() - begin) * 1e6)
    z = world.allreduce(own @ w) if divided == "columns" else x @ w
    if world.rank == 0:
        print(statistics.median(times), float(np.logaddexp(0, np.where(y > 0, -z, z)).mean()))


def compare(quick: bool) -> Finding:
    """SGD with floats over MPI on this machine, with columns and with samples divided."""
    if problem := why_no_ranks():
        return Finding(sentences=[f"SGD over MPI was not measured: {problem}."])
    rows: list[list[Cell]] = []
    for features, batch, ranks in product(
        (4096,) if quick else (4096, 65536), (16, 64, 256), (2,) if quick else (2, 4)
    ):
        # Every rank makes all samples: at most 336 MB.
        samples = batch * max(5, min(30, (1 << 26) // (features * batch)))
        found = {way: run_ranks(ranks, sgd, way, samples, features, batch).split() for way in ("columns", "samples")}
        columns, divided = (float(found[way][0]) for way in ("columns", "samples"))
        if abs(float(found["columns"][1]) - float(found["samples"][1])) > 1e-3:
            raise P4sgdError(f"the peers over MPI end with different losses: {found}")
        rows.append([features, batch, ranks, columns, divided, divided / columns, Source.MEASURED])
    names = ("D", "B", "ranks", "columns divided, µs", "samples divided, µs", "ratio", "source")
    ratios = [float(row[5] or 0) for row in rows]
    slower = [f"D = {row[0]:,}, B = {row[1]}, {row[2]} ranks" for row in rows if float(row[5] or 0) < 1]
    return Finding(
        [
            Table(
                "Mini-batch SGD with 32-bit floats over MPI on this machine",
                names,
                rows,
                [Chart("B", "ratio", "D", {"ranks": 2}, log_x=True)],
                "Ranks share the cores of this machine.",
            )
        ],
        [f"Over MPI here, dividing columns is {min(ratios):.1f} to {max(ratios):.1f} times as fast as the other."],
        [f"Over MPI here, dividing samples is faster for {'; '.join(slower)}."] if slower else [],
    )
