"""Every page of experiments/ leads to its records in one click, and every command that it names is one that runs."""

import csv
import importlib
import pathlib
import re
import shlex

import pytest

from attnjax.cli.parser import parser
from attnjax.cli.planning import planned

ROOT = pathlib.Path(__file__).parents[2]
EXPERIMENTS = sorted(path.parent for path in (ROOT / "experiments").glob("*/README.md"))
NAMES = [path.name for path in EXPERIMENTS]
REPORTS = sorted(path.parent for path in (ROOT / "experiments").glob("*/report/table.md"))
LINK = re.compile(r"\]\(([^)#:\s]+)\)")
COMMAND = re.compile(r"(?:attnjax [a-z]|python -m experiments\.|\./run\b).*")


def is_record(path: pathlib.Path) -> bool:
    """A file of measurements, or a folder of runs."""
    return (path / "sweep.json").is_file() or (path.is_file() and path.suffix in (".jsonl", ".json"))


def is_behind_a_figure(path: pathlib.Path) -> bool:
    """Records that figures are made from, and not the numbers of somebody else that they are compared with."""
    return (path / "sweep.json").is_file() or (
        path.is_file() and (path.suffix == ".jsonl" or path.name == "record.json")
    )


def commands(text: str) -> list[str]:
    """Those of code blocks and of code in sentences, without comments."""
    fenced = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in fenced for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += re.findall(r"`([^`\n]+)`", text)
    return [line.split(" #")[0].strip() for line in lines if COMMAND.fullmatch(line)]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_every_link_leads_somewhere_and_one_to_records(experiment):
    links = [experiment / link for link in LINK.findall((experiment / "README.md").read_text(encoding="utf-8"))]
    assert [str(link) for link in links if not link.exists()] == []
    if any(is_record(path) for path in experiment.rglob("*")):
        assert [link for link in links if is_record(link)]
    elif not any((link / "sweep.json").is_file() for link in links):  # the records of other sweeps, or none yet
        assert re.search(
            r"not (been )?(run|made) yet", (experiment / "README.md").read_text(encoding="utf-8"), re.IGNORECASE
        )


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_every_figure_leads_to_the_records_that_it_is_made_from(experiment):
    text = (experiment / "README.md").read_text(encoding="utf-8")
    if re.search(r"!\[[^\]]*\]\(", text):
        assert [link for link in LINK.findall(text) if is_behind_a_figure(experiment / link)]


def test_the_figure_of_the_first_page_leads_to_its_records():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (figure,) = re.findall(r"!\[[^\]]*\]\((\S+?)/report/figure\.png\)", text)
    caption = text.partition("/report/figure.png)")[2].partition("| past the training")[0]
    assert f"]({figure}/records/)" in caption
    assert is_behind_a_figure(ROOT / figure / "records")


@pytest.mark.parametrize("page", ["attention", "explorer", "models"])
def test_pictures_of_the_documentation_are_followed_by_what_draws_them(page):
    """A link to the script or to the experiment; of a picture of a screen, the command whose page it shows."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    captions = re.findall(r"!\[[^\]]*\]\(\S+\.png\)\n\n\*(.*?)\*\n", text, re.DOTALL)
    assert len(captions) == 1
    drawn = [ROOT / "docs" / link for link in LINK.findall(captions[0])]
    assert [path for path in drawn if (path / "figure.py").is_file() or path.suffix == ".py"]
    assert [path for path in drawn if not path.exists()] == []


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_every_command_is_one_that_runs(experiment, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (experiment / "README.md").read_text(encoding="utf-8")
    found, made = commands(text), tuple(re.findall(r"keep_records\.py \S+ (\S+)", text))
    assert found
    for command in found:
        program, *words = shlex.split(command.replace("[", "").replace("]", ""))
        if program == "./run":
            assert (ROOT / "run").is_file()
        elif program == "python":
            check_module(words[1], words[2:], capsys)
        else:
            check_attnjax(words, made)


def check_module(name: str, words: list[str], capsys) -> None:
    """That the module has a command line, with every option that the page gives it."""
    module = importlib.import_module(name)
    command = importlib.import_module(f"{name}.__main__") if hasattr(module, "__path__") else module
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    told = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in told] == []


def check_attnjax(words: list[str], made: tuple[str, ...]) -> None:
    """That the command line is accepted, its config is there, and so are the folders that it reads, but for `made` ones."""
    chosen = parser().parse_args(words)
    if words[0] in ("sweep", "run", "show") and chosen.config != "CONFIG":
        assert planned(chosen.config, []).runs
    read = [word for word in words if word.startswith("experiments/") and not word.startswith(made)]
    assert [word for word in read if not pathlib.Path(word).exists()] == []


@pytest.mark.parametrize("report", REPORTS, ids=[path.parent.name for path in REPORTS])
def test_every_row_of_a_report_leads_to_the_folders_of_its_runs(report):
    read = lambda name: list(csv.DictReader((report / name).read_text(encoding="utf-8").splitlines()))
    runs = {row["run"] for row in read("runs.csv")}
    assert runs
    assert [run for run in runs if not (report.parent / "records" / run / "results.jsonl").is_file()] == []
    rows = read("table.csv")
    assert all(row["runs"] and set(row["runs"].split()) <= runs for row in rows)
    assert set(LINK.findall((report / "table.md").read_text(encoding="utf-8"))) == {
        "table.csv",
        "lengths.csv",
        "runs.csv",
    }
    page = (report / "report.html").read_text(encoding="utf-8")
    assert [run for run in runs if run not in page] == []


def test_ratios_on_the_page_on_speed_are_those_of_the_tables():
    section = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    ratios = re.findall(r"(\d+\.\d+x) ", section)
    tables = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("experiments/speed/*/speed.md"))
    assert len(ratios) > 25
    assert [ratio for ratio in ratios if f"| {ratio} (" not in tables and f"| {ratio} |" not in tables] == []


def test_a_page_without_records_or_with_an_unknown_command_would_be_noticed(tmp_path):
    assert not is_record(tmp_path)
    assert commands("Use `attnjax sweep nothing` or\n\n    python -m experiments.x --y    # z\n") == [
        "python -m experiments.x --y",
        "attnjax sweep nothing",
    ]
    with pytest.raises(ValueError, match="no config 'nothing'"):
        check_attnjax(["sweep", "nothing"], ())
    with pytest.raises(SystemExit):
        check_attnjax(["report", "--nothing"], ())
