"""Tuning by `attnjax run`: it tunes, chooses and trains, goes on wherever it was stopped, and says what it chose."""

import json
import pathlib
import shutil

import pytest

from attnjax.cli import main
from attnjax.sweep import load, scan
from attnjax.sweep.choices import read
from tests.trees import tree

ROOT = pathlib.Path(__file__).parents[1]
FAKE = ["--trainer", "fake_tuning:train", "--out", "out"]
CONFIG = '''"""Which rate?"""
from attnjax.sweep import product, seeds, vary


def get_config():
    return {
        "task": {"length_max": 20},
        "train": {"steps": 6},
        "evaluate": {"lengths": [10, 40], "validation_lengths": [10, 20]},
    }


def sweep():
    return product(vary("model.encoding", ["rope", "alibi"]), seeds(2))


def tune():
    return vary("train.learning_rate", [1e-3, 3e-3, 1e-2])
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with a config that tunes, and a training function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sweep"))
    (tmp_path / "rates.py").write_text(CONFIG)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which the sweep was tuned and trained."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.syspath_prepend(str(ROOT / "tests" / "sweep"))
        (root / "rates.py").write_text(CONFIG)
        assert main(["run", "rates.py", *FAKE]) == 0
    return root / "out"


@pytest.fixture
def done(trained, folder):
    """A copy of it, as `out`."""
    return shutil.copytree(trained, folder / "out")


def rates(root: str) -> dict[str, list[float]]:
    """{encoding: learning rates of the runs in a folder}."""
    found: dict[str, list[float]] = {}
    for run in scan(pathlib.Path(root)).runs:
        found.setdefault(run.config.model.encoding.name, []).append(run.config.train.learning_rate)
    return {name: sorted(values) for name, values in found.items()}


def test_one_command_tunes_chooses_and_trains(capsys):
    assert main(["run", "rates.py", *FAKE]) == 0
    told = capsys.readouterr().out
    assert "tuning: 2 families x 3 candidates x 2 seeds, on validation scores within the trained lengths" in told
    assert "12 runs in out/tuning" in told
    assert "chosen   model.encoding=rope: train.learning_rate=0.003 (exact_match 0.905, candidate 2 of 3)\n" in told
    assert "train.learning_rate=0.01 is the largest value that was tried: a better one may lie beyond" in told
    assert "\n4 runs: 4 done\n" in told
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [1e-2] * 2}
    assert rates("out/tuning") == {name: [1e-3] * 2 + [3e-3] * 2 + [1e-2] * 2 for name in ("rope", "alibi")}
    before = tree(pathlib.Path("out"))
    assert main(["run", "rates.py", *FAKE, "--trainer", "fake_training:never"]) == 0
    assert "tuning:" not in capsys.readouterr().out, "what was chosen is not trained again"
    assert tree(pathlib.Path("out")) == before


def test_tuning_runs_have_no_test_length_and_seeds_of_their_own(done):
    found = scan(pathlib.Path("out/tuning"))
    assert not found.problems
    assert {(run.config.seed, run.config.data_seed) for run in found.runs} == {(10_000, 10_000), (10_001, 10_001)}
    assert {run.config.evaluate.lengths for run in found.runs} == {()}
    assert {row["split"] for run in found.runs for row in run.results().tables} == {"validation"}
    assert not scan(pathlib.Path("out")).foreign


def test_the_choice_is_a_file_that_says_what_it_was_made_from(done):
    table = json.loads(pathlib.Path("out/tuning.json").read_text())
    assert table["candidates"] == [{"train.learning_rate": rate} for rate in (1e-3, 3e-3, 1e-2)]
    assert table["seeds"] == [10_000, 10_001]
    assert table["protocol"] == "Which rate?"
    assert "best mean validation score" in table["rule"]
    rope = table["families"][0]
    assert (rope["changes"], rope["metric"], rope["chosen"]) == ({"model.encoding": "rope"}, "exact_match", 1)
    assert [one["mean"] for one in rope["candidates"]] == pytest.approx([0.8573, 0.905, 0.8527], abs=1e-4)
    assert [run["score"] for run in rope["candidates"][1]["runs"]] == pytest.approx([0.9, 0.91])
    runs = {run["run"] for family in table["families"] for one in family["candidates"] for run in one["runs"]}
    assert runs == {entry.run for entry in load(pathlib.Path("out/tuning")).runs}
    assert [cell for family in table["families"] for cell in family["cells"]] == list(
        dict.fromkeys(entry.cell for entry in load(pathlib.Path("out")).runs)
    )


def test_a_dry_run_shows_both_parts_and_changes_nothing(trained, folder, capsys):
    assert main(["run", "rates.py", *FAKE, "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "12 runs: 0 done, 12 pending, in out/tuning" in told
    assert told[-6:] == [
        "then, with what each family chooses of train.learning_rate:",
        *(f"model.encoding={name} seed={seed} data_seed={seed}" for name in ("rope", "alibi") for seed in (0, 1)),
        "4 runs after tuning",
    ]
    assert not (folder / "out").exists()
    shutil.copytree(trained, folder / "out")
    before = tree(folder / "out")
    assert main(["run", "rates.py", *FAKE, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "model.encoding=rope seed=0 data_seed=0 train.learning_rate=0.003" in told
    assert told.splitlines()[-1] == "4 runs: 4 done, in out"
    assert tree(folder / "out") == before


def test_more_seeds_take_what_was_chosen(done):
    before = pathlib.Path("out/tuning.json").read_bytes()
    assert main(["run", "rates.py", *FAKE, "--seeds", "4", "--extend"]) == 0
    assert rates("out") == {"rope": [3e-3] * 4, "alibi": [1e-2] * 4}
    assert pathlib.Path("out/tuning.json").read_bytes() == before


@pytest.mark.slow
def test_a_new_family_is_tuned_and_the_others_are_not_tuned_again(done, folder, capsys):
    (folder / "rates.py").write_text(CONFIG.replace('"alibi"]', '"alibi", "nope"]'))
    capsys.readouterr()
    assert main(["run", "rates.py", *FAKE]) == 2
    assert "2 of the 6 planned runs are not among them" in capsys.readouterr().err
    assert main(["run", "rates.py", *FAKE, "--extend"]) == 0
    told = capsys.readouterr().out
    assert "tuning: 1 families x 3 candidates x 2 seeds" in told
    assert "6 runs: 6 done" in told
    assert len(scan(folder / "out" / "tuning").runs) == 18
    assert "3 of 3 candidates have the best score; the first of them was chosen" in told
    assert rates("out")["nope"] == [1e-3] * 2
    assert len(read(folder / "out").families) == 3


def test_other_candidates_and_seeds_are_refused(done, folder, capsys):
    capsys.readouterr()
    (folder / "rates.py").write_text(CONFIG.replace("[1e-3, 3e-3, 1e-2]", "[1e-3, 3e-3]"))
    assert main(["run", "rates.py", *FAKE]) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in ("tuning.json", "other candidates", "train.learning_rate=0.01", "--out"))
    (folder / "rates.py").write_text(f"{CONFIG}\n\ndef tuning_seeds():\n    return [7]\n")
    assert main(["run", "rates.py", *FAKE]) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in ("[10000, 10001]", "[7]"))


@pytest.mark.slow
def test_without_tuning_the_folder_says_so_and_is_not_tuned_later(folder, capsys):
    assert main(["run", "rates.py", *FAKE, "--no-tune"]) == 0
    assert "tuning" not in capsys.readouterr().out
    assert rates("out") == {"rope": [1e-3] * 2, "alibi": [1e-3] * 2}
    table = json.loads((folder / "out" / "tuning.json").read_text())
    assert (table["rule"], table["families"]) == ("The sweep was trained without tuning.", [])
    assert main(["run", "rates.py", *FAKE]) == 2
    assert "without tuning, and one sweep cannot hold both. Choose" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_folder_of_another_sweep_is_refused_before_anything_is_tuned(folder, capsys, more):
    (folder / "other.py").write_text(
        CONFIG.replace('"steps": 6', '"steps": 7').replace("def tune()", "def candidates()")
    )
    assert main(["run", "other.py", *FAKE]) == 0
    before = tree(folder / "out")
    capsys.readouterr()
    assert main(["run", "rates.py", *FAKE, "--trainer", "fake_training:never", *more]) == 2
    told = capsys.readouterr()
    assert "holds the sweep 'other' of 4 runs, and 4 of the 4 planned runs are not among them" in told.err
    assert "train.steps is 6 instead of 7" in told.err
    assert "Choose another folder (--out), or add the runs to that sweep (--extend)" in told.err
    assert "tuning:" not in told.out
    assert tree(folder / "out") == before


@pytest.mark.slow
def test_tuning_that_is_stopped_goes_on(folder, capsys):
    """Planned without training, half of it trained, failed in the middle: each time the same command goes on."""
    assert main(["run", "rates.py", *FAKE, "--plan"]) == 0
    told = capsys.readouterr().out
    assert "12 runs planned in out/tuning: attnjax work out/tuning" in told
    assert "tuning: 12 of 12 runs have not ended; when they have, the same command chooses and goes on" in told
    assert not (folder / "out" / "sweep.json").exists()
    assert main(["work", "out/tuning", "--trainer", "fake_tuning:train"]) == 0
    assert main(["run", "rates.py", *FAKE, "--plan"]) == 0
    assert "4 runs planned in out: attnjax work out" in capsys.readouterr().out
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [1e-2] * 2}
    whole = (folder / "out" / "tuning.json").read_bytes()
    (folder / "out" / "tuning.json").unlink()  # as if the command had been killed before it wrote the file
    assert main(["run", "rates.py", *FAKE]) == 0
    assert (folder / "out" / "tuning.json").read_bytes() == whole


def test_a_failed_candidate_is_no_failure_of_a_strict_sweep_and_a_choice_stands(folder, capsys):
    (folder / "rates.py").write_text(CONFIG.replace("1e-2]", "1.0]").replace('"rope", "alibi"', '"rope"'))
    assert main(["run", "rates.py", *FAKE]) == 0
    assert rates("out") == {"rope": [3e-3] * 2}
    capsys.readouterr()
    assert main(["run", "rates.py", *FAKE, "--retry-failed"]) == 0
    told = capsys.readouterr().out
    assert "tuning: model.encoding=rope chose with 2 failed tuning runs, and that stands; --out tunes anew" in told


def test_a_stop_amid_tuning_ends_the_command(folder, capsys):
    assert main(["run", "rates.py", "--out", "out", "--population", "6", "--trainer", "fake_tuning:stopped"]) == 130
    told = capsys.readouterr().out
    assert "of 12 runs have not ended; when they have, the same command chooses and goes on" in told
    assert not (folder / "out" / "tuning.json").exists()
    assert main(["run", "rates.py", *FAKE]) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: table["families"][0]["candidates"].pop(), "does not have a score for each candidate and seed"),
        (lambda table: table.update(schema=99), "newer version"),
    ],
)
def test_a_damaged_choice_is_not_taken(done, capsys, change, sentence):
    path = done / "tuning.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    capsys.readouterr()
    assert main(["run", "rates.py", *FAKE]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words", "sentence"),
    [
        ("", "", ["train.learning_rate=1"], "train.learning_rate is set on the command line, and tune() of the config chooses"),
        ("[10, 20]", "[10, 21]", [], "task.length_max=20, and evaluate.validation_lengths has 21"),
        ("[1e-3, 3e-3, 1e-2]", "[1e-3, -1.0]", [], "candidate 1 of tune(): train.learning_rate must be"),
        ("def tune():", "def tuning_seeds():\n    return [1]\n\n\ndef tune():", [], "seed 1 is both a tuning seed and a seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_one_sentence(folder, capsys, old, new, words, sentence):
    (folder / "rates.py").write_text(CONFIG.replace(old, new) if old else CONFIG)
    assert main(["run", "rates.py", *FAKE, *words]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not (folder / "out").exists()
