"""The table of errors: a command that is refused says one line, exits with status 2, and changes no file.

The line names the file, the line or the option, and what to do. Errors of values alone are in
tests/host/training/test_options.py; failures of other kinds, in test_failures.py.
"""

import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file
from support.command_line import run
from support.tensor_file import rewrite

from p4sgd.host.cli.app import main

GOOD = "1 1:0.5 2:1\n-1 1:-0.5 3:2\n" * 20

FILES = {
    "good.csv": "1,2,0\n3,4,1\n" * 8,
    "good.libsvm": GOOD,
    "mine.toml": "engine = 2",
    "text.toml": "engines = '2'",
    "many.toml": "base = 'u50'\nengines = 64",
    "sparse.toml": "base = 'sparse'",
    "u51.toml": "board = 'u51'",
    "odd.toml": "slots = 5",
    "deep.toml": f"x = {'[' * 9999}{']' * 9999}",
    "dotted.toml": f"x{'.x' * 99} = 1",
    "word.csv": "1,2,0\n1,x,1\n",
    "word.libsvm": f"{GOOD}1 1:x\n",
    "one.libsvm": "1 1:1\n1 1:2\n",
    "classes.libsvm": "1 1:1\n2 1:2\n2.5 1:3\n",
    "sparse.libsvm": "1 1:1 200:3\n-1 3:1\n" * 5,
    "wide.libsvm": f"1 1:1\n-1 {1 << 26}:1\n" * 5,
    "weights.csv": "a,w,label\n1,2,0\n3,-1,1\n",
    "commas.csv": 'a,town,y\n"1,000",x,0\n"2,000",z,1\n',
    "when.csv": "day,y\n03/04/2024,0\n05/06/2024,1\n",
    "latin.csv": "a,town,y\n1,Köln,0\n2,Bonn,1\n".encode("cp1252"),
    "claims.csv": "a,years,text,claims\n" + "1,0.5,x,0\n2,2,y,1\n" * 8,
    "negative.csv": "a,years,claims\n1,0.5,0\n2,-2,1\n",
    "broken.libsvm.gz": gzip.compress(GOOD.encode())[:-12],
    "notes": "years of work",
    "notes.fst": "years of work",
    "worker1.p4sgd": "years of work",
    "run.toml": "[train]\n[predict]\n",
    "bad.toml": "data.prepare = { memory = 'much' }\nsimulate = { fault = ['link_loss=2'] }\ntune = { l2 = '0,x' }\n",
    "info.toml": "[info]\n",
    "thesis/thesis.tex": "years of work",
    "prepared/manifest.json": "{}",
}

READ = [  # data that cannot be read, or do not suit
    ("train word.csv", r"word\.csv, line 2\b.*'x' is not a number.*--label-column.*--ignore-column"),
    ("train word.libsvm", r"word\.libsvm, line 41\b"),
    ("train one.libsvm", r"one\.libsvm.*two classes"),
    ("train classes.libsvm", r"classes\.libsvm.*3 values .*--loss squared.*--positive LABEL"),
    ("train broken.libsvm.gz", r"broken\.libsvm\.gz"),
    ("train nowhere.csv", "nowhere.csv: .*no such file; .*data sets .*breast_cancer"),
    ("train negative.csv --loss poisson --exposure-column years", "line 3, column 2 .years.: .* -2: .* be above 0"),
    ("train claims.csv --loss poisson --offset-column text", "column 3 .text.: the offset 'x' .*--offset-column"),
    (
        "train claims.csv --exposure-column years",
        "claims.csv: exposures .* not for .*logistic: choose --loss poisson or",
    ),
    ("train claims.csv --offset-column nix", "there is no column 'nix' for --offset-column; there are a, years"),
    (
        "train claims.csv --offset-column a --exposure-column years",
        "claims.csv: has --offset-column and --exp.*: add the",
    ),
    ("train claims.csv --offset-column a --ignore-column a", "column 1 .a.: has the offsets, so it cannot be ignored"),
    (
        "train iris --exposure-column 1",
        "--exposure-column is for csv, npy, parquet, but iris is built in: leave it out",
    ),
    ("train breast_canser", r"breast_canser: .*no such file; .*mean breast_cancer\?"),
    ("train a9a", "the data set is at https://www.csie.ntu.edu.tw/~cjlin/libsvmtools"),
    ("train kdd12", "p4sgd data synth kdd12 --samples 1000000 --out kdd12.npz"),
    ("train wide.csv --config tiny", "26 units of 8, .* hold \\(16 each\\): use at least 2 workers"),
    ("train wide.libsvm --config sparse", "67,108,864 features .*1,048,576 each\\): use at least 2 workers"),
    ("train sparse.libsvm --config sparse --scaling standard", "zeros .*maxabs"),
    ("train sparse.libsvm --config sparse --precondition block", "zeros .*leave --precondition out"),
    ("data prepare sparse.libsvm --quiet --out new --config sparse --scaling standard", "zeros .*maxabs"),
    ("train thesis", "thesis: .*no prepared data or not all: p4sgd data prepare"),
    ("data prepare word.libsvm --quiet --out new", r"word\.libsvm, line 41\b"),
    ("predict model iris", "30 are needed"),
    ("evaluate model nowhere.csv", "nowhere.csv: there is no such file"),
    ("evaluate model strange.npz", "strange.npz.*neither 0 nor 1"),
    ("predict hinge iris --probabilities", "no probabilities"),
]

SPELT = [  # texts in other notations, encodings and types
    (
        "commas.csv",
        r"line 2, column 1 .a.: '1,000' is .* --thousands , if it is 1000 or --decimal , if it is 1, or --cat",
    ),
    ("commas.csv --decimal x", "--decimal must be one of '.' ',', not 'x'"),
    ("commas.csv --thousands x", "--thousands must be one of ',' .*, not 'x'"),
    ("commas.csv --decimal , --thousands ,", "--decimal is ',', and so is --thousands"),
    ("commas.csv --categorical nix", "commas.csv: there is no column 'nix' for --categorical; there are a, town, y"),
    ("commas.csv --categorical y", r"commas.csv, column 3 \(y\): is no feature: leave --categorical out"),
    ("latin.csv --encoding utf-8", "latin.csv, line 2: is not utf-8 text: --encoding NAME takes another"),
    ("latin.csv --encoding hex", "--encoding must be an encoding that Python knows, .* not 'hex'"),
    ("latin.csv --encoding klingon", "--encoding must be an encoding that Python knows, .* not 'klingon'"),
    ("when.csv --dates days", "when.csv: day has dates whose day and month may be either way round: write the year"),
    ("when.csv --dates soon", "'--dates': there is no choice 'soon': choose one of text, days, parts"),
    ("good.libsvm --dates days", "good.libsvm: --dates days is for CSV and Parquet files: leave it out"),
    ("good.libsvm --decimal ,", "--decimal is for csv, but good.libsvm is libsvm: leave it out"),
    ("iris --categorical 1", "--categorical is for csv, parquet, but iris is built in: leave it out"),
]

OPTIONS = [  # options that do not suit the data, each other, or the command
    ("train breast_cancer --batch 12", "--batch .*multiple of 8, not 12: .*8 or 16"),
    ("train breast_cancer --loss cubic", "--loss.*'cubic'.*logistic, hinge, squared"),
    ("train breast_cancer --loss reg:squarederror", "'reg:squarederror', which is squared here: choose one of"),
    ("train breast_cancer --device abacus", "--device.*'abacus'.*emulator, rtl"),
    ("train breast_cancer --config huge", "--config.*'huge'.*tiny, small, u280, .*, sparse"),
    ("generate --config mine.toml --out new", "mine.toml: .* no 'engine': did you mean engines\\?"),
    ("generate --config text.toml --out new", "text.toml: engines: expected `int`, got `str`"),
    ("generate --config many.toml --out new", "many.toml: engines must be 1 to 32, not 64"),
    ("generate --config away.toml --out new", "away.toml: cannot read the configuration: No such file"),
    ("generate --config sparse.toml --out new", "sparse.toml: base: there is no configuration 'sparse': .* u55c$"),
    ("generate --config tiny --set board=u51 --out new", "^--set board=u51: .* u55c, or of a file in P4SGD_PLUGINS"),
    ("generate --config u51.toml --set slots=64 --out new", "^u51.toml: there is no board 'u51': choose one of"),
    ("generate --config odd.toml --set engines=2 --out new", "^odd.toml: slots must be a power of two"),
    ("generate --config deep.toml --out new", "^deep.toml: not a TOML file: tables or lists .* 64 levels deep$"),
    ("generate --config pipe.toml --out new", "^pipe.toml: cannot read the configuration: it is not an ordinary file$"),
    ("resources --config tiny --set engines", "--set engines: .* as in slots=16"),
    ("train breast_cancer --launcher mpi", "the launcher mpi is for processes that mpiexec starts: mpiexec -n WORKERS"),
    ("train breast_cancer --parallel data --workers 3", "trains one sparse worker: leave --workers out"),
    ("train breast_cancer --parallel data --config small", "trains one sparse worker: leave --config small out"),
    ("train breast_cancer --parallel data --device rtl", "trains one sparse worker: leave --device rtl out"),
    ("train breast_cancer --set slots=4", "--set slots=4 .*: name it with --config"),
    ("data prepare good.csv --out new --set slots=4", "--set slots=4 .*: name it with --config"),
    ("train breast_cancer --config sparse --device rtl", "sparse workers .*without --device rtl.*--config"),
    ("train breast_cancer --config sparse", "makes zeros other numbers.*maxabs or none.*neither --config sparse nor"),
    (
        "train iris --workers 3 --sparse-workers 2 --device rtl",
        "is for the emulator: .*p4sgd worker --config sparse",
    ),
    ("train iris:1 --workers 2 --sparse-workers 1 --precondition block --unit 8", "whitening .*leave --precondition"),
    ("train iris:1 --device cluster", "--device cluster needs --cluster"),
    ("train iris:1 --device cluster --cluster info.toml", r"info\.toml: "),
    ("train iris:1 --cluster info.toml", r"--cluster info\.toml .*--device cluster"),
    ("train breast_cancer --workers 32", "too few for 32 workers: .*at most 4"),
    ("train breast_cancer --lr 1e9", r"rate 1e\+09 .*range \S+ to \S+ for a batch of 16"),
    ("train breast_cancer --validation-fraction 0.9999", "breast_cancer: .*0.9999 of 569 samples leaves"),
    ("train breast_cancer --positive 7", "breast_cancer: no sample .*label 7; .*0, 1"),
    ("train breast_cancer --test digits", "digits: .*64 features, 30 .*needed"),
    ("train breast_cancer --epochs many", "--epochs.*'many'.*integer"),
    ("train iris --positive 1 --missing mean", "iris: --missing mean is for CSV and Parquet files: leave it out"),
    ("train good.csv --zero-based", "--zero-based/--one-based is for libsvm, but good.csv is csv: leave it out"),
    ("train good.libsvm --header", "--header/--no-header is for csv, but good.libsvm is libsvm: leave it out"),
    ("train good.libsvm --label-column 1", "--label-column is for csv, npy, parquet, but good.libsvm is libsvm"),
    ("train prepared --no-header", "--header/--no-header is for csv, but prepared is prepared already"),
    ("data prepare good.csv --out new --memory much", "--memory.*'much' .*size: .*K, M, G or T"),
    ("predict model breast_cancer --header", "--header/--no-header is for csv, but breast_cancer is built in"),
    ("data prepare good.csv --out new --options bad.toml", r"bad\.toml: \[data.prepare\] memory: 'much' is no size"),
    ("simulate good.csv --options bad.toml", r"bad\.toml: \[simulate\] fault: .*link loss"),
    ("tune good.csv --options bad.toml", r"bad\.toml: \[tune\] l2: 'x' is not a number"),
    ("train breast_cancer --options dotted.toml", "^dotted.toml: not a TOML file: tables or lists .* 64 levels deep$"),
    (
        "train breast_cancer --options pipe.toml",
        "^pipe.toml: cannot read the options file: it is not an ordinary file$",
    ),
    ("train breast_cancer --options info.toml", r"info\.toml: unknown table info; there are \[train\]"),
    ("simulate digits:3 --fault link_loss=0.1 --fault link_loss=0.2", "--fault.* link_loss .*more than once"),
    ("data synth mnist --out x.npz", "'mnist'.*gisette, real-sim, rcv1"),
    ("train --epochs 2", "Missing argument 'DATA'.*p4sgd train --help"),
]

WRITTEN = [  # files that must stay, and those that cannot be written; the line begins with the file
    ("train good.csv --out good.csv", "good.csv: (is|already) .*choose another name"),
    ("train good.csv --test word.csv --out word.csv", "word.csv: (is|already) .*choose another name"),
    ("simulate good.csv --trace good.csv", "good.csv: (is|already) .*choose another name"),
    ("simulate good.csv --trace new.fst --waves ./new.fst", "new.fst: is written already .*choose another name"),
    ("train good.csv --options run.toml --out run.toml", "run.toml: (is|already) .*choose another name"),
    ("predict model good.csv --out good.csv --overwrite", "good.csv: is read .*choose another name"),
    ("predict model good.csv --options run.toml --out run.toml", "run.toml: (is|already) .*choose another name"),
    ("predict model good.csv --out notes", "notes: already exists.*--overwrite"),
    ("train good.csv --out model", "model: already exists.*--overwrite"),
    ("export model --to sklearn --out model --overwrite", "model: is read .*choose another name"),
    ("export model --to sklearn --out notes", "notes: already exists.*--overwrite"),
    ("train good.csv --out notes --overwrite", "notes: already .*no model file"),
    ("train good.csv --out foreign", "foreign: already .*no model file"),
    ("simulate good.csv --waves notes.fst", "notes.fst: already .*no waveform"),
    ("train good.csv --report notes", "notes: already .*no report of p4sgd: choose another name or delete it"),
    ("train good.csv --report gone/run.html", "gone/run.html: .*no folder gone$"),
    ("train good.csv --out new --report new", "new: is written already"),
    ("simulate good.csv --trace notes", "notes: already .*no trace"),
    ("data synth rcv1 --scale 0.001 --out good.libsvm", "good.libsvm: already exists.*--overwrite"),
    ("train good.csv --out /nowhere/model", "/nowhere/model: .*no folder /nowhere$"),
    ("train good.csv --out dangling", "dangling: .*no folder .*/nowhere$"),
    ("train good.csv --out thesis", "thesis: is not a file .*written"),
    ("train good.csv --out pipe", "pipe: is not a file .*written"),
    ("predict model breast_cancer --out no/file.csv", "no/file.csv: .*no folder no$"),
    ("data prepare good.csv --out no/where", "no/where: .*no folder no$"),
    ("data prepare good.csv --out thesis", "thesis: is there already"),
    ("generate --config tiny --out thesis", "thesis.*(thesis.tex|not empty)"),
    ("train breast_cancer --epochs 2 --seed 7 --checkpoint kept", "kept: has epoch 1 of another run: .*delete"),
    ("train wine:1 --epochs 2 --checkpoint kept", "kept: has epoch 1 of another run: "),
    ("train breast_cancer --epochs 2 --test iris --checkpoint kept", "iris: .*features"),
    ("train good.csv --checkpoint notes", "notes: .*already .*no checkpoint of p4sgd"),
    ("train good.csv --checkpoint new --out new", "new: is written already by this command"),
    ("train good.csv --checkpoint kept --out kept", "kept: .*already .*no model file"),
]

RESUMED = [  # contradictions of a checkpoint
    ("--lr 0.25", "kept: .*began with --lr 0.5, not with --lr 0.25: leave that out, .*without --resume"),
    ("--patience 4", "began without --patience, not with --patience 4: leave that out"),
    ("--no-bias", "began with --bias, not with --no-bias: leave that out"),
    ("--epochs 2 digits:3", "digits:3 .*1,797 samples of 64 features, breast_cancer .*569 of 30: name the same"),
    ("--epochs 0", "epochs"),
    ("--epochs 1", "kept: all 1 epochs are done, nothing is left to do: .*--epochs .*--out MODEL"),
    ("--out kept", "kept: .*already .*no model file of p4sgd"),
    ("--epochs 2 --checkpoint notes", "notes: .*already .*no checkpoint .*choose another name"),
    ("--init model", "--resume goes on from kept, --init from model"),
]

PREPARED = [  # contradictions of a prepared folder
    ("--batch 24", "folder: was prepared with batch 16, not 24: choose that"),
    ("--no-bias", "prepared with bias True, not False: choose that"),
    ("--validation-fraction 0.5", "prepared with validation-fraction 0.0, not 0.5: choose that"),
    ("--precision 2 --skip-zeros always", "not 2: store as many as are read, or choose"),
    ("--loss squared", "prepared for a classification"),
    ("--precondition block", "prepared with precondition none, not block: choose that"),
    ("--scaling robust", r"prepared with scaling auto \(which chose standard\), not robust: choose that"),
    ("--unit 16", r"prepared with unit \d+, not 16: choose that"),
]

TUNED = [
    ("iris:1 --precision 1,x", "'--precision': 'x' is not a whole number: separate .* by commas, as in 1,2,4,8"),
    ("iris:1 --l2 0,0.0", "'--l2': 0.0 is there twice: once is enough"),
    ("iris:1 --precision 4,9", "--precision must be at most 8, not 9$"),
    ("iris:1 --l2 1e9", r"l2 1e\+09 is too large for these data: choose at most"),
    ("iris:1 --validation-fraction 0", "'--validation-fraction': 0.0 is not in the range 0<x<1"),
    ("iris:1 --metric size", "--metric size is not measured with the loss logistic: choose log_loss, accuracy, "),
    ("diabetes --loss squared --metric auc", "--metric auc is not measured with the loss squared: choose r2, mse, "),
    (
        "iris:1 --loss hinge --metric log_loss",
        "--metric log_loss is not measured with the loss hinge: choose accuracy, ",
    ),
    ("diabetes", "diabetes: the labels have 214 values .*, which seem to be no classes"),
    ("iris:1 --out model", "model: already exists: choose another name, or replace it with --overwrite$"),
    ("folder", "folder: was prepared for one precision: p4sgd tune needs the data themselves$"),
    ("nowhere.csv", "nowhere.csv: there is no such file"),
]

BEGUN = [  # contradictions of a model that training starts from
    ("breast_cancer --precision 4", "model: .* trained with --precision 8, not with --precision 4: leave that out"),
    ("breast_cancer --no-bias", "model: .* with --bias, not with --no-bias"),
    ("breast_cancer --loss hinge", "model: .* with --loss logistic, not with --loss hinge"),
    ("breast_cancer --checkpoint new", "do not keep the model of --init: leave --checkpoint or --init out$"),
    ("digits:3", "digits:3: there are 64 features, 30 are needed$"),
    ("good.csv", "good.csv.* 30"),
    ("folder", "folder: was prepared with a scaling of its own: --init needs the data themselves$"),
]

WEIGHED = [
    ("weights.csv --weight-column nix", "weights.csv: there is no column 'nix' for --weight-column; there are a, w"),
    ("zero.npz --weight-column 1", "--weight-column is for csv, npy, parquet, but zero.npz is npz: leave it out"),
    ("weights.csv --weight-column w", r"weights.csv, line 3, column 2 \(w\): the weight is -1: it must be at least 0"),
    ("zero.npz", "zero.npz: the weights of all samples are 0, so that none counts"),
]

LO, AT = "--interface lo", "--control unix:a"

SERVED = [
    (LO, "Missing option '--control'"),
    (AT, "Missing option '--interface'"),
    (f"{LO} --control a", "'a' .*unix:PATH or tcp:HOST:PORT"),
    (f"{LO} {LO} {AT}", "--interface: lo .*twice"),
    (f"--interface udp:1 {AT}", "udp:1: '1' .*IPv4 address"),
    (f"{LO} {AT} --slots 0", "--slots.*0 .*1<=x<=65536"),
    (f"{LO} {AT} --slots 65536 --jobs 17", "--slots 65536 .*--jobs 17 .*1,114,112 slots, .*most .*1,048,576"),
    ("--interface udp:127.77.0.2 --control unix:nowhere/a", "nowhere"),
    (f"--interface {'x' * 150} {AT}", "interface.* name .*at most 15 bytes"),
    (f"{LO} --control tcp:{'é' * 60}:80", "control address.*unix:PATH or tcp"),
    (f"{' '.join(f'--interface e{n}' for n in range(33))} {AT}", "at most 32 ports"),
]

BOARD = "worker --interface udp:127.77.0.1 --control unix:w --config"

WORKED = [
    ("tiny --set slots=3", "--set slots=3: slots must be a power of two, not 3"),
    *((f"tiny --speed {speed}", f"least 1000 values a second, not {speed}: leave it out") for speed in ("0.5", "nan")),
    ("tiny --fault memory_stall=0.1", "there is no fault 'memory_stall': choose one of link_loss"),
    ("tiny --fault up_burst_begin=0.1", "--fault burst_begin without burst_end: bursts would never end"),
    ("tiny --control unix:none/w", r"none/w: .*no folder none\b"),
]

DIAGNOSED = [
    ("doctor --config sparse", "sparse"),
    ("switch status --cluster dotted.toml", "^dotted.toml: not a TOML file: tables or lists .* 64 levels deep$"),
    ("switch status --cluster pipe.toml", "^pipe.toml: cannot read the cluster file: it is not an ordinary file$"),
    ("doctor --device emulator", "--device emulator .*network.*: rtl"),
    ("switch status --cluster info.toml", r"info\.toml: a cluster file has no key `info`"),
]

SIMULATED = [
    ("--fault loss=0.1", "'loss'.* memory_stall, memory_gap, link_stall, worker_pause, link_loss,"),
    ("--fault up_loss", "up_loss .*up_loss=0.01, not ''"),
    ("--fault up_loss=1", r"up loss .*below 1, not 1\b"),
    ("--fault up_loss=1e-9", "up loss .*1.53e-05, not 1e-09"),
    ("--trace gone/file", "gone/file: .*no folder gone"),
    ("--waves run.vcd", r"--waves run\.vcd: .*FST .*call it run\.fst"),
    ("--waves-scope worker0", r"--waves-scope needs --waves FILE\.fst"),
    ("--waves run.fst --waves-window 50:10", "--waves-window .*such as 1000:5000, not 50:10"),
]

CASES = [
    *READ,
    *OPTIONS,
    *WRITTEN,
    *((f"train --resume kept {words}", says) for words, says in RESUMED),
    *((f"train folder {words}", says) for words, says in PREPARED),
    *((f"tune {words}", says) for words, says in TUNED),
    *((f"train {words}", says) for words, says in (*WEIGHED, *SPELT)),
    ("predict model breast_cancer --id-column a", "--id-column is for csv, parquet, but breast_cancer is built in"),
    ("predict towns commas.csv --thousands , --id-column nix", "no column 'nix' for --id-column; there are a, town, y"),
    ("predict towns commas.csv --thousands , --categorical a", "column 1 .a.: held no texts in training: leave --cat"),
    *((f"train {words} --init model", says) for words, says in BEGUN),
    ("train breast_cancer --init good.csv", "good.csv: not a model file of p4sgd"),
    *((f"simulate digits:3 {words}", says) for words, says in SIMULATED),
    *((f"switch serve {words}", says) for words, says in SERVED),
    *((f"{BOARD} {words}", says) for words, says in WORKED),
    *DIAGNOSED,
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with all that the table names."""
    folder = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    rng = np.random.default_rng(0)
    np.savetxt(folder / "wide.csv", np.c_[rng.random((16, 200)), np.arange(16) % 2], delimiter=",")
    np.savez(folder / "strange.npz", X=rng.random((8, 30)), y=np.full(8, 5.0))
    np.savez(folder / "zero.npz", X=rng.random((8, 3)), y=np.arange(8) % 2, weights=np.zeros(8))
    save_file({"tensor": np.zeros(3)}, folder / "foreign")
    (folder / "dangling").symlink_to("nowhere/model")
    (folder / "iris").mkdir()
    for name in ("pipe", "pipe.toml"):
        os.mkfifo(folder / name)
    for words in (
        f"train breast_cancer --epochs 1 --out {folder}/model --checkpoint {folder}/kept --lr 0.5",
        f"train iris:1 --epochs 1 --loss hinge --out {folder}/hinge",
        f"data prepare iris:1 --out {folder}/folder",
        f"train {folder}/commas.csv --thousands , --epochs 1 --out {folder}/towns",
    ):
        done = CliRunner().invoke(main, words.split())
        assert done.exit_code == 0, done.output
    return folder


def refused(*words):
    """What a command says that must be refused."""

    def contents():
        return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}

    before = contents()
    done = CliRunner().invoke(main, list(map(str, words)))
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = done.stderr.splitlines()
    command, _, line = line.partition(": ")
    assert command == f"p4sgd {' '.join(words[: 2 if words[0] in ('data', 'switch') else 1])}"
    assert "rror:" not in line, f"an exception's name is no explanation: {line}"
    assert contents() == before, "a file was changed or left behind"
    return line


@pytest.mark.parametrize(("words", "says"), CASES, ids=[words for words, _ in CASES])
def test_one_line_says_what_is_wrong(files, monkeypatch, words, says):
    monkeypatch.chdir(files)
    line = refused(*words.split())
    assert re.search(says, line), line
    if (words, says) in WRITTEN:
        assert re.match(r"(\./)?" + says, line), line


@pytest.mark.parametrize(
    ("file", "words"),
    [
        *(("model", words) for words in ("predict {} breast_cancer", "evaluate {} breast_cancer", "inspect {}")),
        ("kept", "train --resume {} --epochs 3"),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut", "folder", "other", "version", "kind"])
def test_files_that_are_no_models_or_checkpoints(files, file, words, damage, own_folder):
    """Other damage is in tests/host/test_tensor_file.py and those of the files."""
    path = Path(file)
    if damage == "cut":
        path.write_bytes((files / file).read_bytes()[:-8])
    elif damage == "kind":
        path.write_bytes((files / {"model": "kept", "kept": "model"}[file]).read_bytes())
    elif damage == "folder":
        path.mkdir()
    elif damage == "other":
        save_file({"tensor": np.zeros(3)}, path)
    elif damage == "version":
        rewrite(files / file, to=path, version="99")
    line = refused(*words.format(path).split())
    assert line.startswith(f"{file}: ")
    if damage == "version":
        assert re.search(r"(model file|checkpoint) of version 99, .*version \d", line), line
    if damage == "kind":
        assert re.search(f"not a {'model file' if file == 'model' else 'checkpoint'} of p4sgd: .*--", line), line


def test_files_that_are_to_be_replaced(files, own_folder):
    """A file that may be anybody's, if one says so; an empty one is nobody's; and one's own checkpoint."""
    for words in (
        "data synth rcv1 --scale 0.001 --out x.libsvm",
        f"predict {files / 'model'} breast_cancer --out p.csv",
        "train breast_cancer --epochs 1 --out m --checkpoint c",
        f"export {files / 'model'} --to sklearn --out m.pkl",
    ):
        for more in ((), ("--overwrite",)):
            run(*words.split(), *more)
        assert "--overwrite" in refused(*words.split())
    Path("p.csv").write_text("")
    run("predict", str(files / "model"), "breast_cancer", "--out", "p.csv")


def test_what_just_passes(own_folder):
    """A folder named as a built-in data set; options for one of two formats; a micro-batch that just fits the FIFO."""
    Path("iris").mkdir()
    Path("train.csv").write_text("1;2;0\n3;4;1\n" * 8)
    Path("test.libsvm").write_text("1 1:1 2:3\n0 1:2\n")
    np.savez("full.npz", X=np.random.default_rng(0).random((16, 127)), y=np.arange(16) % 2)
    for words in ("iris:1", "train.csv --test test.libsvm --delimiter ; --zero-based", "full.npz --config tiny"):
        run("train", *words.split(), "--epochs", "1")
