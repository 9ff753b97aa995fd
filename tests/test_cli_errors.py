"""Errors of the user and of the disk are one sentence and status 2; those of the package keep their traceback."""

import errno
import os
import pathlib
import subprocess
import sys

import pytest

from attnjax.cli import main
from attnjax.cli.errors import sentence
from attnjax.sweep import load
from attnjax.sweep.outcome import states

ROOT = pathlib.Path(__file__).parents[1]


def of_a_file(number: int, *names: object) -> OSError:
    first, second = (*names, None, None)[:2]
    return OSError(number, os.strerror(number), first, None, second)


TOLD = [
    (of_a_file(errno.EACCES, "runs/x/status.json"), "runs/x/status.json: Permission denied"),
    (of_a_file(errno.ENOSPC, b"a", b"b"), "a -> b: No space left on device"),
    (of_a_file(errno.EIO, 3), "Input/output error"),
    (of_a_file(errno.EROFS, pathlib.Path("report")), "report: Read-only file system"),
    (OSError("the checkpoint cannot be read"), "the checkpoint cannot be read"),
    (TimeoutError(), "TimeoutError"),
    (ValueError("train.steps must be"), "train.steps must be"),
    (MemoryError(), "there is not enough memory"),
    (MemoryError("Unable to allocate 8 TiB"), "there is not enough memory: Unable to allocate 8 TiB"),
    (RuntimeError("RESOURCE_EXHAUSTED: 8 TiB\nand more"), "there is not enough memory: RESOURCE_EXHAUSTED: 8 TiB"),
]
OURS = [RuntimeError("a part is broken"), KeyError("x"), TypeError("f() takes 1 argument"), AssertionError()]


@pytest.fixture
def failing(monkeypatch):
    """Makes `attnjax list tasks` fail with an error."""

    def fail(error: BaseException) -> None:
        def command(_):
            raise error

        monkeypatch.setattr("attnjax.cli.listing.list_", command)

    return fail


@pytest.mark.parametrize(("error", "told"), TOLD, ids=lambda value: type(value).__name__)
def test_an_error_of_the_disk_or_the_user_is_one_line_and_2(failing, capsys, error, told):
    failing(error)
    assert main(["list", "tasks"]) == 2
    assert capsys.readouterr().err == f"attnjax: error: {told}\n"


@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
def test_an_error_of_the_package_keeps_its_traceback(failing, error):
    failing(error)
    assert sentence(error) is None
    with pytest.raises(type(error)):
        main(["list", "tasks"])


@pytest.mark.parametrize("option", ["--traceback"])
@pytest.mark.parametrize("error", [TOLD[0][0], MemoryError()], ids=lambda error: type(error).__name__)
def test_every_error_has_its_traceback_for_those_who_ask(failing, option, error):
    failing(error)
    with pytest.raises(type(error)):
        main([option, "list", "tasks"])


def test_an_interruption_is_130(failing, capsys):
    failing(KeyboardInterrupt())
    assert main(["list", "tasks"]) == 130
    assert capsys.readouterr().err == "attnjax: interrupted\n"


def test_errors_of_the_file_system_name_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "x" * 5000 + ".json"]) == 2
    assert capsys.readouterr().err.endswith("x.json: File name too long\n")
    (tmp_path / "page.html").mkdir()
    assert main(["explore", "--out", "page.html"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert "page.html" in error
    assert error.count("\n") == 1


def test_output_that_cannot_be_written_is_an_error():
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "attnjax", "list", "tasks"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (2, "attnjax: error: No space left on device\n")


SMALL = '{"name": "small", "train": {"steps": 6, "checkpoint_every": 2}, "evaluate": {"lengths": [10]}}'
BROKEN = """
import fake_training

def train(configs, directories, context):
    for config, directory in zip(configs, directories, strict=True):
        if config.seed == 1:
            context.fail(directory, 0, "größer als \N{INFINITY}")
        else:
            fake_training.train([config], [directory], context)
"""


def sweep(folder: pathlib.Path, *options: str, **named) -> subprocess.CompletedProcess[str]:
    """`attnjax sweep` of two runs with another standard output or environment."""
    (folder / "small.json").write_text(SMALL)
    command = [sys.executable, "-m", "attnjax", "sweep", "small.json", "--out", "out", "--seeds", "2", *options]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "sweep", folder)))
    environment = {**os.environ, "PYTHONPATH": paths, **named.pop("env", {})}
    named = {"stdout": subprocess.PIPE, **named}
    return subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, check=False, **named)


@pytest.mark.quick("-options0")
@pytest.mark.parametrize("options", [[], ["--workers", "2", "--threads", "1"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_sweep_whose_output_nobody_reads_trains_to_the_end(tmp_path, options, unbuffered):
    """As `attnjax sweep ... | head -n 0`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        env = {"PYTHONUNBUFFERED": unbuffered}
        done = sweep(tmp_path, "--trainer", "fake_training:train", *options, stdout=output, env=env)
    told = "note: standard output takes no more (Broken pipe); how the runs stand: attnjax list runs out\n"
    assert (done.returncode, done.stderr) == (0, told)
    assert list(states(load(tmp_path / "out")).values()) == ["done", "done"]


@pytest.mark.slow
def test_a_sweep_whose_output_a_full_disk_takes_trains_to_the_end_and_says_how_it_ended(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    with open("/dev/full", "w") as full:
        done = sweep(tmp_path, "--trainer", "broken:train", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr
    assert list(states(load(tmp_path / "out")).values()) == ["done", "failed"]


@pytest.mark.slow
def test_a_character_that_standard_output_has_not_is_written_as_its_code(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    done = sweep(tmp_path, "--trainer", "broken:train", env={"PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "größer als \\u221e" in done.stdout
    assert "2 runs: 1 done, 1 failed" in done.stdout


@pytest.mark.parametrize(("command", "code"), [(["list", "tasks"], 0), (["sweep", "theta"], 2)])
def test_a_reader_that_has_gone_is_no_error_where_nothing_is_trained(monkeypatch, capsys, command, code):
    def gone(_):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr("attnjax.cli.listing.list_", gone)
    monkeypatch.setattr("attnjax.cli.execution.sweep", gone)
    assert main(command) == code
    assert capsys.readouterr().err == ("attnjax: error: Broken pipe\n" if code else "")


def test_the_name_of_a_sweep_in_place_of_its_folder_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "sweep.json").write_text("{}")
    for command in (["list", "runs", "mine"], ["report", "mine"]):
        assert main(command) == 2
        assert "mine is no folder here (did you mean runs/mine?)" in capsys.readouterr().err


def test_options_are_not_abbreviated(capsys):
    """`--seed 1` was taken for `--seeds 1`, which trains seed 0."""
    with pytest.raises(SystemExit):
        main(["sweep", "theta", "--seed", "1", "--dry-run"])
    assert "unrecognized arguments: --seed" in capsys.readouterr().err


def test_a_misspelt_setting_of_a_config_names_the_nearest(tmp_path, capsys):
    path = tmp_path / "wrong.py"
    for line, told in (("c.model.layer = 3", "'layer' (did you mean"), ("c.model.hiden = 3", "'hiden' (did you mean")):
        path.write_text(f"from attnjax.config import defaults\ndef get_config():\n    c = defaults()\n    {line}\n")
        assert main(["show", str(path), "--no-model"]) == 2
        error = capsys.readouterr().err
        assert f"wrong.py, line 4: unknown key {told}" in error
        assert len(error) < 300
