"""README.md and the figures, from a record and nothing else: the same record gives the same text, byte for byte."""

import pathlib
from typing import Any

from attnjax.report.drawing import settings
from attnjax.report.formatting import markdown
from experiments.first_principles.drawing import save
from experiments.first_principles.record import Record
from experiments.first_principles.sections import Section, chosen

HEAD = """# From first principles

Attention and positions in worked examples: each with its numbers, most with a figure, all computed by `attnjax` itself.
Numbers that are known in closed form, or that were published, are tests (`tests/test_worked_examples.py`,
`tests/experiments/`). Every number of this page is in [record.json](record.json); the page and its figures are made from
that file alone.

    python -m experiments.first_principles                              # computes all of it, in some minutes on two cores
    python -m experiments.first_principles --only rotary order          # some of it
    python -m experiments.first_principles --render FOLDER              # page and figures again, from FOLDER/record.json
"""


def write(folder: pathlib.Path, record: dict[str, Record]) -> list[pathlib.Path]:
    """Write README.md and a PNG for every section of the record that has a figure; returns the paths.

    Raises ValueError where a section lacks a number, or matplotlib is not installed.
    """
    made = [folder / "README.md"]
    page = render(record)
    with settings():
        for section in chosen(list(record)) if record else ():
            if section.draw is not None:
                figure = _checked(section.name, section.draw, record[section.name]["numbers"])
                made.append(save(figure, folder / f"{section.name}.png"))
    made[0].write_text(page, encoding="utf-8", newline="\n")
    return made


def render(record: dict[str, Record]) -> str:
    """The page as Markdown."""
    sections = chosen(list(record)) if record else ()
    contents = "\n".join(f"* [{section.title}](#{anchor(section.title)})" for section in sections)
    parts = [part(section, record[section.name]) for section in sections]
    return "\n\n".join([HEAD.rstrip(), *([contents] if contents else []), *parts]) + "\n"


def part(section: Section, held: Record) -> str:
    """One section: heading, figure, text, and for what was measured where and when."""
    parts = [f"## {section.title}"]
    if section.draw is not None:
        parts.append(f"![{section.title}]({section.name}.png)\n\n*{section.caption}*")
    parts.append(_checked(section.name, section.text, held["numbers"]))
    if section.measured:
        parts.append(f"*Measured on {_checked(section.name, place, held)}.*")
    return "\n\n".join(parts)


def place(held: Record) -> str:
    """2 cores of a processor, versions and day."""
    known = held["machine"]
    where = known["processor"] or known["device"]
    if known["backend"] != "cpu":
        where = f"{known['device']} beside {where}"
    memory = f", {known['memory_bytes'] / 2**30:.0f} GiB" if known["memory_bytes"] else ""
    versions = f"Python {known['python']}, jax {held['jax']}, flax {held['flax']}"
    return markdown(f"{known['cores']} cores of {where}{memory}, {versions}, {held['date']}")


def anchor(title: str) -> str:
    """The name by which a heading is linked to, as Markdown viewers make it."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _checked(name: str, make: Any, numbers: Record) -> Any:
    try:
        return make(numbers)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"record.json: section {name!r} is not what this version computes ({what})") from error
