"""The command line: its help, its answers without JAX, its exit statuses, and whole sweeps through it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from attnjax.cli import main
from attnjax.config import TASK_NAMES
from attnjax.registry import ENCODINGS, SUITES
from attnjax.sweep import load, scan

ROOT = pathlib.Path(__file__).parents[1]
FAKE = ["--trainer", "fake_training:train"]
CONFIG = '''"""Does it run?

More text.
"""


def get_config():
    return {"train": {"steps": 6, "checkpoint_every": 2}, "evaluate": {"lengths": [10]}, "task": {"options": {"work": 1}}}


def sweep():
    for encoding in ("rope", "alibi"):
        yield {"model.encoding": encoding}
'''


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


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout


def test_nothing_that_trains_nothing_imports_jax(folder):
    (folder / "runs").mkdir()
    (folder / "runs" / "sweep.json").write_text(
        '{"schema": 1, "name": "x", "config_file": "", "protocol": "", "runs": []}'
    )
    commands = [
        ["--help"],
        ["evaluate", "--help"],
        ["list"],
        ["list", "encodings"],
        ["list", "tasks"],
        ["list", "suites"],
    ]
    commands += [["list", "configs"], ["list", "configs", "small"], ["list", "runs", "runs"]]
    commands += [["show", "small", "--no-model"], ["sweep", "small", *FAKE, "--dry-run"]]
    commands += [["show", "smal"], ["run", "small", "train.stepz=3"], ["sweep", "small", "--over", "x=1"]]
    code = f"""
import sys
from attnjax.cli import main
from attnjax.config import TASK_NAMES
for command in {commands}:
    try:
        main(command)
    except SystemExit:
        pass
    heavy = {{"jax", "flax", "matplotlib", "numpy"}} & set(sys.modules)
    print("HEAVY" if heavy else "LIGHT", command, heavy)
"""
    lines = [line for line in python(code).splitlines() if line.startswith(("HEAVY", "LIGHT"))]
    assert len(lines) == len(commands)
    assert [line for line in lines if line.startswith("HEAVY")] == []


@pytest.mark.parametrize("command", [[], ["run"], ["sweep"], ["report"], ["list"], ["show"]])
def test_help_says_what_to_type(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "usage: attnjax" in text
    assert command in ([], ["report"], ["list"], ["show"]) or "examples:\n" in text


def test_lists(capsys):
    assert main(["list"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == [
        "encodings",
        "tasks",
        "suites",
        "configs",
        "runs",
    ]
    assert main(["list", "encodings"]) == 0
    encodings = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in encodings] == list(ENCODINGS)
    assert encodings[3].startswith(
        "rope                          Queries and keys turned by their position, so that the"
    )
    assert all(len(line.split()) > 3 for line in encodings), "each says what it is"
    assert main(["list", "tasks"]) == 0
    tasks = capsys.readouterr().out.splitlines()
    assert tuple(line.split()[0] for line in tasks) == TASK_NAMES
    assert tasks[19].startswith(
        "sort                          The input in ascending order: 7 0 4 -> 0 4 7, for different"
    )
    assert all(len(line.split()) > 3 for line in tasks), "each says what it is"
    assert main(["list", "suites"]) == 0
    assert capsys.readouterr().out.split(maxsplit=1) == ["long", ", ".join(SUITES["long"]) + "\n"]
    assert main(["list", "suites", "long"]) == 0
    labels = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in labels] == [[name, row.label] for name, row in SUITES["long"].items()]
    assert main(["list", "configs"]) == 0
    configs = capsys.readouterr().out
    assert configs.startswith("in configs:\n  small                   Does it run?\nin /")
    assert "configs, which come with attnjax:\n  context_extension " in configs


def test_a_config_here_hides_the_one_of_its_name_that_comes_with_the_package(folder, capsys):
    (folder / "configs" / "theta.py").write_text(CONFIG.replace("Does it run?", "Mine."))
    assert main(["list", "configs"]) == 0
    told = capsys.readouterr().out
    assert "  theta                   Mine.\nin /" in told
    assert told.count("  theta ") == 1
    assert told.endswith("used instead of the configs of the same name that come with attnjax: theta\n")
    assert main(["sweep", "theta", *FAKE, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 runs")


def test_an_encoding_shows_its_options_and_its_text(capsys):
    for name in ENCODINGS:
        assert main(["list", "encodings", name]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"{ENCODINGS[name].label}: attnjax.{ENCODINGS[name].name}(")
        assert len(text.splitlines()) > 4
    assert main(["list", "encodings", "rope"]) == 0
    text = capsys.readouterr().out
    assert "attnjax.RoPE(theta=10000.0, layout='half', fraction=1.0, scaling=None, keep=1.0)" in text
    assert "model.encoding=rope and model.encoding.options.theta=..." in text
    assert "pair k turned by pos * theta_k" in text
    assert main(["list", "encodings", "rop"]) == 2
    assert "(did you mean 'rope'?)" in capsys.readouterr().err


def test_a_config_shows_its_protocol(capsys):
    assert main(["list", "configs", "small"]) == 0
    assert capsys.readouterr().out == "configs/small.py\n\nDoes it run?\n\nMore text.\n"
    assert main(["list", "configs", "smal"]) == 2
    assert "(did you mean 'small'?)" in capsys.readouterr().err


def test_runs_are_listed_with_what_they_are_and_what_they_scored(capsys):
    assert main(["sweep", "small", *FAKE, "evaluate.lengths=[10, 80]"]) == 0
    capsys.readouterr()
    assert main(["list", "runs", "runs/small"]) == 0
    head, *rows, counts = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "name", "task", "encoding", "seed", "state", "step", "score"]
    assert [row.split()[1:7] for row in rows] == [
        ["small", "copy", name, "0", "done", "6"] for name in ("rope", "alibi")
    ]
    assert counts == "2 done"
    for row in rows:
        (value,) = {line["value"] for line in scan(pathlib.Path("runs/small")).runs[rows.index(row)].results().tables}
        assert row.endswith(f"  exact_match {value:.3f} within, {value:.3f} past")


def test_a_run_without_a_score_is_listed_with_the_reason(capsys):
    assert main(["run", "small", *FAKE, "task.options.fail_at=3", "--out", "out"]) == 1
    capsys.readouterr()
    assert main(["list", "runs", "out"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("failed  3     RuntimeError: broken at step 3")


def test_sweeps_in_the_folder_of_runs_are_named_where_none_is_given(capsys):
    assert main(["sweep", "small", *FAKE]) == 0
    assert main(["list", "runs"]) == 2
    assert capsys.readouterr().err.endswith("attnjax list runs DIR; there are: runs/small\n")


def test_a_task_shows_its_card(capsys):
    assert main(["list", "tasks", "even_pairs"]) == 0
    card = capsys.readouterr().out
    assert card.startswith("# EvenPairs\n\nWhether the number of pairs 01 and 10 is odd")
    assert "| 1 | 2 | 2 | 0.5 | 0.5 |" in card
    assert main(["list", "tasks", "even_pears"]) == 2
    assert "(did you mean 'even_pairs'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["list", "taks"], "did you mean 'tasks'"),
        (["swep", "small"], "did you mean 'sweep'"),
        (["run", "small", "--bogus"], "unrecognized arguments: --bogus"),
        (["list", "tasks", "--x=1"], "unrecognized arguments"),
        (["sweep", "small", "--workers", "0"], "from 1 to 999999999, got '0'"),
        (["sweep", "small", "--seeds", "9" * 50], "from 1 to 999999999, got"),
        (["sweep", "small", "--seeds", "nan"], "from 1 to 999999999, got 'nan'"),
        ([], "required: COMMAND"),
    ],
)
def test_mistakes_in_the_command_exit_with_2(command, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(command)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["show", "smal"], "no config 'smal' (did you mean 'small'?)"),
        (["show", "small", "train.lr=1"], "unknown key 'train.lr' (did you mean 'train.learning_rate'?)"),
        (["show", "small", "model.encoding=rop"], "(did you mean 'rope'?)"),
        (["run", "small", "train.learning_rate=-1"], "train.learning_rate must be a finite number above 0, got -1"),
        (["run", "small", "train.steps"], "an override must be KEY=VALUE"),
        (["sweep", "small", "--over", "seed"], "an override must be KEY=VALUE"),
        (
            ["sweep", "small", "--over", "model.layers=1,2", "model.layers=3"],
            "model.layers is set twice on the command line: by model.layers=3 and by --over model.layers=1,2",
        ),
        (["show", "small", "seed=1", "seed=1"], "seed is set twice on the command line: by seed=1 and by seed=1"),
        (["run", "small", "seed=1", "seed=2"], "seed is set twice on the command line: by seed=1 and by seed=2"),
        (
            ["sweep", "small", "--seeds", "3", "data_seed=5"],
            "data_seed is set twice on the command line: by data_seed=5 and by --seeds 3",
        ),
        (["sweep", "small", "--threads", "2"], "--threads needs --workers"),
        (["run", "small", "--trainer", "nothing"], "no training function 'nothing'"),
        (["run", "small", *FAKE, "--out", "configs/small.py"], "cannot be written to"),
        (["list", "runs"], "needs the folder of a sweep"),
        (["list", "runs", "nowhere"], "nowhere cannot be read"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_of_content_are_one_line_and_2(command, message, capsys):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert message in error
    assert "Traceback" not in error


def test_traceback_is_there_for_those_who_ask():
    with pytest.raises(ValueError, match="no config"):
        main(["--traceback", "show", "smal"])


def test_show_prints_the_config_that_would_run(capsys):
    assert main(["show", "small", "model.heads=2", "--no-model"]) == 0
    text = capsys.readouterr().out
    config = json.loads(text[: text.rindex("}") + 1])
    assert (config["model"]["heads"], config["train"]["steps"], config["name"]) == (2, 6, "small")
    assert "sweep    2 runs of 2 cells, in 2 populations" in text


def test_show_measures_the_model(capsys, folder):
    (folder / "one.json").write_text('{"task": {"name": "reverse_string"}, "model": {"layers": 1}}')
    assert main(["show", "one.json"]) == 0
    assert "parameters" in capsys.readouterr().out


def test_run_then_run_again(capsys):
    command = ["run", "small", *FAKE, "seed=3", "--out", "out", "train.batch=5"]
    assert main(command) == 0
    told = capsys.readouterr().out
    (found,) = scan(pathlib.Path("out")).runs
    (value,) = (line["value"] for line in found.results().tables)
    score = f"exact_match {value:.3f} within  in out/{found.run}\n"
    assert f"[1/1] {found.run}  done at step 6  " in told
    assert f"  {score}" in told
    assert (found.config.seed, found.config.train.batch, found.config.model.encoding.name) == (3, 5, "rope")
    assert main([*command, "--trainer", "fake_training:never"]) == 0
    assert capsys.readouterr().out.endswith(f"1 runs: 1 done; 1 of them before\ndone     {found.run}  {score}")
    assert main(["run", "small", *FAKE, "seed=4", "--out", "out"]) == 0
    assert len(scan(pathlib.Path("out")).runs) == 2


def test_sweep_multiplies_its_factors(capsys):
    assert main(["sweep", "small", *FAKE, "--over", "train.learning_rate=1e-3,1e-4", "--seeds", "2"]) == 0
    store = load(pathlib.Path("runs/small"))
    assert len(store.runs) == 8
    assert store.protocol == "Does it run?\n\nMore text."
    assert "8 runs: 8 done" in capsys.readouterr().out
    assert main(["sweep", "small", *FAKE, "train.batch=9"]) == 2
    assert "train.batch is 9 instead of 32" in capsys.readouterr().err
    assert main(["sweep", "small", *FAKE, "train.batch=9", "--extend"]) == 0
    assert main(["list", "runs", "runs/small"]) == 0
    assert "10 done" in capsys.readouterr().out


def test_what_the_trainer_refuses_is_told_before_anything_is_made(monkeypatch, capsys, folder):
    def check(config):
        if config.model.encoding.name == "alibi":
            raise ValueError("no alibi here")

    monkeypatch.setattr("fake_training.check", check, raising=False)
    assert main(["sweep", "small", *FAKE]) == 2
    assert capsys.readouterr().err == "attnjax: error: no alibi here\n"
    assert not (folder / "runs").exists()


def test_a_terminal_gets_bars(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["sweep", "small", *FAKE]) == 0
    output = capsys.readouterr().out
    assert "[2/2]" in output
    assert "2/2" in output.replace("[2/2]", "")


def test_a_failed_run_counts_as_asked(capsys):
    broken = ["task.options.fail_at=3"]
    assert main(["run", "small", *FAKE, *broken]) == 1
    assert "RuntimeError: broken at step 3" in capsys.readouterr().out
    factor = ["--over", "task.options.fail_at=none,3", "--out", "mixed"]
    assert main(["sweep", "small", *FAKE, *factor]) == 1
    assert "2 failed" in capsys.readouterr().out
    assert main(["sweep", "small", *FAKE, *factor, "--retry-failed"]) == 1
    assert "2 of them failed before and are trained again" in capsys.readouterr().out
    assert main(["sweep", "small", *FAKE, *broken, "--out", "none"]) == 1


def test_report_hands_its_arguments_on(monkeypatch, capsys):
    called = []

    def build(folder, out, published):
        called.append((str(folder), str(out), published))
        return [pathlib.Path("page.html")]

    monkeypatch.setattr("attnjax.report.build", build)
    assert main(["report", "runs/small", "--out", "there", "--published"]) == 0
    assert called == [("runs/small", "there", True)]
    assert capsys.readouterr().out == "page.html\n"


def test_a_sweep_ends_in_its_report_where_asked(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(
        "attnjax.report.build", lambda root: called.append(str(root)) or [pathlib.Path("a.csv"), pathlib.Path("b.html")]
    )
    assert main(["sweep", "small", *FAKE, "--report"]) == 0
    assert capsys.readouterr().out.endswith("report: b.html and 1 more files beside it\n")
    assert main(["sweep", "small", *FAKE, "--report", "task.options.fail_at=3", "--out", "broken"]) == 1
    assert called == ["runs/small", "broken"], "what failed is reported too"


def test_failures_for_one_reason_are_told_once(capsys):
    assert main(["sweep", "small", *FAKE, "--seeds", "3", "task.options.fail_at=3"]) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed   ")]
    assert len(told) == 1
    assert " and 5 more: RuntimeError: broken at step 3" in told[0]


def test_workers_from_the_command_line(capsys):
    assert main(["sweep", "small", *FAKE, "--seeds", "2", "--workers", "2", "--threads", "1"]) == 0
    assert "4 runs: 4 done" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_so_in_the_exit_status(folder, number):
    slow = ["task.options.work=100000", "train.steps=200"]
    command = [sys.executable, "-m", "attnjax", "run", "small", *FAKE, *slow, "--out", "out"]
    process = subprocess.Popen(command, env=environment(), cwd=folder, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 40
    while not list(folder.glob("out/*/attempt-*/checkpoints/*")):
        assert time.monotonic() < deadline
    process.send_signal(number)
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 130
    assert f"stopped: {number.name}; the same command continues" in output
    (found,) = scan(folder / "out").runs
    assert (found.status.state, found.status.reason) == ("preempted", number.name)


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    command = f"{sys.executable} -m attnjax list tasks | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command], env=environment(), cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("even_pairs ")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
