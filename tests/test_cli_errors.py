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
from tests.cases import slow_except

ROOT = pathlib.Path(__file__).parents[1]
TOLD = [
    (OSError(errno.EACCES, "Permission denied", "runs/x/status.json"), "runs/x/status.json: Permission denied"),
    (OSError(errno.ENOSPC, "No space left on device", b"a", None, b"b"), "a -> b: No space left on device"),
    (OSError(errno.EIO, "Input/output error", 3), "Input/output error"),
    (OSError("the checkpoint cannot be read"), "the checkpoint cannot be read"),
    (TimeoutError(), "TimeoutError"),
    (ValueError("train.steps must be"), "train.steps must be"),
    (MemoryError(), "there is not enough memory"),
    (RuntimeError("RESOURCE_EXHAUSTED: 8 TiB\nand more"), "there is not enough memory: RESOURCE_EXHAUSTED: 8 TiB"),
]
OURS = [RuntimeError("a part is broken"), KeyError("x"), AssertionError()]


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
    with pytest.raises(type(error)):
        main(["--traceback", "list", "tasks"])


@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
def test_an_error_of_the_package_keeps_its_traceback(failing, error):
    failing(error)
    assert sentence(error) is None
    with pytest.raises(type(error)):
        main(["list", "tasks"])


def test_an_interruption_is_130(failing, capsys):
    failing(KeyboardInterrupt())
    assert main(["list", "tasks"]) == 130
    assert capsys.readouterr().err == "attnjax: interrupted\n"


@pytest.mark.parametrize(("command", "code"), [(["list", "tasks"], 0), (["run", "theta"], 2)])
def test_a_reader_that_has_gone_is_no_error_where_nothing_is_trained(monkeypatch, capsys, command, code):
    def gone(_):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr("attnjax.cli.listing.list_", gone)
    monkeypatch.setattr("attnjax.cli.training.run", gone)
    assert main(command) == code
    assert capsys.readouterr().err == ("attnjax: error: Broken pipe\n" if code else "")


def attnjax(folder: pathlib.Path, *words: str, **named) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with another standard output or environment."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "sweep", folder)))
    environment = {**os.environ, "PYTHONPATH": paths, **named.pop("env", {})}
    named = {"stdout": subprocess.PIPE, **named}
    command = [sys.executable, "-m", "attnjax", *words]
    return subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, check=False, **named)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error(tmp_path):
    with open("/dev/full", "w") as full:
        done = attnjax(tmp_path, "list", "tasks", stdout=full)
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


def run(folder: pathlib.Path, trainer: str, *options: str, **named) -> subprocess.CompletedProcess[str]:
    """`attnjax run` of two runs."""
    (folder / "small.json").write_text(SMALL)
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    return attnjax(folder, "run", "small.json", "--out", "out", "--seeds", "2", "--trainer", trainer, *options, **named)


@pytest.mark.parametrize("options", slow_except([[], ["--workers", "2"]], []))
@pytest.mark.parametrize("unbuffered", slow_except(["", "1"], ""))
def test_a_sweep_whose_output_nobody_reads_trains_to_the_end(tmp_path, options, unbuffered):
    """As `attnjax run ... | head -n 0`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        env = {"PYTHONUNBUFFERED": unbuffered}
        done = run(tmp_path, "fake_training:train", *options, stdout=output, env=env)
    told = "note: standard output takes no more (Broken pipe); how the runs stand: attnjax list runs out\n"
    assert (done.returncode, done.stderr) == (0, told)
    assert list(states(load(tmp_path / "out")).values()) == ["done", "done"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_sweep_whose_output_a_full_disk_takes_trains_to_the_end_and_says_how_it_ended(tmp_path):
    with open("/dev/full", "w") as full:
        done = run(tmp_path, "broken:train", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr
    assert list(states(load(tmp_path / "out")).values()) == ["done", "failed"]


@pytest.mark.slow
def test_a_character_that_standard_output_has_not_is_written_as_its_code(tmp_path):
    done = run(tmp_path, "broken:train", env={"PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "größer als \\u221e" in done.stdout
