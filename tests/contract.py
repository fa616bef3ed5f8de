r"""Frozen outputs: what a change of the code's structure must leave as it is.

python tests/contract.py freeze [--only PATTERN …]            # write tests/contract.json, or some of its cases
python tests/contract.py check [--quick] [--only PATTERN …]   # compare; status 1 and a list if something differs
python tests/contract.py list [--quick]                       # names of the cases
python tests/contract.py modules                              # modules of ours that a small training run imports

It uses only what users see: the command line, the estimators, and files. PATTERN is a shell pattern of names of cases
(``'train/*'``) or a part of a name. Files are made in a temporary folder, or in the one of ``--folder``. The runs of
a case are the commands that it prints when they fail; its data are made by `make_data`.

The tables are for people: `PROBLEMS` are training runs by data and options, `WAYS` other ways to the same weights
(devices, workers, storage, folders, ranks, a resumed run, estimators), and `MATRIX` says which ways each problem is
tried with. `test_matrix.py` tries them too. Only problems have frozen weights; every way must find those of its
problem.
"""

import argparse
import contextlib
import fnmatch
import functools
import hashlib
import importlib.metadata
import io
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

FROZEN = Path(__file__).with_suffix(".json")
VECTORS = Path(__file__).with_name("conformance") / "vectors"

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
    "words": "words.vw --hash-bits 10",
    "hashed numbers": "rcv1.libsvm --hash-bits 8",
    # weights of samples and classes
    "sample weights": "weighted.npz --loss squared",
    "importances": "words.vw --loss hinge",
    "balanced classes": "breast_cancer --class-weight balanced --validation-fraction 0.25",
    "class weights": "table.csv --class-weight 0=0.5,1=3",
    # sparse data
    "rcv1": "rcv1.libsvm",
    "real-sim": "real-sim.npz --batch 64 --scaling maxabs --precision 4",
    "criteo": "criteo.npz --batch 64 --l2 0.001",
    "sparse hinge": "rcv1.libsvm --loss hinge --no-bias --l1 0.001 --batch 24",
    "sparse squared": "criteo.npz --loss squared --batch 128 --l1 0.0001 --l2 0.001",
    # penalties
    "l2": "breast_cancer --l2 0.01",
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
    "u280_wide, 2 workers": "--config u280_wide --workers 2",
    "u50": "--config u50",
    "u55c": "--config u55c",
    "sparse": "--config sparse",
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
"""Words for means that are not in the quick part."""

MATRIX = {
    "logistic": "2 workers, 4 workers, tiny, u50, folder, resumed, 2 ranks, cluster, Verilog, Verilog, faults",
    "hinge": "3 workers, u55c, folder, 3 workers, resumed on 3 workers, 3 ranks",
    "squared": "2 workers, u280_deep, resumed, small",
    "poisson": "2 workers, folder, 2 ranks",
    "tweedie": "folder, resumed",
    "gamma": "u280_wide, 2 workers",
    "quantile": "small, 2 workers, resumed",
    "1 bit": "5 workers, folder, cluster that loses packets",
    "4 bits": "u280_wide, 2 workers, small, 2 workers, folder in little memory",
    "6 bits": "tiny, 3 workers, 2 ranks, messages of 3",
    "2 of 8 bits": "2 workers, Verilog",
    "units of 8": "5 workers, small, 2 workers",
    "table": "file tsv.gz, file csv.bz2, file npy, file npz, file parquet, file libsvm, file libsvm.xz, folder, "
    "2 ranks",
    "class weights": "file parquet, file npy, folder, resumed",
    "titanic": "3 workers, folder, resumed, 2 ranks",
    "words": "3 workers, folder, directories, 2 ranks of samples",
    "importances": "folder, 2 ranks",
    "sample weights": "2 workers, folder, resumed, 2 ranks, Verilog",
    "balanced classes": "folder, resumed",
    "rcv1": "sparse, 3 workers, all lines, directories, directories, 3 workers, a sparse worker, split, no split, "
    "folder, folder, 3 workers, folder in little memory, resumed, resumed, small, 2 ranks, 2 ranks of samples, "
    "3 ranks of samples, split, cluster with a sparse worker",
    "real-sim": "sparse, 3 workers, all lines, directories, 3 workers, no split, folder, folder, sparse, resumed",
    "criteo": "all lines, directories, split, folder, resumed, 2 ranks of samples",
    "sparse hinge": "all lines, directories, a sparse worker, folder, resumed, small, 3 ranks of samples, split",
    "sparse squared": "sparse, 3 workers, directories, 2 ranks, 2 ranks of samples",
    "both penalties": "2 workers, resumed",
    "l1": "2 workers, resumed on 3 workers",
    "patience": "3 workers, folder",
    "adaptive to the end": "folder",
    "divergence": "2 workers, resumed",
    "staleness": "3 workers, folder, resumed, 2 ranks, Verilog, faults",
    "stale hinge": "sparse, 3 workers, all lines, directories, 2 ranks",
    "whitened": "2 workers, small, 2 workers, folder, resumed, 2 ranks",
    "whitened digits": "3 workers, folder, cluster",
    "iris": "u50, folder, resumed",
    "wine hinge": "2 workers, folder",
    "two targets": "3 workers, resumed",
    "begun with a model": "2 workers",
}
"""Ways to try with each problem, by `WAYS`. (Names with commas are matched first.)"""

ESTIMATORS = {
    "logistic": ("GLMClassifier", "breast_cancer", {}),
    "hinge": ("GLMClassifier", "breast_cancer", {"loss": "hinge", "batch": 32, "workers": 3}),
    "l1": ("GLMClassifier", "breast_cancer", {"l1": 0.01}),
    "whitened": ("GLMClassifier", "breast_cancer", {"precondition": "block"}),
    "iris": ("GLMClassifier", "iris", {"validation_fraction": 0.2}),
    "squared": ("GLMRegressor", "diabetes", {"loss": "squared"}),
    "quantile": ("GLMRegressor", "diabetes", {"loss": "quantile", "quantile": 0.8}),
    "staleness": ("GLMClassifier", "breast_cancer", {"staleness": 1, "batch": 64}),
}
"""Problems that estimators train too: the class, data of scikit-learn, parameters."""

DOCUMENTS = {
    "folds": "train breast_cancer --epochs 3 --folds 3",
    "folds of rows": "train wine --epochs 2 --folds 2 --out folds.model --l2 0.001",
    "folds of numbers": "train diabetes --loss squared --epochs 2 --folds 3 --seed 3",
    "tune": "tune breast_cancer --epochs 3 --precision 2,4 --batch 16,64 --l2 0,0.001 --out tuned.model",
    "tune numbers": "tune diabetes --loss squared --epochs 3 --precision 1,8 --batch 32 --l2 0",
    "tune sparse": "tune rcv1.libsvm --epochs 2 --precision 2,8 --batch 64 --l2 0.001",
    "prepare": "data prepare table.csv --out table.prepared --workers 2 --precision 4",
    "prepare sparse": "data prepare rcv1.libsvm --out rcv1.prepared --validation-fraction 0.1",
    "prepare texts": "data prepare titanic.csv --missing indicator --out titanic.prepared",
    "synth": "data synth kdd12 --samples 300 --features 5000 --seed 3 --out kdd12.libsvm",
    "inspect": "inspect logistic.model --top 3",
    "inspect a table": "inspect titanic.model",
    "inspect rows": "inspect iris.model",
    "inspect targets": "inspect two-targets.model --top 2",
    "evaluate from 1": "evaluate rcv1.model rcv1.libsvm --one-based",
    "probabilities": "predict iris.model iris --probabilities",
    "switch build": "switch build --target tofino --out p4",
}
"""Commands whose documents (--json) are frozen as a whole, but for what depends on machine, time or release."""

FOLDERS = {
    "generate tiny": "generate --config tiny",
    "bmv2": "switch build --target bmv2",
    "bmv2 small": "switch build --target bmv2 --slots 64 --jobs 2",
    "tofino": "switch build --target tofino",
    "tofino small": "switch build --target tofino --slots 1024 --jobs 8",
    "heartbeat": "build demo heartbeat",
    # from here on only in the full part
    "generate tiny ports": "generate --config tiny --ports 4 --build-id 7",
    "generate small": "generate --config small --ports 2",
    "generate u280": "generate --config u280",
    "generate u280_deep": "generate --config u280_deep",
    "generate u280_wide": "generate --config u280_wide",
    "generate u50": "generate --config u50",
    "generate u55c": "generate --config u55c",
    "selftest u280": "build selftest --config u280",
    "selftest u50": "build selftest --config u50 --cable optics",
    "vitis small": "build vitis --config small --board u280 --debug",
    "vitis u50": "build vitis --config u50",
    "vitis u280_wide": "build vitis --config u280_wide",
    "vitis u55c": "build vitis --config u55c",
    "vitis aggregator": "build vitis --aggregator --board u280",
    "vitis aggregator u50": "build vitis --aggregator --board u50 --cable optics",
    "vivado tiny": "build vivado --config tiny --board u280 --megahertz 200",
    "vivado u280": "build vivado --config u280",
    "vivado u280_deep": "build vivado --config u280_deep",
}
QUICK_FOLDERS = ("generate tiny", "bmv2", "bmv2 small", "tofino", "tofino small", "heartbeat")
"""Commands that write a folder (--out); each of its files is frozen by its hash."""

SLOW_DOCUMENTS = {
    "simulate": "simulate breast_cancer --config tiny --workers 2 --precision 4 --samples 64 --epochs 1",
    "simulate small": "simulate rcv1.libsvm --config small --workers 2 --samples 64 --epochs 1 --skip-zeros always",
    "simulate faults": "simulate breast_cancer --config tiny --workers 2 --samples 32 --epochs 1 --fault up_loss=0.05",
    "resources": "resources --config tiny --unit engine",
    "doctor": "doctor --device rtl --workers 2 --config tiny",
    "doctor of a fault": "doctor --device rtl --workers 2 --config tiny --fault up_loss=0.99",
}
"""More commands for the full part: cycles, resources."""

IMAGES = {
    "dense": "train table.csv --epochs 1 --workers 2",
    "dense small": "train gisette.npz --epochs 1 --config small --precision 3",
    "weighted": "train weighted.npz --loss squared --epochs 1",
    "whitened": "train breast_cancer --epochs 1 --precondition block",
    "sparse": "train rcv1.libsvm --epochs 1 --workers 2",
    "directories": "train rcv1.libsvm --epochs 1 --config small --workers 2 --skip-zeros always",
    "mixed": "train criteo.npz --epochs 1 --config small --workers 3 --sparse-workers 1 --batch 64",
}
"""Runs whose memory images (--images) are frozen: the file, and each section whatever the container is."""

PREPARED = {
    "dense": "data prepare table.csv --workers 2",
    "dense in little memory": "data prepare table.csv --workers 2 --memory 400MB",
    "sparse": "data prepare rcv1.libsvm --validation-fraction 0.1",
    "directories": "data prepare rcv1.libsvm --config small --workers 2 --skip-zeros always",
    "texts": "data prepare titanic.csv --missing indicator",
    "whitened": "data prepare breast_cancer --precondition block",
}
"""Prepared folders, whose images and arrays are frozen likewise."""

FILES = {
    "model": "train breast_cancer --epochs 2 --out OUT",
    "model of rows": "train iris --epochs 2 --out OUT",
    "model of a table": "train titanic.csv --missing indicator --epochs 2 --out OUT",
    "checkpoint": "train breast_cancer --epochs 2 --validation-fraction 0.2 --checkpoint OUT",
    "checkpoint of rows": "train iris --epochs 2 --checkpoint OUT",
    "checkpoint of sparse data": "train rcv1.libsvm --epochs 2 --checkpoint OUT --l2 0.01",
}
"""Runs that write OUT, a file of arrays, which are frozen one by one."""

EXPORTS = {
    "logistic": "breast_cancer",
    "hinge": "breast_cancer",
    "squared": "diabetes",
    "iris": "iris",
    "l1": "breast_cancer",
}
"""Problems whose models are exported, and predict on data of scikit-learn."""

ERRORS = (
    "train",
    "train nowhere.csv",
    "train breast_cancer --precision 9",
    "train breast_cancer --planes 2 --precision 4",
    "train breast_cancer --batch 12",
    "train breast_cancer --workers 33",
    "train breast_cancer --epochs 0",
    "train breast_cancer --lr -1",
    "train breast_cancer --loss absolute",
    "train breast_cancer --quantile 0.5",
    "train breast_cancer --loss poisson --tweedie-power 1.5",
    "train breast_cancer --alpha 1 --l2 1",
    "train breast_cancer --l1-ratio 0.5",
    "train breast_cancer --precondition block --l1 0.1",
    "train breast_cancer --damping 0.1",
    "train breast_cancer --sparse-workers 2",
    "train breast_cancer --parallel data",
    "train breast_cancer --unit 7",
    "train breast_cancer --staleness 2",
    "train breast_cancer --patience 0",
    "train breast_cancer --validation-fraction 1",
    "train breast_cancer --positive 3",
    "train breast_cancer --class-weight 5=1",
    "train breast_cancer --folds 1",
    "train breast_cancer --folds 3 --checkpoint c",
    "train breast_cancer --config sparse --skip-zeros always",
    "train breast_cancer --label-column 3",
    "train breast_cancer --hash-bits 3",
    "train breast_cancer --out nowhere/m.model",
    "train breast_cancer --init table.csv",
    "train breast_cancer --cluster c.toml",
    "train --resume table.csv",
    "train titanic.csv",
    "train table.csv --label-column nothing",
    "train table.csv --weight-column c3",
    "train rcv1.libsvm --scaling standard",
    "train rcv1.libsvm --precondition block",
    "train words.vw --format csv",
    "predict table.csv table.csv",
    "predict logistic.model diabetes",
    "predict hinge.model breast_cancer --probabilities",
    "evaluate logistic.model nowhere.csv",
    "tune breast_cancer --precision 0,4",
    "export logistic.model --to sklearn --out table.csv",
    "data synth nothing --out x.libsvm",
    "data prepare breast_cancer --out b --memory 1",
    "generate --config sparse --out x",
    "switch build --target bmv2 --slots 3 --out x",
    "build vivado --config u50 --board u50 --out x",
    "worker --control unix:s",
    "nothing",
)
"""Commands that are refused: the status, and which options, values and files of the command the message names."""

KEYS = (
    "info",
    "train breast_cancer --epochs 2 --validation-fraction 0.2 --test breast_cancer",
    "train iris --epochs 2",
    "train criteo.npz --epochs 2 --config small --workers 3 --sparse-workers 1",
    "train targets.csv --loss squared --label-column first --label-column second --epochs 2",
    "train breast_cancer --epochs 2 --folds 2",
    "tune breast_cancer --epochs 2 --precision 4 --batch 64 --l2 0",
    "evaluate logistic.model breast_cancer",
    "evaluate iris.model iris",
    "evaluate poisson.model amounts.csv --label-column count",
    "evaluate two-targets.model targets.csv --label-column first --label-column second",
    "predict iris.model iris --probabilities",
    "inspect words.model",
    "inspect titanic.model",
    "export logistic.model --to onnx --out keys.onnx",
    "data synth zipf --samples 100 --features 1000 --out keys.npz",
    "data prepare titanic.csv --missing indicator --out keys.folder",
    "switch build --target bmv2 --out keys.bmv2",
)
"""Commands whose documents' keys are frozen."""

DROPPED = ("plan factors",)
"""Commands that may go."""

VOLATILE = {"seconds", "samples_per_second", "p4sgd", "version", "message_times", "whitening_times", "remarks", "next"}
VOLATILE |= {
    "generated_by",
    "problem",
    "remedy",
    "sha256",
    "bytes",
    "images_bytes",
    "files",
    "schema",
    "board_ms",
}
"""Members of documents that depend on the machine, the release or wording, or are frozen elsewhere."""


def sha(data: bytes | str) -> str:
    """Half a SHA-256 digest."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:32]


@functools.cache
def entry() -> Callable[[], Any]:
    """The command's function, whatever module it is in."""
    (found,) = importlib.metadata.entry_points(group="console_scripts", name="p4sgd")
    return found.load()


def attempt(words: str) -> tuple[int, str, str]:
    """Run ``p4sgd`` in this process: status, standard output and error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    before, sys.argv = sys.argv, ["p4sgd", *words.split()]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            entry()()
            status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return status, *texts


def p4sgd(words: str, *, apart: bool = False) -> str:
    """Standard output of ``p4sgd``, in this process or a process of its own."""
    if apart:
        command = [str(Path(sys.executable).with_name("p4sgd")), *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        status, out, err = done.returncode, done.stdout, done.stderr
    else:
        status, out, err = attempt(words)
    if status and not (status == 1 and words.startswith("doctor")):  # which ends with 1 if it has found a fault
        raise RuntimeError(f"p4sgd {words}: status {status}: {err[-400:]}")
    return out


def scrubbed(document: Any) -> Any:
    """A document without what is volatile."""
    if isinstance(document, dict):
        return {name: scrubbed(member) for name, member in document.items() if name not in VOLATILE}
    return [scrubbed(member) for member in document] if isinstance(document, list) else document


def keys(document: Any, path: str = "") -> set[str]:
    """Paths of all members of a document; of lists that of any element."""
    if isinstance(document, dict):
        return {path, *(found for name, member in document.items() for found in keys(member, f"{path}.{name}"))}
    if isinstance(document, list):
        return {f"{path}[]", *(found for member in document for found in keys(member, f"{path}[]"))}
    return {path}


def make_data() -> None:
    """Write the data files into the current folder: integers of a fixed generator, and `p4sgd data synth`."""
    import bz2
    import gzip
    import lzma

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    np.savez("weighted.npz", X=x.astype(np.float64), y=score, weights=random.randint(0, 9, 200) / 4)
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
    words = []
    for _ in range(250):
        chosen = sorted(set(random.randint(0, 400, 9)))
        sign = 1 if sum(word % 7 - 3 for word in chosen) > 0 else -1
        names = " ".join(f"w{word}:{1 + word % 4}" if word % 3 else f"w{word}" for word in chosen)
        words.append(f"{sign} {1 + random.randint(0, 4) / 2} |text {names} |more x:{random.randint(1, 9)}\n")
    Path("words.vw").write_text("".join(words))
    for options in (
        "gisette --scale 0.03 --out gisette.npz",
        "rcv1 --scale 0.02 --out rcv1.libsvm",
        "real-sim --scale 0.01 --seed 2 --out real-sim.npz",
        "criteo --samples 500 --features 3000 --out criteo.npz",
        "titanic --samples 300 --out titanic.csv",
    ):
        p4sgd(f"data synth {options} --json")


def contents(path: Path) -> dict[str, str]:
    """Hashes of the arrays of a file, or of all files of a folder, by name. Lines of an image, an array for each memory
    port, count as one."""
    import numpy as np

    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix != ".json")
        return {f"{file.name} {name}": value for file in files for name, value in contents(file).items()}
    data = path.read_bytes()
    arrays: dict[str, Any] = {}
    if path.suffix == ".npy":
        arrays["array"] = np.load(path)
    else:
        from safetensors.numpy import load

        arrays = {name: array for name, array in load(data).items() if not name.startswith("padding")}
    lines = [name for name in arrays if re.fullmatch(r"lines\d+", name)]
    found = {
        name: sha(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes())
        for name, array in sorted(arrays.items())
        if name not in lines and not name.startswith("history")  # in which there are times
    }
    if lines:
        found["lines"] = sha(b"".join(arrays[name].tobytes() for name in sorted(lines, key=lambda name: int(name[5:]))))
    return found


def folder_hashes(folder: Path) -> dict[str, str]:
    """The hash of each file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha(path.read_bytes()) for path in files}


class Lab:
    """The folder with data, and runs in it, each of which is made once.

    Parameters
    ----------
    folder
        It becomes the current one.
    """

    def __init__(self, folder: Path) -> None:
        os.chdir(folder)
        make_data()
        self._trained: dict[str, dict[str, Any]] = {}
        self._number = 0

    def new(self, suffix: str = "") -> str:
        """A name of a file or folder that is not there."""
        self._number += 1
        return f"new{self._number}{suffix}"

    @staticmethod
    def words(problem: str) -> str:
        """The data and the options of a problem."""
        words = PROBLEMS[problem]
        return words if "--epochs" in words else f"{words} --epochs 3"

    def need_models(self, words: str) -> None:
        """Train the models that a command reads."""
        for problem in PROBLEMS:
            if f"{problem.replace(' ', '-')}.model" in words.split():
                self.train(problem)

    def train(self, problem: str) -> dict[str, Any]:
        """The document of a problem's run, whose model is written."""
        if problem not in self._trained:
            words = self.words(problem)
            self.need_models(words)
            model = f"{problem.replace(' ', '-')}.model"
            self._trained[problem] = json.loads(p4sgd(f"train {words} --json --quiet --overwrite --out {model}"))
        return self._trained[problem]

    def result(self, problem: str) -> dict[str, Any]:
        """Weights, metrics and predictions of a problem."""
        document = self.train(problem)
        model, words = f"{problem.replace(' ', '-')}.model", self.words(problem).split()
        reading = option_words(" ".join(words[1:]), options_of("predict"))
        predictions = p4sgd(f"predict {model} {words[0]} {reading}")
        evaluation = json.loads(p4sgd(f"evaluate {model} {words[0]} {reading} --json"))
        rows = document.get("rows", [document])
        chosen = ("learning_rate", "best_epoch", "stopped")
        return {
            "weights_sha256": document["weights_sha256"],
            "units": document["units"],
            "scaling": document["scaling"],
            "signed": document["signed"],
            "metrics": document["metrics"],
            "rows": [
                {name: row.get(name, document.get(name)) for name in chosen} | {"losses": losses(row)} for row in rows
            ],
            "evaluation": {name: value for name, value in scrubbed(evaluation).items() if name != "model"},
            "predictions": sha(predictions),
        }

    def by(self, problem: str, way: str) -> str:
        """SHA-256 of the weights of a problem by another way."""
        means, _, options = WAYS[way].partition(" ")
        words = self.words(problem)
        self.need_models(words)
        if means.startswith("--"):
            return weights(f"{words} {WAYS[way]}")
        return getattr(self, f"_by_{means}")(words, options)

    def _by_file(self, words: str, suffix: str) -> str:
        data, _, options = words.partition(" ")
        return weights(f"{Path(data).stem}.{suffix} {options}")

    def _by_folder(self, words: str, options: str) -> str:
        """Prepare a folder with the options that make it, and train on it with the others."""
        folder, (data, _, given) = self.new(".folder"), words.partition(" ")
        preparing = option_words(f"{given} {options}", options_of("data prepare"))
        p4sgd(f"data prepare {data} {preparing} --out {folder} --quiet")
        training = option_words(given, options_of("train") - options_of("data prepare"))
        return weights(f"{folder} {training}")

    def _by_resume(self, words: str, options: str) -> str:
        """Train for an epoch less, and resume on other workers."""
        file = self.new(".checkpoint")
        epochs = int(words.rpartition("--epochs ")[2].split()[0])
        weights(f"{words} --epochs {epochs - 1} --checkpoint {file}")
        return weights(f"--resume {file} --epochs {epochs} {options}")

    def _by_ranks(self, words: str, options: str) -> str:
        ranks, _, more = options.partition(" ")
        program = Path(sys.executable)
        command = [program.with_name("mpiexec"), "-n", ranks, program.with_name("p4sgd"), "train", *words.split()]
        environment = os.environ | {"NUMBA_NUM_THREADS": "1"}
        done = subprocess.run(
            [*map(str, command), *more.split(), "--launcher", "mpi", "--json", "--quiet"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=environment,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: status {done.returncode}: {done.stderr[-400:]}")
        return str(json.loads(done.stdout)["weights_sha256"])

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
        document = json.loads(p4sgd(f"{command} {words} {device} {options} --json --quiet", apart=True))
        return str(document["weights_sha256"])

    def by_estimator(self, problem: str) -> dict[str, str]:
        """Hash of the predictions of the model that an estimator trains, by itself and by the command line."""
        import sklearn.datasets

        import p4sgd as public

        kind, data, parameters = ESTIMATORS[problem]
        x, y = getattr(sklearn.datasets, f"load_{data}")(return_X_y=True)
        model = getattr(public, kind)(epochs=3, **parameters).fit(x, y)
        file = self.new(".model")
        public.save_model(model, file)
        again = public.load_model(file)
        same = [bool((model.predict(x) == again.predict(x)).all()), bool((model.coef_ == again.coef_).all())]
        if not all(same):
            raise RuntimeError("a model that was saved and loaded differs")
        return {"model": sha(p4sgd(f"inspect {file} --json").partition('"training"')[0].replace(file, ""))} | {
            "predictions": sha(model.predict(x).tobytes()),
            "coefficients": sha(model.coef_.tobytes()),
            "intercept": sha(repr(model.intercept_)),
        }

    def document(self, words: str) -> Any:
        """The document of a command without what is volatile."""
        self.need_models(words)
        return scrubbed(json.loads(p4sgd(f"{words} --json --quiet" if "info" not in words else f"{words} --json")))

    def keys(self, words: str) -> list[str]:
        """Paths of all members of the document of a command."""
        self.need_models(words)
        document = json.loads(p4sgd(f"{words} --json"))
        if words == "info":
            document |= {"versions": {}, "boards": [], "missing": []}
        return sorted(keys(document))

    def images(self, words: str) -> dict[str, Any]:
        """Hashes of the memory images of a run."""
        folder = Path(self.new())
        p4sgd(f"{words} --images {folder} --quiet")
        return {"files": folder_hashes(folder), "contents": contents(folder)}

    def prepared(self, words: str) -> dict[str, str]:
        """Hashes of the arrays in a prepared folder."""
        folder = Path(self.new())
        p4sgd(f"{words} --out {folder} --quiet")
        return contents(folder)

    def arrays(self, words: str) -> dict[str, str]:
        """Hashes of the arrays of the file that a run writes."""
        file = self.new()
        p4sgd(f"{words.replace('OUT', file)} --quiet")
        return contents(Path(file))

    def written(self, words: str) -> dict[str, str]:
        """Hashes of the files of the folder that a command writes."""
        folder = Path("written")  # manifests have no names of folders, but errors would
        shutil.rmtree(folder, ignore_errors=True)
        p4sgd(f"{words} --out {folder} --quiet", apart=True)
        return folder_hashes(folder)

    def exported(self, problem: str) -> dict[str, Any]:
        """Predictions of a model that was exported."""
        import numpy as np
        import onnxruntime
        import sklearn.datasets

        self.train(problem)
        x, _ = getattr(sklearn.datasets, f"load_{EXPORTS[problem]}")(return_X_y=True)
        found: dict[str, Any] = {}
        for to in ("sklearn", "onnx"):
            file = self.new()
            p4sgd(f"export {problem.replace(' ', '-')}.model --to {to} --out {file} --quiet")
            if to == "sklearn":
                model = pickle.loads(Path(file).read_bytes())
                outputs = {"kind": type(model).__name__, "label": model.predict(x)}
                if hasattr(model, "predict_proba"):
                    outputs["probabilities"] = model.predict_proba(x)
            else:
                onnxruntime.set_default_logger_severity(3)
                session = onnxruntime.InferenceSession(file)
                names = [output.name for output in session.get_outputs()]
                (source,) = session.get_inputs()
                outputs = dict(zip(names, session.run(None, {source.name: x}), strict=True))
            found[to] = {}
            for name, value in outputs.items():
                array = np.asarray(value)
                numeric = array.dtype.kind == "f"
                found[to][name] = (
                    value
                    if isinstance(value, str)
                    else (
                        [float(np.abs(array).sum()), *map(float, array.ravel()[:3])]
                        if numeric
                        else sha(repr(array.tolist()))
                    )
                )
        return found

    def refused(self, words: str) -> list[Any]:
        """The status of a command that is wrong, and which of its words the message names, however it is worded."""
        self.need_models(words)
        status, _, err = attempt(words)
        message = err.replace(f"p4sgd {words.split()[0]}", "")
        patterns = {word: re.escape(word).replace(r"\-\-", "").replace(r"\-", "[-_ ]") for word in words.split()[1:]}
        return [status, *(word for word, pattern in patterns.items() if re.search(rf"(?<!\w){pattern}(?!\w)", message))]


def losses(row: dict[str, Any]) -> list[float]:
    """The training loss of each epoch."""
    return [epoch["train_loss"] for epoch in row["epochs"]]


def weights(words: str, *, apart: bool = False) -> str:
    """SHA-256 of the weights of a training run."""
    return str(json.loads(p4sgd(f"train {words} --json --quiet", apart=apart))["weights_sha256"])


def option_words(words: str, allowed: set[str]) -> str:
    """The options among words that are allowed, with their values."""
    groups: list[list[str]] = []
    for word in words.split():
        if word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return " ".join(word for group in groups if group[0] in allowed for word in group)


@functools.cache
def help_of(command: str) -> str:
    """The help of a command, in lines that are not wrapped too early."""
    return p4sgd(f"{command} --help".strip())


def options_of(command: str) -> set[str]:
    """The long options of a command."""
    return {word for line in declared(command) for word in re.findall(r"--[a-z0-9-]+", line.partition("=")[0])}


def declared(command: str) -> list[str]:
    """Options and arguments of a command with their values and defaults, by its help; of a group its commands."""
    text = help_of(command)
    usage, _, rest = text.partition("\n\n")
    found = [" ".join(usage.split())]
    for part in re.split(
        r"\n(?=  -)", rest.partition("Options:\n")[2].partition("\nCommands:")[0].partition("\n\n")[0]
    ):
        if not part.strip():
            continue
        name = re.split(r"\s{2,}", part.strip())[0]
        default = re.search(r"\[(?:[^\]\[]*; )?default:\s+([^\]]*)\]", " ".join(part.split()))
        found.append(name + (f" = {default[1]}" if default else ""))
    return found


def all_commands(group: str = "") -> list[str]:
    """All commands by their helps."""
    below = re.findall(r"^  ([a-z]\S*)  ", help_of(group).partition("\nCommands:")[2], re.MULTILINE)
    return [name for word in below for name in all_commands(f"{group} {word}".strip())] if below else [group]


def estimator_surface() -> dict[str, Any]:
    """Parameters with defaults, and what a fit sets."""
    import numpy as np

    import p4sgd as public

    found: dict[str, Any] = {"all": sorted(public.__all__)}
    for kind in ("GLMClassifier", "GLMRegressor"):
        model = getattr(public, kind)()
        found[kind] = {name: repr(value) for name, value in model.get_params().items()}
        model.set_params(epochs=1).fit(np.arange(40.0).reshape(20, 2), np.arange(20) % 2)
        found[f"{kind} fitted"] = sorted(name for name in dir(model) if name.endswith("_") and name[0] != "_")
        found[f"{kind} methods"] = sorted(
            name for name in dir(model) if name[0] != "_" and callable(getattr(model, name))
        )
    return found


def modules_of_ours() -> list[str]:
    """Modules of p4sgd after a small training run."""
    code = (
        "import importlib.metadata as m, sys, atexit\n"
        "atexit.register(lambda: sys.stderr.write(' '.join(n for n in sys.modules if n.split('.')[0] == 'p4sgd')))\n"
        "sys.argv[1:] = ['train', 'breast_cancer', '-q']\n"
        "(e,) = m.entry_points(group='console_scripts', name='p4sgd')\n"
        "e.load()()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return sorted(done.stderr.split())


def has_mpi() -> bool:
    """Whether ranks can be started."""
    command = [sys.executable, "-c", "from mpi4py import MPI"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def matrix(*, quick: bool) -> list[tuple[str, str]]:
    """Pairs of problem and way."""
    pattern = "|".join(re.escape(way) for way in sorted(WAYS, key=len, reverse=True))
    pairs = [(problem, way) for problem, ways in MATRIX.items() for way in re.findall(pattern, ways)]
    return [(problem, way) for problem, way in pairs if not quick or WAYS[way].split()[0] not in SLOW_WAYS]


def cases(*, quick: bool) -> dict[str, tuple[str, Callable[[Lab], Any]]]:
    """All cases by name: the name of what is frozen and where in it, and how to find it."""
    found: dict[str, tuple[str, Callable[[Lab], Any]]] = {}

    def add(name: str, find: Callable[..., Any], *arguments: Any, frozen: str = "") -> None:
        found[name] = frozen or name, functools.partial(_call, find, arguments)

    for problem in PROBLEMS:
        add(f"train/{problem}", Lab.result, problem)
    for problem, way in matrix(quick=quick):
        add(f"way/{problem}/{way}", Lab.by, problem, way, frozen=f"train/{problem}")
    for problem in ESTIMATORS:
        add(f"estimator/{problem}", Lab.by_estimator, problem)
    for problem in EXPORTS:
        add(f"export/{problem}", Lab.exported, problem)
    for name, words in (DOCUMENTS if quick else DOCUMENTS | SLOW_DOCUMENTS).items():
        add(f"document/{name}", Lab.document, words)
    for kind, table, method in (
        ("images", IMAGES, Lab.images),
        ("prepared", PREPARED, Lab.prepared),
        ("arrays", FILES, Lab.arrays),
    ):
        for name, words in table.items():
            add(f"{kind}/{name}", method, words)
    for name, words in FOLDERS.items():
        if not quick or name in QUICK_FOLDERS:
            add(f"folder/{name}", Lab.written, words)
    for words in ERRORS:
        add(f"error/{words}", Lab.refused, words)
    for words in KEYS:
        add(f"keys/{words}", Lab.keys, words)
    add("vectors", lambda lab: folder_hashes(VECTORS))
    commands = [command for command in all_commands() if command not in DROPPED]
    add("commands", lambda lab: commands)
    for command in commands:
        add(f"options/{command}", lambda lab, command: declared(command), command)
    add("estimators", lambda lab: estimator_surface())
    return found


def _call(find: Callable[..., Any], arguments: tuple[Any, ...], lab: Lab) -> Any:
    return find(lab, *arguments)


def differences(expected: Any, found: Any, path: str = "") -> list[str]:
    """Where two values differ; numbers may differ by a billionth."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = [*expected, *(name for name in found if name not in expected)]
        pairs = [(expected.get(name, "nothing"), found.get(name, "nothing"), f"{path} {name}") for name in names]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [(*both, f"{path} [{place}]") for place, both in enumerate(zip(expected, found, strict=True))]
    elif isinstance(expected, list) and isinstance(found, list) and all(isinstance(x, str) for x in expected + found):
        lost, new = [x for x in expected if x not in found], [x for x in found if x not in expected]
        return [f"{path}: lost {lost}, new {new}"]
    elif isinstance(expected, float) and isinstance(found, int | float):
        return [] if math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12) else [f"{path}: {expected} → {found}"]
    else:
        return [] if expected == found else [f"{path}: expected {expected}, found {found}"]
    return [line for pair in pairs for line in differences(*pair)]


def main() -> int:
    """Freeze, check or list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["freeze", "check", "list", "modules"])
    parser.add_argument("--quick", action="store_true", help="leave out what takes long")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="cases with such names")
    parser.add_argument("--folder", type=Path, help="folder to work in, which stays")
    parser.add_argument("--times", action="store_true", help="print the seconds of each case")
    arguments = parser.parse_args()
    if arguments.action == "modules":
        names = modules_of_ours()
        print(*names, f"{len(names)} modules of p4sgd after p4sgd train breast_cancer", sep="\n")
        return 0
    os.environ.pop("P4SGD_TIMES", None)
    os.environ |= {"COLUMNS": "200", "NO_COLOR": "1"}
    chosen = {
        name: case
        for name, case in cases(quick=arguments.quick).items()
        if not arguments.only or any(word in name or fnmatch.fnmatch(name, word) for word in arguments.only)
    }
    if any("ranks" in name for name in chosen) and not has_mpi():
        print("LEFT OUT: ways with ranks, since mpi4py finds no MPI library (MPI4PY_LIBMPI may name one)")
        chosen = {name: case for name, case in chosen.items() if not (name.startswith("way/") and "ranks" in name)}
    if arguments.action == "list":
        print(*chosen, sep="\n")
        return 0
    frozen = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    start, bad, new = time.monotonic(), 0, {}
    with contextlib.ExitStack() as stack:
        if arguments.folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contract-")))
        else:
            arguments.folder.mkdir(parents=True)
            folder = arguments.folder.resolve()
        stack.callback(os.chdir, Path.cwd())
        lab = Lab(folder)
        for name, (key, find) in chosen.items():
            begin = time.monotonic()
            try:
                found = find(lab)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if key == name:
                new[key] = json.loads(json.dumps(found))
            if key not in frozen and arguments.action == "check":
                print(f"{name}: not frozen")
                continue
            expected = new.get(key) if arguments.action == "freeze" else frozen.get(key, "nothing")
            if key != name and isinstance(expected, dict):
                expected = expected["weights_sha256"]
            failed = arguments.action == "freeze" and isinstance(found, str) and len(found) != 64
            lines = [f": {found}"] if failed else differences(expected, json.loads(json.dumps(found)))
            bad += bool(lines)
            for line in lines[:8]:
                print(f"{name}:{line[1:] if line.startswith(':') else line}", flush=True)
            if arguments.times:
                print(f"  {time.monotonic() - begin:.2f} s {name}", flush=True)
    if arguments.action == "freeze":
        kept = frozen if arguments.only or arguments.quick else {}
        every = kept | new
        lines = [f"{json.dumps(name)}: {json.dumps(every[name], ensure_ascii=False)}" for name in sorted(every)]
        FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    cpu = sum(os.times()[:4])
    print(f"{len(chosen)} cases, {bad} differ; {cpu:.0f} s of CPU, {time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
