"""Several targets of a table: each row of the model is that of a run on its column alone, bit for bit."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics
from support.command_line import run as p4sgd
from support.results import assert_same

from p4sgd.host.data import Dataset, read_dataset
from p4sgd.host.data.labels import LabelCoding, coding_from_json, fit_coding
from p4sgd.host.devices import open_device
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training import ResultSet, TrainingOptions, train
from p4sgd.host.training.metrics import score
from p4sgd.host.training.model_file import ModelSet, load_model, save_model
from p4sgd.host.training.preparation import encode_table
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)
NAMES = ("low", "middle", "high")


def targets(task=Task.REGRESSION, samples=90, seed=1, name="made"):
    """Three columns of labels in different units."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 9))
    z = x @ rng.normal(size=(9, 3)) + rng.normal(size=(samples, 3)) * 0.3
    y = {
        Task.REGRESSION: z * [1, 100, 1e-3] + [5, -400, 0],
        Task.CLASSIFICATION: np.where(z > [0, 1, -1], [1, 5, 2], [0, 2, 1]),
        Task.NON_NEGATIVE: rng.poisson(np.exp(z / 2)) * 1.0,
        Task.POSITIVE: np.exp(z / 2) * [1, 10, 0.1],
    }[task]
    return Dataset(x, y, name, target_names=NAMES)


def column(data, place):
    return Dataset(data.features, data.labels[:, place], data.name, sample_weights=data.sample_weights)


def run(data, test=None, config=CONFIG, **options):
    options = TrainingOptions(**{"epochs": 4, **options})
    return train(data, options, open_device("emulator", config, options.workers), test=test)


@pytest.mark.parametrize("loss", ["logistic", "squared", "huber", "poisson", "gamma"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_is_the_model_of_its_column(loss, weighted, tmp_path):
    """By a loss of each task, with and without a parameter."""
    task = LOSSES[loss].task
    held_out = 0.25 if task is not Task.CLASSIFICATION else 0.0  # classes of a single column are stratified
    options = {"loss": loss, "workers": 2, "validation_fraction": held_out}
    if "epsilon" in LOSSES[loss].parameters:
        options["epsilon"] = 0.02
    data, test = targets(task), targets(task, samples=20, seed=2, name="test")
    if weighted:
        weights, labels = np.random.default_rng(2).exponential(size=data.samples), data.labels.copy()
        weights[::9] = 0
        if task is Task.REGRESSION:
            labels[::9] = 1e6  # which would saturate residuals, if they counted
        data = dataclasses.replace(data, labels=labels, sample_weights=weights)
    result = run(data, test, **options)
    assert isinstance(result, ResultSet)
    assert result.names == NAMES
    for place, row in enumerate(result.rows):
        alone = run(column(data, place), column(test, place), **options)
        assert_same(row, alone)
        assert (result.model.predict(test)[:, place] == alone.model.predict(column(test, place))).all()
    save_model(result.model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, ModelSet)
    assert loaded.labels == result.model.labels
    assert [row.loss_parameters for row in loaded.rows] == [row.loss_parameters for row in result.model.rows]
    assert (loaded.predict(test) == result.model.predict(test)).all()


def test_metrics_are_means_over_targets():
    data = targets()
    model = run(data, loss="squared").model
    found, predicted = score(model, data), model.predict(data)
    assert found["r2"] == pytest.approx(metrics.r2_score(data.labels, predicted))
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(data.labels, predicted))
    assert list(found["targets"]) == list(NAMES)
    high = metrics.mean_absolute_error(data.labels[:, 2], predicted[:, 2])
    assert found["targets"]["high"]["mae"] == pytest.approx(high)
    data = targets(Task.CLASSIFICATION)
    model = run(data).model
    found, predicted, z = score(model, data), model.predict(data), model.decision_function(data)
    assert found["accuracy"] == np.mean((predicted == data.labels).all(axis=1))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(data.labels == [1, 5, 2], z))
    assert model.probabilities(z) == pytest.approx(1 / (1 + np.exp(-z)))
    labels = data.labels.copy()
    labels[0, 1] = 9
    with pytest.raises(UserError, match="made, middle: has 3 classes, one of several targets needs two"):
        run(Dataset(data.features, labels, "made", target_names=NAMES))


# -- files and the command line ----------------------------------------------------------------------------------------


COLUMNS = ["--label-column", "low", "--label-column", "middle", "--label-column", "high", "--ignore-column", "id"]


def test_columns_beside_texts_and_gaps_are_targets(tmp_path):
    path = tmp_path / "texts.csv"
    rows = ["a,colour,y,z", "1,red,3,-1", ",blue,4,-2", "3,red,5,-3", "4,green,6,-4"]

    def write(*lines):
        path.write_text("\n".join(lines) + "\n")
        return {"source": path, "label_column": ["y", "z"], "missing": "mean"}

    data = read_dataset(**write(*rows))
    assert data.labels.tolist() == [[3, -1], [4, -2], [5, -3], [6, -4]]
    encoded = encode_table(data, TrainingOptions(missing="mean"))
    assert encoded.space.names == ("a", "colour=blue", "colour=green", "colour=red")
    assert encoded.features[1].tolist() == pytest.approx([8 / 3, 1, 0, 0])
    again = read_dataset(path, label_column=["y", "z"], like=encoded.space)
    assert again.features.tolist() == encoded.features.tolist()
    assert again.labels.tolist() == data.labels.tolist()
    with pytest.raises(UserError, match="the labels of z are texts, those of several targets must be numbers"):
        read_dataset(**write(rows[0], "1,red,3,high", "2,blue,4,low"))
    with pytest.raises(UserError, match=r"line 3, column 4 .z.: the label is missing: leave that sample out"):
        read_dataset(**write(*rows[:2], ",blue,4,", *rows[3:]))


def test_the_command_line(own_folder):
    data = targets()
    columns = dict(zip([*"abcdefghi", *NAMES], [*data.features.T, *data.labels.T], strict=True)) | {
        "id": np.full(90, 7)
    }

    def write(name, *without):
        kept = {name: column.tolist() for name, column in columns.items() if name not in without}
        rows = [map(repr, row) for row in zip(*kept.values(), strict=True)]
        Path(name).write_text("".join(",".join(row) + "\n" for row in [kept, *rows]))

    write("t.csv")
    shown = p4sgd("train", "t.csv", *COLUMNS, "--loss", "squared", "--epochs", 6, "--out", "m").stdout
    assert "best model: the epoch of each target with the lowest train loss; kept in m" in shown
    predicted = load_model(Path("m")).predict(data)
    done = p4sgd("predict", "m", "t.csv", *COLUMNS, "--json")
    assert np.array(json.loads(done.stdout)["predictions"]) == pytest.approx(predicted)
    lines = p4sgd("predict", "m", "t.csv", "--ignore-column", "id").stdout.splitlines()
    assert [len(line.split(",")) for line in lines] == [3] * 90
    for gone in (NAMES[:1], NAMES[1:]):
        write("some.csv", *gone, "id")
        assert p4sgd("predict", "m", "some.csv").stdout.splitlines() == lines, "some of the targets may be missing"
    found = json.loads(p4sgd("evaluate", "m", "t.csv", "--ignore-column", "id", "--json").stdout)
    assert found["r2"] == pytest.approx(metrics.r2_score(data.labels, predicted))
    for words in (["evaluate", "m", "t.csv", *COLUMNS], ["inspect", "m"]):
        assert all(name in p4sgd(*words).stdout for name in NAMES)
    ignored = [word for name in ("id", "high") for word in ("--ignore-column", name)]
    line = p4sgd("train", "t.csv", *COLUMNS[:4], *ignored, "--init", "m", "--epochs", 1, status=2).stderr
    assert "t.csv: has 2 label columns, the model has the targets low, middle, high" in line
    line = p4sgd("data", "prepare", "t.csv", "--out", "p", *COLUMNS, status=2).stderr
    assert "t.csv: several label columns cannot be prepared: train from the file" in line


def test_codings_are_plain_data_and_back():
    coding = fit_coding(Task.REGRESSION, targets())
    assert coding_from_json(json.loads(json.dumps(coding.to_json()))) == coding
    single = LabelCoding(Task.REGRESSION, mean=2.0)
    assert coding_from_json(single.to_json()) == single
    with pytest.raises(UserError, match="other: has 1 label column, the model has the targets low, middle, high"):
        coding.labels_of(Dataset(np.ones((2, 1)), np.ones(2), "other"))
    swapped = targets()
    swapped = Dataset(swapped.features, swapped.labels[:, ::-1], "made", target_names=NAMES[::-1])
    assert coding.labels_of(swapped).tolist() == targets().labels.tolist()
