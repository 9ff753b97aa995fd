"""What ends a command early: errors of the user and the disk, readers that have gone, missing libraries, Ctrl-C.

Such an error is one sentence and status 2; an error of the package keeps its traceback.
"""

import errno
import io
import os
import pathlib
import subprocess
import sys

import pytest

from attnjax.cli import main
from attnjax.cli.compilation_cache import FOLDER, SMALL, keep_programs
from attnjax.cli.errors import sentence
from attnjax.sweep import load
from attnjax.sweep.outcome import states
from tests.cases import slow_except
from tests.report.synthetic import write_sweep

ROOT = pathlib.Path(__file__).parents[1]
TOLD = [
    (OSError(errno.EACCES, "Permission denied", "x/status.json"), "[Errno 13] Permission denied: 'x/status.json'"),
    (OSError("the checkpoint cannot be read"), "the checkpoint cannot be read"),
    (TimeoutError(), "TimeoutError"),
    (ValueError("train.steps must be"), "train.steps must be"),
    (
        ModuleNotFoundError("", name="pandas"),
        "this command needs pandas, which is not installed: pip install 'attnjax[plot]'",
    ),
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


def test_a_reader_that_has_gone_is_no_error(failing, capsys):
    failing(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
    assert main(["list", "tasks"]) == 0
    assert capsys.readouterr().err == ""


# Output that nobody takes --------------------------------------------------------------------------------------------------

SMALL_RUN = '{"name": "small", "train": {"steps": 6, "checkpoint_every": 2}, "evaluate": {"lengths": [10]}}'


def attnjax(folder: pathlib.Path, *words: str, **named) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with another standard output or environment."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "sweep", folder)))
    environment = {**os.environ, "PYTHONPATH": paths, **named.pop("env", {})}
    named = {"stdout": subprocess.PIPE, "text": True, "check": False, **named}
    command = [sys.executable, "-m", "attnjax", *words]
    return subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, **named)


def run(folder: pathlib.Path, trainer: str, *options: str, **named) -> subprocess.CompletedProcess[str]:
    """`attnjax run` of two runs."""
    (folder / "small.json").write_text(SMALL_RUN)
    return attnjax(folder, "run", "small.json", "--out", "out", "--seeds", "2", "--trainer", trainer, *options, **named)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error(tmp_path):
    with open("/dev/full", "w") as full:
        done = attnjax(tmp_path, "list", "tasks", stdout=full)
    assert (done.returncode, done.stderr) == (2, "attnjax: error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("options", slow_except([[], ["--workers", "2"]], []))
def test_a_sweep_whose_output_nobody_reads_trains_to_the_end(tmp_path, options):
    """As `attnjax run ... | head -n 0`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        done = run(tmp_path, "fake_training:train", *options, stdout=output)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "Broken pipe" in done.stderr
    assert list(states(load(tmp_path / "out")).values()) == ["done", "done"]


def test_a_character_that_standard_output_has_not_is_written_as_its_code(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("attnjax.cli.listing.list_", lambda _: print("größer als \N{INFINITY}") or 0)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert main(["list", "tasks"]) == 0
    assert written.getvalue().decode("latin-1") == "größer als \\u221e\n"


# What is not there ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_told_in_one_sentence(tmp_path):
    done = run(tmp_path, "attnjax.train:train", env={"JAX_PLATFORMS": "nonsense"})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "JAX cannot use the platform 'nonsense'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", ["report sweep", "run small.json --report --out out"])
def test_what_is_drawn_after_long_work_needs_matplotlib_before_it(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.json").write_text(SMALL_RUN)
    write_sweep(tmp_path / "sweep", ("copy",), ("rope",), 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.style", raising=False)
    assert main(words.split()) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "pip install 'attnjax[plot]'" in told
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "sweep" / "report").exists()


# Ctrl-C --------------------------------------------------------------------------------------------------------------------

INTERRUPTS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep({})\nended = True\n"


def test_a_config_may_be_interrupted_at_once(tmp_path, capsys):
    (tmp_path / "endless.py").write_text(INTERRUPTS.format(60))
    assert main(["show", str(tmp_path / "endless.py")]) == 130
    assert capsys.readouterr().err == "attnjax: interrupted\n"


# Where compiled programs are kept ------------------------------------------------------------------------------------------


def test_programs_are_kept_in_a_folder_that_is_the_users_alone_and_old_ones_are_removed(tmp_path):
    environ = {"HOME": str(tmp_path)}
    folder = keep_programs(environ)
    assert folder == tmp_path / ".cache" / "attnjax" / "programs"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert environ == {"HOME": str(tmp_path), FOLDER: str(folder), **dict(SMALL)}
    for name in ("old", "new"):
        (folder / name).write_bytes(b"x")
    os.utime(folder / "old", (0, 0))
    limit, environ = SMALL[0][0], {"XDG_CACHE_HOME": str(tmp_path / ".cache"), SMALL[0][0]: "7"}
    assert keep_programs(environ) == folder
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert environ[limit] == "7", "what the user set stays"


@pytest.mark.parametrize(
    "choice",
    [
        {FOLDER: "/mine"},
        {"JAX_ENABLE_COMPILATION_CACHE": "false"},
        {"JAX_ENABLE_COMPILATION_CACHE": "0"},
        {"XDG_CACHE_HOME": "relative"},
    ],
)
def test_programs_are_not_kept_where_the_user_chose(tmp_path, choice):
    environ = {"HOME": str(tmp_path), **choice}
    assert keep_programs(environ) is None
    assert environ == {"HOME": str(tmp_path), **choice}
    assert not list(tmp_path.iterdir())


def make(folder: pathlib.Path, which: str, mode: int) -> None:
    (folder / "attnjax" / "programs").mkdir(parents=True, mode=0o700)
    (folder / which).chmod(mode)


def link(folder: pathlib.Path) -> None:
    (folder / "attnjax").mkdir(mode=0o700)
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / "attnjax" / "programs").symlink_to(folder / "elsewhere")


@pytest.mark.parametrize(
    "prepare",
    [
        lambda folder: make(folder, "attnjax", 0o770),
        lambda folder: make(folder, "attnjax/programs", 0o770),
        lambda folder: make(folder, "attnjax/programs", 0o707),
        lambda folder: (folder / "attnjax").write_text("a file"),
        link,
    ],
    ids=["group", "group below", "others below", "no folder can be made", "a link"],
)
def test_programs_are_not_kept_where_others_could_write_them(tmp_path, prepare):
    prepare(tmp_path)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert keep_programs(environ) is None
    assert FOLDER not in environ
