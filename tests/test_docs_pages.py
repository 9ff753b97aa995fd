"""The pages on experiments and encodings: their config trains, their table has every encoding, their links lead somewhere."""

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attnjax.cli.parser import parser
from attnjax.cli.planning import planned
from attnjax.registry import ENCODINGS
from scripts.site import __main__ as site

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_config_of_the_page_is_six_runs(tmp_path):
    config, *_ = re.findall(r"```python\n(.*?)```", text("docs/experiments.md"), re.DOTALL)
    (tmp_path / "half_rope.py").write_text(config, encoding="utf-8")
    runs = planned(str(tmp_path / "half_rope.py"), []).runs
    assert len(runs) == 6
    assert {run.config.name for run in runs} == {"half_rope"}
    assert {dict(run.config.model.encoding.options)["fraction"] for run in runs} == {0.5, 1.0}


def test_the_tuning_of_the_page_is_of_two_families(tmp_path):
    config, tune, *_ = re.findall(r"```python\n(.*?)```", text("docs/experiments.md"), re.DOTALL)
    (tmp_path / "half_rope.py").write_text(f"{config}\n\n{tune}", encoding="utf-8")
    found = planned(str(tmp_path / "half_rope.py"), ["evaluate.validation_lengths=[16]"], tune=True).tuning
    assert found is not None
    assert (len(found.families), len(found.candidates), found.seeds) == (2, 6, (100, 101, 102))
    assert len(found.runs) == 36


def test_every_encoding_has_a_row_and_is_named_by_what_it_acts_on():
    page = text("docs/encodings.md")
    families, table = page.split("| acts on |")[1].split("\n\n")[0], page.split("| encoding | key |")[1]
    for name, row in ENCODINGS.items():
        assert f"`{name}`" in table, name
        assert f"`{row.path.rpartition(':')[2]}`" in families, name
    assert f"There are {len(ENCODINGS)} encodings" in page
    assert f"[the {len(ENCODINGS)} encodings](docs/encodings.md)" in text("README.md")


def test_the_code_of_the_first_page_and_of_attention_runs(tmp_path):
    first, attention = (
        re.findall(r"```python\n(.*?)```", text(name), re.DOTALL) for name in ("README.md", "docs/attention.md")
    )
    assert (len(first), len(attention)) == (1, 3)
    (tmp_path / "first.py").write_text(first[0], encoding="utf-8")
    assert runpy.run_path(str(tmp_path / "first.py"))["out"].shape == (2, 1000, 8, 64)
    (tmp_path / "attention.py").write_text(
        "".join(attention[:2]), encoding="utf-8"
    )  # the third names a layer of the reader's
    assert runpy.run_path(str(tmp_path / "attention.py"))["out"].shape == (2, 1, 8, 64)


def test_the_table_of_devices_is_that_of_the_first_page():
    first, page = (
        text(name).partition("| device |")[2].partition("\n\n")[0] for name in ("README.md", "docs/devices.md")
    )
    assert first.count("\n") > 6
    assert page.replace("](../", "](").replace("](#", "](docs/devices.md#") == first


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", text(page))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.slow
def test_the_sweep_of_the_first_page_trains_and_reports(tmp_path):
    """With a trainer that takes no time in the place of training; the command is otherwise that of the page."""
    (line,) = re.findall(r"^(attnjax sweep .*)$", text("README.md"), re.MULTILINE)
    words = [*shlex.split(line)[1:], "--trainer", "fake_training:train"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "sweep")])}
    done = subprocess.run(
        [sys.executable, "-m", "attnjax", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "runs" / "more" / "report" / "table.md").read_text(encoding="utf-8")
    assert "Kerple" in table
    assert "FIRE" in table


@pytest.fixture
def called(tmp_path):
    """Runs a script of the checkout with a python3 that names, in place of an environment, a program that prints its arguments.

    The program and what the script asks `scripts/setup_env.py` for are returned, and an argument is a line.
    """
    printing, asked = tmp_path / "printing", tmp_path / "asked"
    printing.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").write_text(f'#!/bin/sh\necho "$@" > {asked}\necho {printing}\n')
    for file in (printing, tmp_path / "python3"):
        file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def call(script, *words):
        done = subprocess.run(
            [ROOT / script, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines(), asked.read_text().split()

    return call


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["rope_vs_sinusoidal"]),
        (["paper", "--dry-run"], ["rope_vs_sinusoidal:paper", "--dry-run"]),
        (["theta"], ["theta"]),
    ],
)
def test_the_command_of_the_first_page_is_a_sweep_with_a_report(called, words, expected):
    command, asked = called("run", *words)
    assert asked == ["scripts/setup_env.py"]
    assert command[:3] == ["-m", "attnjax", "sweep"]
    assert (command[3], command[5]) == ("--workers", "--report")
    assert int(command[4]) >= 1
    assert command[6:] == expected


@pytest.mark.parametrize(
    ("words", "workers", "report"),
    [
        (["theta", "train.steps=7", "--workers", "31"], 31, True),
        (["--workers=31", "theta"], 31, True),
        (["theta", "--mesh", "data=2"], None, True),
        (["theta", "--mesh=data=2", "--dry-run"], None, True),
        (["theta", "--executor=ray", "--workers", "31"], 31, True),
        (["--executor", "ray", "theta"], None, True),
        (["theta", "--executor", "slurm"], None, False),
        (["--executor=slurm", "theta"], None, False),
        (["theta", "train.steps=7", "--out", "slurm", "--over", "model.layers=1,2"], "cores", True),
    ],
)
def test_what_is_asked_of_the_command_of_the_first_page_wins_over_its_defaults(called, words, workers, report):
    command, _ = called("run", *words)
    chosen = parser().parse_args(command[2:])
    assert (str(chosen.config), chosen.report) == ("theta", report)
    assert chosen.overrides == [word for word in words if word.startswith("train")]
    assert chosen.workers == (int(command[4]) if workers == "cores" else workers)


def test_the_script_of_the_first_page_for_tests_hands_its_words_to_pytest(called):
    command, asked = called("test", "--all", "-k", "rope")
    assert asked == ["scripts/setup_env.py", "--dev"]
    assert command == ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "", "-k", "rope"]


def test_the_script_of_the_first_page_for_the_site_builds_it(called):
    command, asked = called("docs/build", "--out", "a folder")
    assert asked == ["scripts/setup_env.py", "--dev"]
    assert command == ["-m", "scripts.site", "--out", "a folder"]
    assert f"`{(site.ROOT / 'build' / 'site' / 'index.html').relative_to(ROOT)}`" in text("README.md")


def test_what_the_first_page_installs_is_there():
    """And its quotes let every shell read it; `scripts/try_release.py` installs the package and calls the command."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert "`pip install -e '.[plot]'` installs the library and the command `attnjax`" in text("README.md")
    assert "matplotlib" in "".join(project["optional-dependencies"]["plot"])
    assert set(project["scripts"]) == {"attnjax"}


def test_every_command_of_the_first_page_is_run_by_a_test():
    """In the order of the page, each after what it needs: a new one belongs into this list, and into a test."""
    page = text("README.md")
    fenced = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert max(map(len, fenced)) <= 100  # longer ones scroll on a code host's page
    assert [line for line in fenced if not line.startswith("# ")] == [
        "./run",  # as far as the command that it starts, like ./test and docs/build
        "./test",
        "attnjax explore rope_vs_sinusoidal/task=copy,encoding=rope,seed=0",  # in test_docs_code.py
        "attnjax sweep rope_vs_sinusoidal --over model.encoding=kerple,fire --report --out runs/more",
    ]
    named = set(re.findall(r"`((?:\./|attnjax |pip |docs/build)[^`]*)`", page))
    assert named == {"./run paper", "./run", "./test --all", "pip install -e '.[plot]'", "docs/build"}
