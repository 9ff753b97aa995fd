"""The command line: answers without JAX, whole sweeps through `run`, what they print, and their exit statuses."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from attnjax.cli import main
from attnjax.cli.planning import planned
from attnjax.cli.progress import Population
from attnjax.cli.scores import score_of
from attnjax.config import TASK_NAMES, parse
from attnjax.records import jsonl, status
from attnjax.records.typed import Result, Run, result
from attnjax.registry import ENCODINGS
from attnjax.sweep import load
from tests.cases import slow_except
from tests.runs import runs_in
from tests.trees import tree

ROOT = pathlib.Path(__file__).parents[1]
FAKE = ["--trainer", "fake_training:train"]
CONFIG = '''"""Does it run?

More text.
"""
from attnjax.sweep import product, vary


def get_config():
    return {"train": {"steps": 6, "checkpoint_every": 2}, "evaluate": {"lengths": [10, 80]}, "task": {"options": {"work": 1}}}


def sweep():
    return product(vary("model.encoding", ["rope", "alibi"]), vary("train.batch", [8, 9]))
'''
ONE = ["model.encoding=rope", "train.batch=8"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with one config, `small`, and a training function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sweep"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.py").write_text(CONFIG)
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "sweep")])}


def ended(words: list[str]) -> int:
    """The exit status of a command, also where its parser ends it."""
    try:
        return main(words)
    except SystemExit as end:
        return end.code


def test_nothing_that_trains_nothing_imports_jax(folder):
    """Nor does the package alone, nor what reads records and reports on them."""
    commands = [["--help"], ["list", "encodings"], ["list", "tasks"], ["list", "configs", "small"], ["list", "runs"]]
    commands += [["show", "small", "--no-model"], ["run", "small", *FAKE, "--dry-run"], ["run", "small", "a.b=3"]]
    code = f"""
import sys, attnjax
assert not {{"jax", "numpy"}} & set(sys.modules)
from attnjax.cli import main
for command in {commands}:
    try:
        main(command)
    except SystemExit:
        pass
    print("HEAVY", {{"jax", "flax", "matplotlib", "pandas", "ray"}} & set(sys.modules))
import attnjax.report.metrics, attnjax.records.packed, attnjax.sweep.live
assert "pandas" not in sys.modules, "which scores of `list runs` must not need"
import attnjax.report.writing, attnjax.records.table
assert not {{"jax", "matplotlib"}} & set(sys.modules)
main(["explore"])
print("EXPLORED", {{"jax", "flax"}} & set(sys.modules))
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    assert done.stdout.splitlines().count("HEAVY set()") == len(commands)
    assert done.stdout.splitlines()[-1] == "EXPLORED set()"


def test_lists(capsys):
    told = lambda *words: main(["list", *words]) or capsys.readouterr().out
    lines = told("encodings").splitlines()
    assert [line.split()[0] for line in lines] == list(ENCODINGS)
    assert all(len(line.split()) > 3 for line in lines), "each says what it is"
    assert tuple(line.split()[0] for line in told("tasks").splitlines()) == TASK_NAMES
    assert told("configs", "small") == "configs/small.py\n\nDoes it run?\n\nMore text.\n"
    pathlib.Path("configs/theta.py").write_text(CONFIG.replace("Does it run?", "Mine."))
    configs = told("configs")
    assert configs.startswith(
        "in configs:\n  small                   Does it run?\n  theta                   Mine.\nin /"
    )
    assert configs.endswith(": theta\n"), "which configs of the package are hidden"
    rope = told("encodings", "rope")
    assert "attnjax.RoPE(theta=10000.0, layout='half', fraction=1.0, scaling=None, keep=1.0)" in rope
    assert "model.encoding=rope and model.encoding.options.theta=..." in rope


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("", ["COMMAND"]),
        ("rum small", ["did you mean 'run'"]),
        ("list encodings rop", ["did you mean 'rope'"]),
        ("show smal", ["did you mean 'small'"]),
        ("show small train.lr=1", ["'train.lr' (did you mean 'train.learning_rate'?)"]),
        ("run small --seed 1", ["unrecognized", "--seed"]),
        ("run small --workers 0", ["1 to 999999999", "'0'"]),
        ("run small --cluster time", ["KEY=VALUE", "'time'"]),
        ("run small --cluster time=1", ["--cluster", "--executor"]),
        ("run small train.learning_rate=-1", ["train.learning_rate", "above 0, got -1"]),
        ("run small --over seed", ["KEY=VALUE"]),
        ("run small --seeds 3 seed=5", ["seed is set twice"]),
        ("run small --coordinator h:80 --workers 2", ["--coordinator", "--workers"]),
        ("run small --mesh data=2 --workers 2", ["--mesh", "--workers"]),
        ("run small --report --executor slurm", ["--report", "slurm"]),
        ("run small --trainer nothing", ["'nothing'"]),
        ("run small --trainer fake_training:train --out configs/small.py", ["configs/small.py"]),
    ],
)
def test_mistakes_are_told_with_what_is_allowed_and_end_with_2(command, named, capsys):
    assert ended(command.split()) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in named)
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "runs", "key", "values"),
    [
        (("small", ["train.steps=7"]), 4, "train.steps", [7]),
        (("small", [*ONE, "seed=5"]), 1, "seed", [5]),
        (("small", [*ONE, "seed=5"]), 1, "data_seed", [0]),
        (("small", ["model.encoding.options.theta=3", "model.encoding=rope"]), 2, "model.encoding.options.theta", [3]),
        (("small", [], ["train.steps=2,3"], 4), 32, "seed", [0, 1, 2, 3]),
        (("small", [], ["train.batch=4,5"]), 4, "train.batch", [4, 5]),
        (("kazemnejad", ["train.steps=20"]), 5, "train.warmup", [1]),
        (("theta", ["train.warmup=0"], ["train.steps=1,2"]), 80, "train.steps", [1, 2]),
    ],
)
def test_the_command_line_wins_over_the_sweep_and_equal_runs_are_one(arguments, runs, key, values):
    found = [one.config for one in planned(*arguments).runs]
    assert len(found) == runs
    assert list(dict.fromkeys(at(config, key) for config in found)) == values


def at(value, key):
    for name in key.split("."):
        value = value[name] if hasattr(value, "keys") else getattr(value, name)
    return value


def test_show_prints_the_config_its_runs_and_the_size_of_the_model(capsys):
    assert main(["show", "small", "model.heads=2", "task.name=reverse_string", "task.options={}"]) == 0
    text = capsys.readouterr().out
    config = json.loads(text[: text.rindex("\n}") + 2])
    assert (config["model"]["heads"], config["train"]["steps"], config["name"]) == (2, 6, "small")
    assert "4 runs of 4 cells, in 2 populations" in text
    assert f"  {'train.batch':<30}8, 9\n" in text
    assert "parameters" in text


def test_what_a_config_declares_is_trained_once_and_answered(capsys):
    assert main(["run", "small", *FAKE]) == 0
    told = capsys.readouterr().out
    store, found = load(pathlib.Path("runs/small")), runs_in(pathlib.Path("runs/small"))
    assert store.protocol == "Does it run?\n\nMore text."
    assert "copy, rope/alibi, 2 runs: 2 done  0:0" in told
    assert main(["run", "small", "--trainer", "fake_training:never"]) == 0
    assert "4 runs: 4 done\n" in capsys.readouterr().out
    assert main(["list", "runs", "small"]) == 0
    head, *rows, counts = capsys.readouterr().out.splitlines()
    assert (head.split()[0], counts) == ("run", "4 done")
    names = ("alibi", "alibi", "rope", "rope")
    assert [row.split()[1:7] for row in rows] == [["small", "copy", name, "0", "done", "6"] for name in names]
    (one,) = (run for run in found if run.run == rows[0].split()[0])
    (value,) = {line["value"] for line in one.results()}  # the same at every length
    assert rows[0].endswith(f"  exact_match {value:.3f} within, {value:.3f} past")
    assert main(["list", "runs"]) == 0
    assert capsys.readouterr().out == "small\n"
    one = [*FAKE, "model.encoding=rope", "train.batch=3", "name=other", "--plan"]
    assert main(["run", "small", *one]) == 0
    assert main(["run", "small", *one, "seed=4"]) == 2
    assert "seed is 4 instead of 0" in capsys.readouterr().err
    assert main(["run", "small", *one, "seed=4", "--extend"]) == 0
    assert {run.config.seed for run in runs_in(pathlib.Path("runs/other"))} == {0, 4}


def test_a_dry_run_counts_what_is_done_refuses_what_the_run_refuses_and_changes_nothing(folder, capsys):
    command = ["run", "small", *FAKE, "model.encoding=rope", "--out", "out"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out == "train.batch=8\ntrain.batch=9\n2 runs: 0 done, 2 pending, in out\n"
    assert not (folder / "out").exists()
    assert main(command) == 0
    shutil.rmtree(folder / "out" / load(pathlib.Path("out")).runs[0].run)
    before = tree(folder / "out")
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 runs: 1 done, 1 pending, in out"
    for wrong in (["train.steps=3"], ["--trainer", "nothing", "--out", "fresh"]):
        assert main([*command, *wrong, "--dry-run"]) == main([*command, *wrong]) == 2
        first, second = capsys.readouterr().err.splitlines()
        assert first == second
    assert tree(folder / "out") == before


def test_what_the_trainer_refuses_is_told_before_anything_is_made(monkeypatch, capsys, folder):
    def check(config):
        if config.model.encoding.name == "alibi":
            raise ValueError("no alibi here")

    monkeypatch.setattr("fake_training.check", check, raising=False)
    assert main(["run", "small", *FAKE]) == 2
    assert capsys.readouterr().err == "attnjax: error: no alibi here\n"
    assert not (folder / "runs").exists()


def test_failures_for_one_reason_are_told_once_and_tried_again_when_asked(capsys):
    command = ["sweep", "small", *FAKE, *ONE, "--seeds", "2", "--over", "task.options.fail_at=none,3"]
    assert main([*command, "--plan"]) == 0
    assert main(["work", "small", *FAKE]) == 1
    told = capsys.readouterr().out
    (line,) = [line for line in told.splitlines() if line.startswith("failed   ")]
    assert " and 1 more: RuntimeError: broken at step 3" in line
    assert "4 runs: 2 done, 2 failed" in told
    assert main([*command, "--retry-failed"]) == 1
    assert "2 of them failed before" in capsys.readouterr().out
    assert main(["list", "runs", "small"]) == 0
    assert "failed  3     RuntimeError: broken at step 3" in capsys.readouterr().out


def test_workers_and_a_report(monkeypatch, capsys):
    built = []
    monkeypatch.setattr("attnjax.report.build", lambda root, *_, **__: built.append(root) or [pathlib.Path("b.html")])
    assert main(["run", "small", *FAKE, "--workers", "2", "--report"]) == 0
    told = capsys.readouterr().out
    assert "4 runs: 4 done" in told
    assert told.endswith("report: b.html\n")
    assert "RoPE" in told, "the answer, by the names of the report"
    assert main(["report", "small", "--out", "there"]) == 0
    assert capsys.readouterr().out == "b.html\n"
    assert built == [pathlib.Path("runs/small")] * 2


def test_a_line_of_a_population_has_steps_rate_time_left_and_mean_loss(monkeypatch):
    assert main(["run", "small", *FAKE, *ONE, "train.steps=100", "--seeds", "2", "--plan"]) == 0
    now = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    store = load(pathlib.Path("runs/small"))
    folders, population = [store.directory(entry.run) / "result" for entry in store.runs], Population(store)
    assert not population.look()
    for seconds, states, losses, told in (
        (0, "running 0  running 0", (), "copy, rope, 2 runs  step 0 of 100"),
        (30, "running 10  running 10", (2.0, 2.0), "copy, rope, 2 runs  step 10 of 100  loss 2"),  # it compiled before
        (1, "running 20  running 20", (2.0, 2.0), ""),
        (7, "running 45  running 45", (2.0, 2.0), ""),
        (
            4,
            "running 45  running 75",
            (1.0, 2.0),
            "copy, rope, 2 runs  step 60 of 100  4.17 steps/s  0:10 left  loss 1.5",
        ),
        (1, "done 45  failed 75 nan", (), "copy, rope, 2 runs: 1 done, 1 failed  0:43  loss 1.5  nan"),
    ):
        now[0] += seconds
        for folder, state in zip(folders, states.split("  "), strict=True):
            folder.mkdir(exist_ok=True)
            name, step, *reason = state.split()
            status.write(folder, status.Status(name, int(step), *reason))
        for folder, loss in zip(folders, losses, strict=False):
            jsonl.append(folder / "metrics.jsonl", {"loss": loss})
        assert (str(population) if population.look() else "") == told


@pytest.mark.parametrize("number", slow_except([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_a_signal_saves_and_says_so_in_the_exit_status(folder, number):
    slow = [*ONE, "task.options.work=100000", "train.steps=200"]
    command = [sys.executable, "-m", "attnjax", "run", "small", *FAKE, *slow, "--out", "out"]
    process = subprocess.Popen(command, env=environment(), cwd=folder, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not list(folder.glob("out/*/attempt-*/checkpoints/*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"stopped: {number.name}; the same command continues" in output
    (found,) = runs_in(folder / "out")
    assert (found.status.state, found.status.reason) == ("preempted", number.name)


def line(length, value, split="test", step=9, metric="loss"):
    return {"step": step, "split": split, "length": length, "metric": metric, "value": value}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "None"),
        ([line(4, 1.0, "validation")], "None"),
        ([line(4, 1.0), line(8, 3.0), line(16, 5.0)], "loss 2.000 within, 5.000 past"),
        ([line(4, 1.0, "train"), line(16, 5.0), line(16, 9.0, "validation")], "loss 1.000 within, 5.000 past"),
        ([line(8, 7.0), line(8, 1.0, "train")], "loss 7.000 within"),
        ([line(16, 7.0, step=3), line(16, 5.0)], "loss 5.000 past"),
        ([line(5, 0.0, metric="exact_match"), line(8, 1.0, metric="exact_match")], "exact_match 1.000 within"),
        ([line(16, None)], "loss nan past"),
        ([{"step": 1}, line("16", 1.0), line(16, "x"), line(True, 1.0), line(16, 1.0) | {"metric": 3}], "None"),
    ],
)  # fmt: skip
def test_scores_are_means_within_and_past_of_the_metric_of_the_protocol(lines, told):
    config = parse({"task": {"name": "copy", "length_min": 6, "length_max": 8}})
    run = lambda lines: Run("", "", results=tuple(one for row in lines if isinstance(one := result(row, ""), Result)))
    assert str(score_of(run(lines), config)) == told
    both = run([line(16, 5.0), line(16, 0.25, metric="exact_match")])
    assert str(score_of(both, config, "Why?\n\nPrimary metric: loss")) == "loss 5.000 past"
