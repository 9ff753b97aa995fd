"""The command with suites that measure nothing: files, lines, exit statuses, and what it says of mistakes."""

import ast
import pathlib
import subprocess
import sys
import types

import pytest

from experiments.speed import suites, table
from experiments.speed.__main__ import main
from experiments.speed.records import read
from tests.experiments.speed.made import row

ROOT = pathlib.Path(__file__).parents[3]
EVERY = tuple(suites.SUITES.items())


def good(settings):
    settings.emit(row(suite="good"))


def far(settings):
    """Whose goal is missed."""
    settings.emit(row(suite="far", goal=5.0, sizes={"rounds": settings.rounds, "seconds": settings.seconds}))


def broken(settings):
    settings.emit(row(suite="broken", case="before"))
    raise RuntimeError("out of\nluck")


def liar(settings):
    settings.refuse("liar: forward: flax differs by 1.0e-01, not measured")


def lengths(settings):
    for T in (64, 128):
        settings.emit(row(suite="memory", unit="B", sizes={"T": T, "B": 1, "N": 1, "H": 8}, goal=None))


def told(settings):
    settings.emit(row(suite="told", sizes={"smoke": settings.smoke, "torch": settings.torch.name}))


def at(settings):
    settings.emit(row(suite="at", sizes={"T": list(settings.lengths("at"))}))


@pytest.fixture(autouse=True)
def fakes(tmp_path, monkeypatch):
    """A place, these suites, and a machine of known speed. Compiled programs of other tests stay."""
    functions = (good, far, broken, liar, lengths, told)
    names = (*(one.__name__ for one in functions[:-1]), "gone")
    monkeypatch.setattr(suites, "SUITES", {name: suites.Suite("fakes", name, (), (1,), (1,)) for name in names})
    fakes = types.SimpleNamespace(**{one.__name__: one for one in functions})
    monkeypatch.setitem(sys.modules, "experiments.speed.suites.fakes", fakes)
    cleared = []
    monkeypatch.setattr("jax.clear_caches", lambda: cleared.append(1))
    for name, rate in (("peak_flops", 1e11), ("bandwidth", 2e10)):
        monkeypatch.setattr(f"experiments.speed.machine.{name}", lambda seconds, rate=rate: rate)
    monkeypatch.chdir(tmp_path)
    return cleared


def test_rows_table_and_missed_goals(capsys, fakes):
    assert main(["far", "good"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "suite good"
    assert lines[1] == table.line(row(suite="good"))
    assert lines[2] == "suite far"
    assert lines[4] == "1 of 2 goals missed"
    assert lines[5] == lines[3]
    assert lines[5].endswith("goal 5x MISSED")
    assert lines[6:] == ["no figure: no case was measured at several lengths T", "runs/bench/speed.md"]
    machine, found = read(pathlib.Path("runs/bench/speed.jsonl"))
    assert [one.suite for one in found] == ["good", "far"]
    assert (machine["peak_flops"], machine["bandwidth"], machine["command"]) == (
        1e11,
        2e10,
        "python -m experiments.speed far good",
    )
    assert pathlib.Path("runs/bench/speed.md").read_text() == table.markdown(machine, found)
    assert fakes == [1, 1], "compiled programs are dropped after each suite"


def test_a_suite_that_fails_is_told_and_the_rest_goes_on(capsys):
    assert main([]) == 1
    text = capsys.readouterr().out
    assert "suite broken failed: RuntimeError: out of luck\n" in text
    assert "suite gone failed: AttributeError: " in text
    assert text.endswith("2 of 6 suites failed\n1 peers do not agree with us\n")
    assert [one.suite for one in read(pathlib.Path("runs/bench/speed.jsonl"))[1]] == [
        "good",
        "far",
        "broken",
        *["memory"] * 2,
    ]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["good", "far"], 0),
        (["liar"], 0),
        (["liar", "--smoke"], 1),
        (["good", "far", "--smoke"], 0),
        (["broken", "--smoke"], 1),
    ],
)
def test_exit_status(command, status):
    assert main([*command]) == status


def test_smoke_judges_no_times(capsys):
    assert main(["far", "--smoke", "--out", "there"]) == 0
    output = capsys.readouterr().out
    assert "goals missed" not in output
    assert table.SMOKE in output
    assert table.SMOKE in pathlib.Path("there/speed.md").read_text()
    (found,) = read(pathlib.Path("there/speed.jsonl"))[1]
    assert found.sizes == {"rounds": 3, "seconds": 2.0}


def test_settings_reach_the_suites(monkeypatch):
    monkeypatch.setitem(suites.SUITES, "told", suites.Suite("fakes", "", (), (1,), (1,)))
    assert main(["far", "told", "--rounds", "7", "--seconds", "0.5", "--torch", sys.executable]) == 0
    machine, (one, other) = read(pathlib.Path("runs/bench/speed.jsonl"))
    assert one.sizes == {"rounds": 7, "seconds": 0.5}
    assert other.sizes == {"smoke": False, "torch": pathlib.Path(sys.executable).name}
    assert machine["command"] == "python -m experiments.speed far told --torch PYTHON --rounds=7 --seconds=0.5"


def test_some_lengths_of_a_suite(monkeypatch, capsys):
    monkeypatch.setitem(suites.SUITES, "at", suites.Suite("fakes", "", (), (1, 2, 4), (1,)))
    monkeypatch.setattr(sys.modules["experiments.speed.suites.fakes"], "at", at, raising=False)
    assert main(["at", "--lengths", "4", "2"]) == 0
    machine, (found,) = read(pathlib.Path("runs/bench/speed.jsonl"))
    assert found.sizes == {"T": [2, 4]}
    assert machine["command"] == "python -m experiments.speed at --lengths 4 2"
    assert main(["at", "--lengths", "2", "--smoke"]) == 2
    assert "suite at measures at T = 1, and not at 2" in capsys.readouterr().err
    monkeypatch.setitem(suites.SUITES, "at", suites.Suite("fakes", "", (), (1, 2, 4), (1,), fixed=True))
    assert main(["at", "--lengths", "2"]) == 2
    assert "suite at measures at all its lengths: leave out --lengths" in capsys.readouterr().err


def test_figure_and_its_absence(monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    assert main(["lengths", "--out", "a"]) == 0
    assert sorted(path.name for path in pathlib.Path("a").iterdir()) == [
        "speed.jsonl",
        "speed.md",
        "speed.png",
        "speed.svg",
    ]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    capsys.readouterr()
    assert main(["lengths", "--out", "b"]) == 0
    assert "no figure: matplotlib is not installed: pip install 'attnjax[plot]'\n" in capsys.readouterr().out
    assert not pathlib.Path("b/speed.png").exists()


def test_render_makes_the_table_again(capsys):
    main(["far", "--out", "a"])
    record, page = pathlib.Path("a/speed.jsonl"), pathlib.Path("a/speed.md")
    before = record.read_bytes(), page.read_bytes()
    page.unlink()
    capsys.readouterr()
    assert main(["--render", "a"]) == 0
    assert (record.read_bytes(), page.read_bytes()) == before
    assert capsys.readouterr().out.startswith("1 of 1 goals missed\n")


def test_an_earlier_record_is_kept():
    main(["good"])
    main(["far"])
    folder = pathlib.Path("runs/bench")
    names = ("speed.before.jsonl", "speed.jsonl")
    assert [read(folder / name)[1][0].suite for name in names] == ["good", "far"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["goood"],
            "a suite must be one of good, far, broken, liar, lengths, gone, got 'goood' (did you mean 'good'?)",
        ),
        (
            ["good", "--torch", "nowhere/python"],
            "--torch must be a Python interpreter, got 'nowhere/python', which is no",
        ),
        (["good", "--out", "file"], "file cannot be written to: "),
        (["--render", "nowhere"], "nowhere/speed.jsonl cannot be read: No such file or directory"),
        (["good", "--render", "nowhere"], "--render measures nothing, so it takes no suites, got good"),
        (["--render", "damaged"], "speed.jsonl, line 2: not a row of a benchmark"),
    ],
)
def test_mistakes_of_content_are_one_line_and_2(command, message, capsys):
    pathlib.Path("file").write_text("")
    pathlib.Path("damaged").mkdir()
    pathlib.Path("damaged/speed.jsonl").write_text('{"machine": {}}\n{"suite": "a"')
    assert main([*command]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"speed: error: {message}")
    assert error.count("\n") == 1
    assert not pathlib.Path("runs").exists(), "nothing was measured"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--rounds", "0"], "must be a whole number from 1 to 999999999, got '0'"),
        (["--seconds", "0"], "must be a number of seconds above 0, got '0'"),
        (["--seconds", "nan"], "must be a number of seconds above 0, got 'nan'"),
        (["--seconds", "inf"], "must be a number of seconds above 0, got 'inf'"),
        (["--seconds", "soon"], "must be a number of seconds above 0, got 'soon'"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_mistakes_of_options_exit_with_2(command, message, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_list_and_help_do_without_jax():
    code = """
import sys
from experiments.speed.__main__ import main
for command in (["--list"], ["goood"], ["--help"]):
    try:
        main(command)
    except SystemExit:
        pass
    print("HEAVY" if {"jax", "flax", "numpy", "matplotlib"} & set(sys.modules) else "LIGHT")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("attention         causal attention against T")
    assert [line for line in done.stdout.splitlines() if line in ("HEAVY", "LIGHT")] == ["LIGHT"] * 3


@pytest.mark.parametrize(("name", "suite"), EVERY)
def test_the_table_names_functions_that_are_there(name, suite):
    tree = ast.parse((ROOT / f"experiments/speed/suites/{suite.module}.py").read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert suite.text
    assert suite.peers


def test_the_list_says_what_against_whom_and_at_which_lengths(monkeypatch, capsys):
    monkeypatch.setattr(suites, "SUITES", dict(EVERY))
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "attention         causal attention against T: jax.nn xla; flax linen; T = 1,024, 2,048, 4,096"
    assert "evaluation        every length: a compilation per length; T = 1 to 500" in lines
    assert "generation        a LLaMA goes on with a text: transformers, generate; T = 2,048 (--torch)" in lines
    assert [line.split()[0] for line in lines] == [name for name, _ in EVERY]
