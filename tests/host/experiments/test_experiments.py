"""`p4sgd experiments`: numbers are those of the functions that READMEs quote, and the reports have what was found."""

import json
import re
import resource
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from support.command_line import p4sgd, run

from p4sgd.host.distributed.planner import Passes
from p4sgd.host.experiments import allreduce, factors, messages, ranks, scaling
from p4sgd.host.experiments.catalogue import EXPERIMENTS
from p4sgd.host.experiments.experiment import Chart, Source, Table
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.timing import BOARDS_NETWORK, mini_batch_cycles

ROOT = Path(__file__).parents[3]


def rows_of(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_times_of_boards_are_those_of_the_readmes():
    """16 engines, 64 lanes, 65,536 features and 4 planes: hw/README.md says how many cycles, with 50 of network."""
    text = (ROOT / "hw/README.md").read_text()
    stated = re.search(r"mini-batches of 64 and 1,024 samples take by that ([\d,]+)\s+and ([\d,]+) cycles", text)
    for batch, cycles in zip((64, 1024), stated.groups(), strict=True):
        us, fixed = scaling.mini_batch_us(WorkerConfig.u280(), 65_535, 1, batch)
        beside = us * 1000 / CLOCK_NS - (BOARDS_NETWORK - 50)
        assert round(beside) == int(cycles.replace(",", ""))
        assert fixed * 1000 / CLOCK_NS == 118 - 50 + BOARDS_NETWORK
    total = re.search(r"\*\*with it\*\* \| \*\*\d+ to (\d+)\*\*", (ROOT / "hw/net/README.md").read_text())
    assert allreduce.board_us(8) * 1000 == pytest.approx(int(total[1]), abs=4)


def test_boards_are_compared_with_one():
    finding = EXPERIMENTS["E4"].run(True)
    rows = rows_of(finding.tables[0])
    assert len(rows) == len(scaling.SHAPES) * len(scaling.BATCHES) * len(scaling.BOARDS)
    for row in rows:
        assert row["source"] is Source.MODELLED
        assert row["speed-up"] <= row["boards"] + 1e-9
        assert 0 < row["fixed part"] < 1
    (row,) = [row for row in rows if (row["data"], row["B"], row["boards"]) == ("rcv1", 64, 8)]
    cycles = mini_batch_cycles(WorkerConfig.u280(), 64, 6, 4, BOARDS_NETWORK)  # 47,237 columns of 8 · 16 · 64
    assert row["mini-batch, µs"] == cycles * CLOCK_NS / 1000
    assert row["epoch, ms"] == pytest.approx(317 * cycles * CLOCK_NS / 1e6)
    assert any("slower than one H200" in sentence for sentence in finding.losses)


def test_resnet_50():
    """Its weights, with 1,000 of the bias and two for each channel that is normalised, are the known 25,557,032."""
    layers = messages.resnet_50()
    assert sum(layer.weights for layer in layers) + 1000 + 2 * sum(layer.outputs for layer in layers[:-1]) == 25_557_032
    assert len(layers) == 54


def test_planned_messages_are_never_later_than_published_rules():
    rows = rows_of(messages.gradients().tables[0])
    for first in range(0, len(rows), 4):
        ends = [row["all sums, ms"] for row in rows[first : first + 4]]
        assert ends[3] <= min(ends) * (1 + 1e-12)
    ready, sizes = [1.0, 2.0, 9.0], [1, 1, 1]
    passes = Passes([1.0, 1.0, 7.0], [0.0] * 3, sizes, lambda size: 3.0 + size)
    assert messages.greedy(ready, sizes, 3.0, passes.cost) == [2, 1], "the last one is there after a start-up"
    assert list(accumulate(passes.forward)) == ready


@pytest.mark.parametrize(
    ("send", "turn", "spd", "planned"), [(0.0, 4, 3, 3), (0.5, 4.5, 4, 4), (1.5, 6.5, 5, 5), (10.0, 32, 6, 6)]
)
def test_factors_are_sent_if_that_is_faster(send, turn, spd, planned):
    """Of 1, 2 and 3 rows, with two ranks: by hand."""
    found = factors.placements([3, 2, 1], 2, float, lambda size: send)
    assert found == {"by all": 6, "by owners in turn": turn, "SPD-KFAC": spd, "planned": planned}


def test_planned_factors_are_never_later_than_by_the_rule_of_spd_kfac():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes, ranks, start = rng.integers(1, 100, 12).tolist(), int(rng.integers(1, 6)), rng.uniform(0, 3)
        found = factors.placements(sizes, ranks, lambda s: s**3 / 1e4, lambda s, start=start: start + s * s / 1e3)
        assert found["planned"] <= min(found["SPD-KFAC"], found["by all"]) + 1e-12


def test_quick_experiments_make_one_report(tmp_path):
    out = tmp_path / "evaluation"
    run("experiments", "--quick", "--only", "E5", "--out", out)
    done = run("experiments", "--quick", "--only", "e4", "--out", out, "--json")
    assert [each["id"] for each in json.loads(done.stdout)["experiments"]] == ["E4"]
    assert {path.name for path in out.iterdir()} == {"E4.json", "E5.json", "report.html", "report.md"}
    page, text = ((out / name).read_text() for name in ("report.html", "report.md"))
    for each in (page, text):
        assert each.index("Where others are ahead") < each.index("E4 Boards") < each.index("E5 Mini")
        assert "p4sgd experiments --quick --only E5" in each, "the others are of the first run"
    record = json.loads((out / "E4.json").read_text())
    assert {"command", "commit", "machine", "date", "quick"} <= record.keys()
    assert "One board is slower than one H200" in text.partition("## E4")[0], "what is worse comes first"
    assert page.count("<svg") == sum(len(table["charts"]) for id in ("E4", "E5") for table in tables(out, id))
    assert "<script" not in page


@pytest.mark.slow
@pytest.mark.rtl
def test_quick_mode_makes_all_experiments(tmp_path):
    """What is skipped says why; the time of processors is shown with -rP."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = p4sgd("experiments", "--quick", "--out", tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    print(f"{after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.0f} s of processor time")
    for id in EXPERIMENTS:
        finding = json.loads((tmp_path / f"{id}.json").read_text())["finding"]
        assert finding["skipped"] or any(table["rows"] for table in finding["tables"]), id


def tables(folder, id):
    return json.loads((folder / f"{id}.json").read_text())["finding"]["tables"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--only E99", "--only names 'E99', which is no experiment: choose of E1, E2"),
        ("--only E5 --out report.md", "report.md: cannot make the folder"),
        ("--only E5 --out others", "others/report.md: is not of p4sgd experiments: choose another folder"),
        ("--only E5 --out broken", "broken/E4.json: not the record of an experiment: .*: delete it"),
    ],
)
def test_bad_input(words, message, own_folder):
    for name in ("report.md", "others/report.md", "broken/E4.json"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("{}")
    done = run("experiments", *words.split(), "--quick", status=2)
    assert re.search(message, done.stderr), done.stderr


def test_tables_name_their_sources():
    for columns, row, chart in (
        (("a", "b"), (1, 2), ()),
        (("a", "source"), (1,), ()),
        (("a", "source"), (1, "guessed"), ()),
        (("a", "source"), (1, Source.MEASURED), [Chart("a", "c")]),
    ):
        with pytest.raises(ValueError, match=r"source|cells|columns"):
            Table("a table", columns, [row], chart)


@pytest.mark.slow
def test_sums_over_udp_are_right_on_lossy_links():
    """Also over two levels; `measure` raises an error if one is wrong."""
    fast, slow = allreduce.measure([(3, 0, 0.0), (4, 2, 0.05)], 100).values()
    assert len(fast) == len(slow) == 100
    assert slow[-1] > 1e6 * allreduce._RESEND_S, "a packet was sent again"


@pytest.mark.parametrize(
    ("error", "says"), [(ModuleNotFoundError, "mpi4py is not installed"), (RuntimeError, "finds no MPI library")]
)
def test_what_ranks_lack(monkeypatch, error, says):
    def find(name):
        raise error(name)

    monkeypatch.setattr("importlib.util.find_spec", find)
    assert says in ranks.why_no_ranks()


@pytest.mark.slow
@pytest.mark.skipif(bool(ranks.why_no_ranks()), reason="needs MPI")
def test_peers_over_mpi_train_the_same_model():
    """Columns or samples divided: the loss is that of one process."""
    features, batch, samples = 64, 16, 160
    found = [
        float(ranks.run_ranks(2, ranks.sgd, way, samples, features, batch).split()[1]) for way in ("columns", "samples")
    ]
    x = np.random.default_rng(0).standard_normal((samples, features), np.float32)
    y, w = x[:, 0] > 0, np.zeros(features)
    for first in range(0, samples, batch):
        part = x[first : first + batch]
        w -= 0.1 / batch * part.T @ (1 / (1 + np.exp(-part @ w)) - y[first : first + batch])
    expected = np.logaddexp(0, np.where(y, -x @ w, x @ w)).mean()
    assert found == pytest.approx([expected, expected], rel=1e-4)
