"""Bad input gets one clear line and exit status 2: no traceback, nothing half-written, nothing on standard output."""

import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from p4sgd.host.cli.app import main

GOOD = "1 1:0.5 2:1\n-1 1:-0.5 3:2\n" * 20


def refused(folder, *words):
    """Run a command that must be refused; returns what it says."""
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    command, _, line = line.partition(": ")
    assert command == f"p4sgd {' '.join(words[:2]) if words[0] == 'data' else words[0]}"
    assert "Traceback" not in line
    assert "rror:" not in line, f"an exception's name is no explanation: {line}"
    after = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before, "a file was changed or left behind"
    return line


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


FILES = [
    ("ragged.csv", "1,2,0\n1,2,1\n1,2\n", [], r"ragged.csv, line 3\b"),
    ("ragged-long.csv", "1,2,0\n1,2,3,1\n", [], r"line 2\b"),
    ("word.csv", "1,2,0\n1,x,1\n", [], r"word.csv, line 2\b.*'x' is not a number.*--label-column"),
    ("nan.csv", "1,2,0\n1,nan,1\n", [], r"line 2\b.*nan"),
    ("inf.csv", "1,2,0\n1,2,1\n-inf,1,0\n", [], r"line 3\b.*inf"),
    ("empty.csv", "", [], r"empty"),
    ("header-only.csv", "a,b,label\n", [], r"header-only.csv"),
    ("word.libsvm", f"{GOOD}1 1:x\n", [], r"word.libsvm, line 41\b"),
    ("pair.libsvm", f"{GOOD}1 7\n", [], r"line 41\b"),
    ("nan.libsvm", f"{GOOD}1 2:nan\n", [], r"line 41\b.*nan"),
    ("zero.libsvm", "", [], r"no samples"),
    ("one-class.libsvm", "1 1:1\n1 1:2\n", [], r"two classes"),
    ("classes.libsvm", "1 1:1\n2 1:2\n2.5 1:3\n", [], r"3 values .*no classes: .*--loss squared.*--positive LABEL"),
    ("classes.libsvm", "1 1:1\n2 1:2\n2.5 1:3\n", ["--loss", "hinge"], r"3 values .*no classes"),
    ("label.csv", "1,2,red\n1,3,blue\n", ["--loss", "squared"], r"regression needs numbers"),
    ("negative.csv", "1,2,-3\n1,3,5\n", ["--loss", "poisson"], r"a label -3.* at least 0"),
    ("zero.csv", "1,2,0\n1,3,5\n", ["--loss", "gamma"], r"a label 0.* above 0.*poisson"),
    ("far.csv", "1,2,0\n1,3,5\n", ["--loss", "huber", "--epsilon", "1e9"], r"epsilon 1e\+09 is out of range"),
    ("broken.libsvm.gz", gzip.compress(GOOD.encode())[:-12], [], r"broken.libsvm.gz"),
    ("make.py", "import numpy, sys\nx = 1, 2\n", [], r"it looks like csv; if it is not, say so with --format"),
    ("text.txt", "once upon a time\n", [], r"unknown format"),
    ("binary.dat", b"\0\1\2\3" * 50, [], r"binary.dat"),
    ("broken.npz", b"PK\x03\x04broken", [], r"broken.npz"),
    ("broken.parquet", b"PAR1 broken", [], r"broken.parquet"),
    ("good.libsvm", GOOD, ["--label-column", "7", "--format", "csv"], r"good.libsvm"),
]


@pytest.mark.parametrize(("name", "content", "options", "says"), FILES, ids=[f"{f[0]} {' '.join(f[2])}" for f in FILES])
def test_bad_data(tmp_path, name, content, options, says):
    path = write(tmp_path, name, content)
    line = refused(tmp_path, "train", path, "--out", tmp_path / "model", "--json", *options)
    assert re.search(says, line), line
    assert str(path) in line, "the file is named"


def test_arrays_that_are_not_finite(tmp_path):
    x = np.ones((10, 3))
    x[4, 2] = np.inf
    np.savez(tmp_path / "inf.npz", X=x, y=np.arange(10) % 2)
    line = refused(tmp_path, "train", tmp_path / "inf.npz")
    assert "inf" in line
    assert re.search(r"row 5\b|sample 5\b", line), line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--batch", 12], "batch .*multiple of 8, not 12: .*8 or 16"),
        (["--batch", 0], r"batch .*8 to \d+, not 0"),
        (["--precision", 5, "--planes", 4], "precision .*at most the 4 stored planes, not 5"),
        (["--precision", 9], "precision .*1 to 8, not 9"),
        (["--precision", 0], "precision .*1 to 8, not 0"),
        (["--epochs", 0], r"epochs .*at least 1, not 0"),
        (["--lr", 0], "learning rate .*more than 0, not 0"),
        (["--lr", "nan"], "learning rate .*finite number, not nan"),
        (["--lr", 1e9], r"learning rate 1e\+09 .*range \S+ to \S+ for a batch of 16$"),
        (["--l2", -1], "l2 .*at least 0, not -1"),
        (["--loss", "cubic"], "no loss 'cubic'.*logistic, hinge, squared"),
        (["--loss", "reg:squarederror"], "no loss 'reg:squarederror', which is squared here: choose one of"),
        (["--device", "abacus"], "no device 'abacus'.*emulator, rtl"),
        (["--config", "huge"], "no configuration 'huge'.*tiny, small, u280, .*, sparse"),
        (["--config", "sparse", "--device", "rtl"], "sparse workers .* cannot be simulated: use p4sgd train without"),
        (["--config", "sparse"], "standard makes zeros other numbers.*maxabs or none.*neither --config sparse nor"),
        (["--config", "sparse", "--precondition", "block"], "whitening makes zeros other .*: leave --precondition out"),
        (["--workers", 33], "workers .*1 to 32, not 33"),
        (["--workers", 0], "workers .*1 to 32, not 0"),
        (["--workers", 32], "too few for 32 workers: .*at most 4"),
        (["--validation-fraction", 1], "validation fraction .*below 1, not 1"),
        (["--validation-fraction", 0.9999], "breast_cancer: .*0.9999 of 569 samples leaves"),
        (["--positive", 7], "breast_cancer: no sample .*label 7; .*0, 1"),
        (["--test", "digits"], "digits: .*64 features, 30 .*needed"),
        (["--test", "nowhere.csv"], "^nowhere.csv: .*no such file"),
        (["--epochs", "many"], "--epochs.*'many'.*integer"),
        (["--out", "/nowhere/model"], "^/nowhere/model: .*no folder /nowhere$"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_bad_options(tmp_path, options, says):
    line = refused(tmp_path, "train", "breast_cancer", "--json", "--out", tmp_path / "model", *options)
    assert re.search(says, line), line


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_model_file_that_is_no_file(tmp_path, kind):
    """A pipe stands for every special file: were the check ever lost, a test with /dev/null would replace it."""
    out = tmp_path / "model"
    out.mkdir() if kind == "folder" else os.mkfifo(out)
    line = refused(tmp_path, "train", "breast_cancer", "--epochs", 1, "--out", out)
    assert re.match(f"{out}: is not a file .*written", line), line
    assert out.is_dir() if kind == "folder" else out.is_fifo()


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ("train data.csv --out data.csv", "data.csv"),
        ("train data.csv --out ./link.csv", "./link.csv"),
        ("train data.csv --test test.csv --out test.csv", "test.csv"),
        ("simulate data.csv --waves data.csv", "data.csv"),
        ("simulate data.csv --trace data.csv", "data.csv"),
        ("simulate data.csv --trace new --waves ./new", "new"),
        ("train data.csv --options run.toml --out run.toml", "run.toml"),
        ("predict model data.csv --out data.csv", "data.csv"),
        ("predict model data.csv --out model", "model"),
        ("predict model data.csv --options run.toml --out run.toml", "run.toml"),
        ("train data.csv --out model", "model"),
        ("export model --to sklearn --out model --overwrite", "model"),
        ("export model --to sklearn --out notes", "notes"),
        ("simulate data.csv --out model", "model"),
        ("train data.csv --out notes", "notes"),
        ("train data.csv --out notes --overwrite", "notes"),
        ("simulate data.csv --out notes", "notes"),
        ("train data.csv --out foreign", "foreign"),
        ("simulate data.csv --waves notes", "notes"),
        ("simulate data.csv --trace notes", "notes"),
        ("predict model data.csv --out notes", "notes"),
        ("predict model data.csv --out data.csv --overwrite", "data.csv"),
        ("data synth rcv1 --scale 0.001 --out real.libsvm", "real.libsvm"),
    ],
)
def test_files_that_must_stay(tmp_path, monkeypatch, model, words, out):
    """What is read stays, one file is not written twice, and a model replaces only models that it is told to."""
    monkeypatch.chdir(tmp_path)
    for name in ("data.csv", "test.csv"):
        write(tmp_path, name, "1,2,0\n3,4,1\n" * 8)
    write(tmp_path, "run.toml", "[train]\n[predict]\n")
    write(tmp_path, "notes", "years of work")
    write(tmp_path, "real.libsvm", GOOD)
    write(tmp_path, "model", model.read_bytes())
    save_file({"tensor": np.zeros(3)}, tmp_path / "foreign")
    (tmp_path / "link.csv").symlink_to("data.csv")
    line = refused(tmp_path, *words.split())
    assert re.match(f"{Path(out)}: (is|already) ", line), line
    assert "choose another name" in line


def test_files_that_are_to_be_replaced(tmp_path, monkeypatch, model):
    """A file that may be anybody's, if one says so; traces and waveforms of before, without a word."""
    monkeypatch.chdir(tmp_path)
    for words in (
        "data synth rcv1 --scale 0.001 --out x.libsvm",
        f"predict {model} breast_cancer --out p.csv",
        "train breast_cancer --epochs 1 --out m",
        f"export {model} --to sklearn --out m.pkl",
    ):
        for more in ((), ("--overwrite",)):
            done = CliRunner().invoke(main, [*words.split(), *more])
            assert done.exit_code == 0, done.output
        assert "--overwrite" in refused(tmp_path, *words.split())
    write(tmp_path, "p.csv", "")
    done = CliRunner().invoke(main, ["predict", str(model), "breast_cancer", "--out", "p.csv"])
    assert done.exit_code == 0, "an empty file is nobody's"


@pytest.mark.parametrize(
    "words",
    [
        "train breast_cancer --epochs 2 --seed 7",
        "train breast_cancer --epochs 2 --precision 3",
        "train wine:1 --epochs 2",
        "train breast_cancer --epochs 2 --test breast_cancer",
    ],
)
def test_a_checkpoint_of_another_run_stays(tmp_path, words):
    kept = tmp_path / "kept"
    begin = ["train", "breast_cancer", "--epochs", "1", "--checkpoint", str(kept)]
    for more in ([], ["--overwrite"]):  # the same run may write it again
        done = CliRunner().invoke(main, begin + more)
        assert done.exit_code == 0, done.output
    line = refused(tmp_path, *words.split(), "--checkpoint", kept)
    assert re.match(f"{kept}: has epoch 1 of another run: .*another file.*delete", line), line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train good.csv --zero-based", "--zero-based/--one-based is for libsvm, but good.csv is csv"),
        ("train good.libsvm --header", "--header/--no-header is for csv, but good.libsvm is libsvm"),
        ("train good.libsvm --label-column 1", "--label-column is for csv, npy, parquet, but good.libsvm is libsvm"),
        ("train good.libsvm --ignore-column 1", "--ignore-column is for csv, npy, parquet, but good.libsvm is libsvm"),
        ("train breast_cancer --delimiter ;", "--delimiter is for csv, but breast_cancer is built in"),
        (
            "train good.libsvm --test breast_cancer --delimiter ;",
            "--delimiter is for csv, but good.libsvm is libsvm and breast_cancer is built in",
        ),
        ("train done --no-header", "--header/--no-header is for csv, but done is prepared already"),
        ("data prepare good.libsvm --header --out new", "--header/--no-header is for csv, but good.libsvm is libsvm"),
        ("predict {model} breast_cancer --header", "--header/--no-header is for csv, but breast_cancer is built in"),
        ("evaluate {model} good.libsvm --header", "--header/--no-header is for csv, but good.libsvm is libsvm"),
    ],
)
def test_options_for_other_formats(tmp_path, monkeypatch, model, words, says):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "good.libsvm", GOOD)
    write(tmp_path, "good.csv", "1,2,0\n3,4,1\n" * 8)
    (tmp_path / "done").mkdir()
    assert refused(tmp_path, *words.format(model=model).split()) == f"{says}: leave it out"


def test_options_for_one_of_two_formats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "train.csv", "1;2;0\n3;4;1\n" * 8)
    write(tmp_path, "test.libsvm", "1 1:1 2:3\n0 1:2\n")
    words = ["train", "train.csv", "--test", "test.libsvm", "--delimiter", ";", "--zero-based", "--epochs", "1"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("there", "words", "says"),
    [
        ([], ["--images", "no/where"], "no/where: .*no folder no$"),
        (["images"], ["--images", "images"], "images/worker0.p4sgd: images is not a folder$"),
        (
            ["worker1.p4sgd"],
            ["--images", ".", "--workers", "2"],
            "worker1.p4sgd: .*already .*no image file.*: choose another folder or delete it$",
        ),
        (
            [],
            ["--images", ".", "--out", "worker0.p4sgd"],
            "worker0.p4sgd: is written already by this command: choose another name",
        ),
        ([], ["--images", ".", "--workers", "33"], "workers .*1 to 32, not 33$"),
    ],
    ids=["no folder", "a file", "not an image", "the model", "workers"],
)
def test_images_that_cannot_be_files(tmp_path, monkeypatch, there, words, says):
    monkeypatch.chdir(tmp_path)
    for name in there:
        write(tmp_path, name, "years of work")
    assert re.match(says, line := refused(tmp_path, "train", "breast_cancer", "--epochs", 1, *words)), line


def test_images_do_not_replace_those_of_prepared_data(tmp_path):
    write(tmp_path, "manifest.json", "{}")
    line = refused(tmp_path, "train", "breast_cancer", "--images", tmp_path)
    assert re.match(f"{tmp_path}: .*prepared data.*: choose another folder$", line), line


def test_a_folder_with_the_name_of_a_built_in_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iris").mkdir()
    done = CliRunner().invoke(main, ["train", "iris:1", "--epochs", "1"])
    assert done.exit_code == 0, done.output
    assert "is a folder" in refused(tmp_path, "train", "./iris")


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs Linux' /proc")
def test_a_folder_that_takes_no_files(tmp_path):
    """Seen before training, also by the administrator, whom permissions do not stop."""
    line = refused(tmp_path, "train", "breast_cancer", "--epochs", 1, "--out", "/proc/x.model")
    assert line.startswith("/proc/x.model: ")
    assert "write" in line


def test_a_table_for_a_command_that_takes_no_options_file(tmp_path):
    write(tmp_path, "run.toml", "[info]\n")
    line = refused(tmp_path, "train", "breast_cancer", "--options", tmp_path / "run.toml")
    assert re.search(r"run\.toml: unknown table info; .*\[train\], ", line), line
    assert "[info]" not in line


def test_a_link_into_a_missing_folder(tmp_path):
    (tmp_path / "model").symlink_to("nowhere/model")
    line = refused(tmp_path, "train", "breast_cancer", "--epochs", 1, "--out", tmp_path / "model")
    assert re.match(f"{tmp_path / 'model'}: .*no folder {tmp_path / 'nowhere'}$", line), line


@pytest.mark.parametrize(
    ("config", "features", "says"),
    [
        ("tiny", 200, "26 units of 8 a worker, this configuration holds 16: use at least 2 workers"),
        ("small", 2000, "32 units of 64 a worker, this configuration holds 16: use at least 2 workers"),
        ("tiny", 160, "21 units of 8"),
    ],
)
def test_more_features_than_the_configuration_holds(tmp_path, config, features, says):
    np.savez(tmp_path / "wide.npz", X=np.random.default_rng(0).random((16, features)), y=np.arange(16) % 2)
    line = refused(tmp_path, "train", tmp_path / "wide.npz", "--config", config, "--out", tmp_path / "model")
    assert re.search(says, line), line
    assert "worker" in line, f"says what to do: {line}"


def test_more_features_than_a_sparse_worker_holds(tmp_path):
    path = write(tmp_path, "wide.libsvm", f"1 1:1\n-1 {1 << 26}:1\n" * 5)
    line = refused(tmp_path, "train", path, "--config", "sparse", "--out", tmp_path / "model")
    assert "67,108,864 features and the bias over 1 worker" in line
    assert line.endswith("this configuration holds 1,048,576: use at least 2 workers")


def test_sparse_data_whose_zeros_would_not_stay_zeros(tmp_path):
    path = write(tmp_path, "sparse.libsvm", "1 1:1 200:3\n-1 3:1\n" * 5)
    for words in (["--scaling", "standard"], ["--precondition", "block"]):
        for command in (["train"], ["data", "prepare", "--out", tmp_path / "made"]):
            line = refused(tmp_path, *command[:2], path, *command[2:], "--config", "sparse", "--quiet", *words)
            assert "zeros" in line
            assert "maxabs" in line or "leave --precondition out" in line


def test_a_micro_batch_that_just_fits_the_line_fifo(tmp_path):
    """16 chunks fill the model memory of the tiny configuration, and 8 planes of them its line FIFO of 128 lines."""
    np.savez(tmp_path / "wide.npz", X=np.random.default_rng(0).random((16, 127)), y=np.arange(16) % 2)
    done = CliRunner().invoke(main, ["train", str(tmp_path / "wide.npz"), "--config", "tiny", "--epochs", "1"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("nowhere.csv", "^nowhere.csv: .*no such file; .*data sets .*breast_cancer"),
        ("/", "^/: is a folder"),
        ("breast_canser", r"^breast_canser: .*no such file; .*mean breast_cancer\?"),
        ("", "is a folder"),
        ("a9a", "p4sgd data fetch a9a"),
        ("rcv1", "p4sgd data synth rcv1 --out rcv1.npz"),
        ("kdd12", "p4sgd data synth kdd12 --samples 1000000 --out kdd12.npz"),
        ("digits:3 --format csv", "without --format digits:3 .*scikit-learn"),
    ],
)
def test_no_such_data(tmp_path, words, says):
    source, *options = words.split(" ")
    assert re.search(says, line := refused(tmp_path, "train", source, *options)), line


def test_a_disturbance_given_twice(tmp_path):
    chances = ["--fault", "link_loss=0.1", "--fault", "link_loss=0.2"]
    line = refused(tmp_path, "simulate", "digits:3", *chances)
    assert re.search("--fault.* link_loss .*more than once", line), line


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    done = CliRunner().invoke(main, ["train", "breast_cancer", "--epochs", "1", "--out", str(path)])
    assert done.exit_code == 0, done.output
    return path


def edited(model, path, **changes):
    """A copy of a model file with other metadata."""
    with safe_open(model, "np") as file:
        metadata = file.metadata() | changes
    save_file(load_file(model), path, metadata)
    return path


@pytest.mark.parametrize("command", ["predict", "evaluate", "inspect"])
def test_model_of_another_version(tmp_path, model, command):
    other = edited(model, tmp_path / "model", version="99")
    line = refused(tmp_path, command, other, *(["breast_cancer"] if command != "inspect" else []))
    assert re.match(rf"{other}: .*model file of version 99, .*version \d", line), line


@pytest.mark.parametrize("command", ["predict", "evaluate", "inspect"])
@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "folder", "other", "loss", "labels", "training"])
def test_bad_model_file(tmp_path, model, command, damage):
    path = tmp_path / "model"
    content = {"empty": b"", "text": b"weights: 1, 2, 3\n", "cut": model.read_bytes()[:-8]}
    if damage in content:
        path.write_bytes(content[damage])
    elif damage == "folder":
        path.mkdir()
    elif damage == "other":
        save_file({"tensor": np.zeros(3)}, path)
    elif damage == "loss":
        edited(model, path, loss=json.dumps("cubic"))
    elif damage == "labels":
        edited(model, path, labels="{}")
    elif damage == "training":
        edited(model, path, training="[]")
    line = refused(tmp_path, command, path, *(["breast_cancer"] if command != "inspect" else []))
    assert str(path) in line


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_data_that_do_not_suit_the_model(tmp_path, model, command):
    assert "30 are needed" in refused(tmp_path, command, model, "iris")
    write(tmp_path, "bad.csv", "1,2\n3,4,5\n")
    refused(tmp_path, command, model, tmp_path / "bad.csv")
    assert "nowhere.csv: there is no such file" in refused(tmp_path, command, model, "nowhere.csv")


def test_labels_that_the_model_does_not_know(tmp_path, model):
    features = np.random.default_rng(0).random((8, 30))
    np.savez(tmp_path / "strange.npz", X=features, y=np.full(8, 5.0))
    assert "neither 0 nor 1" in refused(tmp_path, "evaluate", model, tmp_path / "strange.npz")


def test_evaluating_without_labels(tmp_path, model):
    np.savetxt(tmp_path / "bare.csv", np.random.default_rng(0).random((8, 30)), delimiter=",")
    line = refused(tmp_path, "evaluate", model, tmp_path / "bare.csv")
    assert str(tmp_path / "bare.csv") in line


def test_probabilities_of_a_model_that_has_none(tmp_path):
    out = tmp_path / "model"
    done = CliRunner().invoke(main, ["train", "iris:1", "--loss", "hinge", "--epochs", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "no probabilities" in refused(tmp_path, "predict", out, "iris", "--probabilities")


def test_predictions_into_a_missing_folder(tmp_path, model):
    line = refused(tmp_path, "predict", model, "breast_cancer", "--out", tmp_path / "no" / "file.csv")
    assert str(tmp_path / "no" / "file.csv") in line


def test_generate_into_a_folder_of_someone_else(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "thesis.tex", "years of work")
    line = refused(tmp_path, "generate", "--config", "tiny", "--out", tmp_path / "out")
    assert "thesis.tex" in line or "not empty" in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["synth", "mnist", "--out", "x.npz"], "no shape 'mnist'.*gisette, real-sim, rcv1"),
        (["synth", "rcv1", "--out", "x.xls", "--scale", 0.01], r"^x\.xls: .*format.*\.libsvm or \.npz"),
        (["synth", "rcv1", "--out", "x.npz", "--scale", 2], "scale .*above 0 .*at most 1, not 2"),
        (["synth", "avazu", "--out", "x.npz", "--features", 20], "at least twice as many features, not 20: choose"),
        (["synth", "gisette", "--out", "x.npz", "--nonzeros", 20], "gisette is dense: .*sparse shapes only"),
        (["synth", "rcv1", "--out", "/nowhere/x.npz"], "^/nowhere/x.npz: .*no folder /nowhere$"),
        (["fetch", "mnist"], "no data set 'mnist'.*a9a"),
    ],
)
def test_bad_data_commands(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert re.search(says, line := refused(tmp_path, "data", *words)), line
