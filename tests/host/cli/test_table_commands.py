"""A table with texts and gaps on the command line: training goes on with the features of a model."""

from support.command_line import run

from p4sgd.host.training.model_file import load_model


def test_training_goes_on_with_the_features_of_a_model(tmp_path):
    for name, seed in (("titanic.csv", 0), ("test.csv", 1)):
        run("data", "synth", "titanic", "--out", tmp_path / name, "--seed", seed)
    run("train", tmp_path / "titanic.csv", "--missing", "indicator", "--epochs", 20, "--out", tmp_path / "model")
    odd = tmp_path / "odd.csv"
    odd.write_text((tmp_path / "test.csv").read_text().replace("Queenstown", "Cobh"))
    done = run("train", odd, "--init", tmp_path / "model", "--epochs", 2, "--out", tmp_path / "next", "--test", odd)
    assert "values that the model does not know, such as 'Cobh'" in " ".join(done.stderr.split())
    ours, theirs = load_model(tmp_path / "next"), load_model(tmp_path / "model")
    assert ours.space.encoding == theirs.space.encoding
    assert not (ours.weights == theirs.weights).all()
    done = run("train", odd, "--init", tmp_path / "model", "--missing", "mean", status=2)
    assert "this model was trained with --missing indicator, not with --missing mean" in done.stderr
