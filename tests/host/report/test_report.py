"""`--report`: one HTML file that needs nothing else, with everything about a run that can be shown."""

import dataclasses
import importlib.util
import json
import os
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support.command_line import run
from support.events import events

from p4sgd.host.report import is_report_file, save_report
from p4sgd.host.run.request import TrainingRequest
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training import StopReason
from p4sgd.hw.spec.run import STAGES
from p4sgd.sim.cluster.trace import Interval, Trace

SECTIONS = ["next", "training", "quality", "coefficients", "options"]
VOID = {"meta", "br"}


pytestmark = pytest.mark.usefixtures("own_folder")


class Page(HTMLParser):
    """What is on a page; refuses elements that do not match."""

    def __init__(self, path):
        super().__init__()
        self.sections, self.ids, self.attributes, self.open, self.texts = [], [], [], [], []
        self.source = Path(path).read_text()
        self.feed(self.source)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids)), "identifiers are unique"
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag == "section":
            self.sections.append(dict(attributes)["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def figures(self):
        """The SVG elements by their descriptions."""
        found = [ET.fromstring(text) for text in re.findall(r"<svg .*?</svg>", self.source, re.DOTALL)]
        return {element.get("aria-label"): element for element in found}


def assert_alone(shown):
    """It refers to nothing outside and runs nothing, and all colours of figures are variables of its style sheet."""
    assert {tag for tag, _, _ in shown.attributes} & {"script", "link", "img", "iframe", "object"} == set()
    assert [
        value for _, name, value in shown.attributes if value and "//" in value and not name.startswith("xmlns")
    ] == []
    assert "@import" not in shown.source
    drawn = "".join(re.findall(r"<svg .*?</svg>", shown.source, re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", drawn) == []
    used = set(re.findall(r"var\((--[\w-]+)\)", shown.source)) - {"--share", "--classes"}
    light, _, dark = shown.source.partition("prefers-color-scheme: dark")
    for sheet in (light, dark.partition("box-sizing")[0]):
        assert used <= set(re.findall(r"(--[\w-]+):", sheet))
    targets = re.findall(r'(?:href="#|url\(#)([\w-]+)', shown.source)
    assert set(targets) <= set(shown.ids)


def train(*words, status=0):
    return run("train", *words, "--report", "run.html", status=status)


CURVES = ["ROC curves", "precision-recall curves"]
RATE = "learning rate after each epoch"
LOSSES = ["train loss after each epoch", "validation loss after each epoch", "learning rate after each epoch"]

PAGES = {  # words after train, figures (some of them, if the first is …), texts
    "two classes": (
        "wine --positive class_1 --validation-fraction 0.25 --test wine --epochs 2 --l2 0.001",
        [f"{what} after each epoch" for what in ("loss", "accuracy")]
        + [RATE, *CURVES, "distribution of activations, test samples"],
        ["loss logistic (logistic regression", "178 samples", "class_1 against all others", "all epochs were run"]
        + [f"{data}: true classes in rows" for data in ("train", "validation", "test")],
    ),
    "several classes": (
        "iris --epochs 4 --validation-fraction 0.25 --out model",
        [*LOSSES, *CURVES],
        ["3 classes, each against the rest", "class epochs best epoch train loss", "validation: true classes in rows"],
    ),
    "numbers": (
        "diabetes --loss squared --epochs 3 --validation-fraction 0.3",
        [..., "R² after each epoch", "predicted over true targets", "residuals over predicted targets"],
        ["loss squared (linear regression)", "mean absolute error", "the run made no remarks"],
    ),
    "counts": (
        "diabetes --loss poisson --epochs 2",
        [..., "D² after each epoch"],
        ["train D² 0.", "mean deviance", "labels in units of"],
    ),
    "several targets": (
        "targets.npz --loss squared --epochs 4 --validation-fraction 0.25",
        [..., *(f"residuals over predicted targets of target {number}" for number in (1, 2))],
        ["numbers are for raw features, in the unit of the target"],
    ),
    "several labels": ("labels.npz --epochs 4 --l2 0 --validation-fraction 0.25", [..., *CURVES], ["target 2"]),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages(name):
    words, figures, texts = PAGES[name]
    x = np.random.default_rng(5).normal(size=(60, 2))
    np.savez("targets.npz", X=x, y=np.column_stack([100 * x[:, 0], x[:, 1]]))
    np.savez("labels.npz", X=x, y=(x > 0).astype(int))
    done = train(*words.split())
    assert "report in run.html\n" in done.stdout
    shown = Page("run.html")
    assert_alone(shown)
    assert shown.sections == SECTIONS
    assert list(shown.figures) == figures if figures[0] is not ... else {*figures[1:]} <= {*shown.figures}
    for text in texts:
        assert text in shown.text
    for accuracy in re.findall(r"((?:validation|test) accuracy \S+%)\n", done.stdout):
        assert accuracy in shown.text
    assert ("confusion" in re.sub(r"<style>.*?</style>", "", shown.source, flags=re.DOTALL)) == ("class" in name)
    if "ROC curves" in shown.figures:
        areas = [text.rpartition(" ") for text in legend_of(shown, "ROC curves") if "area" in text]
        assert len(areas) >= 2
        assert name == "several classes" or all(float(area) > 0.9 for _, _, area in areas)


def legend_of(shown, figure):
    return [text.text for text in shown.figures[figure].iter() if text.tag.endswith("}text")]


def test_coefficients_are_those_that_predict_whatever_their_names_are():
    """In the unit of the target, as `p4sgd inspect` has them; the largest by what they matter."""
    x = np.random.default_rng(5).normal(size=(60, 3)) * [1, 1000, 1]
    names = ["<b>first</b>", 'second & "third"', "x" * 300]
    rows = [
        ",".join(map(str, [*row, target])) for row, target in zip(x.tolist(), 1000 + x @ [300, 0.01, 20], strict=True)
    ]
    Path("data.csv").write_text("\n".join([",".join(['<b>first</b>,"second & ""third"""', names[2], "y"]), *rows]))
    train("data.csv", "--loss", "squared", "--epochs", 4, "--out", "model")
    shown = Page("run.html")
    assert_alone(shown)
    found = shown.text.partition("Largest coefficients")[2]
    about = json.loads(run("inspect", "model", "--json").stdout)
    assert about["intercept"] > 900
    assert f"the intercept is {about['intercept']:.4g}." in found
    for each in about["coefficients"]:
        assert f"{each['feature']} {each['coefficient']:.4g} ".replace("-", "−") in found
    assert found.index(names[0]) < found.index(names[2])
    assert names[0] not in shown.source


def test_names_of_classes_that_are_markup_elsewhere_and_remarks():
    names = ["$x_1$ <b>", "y\x01" + "z" * 100]
    Path("data.csv").write_text("x,y\n" + "".join(f"{row},{names[row % 2]}\n" for row in range(40)))
    done = train("data.csv", "--epochs", 2, "--lr", 1000)
    shown = Page("run.html")
    legend = legend_of(shown, "distribution of activations, train samples")
    classes = ["true class $x_1$ <b>", "true class y?" + "z" * 18 + "…"]
    assert [text for text in legend if text.startswith("true class")] == classes
    assert_alone(shown)
    section = shown.text.partition("Remarks")[2].partition("How training went")[0]
    remarks = [line for line in done.stderr.splitlines() if "learning rate" in line]
    assert remarks
    assert all(remark in section for remark in remarks)


UNUSUAL = {"constant": np.zeros((24, 2)), "huge": np.eye(24, 2) * 1e308, "few": np.arange(48.0).reshape(24, 2)}


@pytest.mark.parametrize(("loss", "features"), [*zip(("hinge", "squared", "poisson"), UNUSUAL.values(), strict=True)])
def test_unusual_data(features, loss):
    np.savez("data.npz", X=features, y=np.arange(24) % 2)
    train("data.npz", "--loss", loss, "--epochs", 1, "--lr", 1000)
    assert_alone(Page("run.html"))


def test_test_data_of_one_class_have_no_curves_and_many_epochs_are_thinned(monkeypatch):
    monkeypatch.setattr("p4sgd.host.report.content._MOST_EPOCHS", 2)
    np.savez("one.npz", X=np.ones((8, 30)), y=np.ones(8))
    train("breast_cancer", "--epochs", 3, "--test", "one.npz")
    shown = Page("run.html")
    assert [text.split(",")[0] for text in legend_of(shown, "ROC curves") if "area" in text] == ["train"]
    assert "test: true classes" in shown.text
    assert "Some of the epochs" in shown.text


@pytest.mark.parametrize("kind", ["rtl", "cluster", "many", "sparse"])
def test_cycles_and_overlap(kind):
    """As if a device had counted; of a large mini-batch a part is drawn, and of programs nothing is predicted."""
    sparse = {
        "data": "iris:1",
        "config": "sparse",
        "options": {"epochs": 2, "scaling": "none"},
    }
    dense = {"data": "digits:3", "config": "tiny", "options": {"epochs": 2, "workers": 2}}
    plan = TrainingRun(TrainingRequest(**(sparse if kind == "sparse" else dense)))
    result = plan.execute()
    counters = {"CYCLES": 600, "CYCLES_BUSY": 400, "CYCLES_NETWORK": 150, "CYCLES_CHAINING": 50}
    history = tuple(dataclasses.replace(record, counters=(counters,) * 2) for record in result.history)
    device = "cluster" if kind in ("cluster", "sparse") else "rtl"
    summary = result.summary | {"device": device, "workers": [0, 1]}
    number, batch = (3000, 3000) if kind == "many" else (4, 2)
    intervals = [Interval(each, each // batch, 10 * each, 10 * each + 12) for each in range(number)]
    trace = Trace([dict.fromkeys(STAGES, intervals)] * 2, True) if device == "rtl" else None
    result = dataclasses.replace(result, history=history, summary=summary)
    save_report(result, Path("run.html"), plan.about, trace=trace)
    shown = Page("run.html")
    assert_alone(shown)
    assert shown.sections == [*SECTIONS[:-1], "cycles", *(["overlap"] if trace else []), "options"]
    for text in ("worker 0 worker 1", "cycles in which it waited for sums from the network", "800 800"):
        assert text in shown.text
    assert ("predicted worker 0" in shown.text) == (kind != "sparse")
    assert ("error correction" in shown.text) == (kind == "cluster")
    assert ("mini-batch 1, 22 cycles" in shown.text) == (kind == "rtl")
    assert ("30,002 cycles, of which the first are shown" in shown.text) == (kind == "many")
    assert Path("run.html").stat().st_size < 300_000


def test_an_older_report_is_replaced_and_prepared_data_are_rounded():
    train("iris:1", "--epochs", 1)
    assert is_report_file(Path("run.html"))
    run("data", "prepare", "breast_cancer", "--out", "folder")
    train("folder", "--epochs", 2)
    assert "2 of 2" in (text := Page("run.html").text)
    assert "on training samples as the device reads them" in text


@pytest.mark.parametrize(
    ("missing", "says"), [(["jinja2"], "Jinja2"), (["matplotlib", "jinja2"], "Matplotlib and Jinja2")]
)
def test_missing_libraries_are_told_before_training(monkeypatch, missing, says):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else real(name))
    done = train("iris:1", status=2)
    assert done.stderr == f"p4sgd train: --report needs {says}: pip install 'p4sgd[report]'\n"
    assert os.listdir() == []


def test_after_ctrl_c_and_resumed():
    def stop(record):
        if record.epoch == 2:
            raise KeyboardInterrupt

    request = TrainingRequest(data="iris:1", options={"epochs": 4}, checkpoint=Path("c"), report=Path("run.html"))
    assert TrainingRun(request).execute(events(epoch=stop)).stopped is StopReason.INTERRUPTED
    assert "interrupted" in Page("run.html").text
    plan = TrainingRun(TrainingRequest(resume=Path("c")))
    assert plan.request.report == Path("run.html")
    plan.execute()
    # Nothing is left to do but the report.
    TrainingRun(TrainingRequest(resume=Path("c"), report=Path("again.html"))).execute()
    assert "of 4" in Page("again.html").text
