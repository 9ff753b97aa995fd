"""Every command that a help text or a page shows can be typed: it is parsed, and its config, keys and values are there."""

import argparse
import pathlib
import re
import shlex

import pytest

from attnjax.cli import _parsed, examples
from attnjax.cli.parser import parser
from attnjax.cli.planning import planned

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = "run|sweep|work|report|list|show|compile|evaluate|explore"


def helps() -> dict[str, str]:
    """What `--help` prints, of the whole and of each command."""
    top = parser()
    (commands,) = [one for one in top._actions if isinstance(one, argparse._SubParsersAction)]
    return {"": top.format_help(), **{name: one.format_help() for name, one in commands.choices.items()}}


def commands(text: str) -> list[str]:
    """Lines that begin with `attnjax`, without the comments behind them."""
    return [line.split("#")[0].strip() for line in re.findall(rf"^ *(attnjax (?:{NAMES})\b.*)$", text, re.MULTILINE)]


def pages() -> dict[str, str]:
    files = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("experiments/*/README.md"),
    ]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


def saved(where: str) -> list[tuple[str, str]]:
    """The configs that a page tells its reader to save, with their paths: blocks of code, and texts in triple quotes in one."""
    page = pages().get(where, "")
    quoted = re.findall(r"[Ss]ave what.*?as `(\w+\.py)`.*?'''(.*?)'''", page, re.DOTALL)
    quoted += re.findall(r"with `(\w+\.py)`, the config in quotes below.*?'''(.*?)'''", page, re.DOTALL)
    return [*re.findall(r"Save this as `(configs/\w+\.py)`.*?```python\n(.*?)```", page, re.DOTALL), *quoted]


SHOWN = {(where, line) for where, text in {**helps(), **pages()}.items() for line in commands(text)}


def shown() -> list:
    """Every command with its place; those of the experiments are slow."""
    slow = lambda where: pytest.mark.slow if where.startswith("experiments/") else ()
    return [pytest.param(where, line, marks=slow(where)) for where, line in sorted(SHOWN)]


@pytest.mark.parametrize(("where", "line"), shown())
def test_a_command_that_is_shown_can_be_typed(where, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, config in saved(where):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(config, encoding="utf-8")
    chosen = _parsed(shlex.split(line)[1:])
    if hasattr(chosen, "overrides"):
        more = {name: getattr(chosen, name) for name in ("over",) if hasattr(chosen, name)}
        alone = chosen.command.__name__ == "run"
        assert planned(chosen.config, chosen.overrides, **more, count=getattr(chosen, "seeds", None), alone=alone).runs


def test_examples_are_found():
    by_page = {where: [line for at, line in SHOWN if at == where] for where in helps()}
    missing = {where for where, lines in by_page.items() if not lines}
    assert missing == set()
    assert set(by_page) == {"", *NAMES.split("|")}
    assert len(by_page["sweep"]) >= 3
    assert len([line for where, line in SHOWN if where == "README.md"]) >= 2
    assert len([line for where, line in SHOWN if where == "docs/experiments.md"]) >= 12


def test_keys_of_the_help_on_overrides_are_fields():
    changes = re.findall(r"[a-z][\w.]*=[\w,.:]*\w", examples.OVERRIDES)
    assert len(changes) >= 5
    for change in changes:
        planned("theta", [change], alone=True)


def test_a_command_that_does_not_exist_is_found_out():
    """Or the tests above would prove nothing."""
    for line in ("attnjax sweep copy --dry-run", "attnjax run theta train.stepz=3"):
        with pytest.raises(ValueError, match=r"no config 'copy'|unknown key 'train.stepz'"):
            test_a_command_that_is_shown_can_be_typed("", line, ROOT, pytest.MonkeyPatch())
