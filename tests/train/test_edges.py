"""The smallest that can be trained and tested: no lengths, one token, one symbol; each has a defined result or a sentence."""

import json

import pytest

from attnjax.cli import main
from attnjax.sweep import scan
from tests.cases import slow_except
from tests.train.killing import CONFIG


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with the config `tiny.json`, which tests nothing."""
    monkeypatch.chdir(tmp_path)
    train = {**CONFIG["train"], "steps": 2, "checkpoint_every": 0}
    evaluate = {**CONFIG["evaluate"], "lengths": [], "validation_lengths": [], "bucket_sizes": [], "every": 0}
    (tmp_path / "tiny.json").write_text(json.dumps({**CONFIG, "train": train, "evaluate": evaluate}))
    return tmp_path


def results(folder, *changes):
    """The results of a run with these changes, which must end as done."""
    assert main(["run", "tiny.json", "--out", "out", *changes]) == 0
    (run,) = scan(folder / "out").runs
    assert (run.status.state, run.status.step) == ("done", 2)
    return run.results().tables


@pytest.mark.slow
def test_a_run_that_tests_nothing_has_no_results(folder, capsys):
    assert results(folder) == []
    capsys.readouterr()
    assert main(["show", "tiny.json"]) == 0
    shown = capsys.readouterr().out
    assert "longest_tested          none: evaluate.lengths and evaluate.validation_lengths are empty" in shown
    assert "evaluation_programs     0" in shown


@pytest.mark.slow
def test_a_report_of_runs_that_tested_nothing_is_a_sentence(folder, capsys):
    results(folder)
    capsys.readouterr()
    code = main(["report", "out"])
    error = capsys.readouterr().err
    assert code == 0 or (code == 2 and error.startswith("attnjax: error: ") and error.count("\n") == 1)


@pytest.mark.slow
def test_a_run_that_only_validates_has_results_of_that(folder):
    found = results(folder, "evaluate.validation_lengths=3")
    assert {(one["split"], one["length"]) for one in found} == {("validation", 3)}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", slow_except(["rope", "alibi", "t5", "sinusoidal"], "t5"))
def test_sequences_of_one_symbol_are_trained_and_tested(folder, encoding):
    changes = ["task.length_max=1", "evaluate.lengths=1", f"model.encoding={encoding}"]
    found = results(folder, *changes)
    assert {one["length"] for one in found} == {1}
    assert all(0 <= one["value"] <= 1 for one in found if one["metric"] != "loss")


@pytest.mark.slow
def test_a_vocabulary_of_one_symbol_is_trained_and_tested(folder):
    changes = ["task.name=unique_copy", "task.options.symbols=1", "task.length_max=1", "evaluate.lengths=1"]
    assert {one["length"] for one in results(folder, *changes)} == {1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["task.name=copy", "task.options.symbols=1"], "symbols must be an int of at least 2, got 1"),
        (["task.name=copy", "task.options.symbols=0"], "symbols must be an int of at least 2, got 0"),
        (["task.length_min=0"], "task.length_min must be a whole number of at least 1"),
        (["evaluate.lengths=0"], "evaluate.lengths[0] must be a whole number of at least 1"),
        (["evaluate.count=0", "evaluate.lengths=2"], "evaluate.count must be a whole number of at least 1"),
    ],
)
def test_a_vocabulary_or_a_test_of_nothing_is_refused(folder, capsys, changes, message):
    assert main(["run", "tiny.json", "--out", "out", *changes]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert message in error
    assert not (folder / "out").exists()
