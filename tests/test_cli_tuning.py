"""Tuning by `attnjax sweep`: it tunes, chooses and trains, goes on wherever it was stopped, and says what it chose."""

import json
import pathlib
import shutil

import pytest

from attnjax.cli import main
from attnjax.config import override, parse, run_id
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
        assert main(["sweep", "rates.py", *FAKE]) == 0
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
    assert main(["sweep", "rates.py", *FAKE]) == 0
    told = capsys.readouterr().out
    assert "tuning: 2 families x 3 candidates x 2 seeds, on validation scores within the trained lengths" in told
    assert "12 runs in out/tuning" in told
    assert "chosen   model.encoding=rope: train.learning_rate=0.003 (exact_match 0.905, candidate 2 of 3)\n" in told
    assert "train.learning_rate=0.01 is the largest value that was tried: a better one may lie beyond" in told
    assert told.splitlines()[-1] == "4 runs: 4 done"
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [1e-2] * 2}
    assert rates("out/tuning") == {name: [1e-3] * 2 + [3e-3] * 2 + [1e-2] * 2 for name in ("rope", "alibi")}
    before = tree(pathlib.Path("out"))
    assert main(["sweep", "rates.py", *FAKE, "--trainer", "fake_training:never"]) == 0
    assert "tuning:" not in capsys.readouterr().out, "what was chosen is not trained again"
    assert tree(pathlib.Path("out")) == before


def test_tuning_runs_have_no_test_length_and_seeds_of_their_own(done):
    found = scan(pathlib.Path("out/tuning"))
    assert not found.problems
    assert {(run.config.seed, run.config.data_seed) for run in found.runs} == {(10_000, 10_000), (10_001, 10_001)}
    assert {run.config.evaluate.lengths for run in found.runs} == {()}
    assert {row["split"] for run in found.runs for row in run.results().tables} == {"validation"}
    assert not scan(pathlib.Path("out")).foreign


def test_a_tuned_run_is_the_one_that_a_person_would_have_written(done):
    base = {"name": "rates", "task": {"length_max": 20}, "train": {"steps": 6}}
    base["evaluate"] = {"lengths": [10, 40], "validation_lengths": [10, 20]}
    written = {"model.encoding": "rope", "train.learning_rate": 3e-3, "seed": 1, "data_seed": 1}
    assert run_id(parse(override(base, written))) in {entry.run for entry in load(pathlib.Path("out")).runs}
    entry = load(pathlib.Path("out")).runs[0]
    assert entry.overrides["train.learning_rate"] == 3e-3, "the plan says what was chosen"


@pytest.mark.slow
def test_candidates_that_differ_in_numbers_train_in_one_population(folder):
    (folder / "rates.py").write_text(
        CONFIG.replace("return vary(", 'return product(vary("model.embed_scale", [False, True]), vary(').replace(
            "1e-2])", "1e-2]))"
        )
    )
    main(["sweep", "rates.py", *FAKE])
    for run in scan(folder / "out" / "tuning").runs:
        assert run.manifest()["population_size"] == 6, "three rates on two seeds"


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
    assert main(["sweep", "rates.py", *FAKE, "--dry-run"]) == 0
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
    assert main(["sweep", "rates.py", *FAKE, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "model.encoding=rope seed=0 data_seed=0 train.learning_rate=0.003" in told
    assert told.splitlines()[-1] == "4 runs: 4 done, in out"
    assert tree(folder / "out") == before


def test_a_dry_run_counts_runs_that_differ_in_what_is_tuned_once(folder, capsys):
    path = folder / "rates.py"
    path.write_text(CONFIG.replace("return product(", 'return product(vary("train.learning_rate", [1e-3, 1e-2]), '))
    assert main(["sweep", "rates.py", *FAKE, "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-6:] == [
        *(f"model.encoding={name} seed={seed} data_seed={seed}" for name in ("rope", "alibi") for seed in (0, 1)),
        "4 runs after tuning",
        "the sweep has several values of train.learning_rate, which are not trained: tuning chooses among its own",
    ]
    assert main(["sweep", "rates.py", *FAKE]) == 0
    assert len(scan(folder / "out").runs) == 4


def test_more_seeds_take_what_was_chosen(done):
    before = pathlib.Path("out/tuning.json").read_bytes()
    assert main(["sweep", "rates.py", *FAKE, "--seeds", "4", "--extend"]) == 0
    assert rates("out") == {"rope": [3e-3] * 4, "alibi": [1e-2] * 4}
    assert pathlib.Path("out/tuning.json").read_bytes() == before


@pytest.mark.slow
def test_a_new_family_is_tuned_and_the_others_are_not_tuned_again(done, folder, capsys):
    (folder / "rates.py").write_text(CONFIG.replace('"alibi"]', '"alibi", "nope"]'))
    capsys.readouterr()
    assert main(["sweep", "rates.py", *FAKE]) == 2
    assert "2 of the 6 planned runs are not among them" in capsys.readouterr().err
    assert main(["sweep", "rates.py", *FAKE, "--extend"]) == 0
    told = capsys.readouterr().out
    assert "tuning: 1 families x 3 candidates x 2 seeds" in told
    assert "6 runs: 6 done" in told
    assert len(scan(folder / "out" / "tuning").runs) == 18
    assert "3 of 3 candidates have the best score; the first of them was chosen" in told
    assert rates("out")["nope"] == [1e-3] * 2
    assert len(read(folder / "out").families) == 3


@pytest.mark.slow
def test_the_tuning_folder_may_go_when_the_choice_is_made(done, folder):
    shutil.rmtree(folder / "out" / "tuning")
    assert main(["sweep", "rates.py", *FAKE, "--seeds", "3", "--extend"]) == 0
    assert not (folder / "out" / "tuning").exists()


def test_other_candidates_and_seeds_are_refused(done, folder, capsys):
    capsys.readouterr()
    (folder / "rates.py").write_text(CONFIG.replace("[1e-3, 3e-3, 1e-2]", "[1e-3, 3e-3]"))
    assert main(["sweep", "rates.py", *FAKE]) == 2
    assert capsys.readouterr().err == (
        "attnjax: error: tuning.json: its choices were made among other candidates (train.learning_rate=0.001 | "
        "train.learning_rate=0.003 | train.learning_rate=0.01) than those of the config (train.learning_rate=0.001 | "
        "train.learning_rate=0.003). Choose another folder (--out)\n"
    )
    (folder / "rates.py").write_text(f"{CONFIG}\n\ndef tuning_seeds():\n    return [7]\n")
    assert main(["sweep", "rates.py", *FAKE]) == 2
    assert "its choices were made on the seeds [10000, 10001], and the config says [7]" in capsys.readouterr().err


@pytest.mark.slow
def test_without_tuning_the_folder_says_so_and_is_not_tuned_later(folder, capsys):
    assert main(["sweep", "rates.py", *FAKE, "--no-tune"]) == 0
    assert "tuning" not in capsys.readouterr().out
    assert rates("out") == {"rope": [1e-3] * 2, "alibi": [1e-3] * 2}
    table = json.loads((folder / "out" / "tuning.json").read_text())
    assert (table["rule"], table["families"]) == ("The sweep was trained without tuning.", [])
    assert main(["sweep", "rates.py", *FAKE]) == 2
    said = "without tuning (by `attnjax run`, or by `attnjax sweep --no-tune`), and one sweep cannot hold both. Choose"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_folder_of_another_sweep_is_refused_before_anything_is_tuned(folder, capsys, more):
    (folder / "other.py").write_text(
        CONFIG.replace('"steps": 6', '"steps": 7').replace("def tune()", "def candidates()")
    )
    assert main(["sweep", "other.py", *FAKE]) == 0
    before = tree(folder / "out")
    capsys.readouterr()
    assert main(["sweep", "rates.py", *FAKE, "--trainer", "fake_training:never", *more]) == 2
    told = capsys.readouterr()
    assert "holds the sweep 'other' of 4 runs, and 4 of the 4 planned runs are not among them" in told.err
    assert "train.steps is 6 instead of 7" in told.err
    assert "Choose another folder (--out), or add the runs to that sweep (--extend)" in told.err
    assert "tuning:" not in told.out
    assert tree(folder / "out") == before


def test_runs_of_the_sweep_under_another_candidate_than_the_chosen_one_are_refused_and_leave_no_choice(folder, capsys):
    """Whether these runs are those of the sweep is known only after tuning: ALiBi might have chosen 0.001."""
    (folder / "rates.py").write_text(CONFIG.replace("def tune()", "def candidates()"))
    assert main(["sweep", "rates.py", *FAKE]) == 0
    (folder / "rates.py").write_text(CONFIG)
    capsys.readouterr()
    assert main(["sweep", "rates.py", *FAKE]) == 2
    assert "train.learning_rate is 0.003 instead of 0.001" in capsys.readouterr().err
    assert not (folder / "out" / "tuning.json").exists()
    assert main(["sweep", "rates.py", *FAKE, "--extend"]) == 0
    assert rates("out") == {"rope": [1e-3] * 2 + [3e-3] * 2, "alibi": [1e-3] * 2 + [1e-2] * 2}


@pytest.mark.slow
def test_a_single_run_of_a_config_that_tunes_is_untuned_and_leaves_the_word(folder):
    assert main(["run", "rates.py", *FAKE]) == 0
    assert read(folder / "out").families == ()


@pytest.mark.slow
def test_tuning_that_is_stopped_goes_on(folder, capsys):
    """Planned without training, half of it trained, failed in the middle: each time the same command goes on."""
    assert main(["sweep", "rates.py", *FAKE, "--plan"]) == 0
    told = capsys.readouterr().out
    assert "12 runs planned in out/tuning: attnjax work out/tuning" in told
    assert "tuning: 12 of 12 runs have not ended; when they have, the same command chooses and goes on" in told
    assert not (folder / "out" / "sweep.json").exists()
    assert main(["work", "out/tuning", "--trainer", "fake_tuning:train"]) == 0
    assert main(["sweep", "rates.py", *FAKE, "--plan"]) == 0
    assert "4 runs planned in out: attnjax work out" in capsys.readouterr().out
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [1e-2] * 2}
    whole = (folder / "out" / "tuning.json").read_bytes()
    (folder / "out" / "tuning.json").unlink()  # as if the command had been killed before it wrote the file
    assert main(["sweep", "rates.py", *FAKE]) == 0
    assert (folder / "out" / "tuning.json").read_bytes() == whole


def test_a_failed_candidate_is_no_failure_of_a_strict_sweep_and_a_choice_stands(folder, capsys):
    (folder / "rates.py").write_text(CONFIG.replace("1e-2]", "1.0]").replace('"rope", "alibi"', '"rope"'))
    assert main(["sweep", "rates.py", *FAKE]) == 0
    assert rates("out") == {"rope": [3e-3] * 2}
    capsys.readouterr()
    assert main(["sweep", "rates.py", *FAKE, "--retry-failed"]) == 0
    told = capsys.readouterr().out
    assert "tuning: model.encoding=rope chose with 2 failed tuning runs, and that stands; --out tunes anew" in told


def test_a_new_family_leaves_choices_as_they_stand_though_a_tuning_run_of_theirs_would_now_succeed(folder, capsys):
    """ALiBi is best at 0.01, where its tuning runs fail at first; then NoPE comes, and failed runs are to be trained again."""
    (folder / "rates.py").write_text(CONFIG.replace('["rope", "alibi"]', '["alibi"]'))
    command = ["sweep", "rates.py", "--out", "out", "--trainer"]
    assert main([*command, "fake_tuning:limited"]) == 0
    before = read(folder / "out").families[0]
    assert rates("out") == {"alibi": [3e-3] * 2}
    capsys.readouterr()
    new = ["--over", "model.encoding.name=alibi,nope", "--seeds", "2", "--extend", "--retry-failed"]
    assert main([*command, "fake_tuning:train", *new]) == 0
    told = capsys.readouterr().out
    assert "tuning: model.encoding=alibi chose with 2 failed tuning runs, and that stands" in told
    assert rates("out") == {"alibi": [3e-3] * 2, "nope": [1e-3] * 2}
    assert read(folder / "out").families[0] == before
    states = {
        run.status.state for run in scan(folder / "out" / "tuning").runs if run.config.train.learning_rate == 1e-2
    }
    assert states == {"failed", "done"}, "the tuning runs are those that the choice was made from"


@pytest.mark.slow
def test_failed_runs_are_the_worst_and_a_family_without_any_other_cannot_choose(folder, capsys):
    failing = CONFIG.replace("[1e-3, 3e-3, 1e-2]", "[1.0, 1e-3, 3e-3]").replace('"alibi"]', '"nope"]')
    (folder / "rates.py").write_text(failing)
    assert main(["sweep", "rates.py", *FAKE]) == 0
    assert "2 of 6 tuning runs failed" in capsys.readouterr().out
    assert [trial.score for trial in read(folder / "out").families[0].trials[0]] == [0.0, 0.0]
    assert main(["sweep", "rates.py", "model.model=32", "--out", "other", *FAKE[:2]]) == 1
    told = capsys.readouterr().out
    assert (
        "tuning: all tuning runs of model.encoding=nope failed, so that no candidate can be chosen: see other/tuning; "
        "--retry-failed trains them again\n"
    ) in told
    assert not (folder / "other" / "tuning.json").exists()


def test_where_all_tuning_runs_failed_that_is_what_is_said(folder, capsys):
    (folder / "rates.py").write_text(
        CONFIG.replace('["rope", "alibi"]', '["nope"]').replace("[1e-3, 3e-3, 1e-2]", "[1.0, 2.0]")
    )
    assert main(["sweep", "rates.py", *FAKE]) == 1
    assert main(["sweep", "rates.py", *FAKE, "--retry-failed"]) == 1
    told = capsys.readouterr().out
    assert told.count("all tuning runs of model.encoding=nope failed, so that no candidate can be chosen") == 2
    assert "have not ended" not in told
    assert not (folder / "out" / "tuning.json").exists()


def test_a_stop_amid_tuning_ends_the_command(folder, capsys):
    assert main(["sweep", "rates.py", "--out", "out", "--trainer", "fake_tuning:stopped"]) == 130
    told = capsys.readouterr().out
    assert "of 12 runs have not ended; when they have, the same command chooses and goes on" in told
    assert not (folder / "out" / "tuning.json").exists()
    assert main(["sweep", "rates.py", *FAKE]) == 0


@pytest.mark.slow
def test_workers_tune_too(folder):
    assert main(["sweep", "rates.py", *FAKE, "--workers", "2", "--threads", "1"]) == 0
    assert rates("out") == {"rope": [3e-3] * 2, "alibi": [1e-2] * 2}


@pytest.mark.parametrize(
    ("old", "new", "words", "sentence"),
    [
        ("", "", ["train.learning_rate=1"], "train.learning_rate is set on the command line, and tune() of the config chooses"),
        ("", "", ["--over", "train.learning_rate=1,2"], "leave it out, or give --no-tune"),
        ("[10, 20]", "[]", [], "tune() chooses by validation scores, and evaluate.validation_lengths is empty"),
        ("[10, 20]", "[10, 21]", [], "task.length_max=20, and evaluate.validation_lengths has 21"),
        ("[1e-3, 3e-3, 1e-2]", "[1e-3]", [], "tune() must list at least 2 candidates, got 1"),
        ("[1e-3, 3e-3, 1e-2]", "[1e-3, 1e-3]", [], "two candidates of tune() are the same: list each once"),
        ("[1e-3, 3e-3, 1e-2]", "[1e-3, -1.0]", [], "candidate 1 of tune(): train.learning_rate must be"),
        ('vary("train.learning_rate", [1e-3, 3e-3, 1e-2])', "[{'train.steps': 3}, {'train.batch': 4}]", [], "change the same"),
        ('vary("train.learning_rate", [1e-3, 3e-3, 1e-2])', "[3]", [], "candidate 0 of tune() must be a table of dotted"),
        ("train.learning_rate", "seed", [], "tune() may not change seed, which says what is measured"),
        ("train.learning_rate", "evaluate.count", [], "tune() may not change evaluate.count, which says"),
        ("def tune():", "def tuning_seeds():\n    return [1]\n\n\ndef tune():", [], "seed 1 is both a tuning seed and a seed"),
        ("def tune():", "def tuning_seeds():\n    return []\n\n\ndef tune():", [], "must list different whole numbers"),
        ("def tune():", "tune = 3\n\n\ndef other():", [], "tune must be a function, got 3"),
        ("def tune():", "def other():", ["--tune"], "--tune: rates.py has no function tune(), which lists the candidates"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_one_sentence(folder, capsys, old, new, words, sentence):
    (folder / "rates.py").write_text(CONFIG.replace(old, new) if old else CONFIG)
    assert main(["sweep", "rates.py", *FAKE, *words]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: table["families"][0]["candidates"].pop(), "does not have a score for each candidate and seed"),
        (lambda table: table["families"][0].pop("metric"), "out/tuning.json is damaged: KeyError 'metric'"),
        (lambda table: table.update(families=3), "out/tuning.json is damaged: TypeError"),
        (lambda table: table.update(schema=99), "newer version"),
    ],
)
def test_a_damaged_choice_is_not_taken(done, capsys, change, sentence):
    path = done / "tuning.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    capsys.readouterr()
    assert main(["sweep", "rates.py", *FAKE]) == 2
    assert sentence in capsys.readouterr().err
