"""Training runs by data and options, and other ways to the weights of each: what the law of P4SGD is about.

Weights are a function of the data and of the options that describe the problem, and of nothing else. `PROBLEMS` are
runs on the emulator, `WAYS` other ways (devices, workers, storage, folders, ranks, a resumed run), and
`MATRIX` says which ways each problem is tried with. The commands are the ones that users type.
"""

import bz2
import contextlib
import datetime
import functools
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from p4sgd.host.cli.app import main
from support import mpi
from support.command_line import PROGRAM

PROBLEMS = {
    # every loss
    "logistic": "breast_cancer --test breast_cancer",
    "hinge": "breast_cancer --loss hinge --batch 32",
    "squared hinge": "wine:0 --loss squared_hinge",
    "modified huber": "gisette.npz --loss modified_huber --batch 64",
    "squared": "diabetes --loss squared",
    "huber": "diabetes --loss huber --epsilon 20",
    "huber by deviation": "diabetes --loss huber",
    "epsilon insensitive": "diabetes --loss epsilon_insensitive --epsilon 10",
    "quantile": "diabetes --loss quantile --quantile 0.8",
    "poisson": "amounts.csv --loss poisson --label-column count",
    "gamma": "amounts.csv --loss gamma --label-column amount --ignore-column count",
    "tweedie": "amounts.csv --loss tweedie --tweedie-power 1.3 --label-column count",
    # bits, scaling, signs
    "1 bit": "gisette.npz --precision 1",
    "2 bits": "gisette.npz --precision 2",
    "3 bits": "gisette.npz --precision 3 --scaling minmax",
    "4 bits": "gisette.npz --precision 4 --scaling maxabs",
    "5 bits": "gisette.npz --precision 5 --scaling robust",
    "6 bits": "gisette.npz --precision 6 --scaling none",
    "7 bits": "gisette.npz --precision 7 --scaling standard",
    "8 bits": "gisette.npz --precision 8 --scaling minmax",
    "2 of 8 bits": "breast_cancer --precision 2 --planes 8",
    "3 of 5 bits": "table.csv --precision 3 --planes 5 --scaling minmax",
    "units of 8": "gisette.npz --unit 8",
    "units of 64": "gisette.npz --unit 64 --no-bias",
    # formats and tables
    "table": "table.csv",
    "named columns": "table.csv --label-column class --ignore-column c3 --weight-column c11",
    "outliers": "outliers.npz",
    "digits": "digits:3 --batch 64",
    "titanic": "titanic.csv --missing indicator",
    "titanic by means": "titanic.csv --missing mean --precision 4 --ignore-column deck",
    "dates and codes": "visits.csv --dates parts --categorical ward --label-column ill",
    "days": "visits.csv --dates days --label-column ill --ignore-column ward",
    "days as texts": "visits.csv --label-column ill",
    "other spelling": "spelt.csv --decimal , --thousands . --missing-values none. --missing mean --encoding cp1252",
    "words": "words.vw --hash-bits 10",
    "hashed numbers": "rcv1.libsvm --hash-bits 8",
    # weights of samples and classes
    "sample weights": "weighted.npz --loss squared --validation-fraction 0.2",
    "importances": "words.vw --loss hinge",
    # offsets
    "exposures": "amounts.csv --loss poisson --label-column count --exposure-column amount --validation-fraction 0.2",
    "exposed claims": "amounts.csv --loss tweedie --label-column count --exposure-column amount",
    "offsets of numbers": "table.csv --loss squared --label-column c5 --offset-column c6 --ignore-column class",
    "offsets of classes": "table.csv --offset-column c11 --scaling minmax",
    "bases": "bases.vw --loss hinge --class-weight balanced --validation-fraction 0.2",
    "balanced classes": "breast_cancer --class-weight balanced --validation-fraction 0.25",
    "class weights": "table.csv --class-weight 0=0.5,1=3",
    "a class of little weight": "outliers.npz --class-weight 0=0.05,1=1",
    # sparse data
    "rcv1": "rcv1.libsvm",
    "real-sim": "real-sim.npz --batch 64 --scaling maxabs --precision 4",
    "criteo": "criteo.npz --batch 64 --l2 0.001",
    "sparse hinge": "rcv1.libsvm --loss hinge --no-bias --l1 0.001 --batch 24",
    "sparse squared": "criteo.npz --loss squared --batch 128 --l1 0.0001 --l2 0.001",
    # penalties
    "l2": "breast_cancer --l2 0.01",
    "no penalty": "breast_cancer --l2 0",
    "l1": "breast_cancer --l1 0.01",
    "both penalties": "diabetes --loss squared --alpha 0.02 --l1-ratio 0.3",
    # rates, schedules, stopping
    "constant rate": "breast_cancer --schedule constant --lr 4",
    "falling rate": "diabetes --loss squared --schedule invscaling --power 0.25",
    "divergence": "diabetes --loss squared --schedule constant --lr 4000 --epochs 5",
    "patience": "breast_cancer --validation-fraction 0.2 --patience 2 --epochs 30",
    "adaptive to the end": "wine:1 --epochs 60 --patience 3 --tolerance 0.01",
    "seed": "breast_cancer --seed 12345 --validation-fraction 0.1",
    "staleness": "breast_cancer --staleness 1 --batch 64",
    "stale hinge": "rcv1.libsvm --staleness 1 --loss hinge --l2 0.01",
    "large batch": "breast_cancer --batch 512",
    # whitening
    "whitened": "breast_cancer --precondition block",
    "whitened digits": "digits --precondition block --damping 0.1 --l2 0.001 --precision 4",
    # several rows, and models to begin with
    "iris": "iris --validation-fraction 0.2",
    "wine hinge": "wine --loss hinge --precision 4",
    "two targets": "targets.csv --loss squared --label-column first --label-column second",
    "two kinds": "targets.csv --label-column warm --label-column big --ignore-column first --ignore-column second",
    "text classes": "targets.csv --label-column colour --positive red --l2 0.001",
    "begun with a model": "breast_cancer --init logistic.model --l2 0.001",
    "begun with rows": "iris --init iris.model --lr 1",
}
"""Training runs: words after ``p4sgd train``. X.model is the model of problem X; without --epochs there are 3."""

WAYS = {
    # more options
    "2 workers": "--workers 2",
    "3 workers": "--workers 3",
    "4 workers": "--workers 4",
    "5 workers": "--workers 5",
    "tiny": "--config tiny",
    "tiny, 3 workers": "--config tiny --workers 3",
    "small, 2 workers": "--config small --workers 2",
    "u280_deep": "--config u280_deep",
    "u50": "--config u50",
    "u55c": "--config u55c",
    "sparse, 3 workers": "--config sparse --workers 3",
    "all lines": "--config u280 --skip-zeros never",
    "directories": "--config u280 --skip-zeros always",
    "directories, 3 workers": "--config small --skip-zeros always --workers 3",
    "a sparse worker": "--config small --workers 3 --sparse-workers 1",
    "split": "--config u280 --workers 2 --sparse-workers 1 --split 100 --skip-zeros always",
    "no split": "--config u280 --workers 3 --sparse-workers 2 --split none",
    # the same data in another file
    **{
        f"file {name}": f"file {name}" for name in ("tsv.gz", "npy", "npz", "parquet", "libsvm", "libsvm.xz", "csv.bz2")
    },
    # other means
    "folder": "folder",
    "folder, 3 workers": "folder --workers 3",
    "folder in little memory": "folder --memory 400MB",
    "folder, sparse": "folder --config sparse",
    "resumed": "resume",
    "resumed on 3 workers": "resume --workers 3",
    "resumed, small": "resume --config small --workers 2",
    "2 ranks": "ranks 2",
    "3 ranks": "ranks 3",
    "2 ranks, messages of 3": "ranks 2 --merge 3",
    "2 ranks of samples": "ranks 2 --parallel data",
    "3 ranks of samples, split": "ranks 3 --parallel data --split 50",
    "cluster": "cluster 2",
    "cluster that loses packets": "cluster 3 --fault link_loss=0.02",
    "cluster with a sparse worker": "cluster 3 --sparse-workers 1 --config small",
    "Verilog": "rtl --config tiny --workers 2",
    "Verilog, faults": "rtl --config tiny --workers 2 --fault link_loss=0.02 --fault memory_stall=0.1",
}
"""Other ways to the weights of a problem: options, or first a word for how (the methods ``_by_…`` of `Lab`)."""

SLOW_WAYS = ("ranks", "cluster", "rtl")
"""Words for means of which only slow tests make use."""

MATRIX = {
    "logistic": "2 workers, 4 workers, tiny, u50, folder, resumed, 2 ranks, cluster, Verilog, faults",
    "hinge": "3 workers, u55c, folder, 3 workers, resumed on 3 workers, 3 ranks",
    "squared": "2 workers, u280_deep, resumed, small",
    "poisson": "2 workers, folder",
    "tweedie": "folder, resumed",
    "gamma": "2 workers",
    "quantile": "small, 2 workers, resumed",
    "1 bit": "5 workers, folder, cluster that loses packets",
    "4 bits": "2 workers, small, 2 workers, folder in little memory",
    "6 bits": "tiny, 3 workers, 2 ranks, messages of 3",
    "2 of 8 bits": "2 workers, Verilog",
    "units of 8": "5 workers, small, 2 workers",
    "table": "file tsv.gz, file csv.bz2, file npy, file npz, file parquet, file libsvm, file libsvm.xz, folder, "
    "2 ranks",
    "class weights": "file parquet, file npy, folder, resumed",
    "a class of little weight": "2 workers, folder, 2 ranks",
    "titanic": "3 workers, folder, resumed, 2 ranks",
    "dates and codes": "2 workers, file parquet, folder, resumed, 2 ranks",
    "days": "file parquet, folder",
    "days as texts": "sparse, 3 workers, all lines, directories, a sparse worker, no split, folder, folder, sparse, "
    "resumed, 2 ranks, 2 ranks of samples, cluster with a sparse worker, Verilog",
    "other spelling": "folder, resumed, 2 ranks",
    "words": "3 workers, folder, directories, 2 ranks of samples",
    "importances": "folder",
    "exposures": "3 workers, folder, resumed, 2 ranks, Verilog",
    "exposed claims": "folder",
    "offsets of numbers": "folder",
    "offsets of classes": "2 workers, file parquet, folder, resumed, 2 ranks, cluster, Verilog",
    "bases": "folder, 2 ranks of samples",
    "sample weights": "2 workers, folder, resumed, 2 ranks, Verilog",
    "balanced classes": "folder, resumed",
    "rcv1": "sparse, 3 workers, all lines, directories, directories, 3 workers, a sparse worker, split, no split, "
    "folder, folder, 3 workers, folder in little memory, resumed, resumed, small, 2 ranks, 2 ranks of samples, "
    "3 ranks of samples, split, cluster with a sparse worker",
    "real-sim": "sparse, 3 workers, all lines, directories, 3 workers, no split, folder, folder, sparse, resumed",
    "criteo": "all lines, directories, split, folder, resumed, 2 ranks of samples",
    "sparse hinge": "all lines, directories, a sparse worker, folder, resumed, small, 3 ranks of samples, split",
    "sparse squared": "sparse, 3 workers, directories, 2 ranks of samples",
    "both penalties": "2 workers, resumed",
    "l1": "2 workers, resumed on 3 workers",
    "patience": "3 workers, folder",
    "adaptive to the end": "folder",
    "divergence": "2 workers, resumed",
    "staleness": "3 workers, folder, resumed, 2 ranks, Verilog, faults",
    "stale hinge": "sparse, 3 workers, all lines, directories",
    "whitened": "2 workers, small, 2 workers, folder, resumed, 2 ranks",
    "whitened digits": "3 workers, folder, cluster",
    "iris": "u50, folder, resumed",
    "wine hinge": "2 workers, folder",
    "two targets": "3 workers, resumed",
    "begun with a model": "2 workers",
    "begun with rows": "tiny, u50",
}
"""Ways to try with each problem, by `WAYS`. (Names with commas are matched first.)"""


def make_data() -> None:
    """Write the data files into the current folder: integers of a fixed generator, and `p4sgd data synth`."""
    random = np.random.RandomState(7)  # whose stream never changes
    x = random.randint(-40, 41, (200, 12))
    x[:, 0] = 3  # constant
    x[:, 1] = random.randint(0, 2, 200)
    x[:, 2] = random.randint(0, 5, 200) ** 4
    x[:, 11] = random.randint(1, 5, 200)
    hidden = random.randint(-3, 4, 12)
    hidden[2] = 0
    score = x @ hidden + random.randint(-20, 21, 200)
    label = (score > np.median(score)).astype(int)
    names = [f"c{column}" for column in range(12)]

    def table(columns: dict[str, Any], delimiter: str = ",") -> str:
        rows = [columns, *zip(*columns.values(), strict=True)]
        return "".join(delimiter.join(map(str, row)) + "\n" for row in rows)

    columns = dict(zip(names, x.T, strict=True)) | {"class": label}
    csv = table(columns).encode()
    sparse = "".join(
        f"{y} " + " ".join(f"{column}:{value}" for column, value in enumerate(row, 1)) + "\n"
        for y, row in zip(label, x, strict=True)
    ).encode()
    Path("table.csv").write_bytes(csv)
    Path("table.csv.bz2").write_bytes(bz2.compress(csv))
    Path("table.tsv.gz").write_bytes(gzip.compress(table(columns, "\t").encode()))
    Path("table.libsvm").write_bytes(sparse)
    Path("table.libsvm.xz").write_bytes(lzma.compress(sparse))
    np.save("table.npy", np.column_stack([x, label]).astype(np.float64))
    np.savez("table.npz", X=x.astype(np.float64), y=label)
    pq.write_table(pa.table({name: pa.array(column) for name, column in columns.items()}), "table.parquet")

    outliers = x.astype(np.float64)
    outliers[5, 4] = 1e5
    np.savez("outliers.npz", X=outliers, y=label)
    weights = random.randint(0, 9, 200) / 4
    wild = np.where(weights == 0, 1e6, 1)  # what weighs nothing counts nowhere
    np.savez("weighted.npz", X=x * wild[:, np.newaxis], y=score * wild, weights=weights)
    small = random.randint(0, 8, (300, 20))
    mean = np.exp(small[:, :3] @ [0.125, -0.0625, 0.25])
    counts = random.poisson(mean)
    amounts = {f"a{column}": small[:, column] for column in range(20)}
    Path("amounts.csv").write_text(table(amounts | {"count": counts, "amount": 1 + counts + small[:, 3]}))
    colours = np.array(["red", "green", "blue"])[(small[:, 0] + random.randint(0, 3, 300)) % 8 // 3]
    sizes = np.where(small[:, 1] + random.randint(-1, 2, 300) > 3, "large", "small")
    targets = {"first": small[:, :6] @ [1, 2, -1, 0, 3, 1], "second": small[:, 4:8] @ [-1, 1, 1, 2]}
    kinds = {"warm": small[:, 3] % 2, "big": (targets["second"] > 9).astype(int)}
    Path("targets.csv").write_text(table(amounts | targets | kinds | {"colour": colours, "size": sizes}))
    days = [datetime.date(2023, 1, 1) + datetime.timedelta(int(day)) for day in random.randint(0, 400, 300)]
    wards = random.randint(1, 6, 300)
    ill = [int(day.month in (12, 1, 2)) ^ int(ward == 3) for day, ward in zip(days, wards, strict=True)]
    visits = {"day": days, "ward": wards, "size": small[:, 0], "ill": ill}
    Path("visits.csv").write_text(table(visits))
    pq.write_table(pa.table({name: pa.array(list(column)) for name, column in visits.items()}), "visits.parquet")
    sums = [f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in small[:, 1] * 777.77]
    gaps = ["none." if each % 5 == 0 else each for each in small[:, 2]]
    spelt = amounts | {
        "sum": sums,
        "stück": gaps,
        "ort": np.array(["Köln", "Bonn"])[small[:, 3] % 2],
        "label": kinds["warm"],
    }
    Path("spelt.csv").write_text(table(spelt, ";"), encoding="cp1252")
    words = []
    for _ in range(250):
        chosen = sorted(set(random.randint(0, 400, 9)))
        sign = 1 if sum(word % 7 - 3 for word in chosen) > 0 else -1
        names = " ".join(f"w{word}:{1 + word % 4}" if word % 3 else f"w{word}" for word in chosen)
        words.append(f"{sign} {1 + random.randint(0, 4) / 2} |text {names} |more x:{random.randint(1, 9)}\n")
    Path("words.vw").write_text("".join(words))
    bases = (line.replace(" |", f" {place % 7 - 3} |", 1) for place, line in enumerate(words))
    Path("bases.vw").write_text("".join(bases))
    for options in (
        "gisette --scale 0.03 --out gisette.npz",
        "rcv1 --scale 0.02 --out rcv1.libsvm",
        "real-sim --scale 0.01 --seed 2 --out real-sim.npz",
        "criteo --samples 500 --features 3000 --out criteo.npz",
        "titanic --samples 300 --out titanic.csv",
    ):
        p4sgd(f"data synth {options} --json")


def p4sgd(words: str, *, apart: bool = False) -> str:
    """Standard output of ``p4sgd``, in this process or one of its own; the error says what it was."""
    if apart:
        done = subprocess.run([PROGRAM, *words.split()], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"p4sgd {words}: status {done.returncode}: {done.stderr[-400:]}"
        return done.stdout
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out):
        assert not main(words.split(), standalone_mode=False)
        out.flush()
    return out.buffer.getvalue().decode()


def weights(words: str, *, command: str = "train", apart: bool = False) -> str:
    """SHA-256 of the weights of a training run."""
    return str(json.loads(p4sgd(f"{command} {words} --json --quiet", apart=apart))["weights_sha256"])


@functools.cache
def options_of(*path: str) -> frozenset[str]:
    """Names of the options of a command."""
    command: click.Command = main
    for word in path:
        assert isinstance(command, click.Group)
        command = command.commands.get(word) or command.get_command(click.Context(command), word)
    return frozenset(name for option in command.params for name in (*option.opts, *option.secondary_opts))


def option_words(words: str, allowed: frozenset[str]) -> str:
    """The options among words that are allowed, with their values."""
    groups = re.findall(r"--\S+(?: (?!--)\S+)*", words)
    return " ".join(group for group in groups if group.split()[0] in allowed)


class Lab:
    """A folder with the data, which becomes the current one, and runs in it, each of which is made once."""

    def __init__(self, folder: Path) -> None:
        os.chdir(folder)
        make_data()
        self._trained: dict[str, str] = {}
        self._number = 0

    def _new(self, suffix: str) -> str:
        self._number += 1
        return f"new{self._number}{suffix}"

    def _words(self, problem: str) -> str:
        """The data and the options of a problem, whose first models are there."""
        words = PROBLEMS[problem]
        for model in re.findall(r"(\w+)\.model", words):
            self.train(model)
        return words if "--epochs" in words else f"{words} --epochs 3"

    def train(self, problem: str) -> str:
        """SHA-256 of the weights of a problem's run, whose model is written."""
        if problem not in self._trained:
            out = f"{problem.replace(' ', '-')}.model"
            self._trained[problem] = weights(f"{self._words(problem)} --overwrite --out {out}")
        return self._trained[problem]

    def by(self, problem: str, way: str) -> str:
        """SHA-256 of the weights of a problem by another way."""
        means, _, options = WAYS[way].partition(" ")
        words = self._words(problem)
        if means.startswith("--"):
            return weights(f"{words} {WAYS[way]}")
        return getattr(self, f"_by_{means}")(words, options)

    def _by_file(self, words: str, suffix: str) -> str:
        data, _, options = words.partition(" ")
        return weights(f"{Path(data).stem}.{suffix} {options}")

    def _by_folder(self, words: str, options: str) -> str:
        """Prepare a folder with the options that make it, and train on it with the others."""
        folder, (data, _, given) = self._new(".folder"), words.partition(" ")
        preparing = option_words(f"{given} {options}", options_of("data", "prepare"))
        p4sgd(f"data prepare {data} {preparing} --out {folder} --quiet")
        training = option_words(given, options_of("train") - options_of("data", "prepare"))
        return weights(f"{folder} {training}")

    def _by_resume(self, words: str, options: str) -> str:
        """Train for an epoch less, and resume on other workers."""
        file = self._new(".checkpoint")
        epochs = int(words.rpartition("--epochs ")[2].split()[0])
        weights(f"{words} --epochs {epochs - 1} --checkpoint {file}")
        return weights(f"--resume {file} --epochs {epochs} {options}")

    def _by_ranks(self, words: str, options: str) -> str:
        ranks, _, more = options.partition(" ")
        status, out, said = mpi.train(*words.split(), *more.split(), "--json", "--quiet", ranks=ranks)
        assert status == 0, said
        return str(json.loads(out)["weights_sha256"])

    def _by_cluster(self, words: str, options: str) -> str:
        workers, _, more = options.partition(" ")
        with tempfile.TemporaryDirectory(prefix="p4sgd-") as home:
            before = os.environ.get("XDG_RUNTIME_DIR")
            os.environ["XDG_RUNTIME_DIR"] = home  # where the local cluster's addresses are
            try:
                p4sgd(f"cluster up --workers {workers} {more} --quiet", apart=True)
                try:
                    return weights(f"{words} --device cluster", apart=True)
                finally:
                    p4sgd("cluster down --quiet", apart=True)
            finally:
                os.environ.pop("XDG_RUNTIME_DIR")
                if before is not None:
                    os.environ["XDG_RUNTIME_DIR"] = before

    def _by_rtl(self, words: str, options: str) -> str:
        command = "simulate" if "--fault" in options else "train"
        device = "" if command == "simulate" else "--device rtl"
        return weights(f"{words} {device} {options}", apart=True, command=command)
