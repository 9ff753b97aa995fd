"""What the page says of needles past the trained length, from retrieval.jsonl alone."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnjax.report.drawing import INK, new_figure, plain, save, settings
from attnjax.report.formatting import markdown, markdown_table
from attnjax.typing import Float
from experiments import recorded
from experiments.context_extension.methods import look
from experiments.smollm2.needles import DEPTHS

DIGITS, TOKENS = 7, 8
"""Digits of a number, and its tokens: a space and the digits."""
STYLES = {
    "yarn": dataclasses.replace(look("longrope"), label=look("yarn").label),
    "leaky_rerope": dataclasses.replace(look("leaky_rerope"), label="Leaky ReRoPE"),
}
"""YaRN has the colour of Self-Extend where frequencies and positions have a panel each. Needles are read without log-n scaling,
as `attnjax evaluate --extend leaky_rerope` reads."""
MOST = 3.4
"""Losses above this leave the figure."""
GUESS = (math.log(9) + (DIGITS - 1) * math.log(10)) / TOKENS
"""The loss, in nats per token, of a model that knows that a number of seven digits comes, and not which."""
MIXED = math.log(len(DEPTHS)) / TOKENS
"""That of one that knows the numbers of the prompt, and not which is asked for."""

SECTION = """## Needles past the trained length

A prompt is noise with five needles, "One of the special magic numbers for quiet-river is: 4071823.", one at each of five depths
(RULER's `niah_multikey_1`, with noise in the place of essays and one key more). The model reads it once and is asked for each
number. The loss is that of the right number in nats per token: {guess:.2f} for a model that knows only that seven digits
come, so that less than this says that the needle was seen and more that the model was misled. *Identified* says how often
the right number is the likeliest of the five in the prompt (guessing: 20 %), *greedy* how often greedy generation gives
exactly this number. Leaky ReRoPE is read without log-n scaling here.

{claim}

![Loss of a number by the depth of its needle](figure_retrieval.png)

*Loss of the right number at {longest} tokens, twice the trained length, by depth: mean of {prompts} prompts and their
range. Dashed: RoPE as trained at {trained} tokens; at {longest} it is above the figure, at {above:.1f}. Dotted: guessing
seven digits.*

{table}

*Mean loss by depth, in nats per token, {prompts} prompts for each row; depth is the share of the noise before the needle. In
brackets the lowest and the highest mean of a prompt: a range, and no interval. The lowest loss of each column at the last
length is bold. A model that sees all five numbers and takes one of them at random pays {mixed:.2f}. StreamingLLM sees the
first 4 tokens and about the last {trained}, in which two of the five needles are, at 70 and 90 %: one of two is easier
to identify than one of five, and what it pays at 10 to 50 % is the price of a needle out of sight.*

Made on {date} on two cores of an {processor}, beside other work, jax {jax}. Records: [retrieval.jsonl](retrieval.jsonl).

```sh
python -m experiments.smollm2.retrieval FILE.gguf
```
"""


def style_of(method: str) -> Any:
    """Colour, dash, marker and label of a method here."""
    return STYLES.get(method) or look(method)


def named(method: str) -> str:
    """The method as the page calls it."""
    return markdown(style_of(method).label)


class Retrieval(NamedTuple):
    """The protocol with where it was followed, and for each length and method the answers to all prompts.

    `losses` are [prompts, depths], `greedy` and `ranked` shares of all answers.
    """

    about: Mapping[str, Any]
    losses: Mapping[tuple[int, str], Float[np.ndarray, "prompts depths"]]
    greedy: Mapping[tuple[int, str], float]
    ranked: Mapping[tuple[int, str], float]

    @property
    def prompts(self) -> int:
        """The prompts that every cell has."""
        return min(map(len, self.losses.values()))

    @property
    def longest(self) -> int:
        """The longest length."""
        return max(length for length, _ in self.losses)

    def at(self, length: int) -> list[str]:
        """The methods of a length, from the lowest mean loss to the highest."""
        found = [method for there, method in self.losses if there == length]
        return sorted(found, key=lambda method: float(self.losses[length, method].mean()))


def results(tables: list[dict[str, Any]]) -> Retrieval:
    """The records by cell, of the prompts that all cells have.

    Raises ValueError where there is none, and KeyError where a record lacks a field.
    """
    cells: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for one in tables:
        if one.get("kind") == "retrieval":
            cells.setdefault((one["length"], one["method"]), []).append(one)
    prompts = set.intersection(*({one["prompt"] for one in rows} for rows in cells.values())) if cells else set()
    if not prompts:
        raise ValueError("there is no prompt that every method has read; the command that began these records goes on")
    kept = {cell: [one for one in rows if one["prompt"] in prompts] for cell, rows in cells.items()}
    gathered = lambda name: {cell: np.asarray([one[name] for one in rows], float) for cell, rows in kept.items()}
    share = lambda name: {cell: float(values.mean()) for cell, values in gathered(name).items()}
    return Retrieval(recorded.about(tables), gathered("losses"), share("greedy"), share("ranked"))


def section(found: Retrieval) -> str:
    """The section of README.md."""
    about = {name: markdown(str(found.about[name])) for name in ("date", "processor", "jax", "trained")}
    told: dict[str, Any] = {
        "claim": claim(found),
        "table": table(found),
        "prompts": found.prompts,
        "longest": found.longest,
    }
    told |= {"guess": GUESS, "mixed": MIXED, "above": float(found.losses[found.longest, "none"].mean())}
    return SECTION.format(**told, **about)


def claim(found: Retrieval) -> str:
    """What the records say, and no more."""
    trained, longest = found.about["trained"], found.longest
    mean = lambda length, method: float(found.losses[length, method].mean())
    answers = found.losses[trained, "none"].size
    count = lambda length, method: f"{round(found.ranked[length, method] * answers)} of {answers}"
    ordered = [method for method in found.at(longest) if method != "none"]
    listed = ", ".join(
        f"{mean(longest, one):.2f} under {named(one)} ({count(longest, one)} identified)" for one in ordered[:3]
    )
    return (
        f"**Claim.** At {trained} tokens a number has a loss of {mean(trained, 'none'):.2f} nats per token, and "
        f"{count(trained, 'none')} are identified. At {longest} tokens it has {mean(longest, 'none'):.2f} under "
        f"RoPE as trained ({count(longest, 'none')}), and without training {listed}. Fewer than {above_guessing(answers)} of "
        f"{answers} are not above guessing (binomial, 5 %)."
    )


def above_guessing(answers: int) -> int:
    """Return the least number of right answers that guessing one of five reaches in fewer than 5 % of cases.

    Example:
      >>> above_guessing(15)
      7
    """
    chance = lambda k: math.comb(answers, k) * 0.2**k * 0.8 ** (answers - k)
    return next(least for least in range(answers + 2) if sum(map(chance, range(least, answers + 1))) < 0.05)


def table(found: Retrieval) -> str:
    """A row per length and method."""
    depths: Sequence[float] = found.about["depths"]
    lengths = sorted({length for length, _ in found.losses})
    best = np.min([found.losses[lengths[-1], method].mean(0) for method in found.at(lengths[-1])], 0)
    rows = []
    for length in lengths:
        for method in found.at(length):
            losses = found.losses[length, method]
            means, each = losses.mean(0), losses.mean(1)
            bold = (length == lengths[-1]) & (means == best)
            cells = [f"**{mean:.2f}**" if mark else f"{mean:.2f}" for mean, mark in zip(means, bold, strict=True)]
            whole = f"{losses.mean():.2f} ({each.min():.2f} to {each.max():.2f})"
            shares = [f"{share[length, method]:.0%}" for share in (found.ranked, found.greedy)]
            rows.append([f"{length} tokens, {named(method)}", *cells, whole, *shares])
    header = ["length and method", *(f"{depth:.0%}" for depth in depths), "all depths", "identified", "greedy"]
    return markdown_table(header, rows).rstrip()


def draw(found: Retrieval, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the figure, as PNG and SVG: a line per method at the longest length, and that of RoPE within the trained one."""
    trained, depths = found.about["trained"], 100 * np.asarray(found.about["depths"])
    with settings():
        figure, (axis,) = new_figure(7.6, 4.4, 1, 1)
        for method in (one for one in found.at(found.longest) if one != "none"):
            style, losses = style_of(method), found.losses[found.longest, method]
            axis.fill_between(depths, losses.min(0), losses.max(0), color=style.color, alpha=0.12, linewidth=0)
            (line,) = axis.plot(depths, losses.mean(0), color=style.color, linewidth=1.7, label=plain(style.label))
            line.set(dashes=style.dash or (None, None), marker=style.marker, markersize=6)
            line.set(markeredgecolor="white", markeredgewidth=0.6)
        within = found.losses[trained, "none"].mean(0)
        axis.plot(depths, within, color=INK, linewidth=1.2, dashes=(5, 3), label=f"RoPE as trained, {trained} tokens")
        axis.axhline(GUESS, color=INK, linewidth=1.0, dashes=(1, 1.5))
        axis.set_xticks(depths, [f"{depth:g}" for depth in depths])
        axis.set_xlabel("depth of the needle, percent of the text before it")
        axis.set_ylabel("loss of the number, nats per token")
        axis.set_ylim(0, MOST)
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
        return save(figure, folder / "figure_retrieval")
