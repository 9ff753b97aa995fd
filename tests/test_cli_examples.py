"""Every command that a help text or a page shows can be typed: it is parsed, and its config, keys and values are there."""

import argparse
import pathlib
import re
import shlex

import pytest

from attnjax.cli import _parsed
from attnjax.cli.parser import parser
from attnjax.cli.planning import planned

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = "run|sweep|work|report|list|show|compile|evaluate|explore"


def texts() -> dict[str, str]:
    """What `--help` prints, of the whole and of each command, and the pages."""
    top = parser()
    (commands,) = [one for one in top._actions if isinstance(one, argparse._SubParsersAction)]
    found = {"": top.format_help(), **{name: one.format_help() for name, one in commands.choices.items()}}
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*/*.md")]
    return found | {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


def commands(text: str) -> list[str]:
    """Lines that begin with `attnjax`, without the comments behind them."""
    return [line.split("#")[0].strip() for line in re.findall(rf"^ *(attnjax (?:{NAMES})\b.*)$", text, re.MULTILINE)]


def saved(page: str) -> list[tuple[str, str]]:
    """The configs that a page tells its reader to save, with their paths: blocks of code, and texts in triple quotes in one."""
    quoted = re.findall(r"[Ss]ave what.*?as `(\w+\.py)`.*?'''(.*?)'''", page, re.DOTALL)
    quoted += re.findall(r"with `(\w+\.py)`, the config in quotes below.*?'''(.*?)'''", page, re.DOTALL)
    return [*re.findall(r"Save this as `(configs/\w+\.py)`.*?```python\n(.*?)```", page, re.DOTALL), *quoted]


TEXTS = texts()
SHOWN = sorted({(where, line) for where, text in TEXTS.items() for line in commands(text)})


def check(where: str, line: str, folder: pathlib.Path) -> None:
    """Raise where a command cannot be typed in a folder with the configs of its page."""
    for path, config in saved(TEXTS[where]):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(config, encoding="utf-8")
    chosen = _parsed(shlex.split(line)[1:])
    if hasattr(chosen, "overrides"):
        more = (chosen.over, chosen.seeds) if hasattr(chosen, "over") else ()
        assert planned(chosen.config, chosen.overrides, *more).runs


@pytest.mark.parametrize(
    ("where", "line"),
    [pytest.param(*one, marks=pytest.mark.slow if one[0].startswith("experiments/") else ()) for one in SHOWN],
)
def test_a_command_that_is_shown_can_be_typed(where, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(where, line, tmp_path)


def test_every_help_text_has_an_example_and_a_wrong_one_is_found_out(tmp_path):
    assert {"", *NAMES.split("|"), "README.md", "docs/experiments.md"} <= {where for where, _ in SHOWN}
    for line in ("attnjax sweep copy --dry-run", "attnjax run theta train.stepz=3"):
        with pytest.raises(ValueError, match=r"no config 'copy'|unknown key 'train.stepz'"):
            check("", line, tmp_path)
