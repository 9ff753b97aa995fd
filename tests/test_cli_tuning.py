"""Tuning by `attnjax run`: it tunes, chooses and trains, goes on wherever it was stopped, and says what it chose."""

import contextlib
import io
import json
import pathlib
import shutil

import pytest

from attnjax.cli import main
from attnjax.records import stored
from attnjax.sweep import load
from tests.runs import runs_in
from tests.trees import tree

ROOT = pathlib.Path(__file__).parents[1]
FAKE = ["run", "rates.py", "--trainer", "fake_tuning:train", "--out", "out"]
NEVER = [*FAKE, "--trainer", "fake_training:never"]
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


def change(old: str, new: str) -> None:
    """Write the config anew, with another text in it."""
    assert old in CONFIG
    pathlib.Path("rates.py").write_text(CONFIG.replace(old, new))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which the sweep was tuned and trained, and what the command said."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.syspath_prepend(str(ROOT / "tests" / "sweep"))
        (root / "rates.py").write_text(CONFIG)
        with contextlib.redirect_stdout(io.StringIO()) as told:
            assert main(FAKE) == 0
    return root / "out", told.getvalue()


@pytest.fixture
def done(trained, folder):
    """A copy of it, as `out`."""
    return shutil.copytree(trained[0], folder / "out")


def files(root: pathlib.Path) -> dict:
    """What is in a folder, but for the time of its subfolder, in which a command looks whether it can write."""
    return {name: found for name, found in tree(root).items() if name != "tuning"}


def rates(root: str) -> dict[str, list[float]]:
    """{encoding: learning rates of the runs in a folder}."""
    found: dict[str, list[float]] = {}
    for run in runs_in(pathlib.Path(root)):
        found.setdefault(run.config.model.encoding.name, []).append(run.config.train.learning_rate)
    return {name: sorted(values) for name, values in found.items()}


def test_one_command_tunes_chooses_and_trains(trained, done):
    _, told = trained
    assert "tuning: 2 families x 3 candidates x 2 seeds" in told
    assert "12 runs in out/tuning" in told
    assert "chosen   model.encoding=rope: train.learning_rate=0.003 (exact_match 0.905, candidate 2 of 3)\n" in told
    assert "train.learning_rate=0.01 is the largest value" in told
    assert "\n4 runs: 4 done\n" in told
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [1e-2] * 2}
    assert rates("out/tuning") == {name: [1e-3] * 2 + [3e-3] * 2 + [1e-2] * 2 for name in ("rope", "alibi")}
    before = files(done)
    assert main(NEVER) == 0
    assert files(done) == before


def test_tuning_runs_have_seeds_of_their_own_and_no_test_and_the_choice_says_what_it_was_made_from(done):
    found = runs_in(done / "tuning")
    assert not stored.read(done).skipped
    assert {(run.config.seed, run.config.data_seed) for run in found} == {(10_000, 10_000), (10_001, 10_001)}
    assert {run.config.evaluate.lengths for run in found} == {()}
    assert {row["split"] for run in found for row in run.results()} == {"validation"}
    table = json.loads((done / "tuning.json").read_text())
    assert table["candidates"] == [{"train.learning_rate": rate} for rate in (1e-3, 3e-3, 1e-2)]
    assert (table["seeds"], table["protocol"]) == ([10_000, 10_001], "Which rate?")
    rope = table["families"][0]
    assert (rope["changes"], rope["metric"], rope["chosen"]) == ({"model.encoding": "rope"}, "exact_match", 1)
    assert [one["mean"] for one in rope["candidates"]] == pytest.approx([0.8573, 0.905, 0.8527], abs=1e-4)
    assert [run["score"] for run in rope["candidates"][1]["runs"]] == pytest.approx([0.9, 0.91])
    runs = {run["run"] for family in table["families"] for one in family["candidates"] for run in one["runs"]}
    assert runs == {entry.run for entry in load(done / "tuning").runs}
    cells = list(dict.fromkeys(entry.cell for entry in load(done).runs))
    assert [cell for family in table["families"] for cell in family["cells"]] == cells


def test_a_dry_run_shows_both_parts_and_changes_nothing(trained, folder, capsys):
    assert main([*FAKE, "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "12 runs: 0 done, 12 pending, in out/tuning" in told
    names = [f"model.encoding={name} seed={seed} data_seed={seed}" for name in ("rope", "alibi") for seed in (0, 1)]
    assert told[-5:] == [*names, "4 runs after tuning"]
    assert not (folder / "out").exists()
    shutil.copytree(trained[0], folder / "out")
    before = tree(folder / "out")
    assert main([*FAKE, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "model.encoding=rope seed=0 data_seed=0 train.learning_rate=0.003" in told
    assert told.splitlines()[-1] == "4 runs: 4 done, in out"
    assert tree(folder / "out") == before


def test_more_seeds_take_what_was_chosen_and_a_new_family_alone_is_tuned(done, capsys):
    before = (done / "tuning.json").read_bytes()
    assert main([*FAKE, "--seeds", "4", "--extend"]) == 0
    assert rates("out") == {"rope": [3e-3] * 4, "alibi": [1e-2] * 4}
    assert (done / "tuning.json").read_bytes() == before
    change('"alibi"]', '"alibi", "nope"]')
    assert main(FAKE) == 2
    assert "6 of the 18 planned runs" in capsys.readouterr().err
    assert main([*FAKE, "--extend"]) == 0
    told = capsys.readouterr().out
    assert "3 of 3 candidates have the best score" in told
    assert rates("out") == {"rope": [3e-3] * 4, "alibi": [1e-2] * 4, "nope": [1e-3] * 2}
    assert len(json.loads((done / "tuning.json").read_text())["families"]) == 3


@pytest.mark.parametrize(
    ("old", "new", "words", "named"),
    [
        ("[1e-3, 3e-3, 1e-2]", "[1e-3, 3e-3]", [], ["tuning.json", "--out"]),
        ("def tune():", "def tuning_seeds():\n    return [7]\n\n\ndef tune():", ["--extend"], ["tuning.json"]),
        ('"steps": 6', '"steps": 7', [], ["12 of the 12", "train.steps is 7 instead of 6", "--out", "--extend"]),
        ('"lengths": [10, 40]', '"lengths": [10, 80]', [], ["4 of the 4", "--out", "--extend"]),
    ],
)
def test_another_sweep_is_refused_before_anything_is_tuned(done, capsys, old, new, words, named):
    change(old, new)
    before = files(done)
    assert main([*NEVER, *words]) == 2
    told = capsys.readouterr()
    assert all(part in told.err for part in named)
    assert files(done) == before


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda table: table["families"][0]["candidates"].pop(), "candidate"),
        (lambda table: table.update(schema=99), "newer version"),
    ],
)
def test_a_damaged_choice_is_not_taken(done, capsys, damage, named):
    table = json.loads((done / "tuning.json").read_text())
    damage(table)
    (done / "tuning.json").write_text(json.dumps(table))
    assert main(NEVER) == 2
    told = capsys.readouterr().err
    assert "tuning.json" in told
    assert named in told


def test_without_tuning_the_folder_says_so_and_is_not_tuned_later(folder, capsys):
    assert main([*FAKE, "--no-tune"]) == 0
    assert "tuning" not in capsys.readouterr().out
    assert rates("out") == {"rope": [1e-3] * 2, "alibi": [1e-3] * 2}
    assert json.loads((folder / "out" / "tuning.json").read_text())["families"] == []
    assert main(NEVER) == 2
    assert "not at all" in capsys.readouterr().err


def test_tuning_that_is_stopped_goes_on(folder, capsys):
    """Stopped by a signal, planned without training, without the file: each time the same command goes on."""
    stopped = [*FAKE, "--population", "6", "--trainer", "fake_tuning:stopped"]
    assert main(stopped) == 130
    assert "of 12 runs have not ended" in capsys.readouterr().out
    assert not (folder / "out" / "tuning.json").exists()
    assert main([*FAKE, "--plan"]) == 0
    assert "attnjax work out/tuning" in capsys.readouterr().out
    assert not (folder / "out" / "sweep.json").exists()
    assert main(["work", "out/tuning", "--trainer", "fake_tuning:train"]) == 0
    assert main([*FAKE, "--plan"]) == 0
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [1e-2] * 2}
    whole = (folder / "out" / "tuning.json").read_bytes()
    for name in ("tuning.json", "sweep.json"):  # as if the command had been killed before it wrote them
        (folder / "out" / name).unlink()
    assert main(FAKE) == 0
    assert (folder / "out" / "tuning.json").read_bytes() == whole


def test_a_failed_candidate_is_no_failure_of_the_sweep_and_without_another_nothing_is_chosen(capsys):
    change("1e-2])", "1.0])")
    assert main(FAKE) == 0
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [3e-3] * 2}
    assert "2 of 6 tuning runs failed" in capsys.readouterr().out
    change("[1e-3, 3e-3, 1e-2]", "[1.0, 2.0]")
    assert main([*FAKE, "--out", "other"]) == 2
    assert "all tuning runs of model.encoding=rope failed" in capsys.readouterr().err
