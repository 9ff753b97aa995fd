"""A page for each encoding: its facts of docs/encodings.md, a picture, its rows of the length table, and its class."""

import pathlib
import re
from typing import Any

import attnjax as aj
from attnjax import registry
from experiments.first_look import HERE, THERE, curve
from experiments.length_table.analysis import summary
from experiments.study import markdown

OPTIONS = {
    "learned": {"length": 2048},
    "self_extend": {"group": 8, "window": 64},
    "rerope": {"window": 64},
    "leaky_rerope": {"window": 64, "factor": 8},
    "dual_chunk": {"chunk": 96, "local": 32},
    "lm_infinite": {"first": 4, "window": 64},
    "streaming_llm": {"first": 4, "window": 64},
}
"""Of the pictures: positions that the table of `Learned` has, and windows small enough to be seen."""
DARK, LIGHT = "#0072B2", "#D55E00"

PAGE = """# {label}

{summary}.

| in configs | `model.encoding={name}` |
|---|---|
{facts}

![Log attention weight against distance, at two places]({name}.png)

*Log attention weight of a query on a key n positions back, under `{drawn}`, with the query at position {here} (solid) and
{there:,} (dashed). Where the curves coincide, the weight depends on the distance and not on the place. All tokens are equal, so
that content, and a factor of the logits, does not show. Learned parameters are initial ones with a little noise. Weights below
e^-87 are drawn there.*

## What our tables say

{results}

## {heading}

::: {module}
    options:
      members: false
      show_root_heading: false
      show_root_toc_entry: false

## The class

::: {module}.{cls}
    options:
      heading_level: 3
      show_root_heading: true
      show_root_full_path: false
"""
LEGEND = (
    "The length factor is the largest tested multiple of the longest trained length up to which a run holds: exact match of at "
    "least 0.9, or a loss at most 0.05 nats above that at the trained length, however high that is. *Fitted* is the number of "
    "runs that learned the trained lengths; where fewer than half did, the factor says nothing."
)
LINK = "[length table](../experiments/length_table/README.md)"


def write(root: pathlib.Path, staged: pathlib.Path) -> dict[str, str]:
    """Write a page and a picture for each encoding; returns the titles of the pages by their names."""
    (staged / "encodings").mkdir()
    known, factors = facts((root / "docs" / "encodings.md").read_text(encoding="utf-8")), summary().reset_index()
    for name in registry.ENCODINGS:
        text = page(name, known[name], factors[factors.encoding == name])
        (staged / "encodings" / f"{name}.md").write_text(text, encoding="utf-8")
        draw(name, staged / "encodings" / f"{name}.png")
    return {name: row.label for name, row in registry.ENCODINGS.items()}


def page(name: str, known: dict[str, str], factors: Any) -> str:
    """The page of an encoding, from its facts and its rows of the length table."""
    row = registry.ENCODINGS[name]
    module, cls = row.path.split(":")
    known = {**known, "published models": known.get("published models", "none that we know of")}
    options = ", ".join(f"{key}={value}" for key, value in OPTIONS.get(name, {}).items())
    return PAGE.format(
        label=row.label,
        summary=(getattr(aj, cls).__doc__ or "").split("\n")[0].rstrip("."),
        name=name,
        facts="\n".join(f"| {key} | {value} |" for key, value in known.items() if value),
        here=HERE,
        there=THERE,
        drawn=f"{cls}({options})",
        heading="The interface" if module == "attnjax.positions.base" else "Formula, parameters, references",
        results=results(factors),
        module=module,
        cls=cls,
    )


def facts(page: str) -> dict[str, dict[str, str]]:
    r"""The cells of every table that has a column `key`, by the keys of its rows and then by its header.

    Raises ValueError where an encoding has no row.

    Example:
      >>> row = "| a, b | " + ", ".join(f"`{name}`" for name in registry.ENCODINGS) + " |"
      >>> facts(f"| acts on | key |\n|---|---|\n{row}\n")["rope"]
      {'acts on': 'a, b'}
    """
    found: dict[str, dict[str, str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for row in rows if "key" in header else ():
            cells = dict(zip(header, row, strict=True))
            for key in re.findall(r"`(\w+)`", cells["key"]):
                found.setdefault(key, {}).update({k: v for k, v in cells.items() if k not in ("encoding", "key")})
    if missing := [name for name in registry.ENCODINGS if name not in found]:
        raise ValueError(f"docs/encodings.md has no row for {', '.join(missing)}")
    return found


def results(factors: Any) -> str:
    """What the length table says of an encoding, from its rows there, as Markdown."""
    if factors.empty:
        return f"The {LINK} has no runs of this encoding."
    ends = [f" ({a:.2f} to {b:.2f})" if a < b else "" for a, b in zip(factors.low, factors.high, strict=True)]
    rows = factors.assign(
        factor=[f"{value:.2f}{end}" for value, end in zip(factors.factor, ends, strict=True)],
        fitted=[f"{fitted} of {runs}" for fitted, runs in zip(factors.fitted, factors.runs, strict=True)],
        rank=["" if rank != rank else f"{rank:g}" for rank in factors["rank"]],
    )[["task", "factor", "fitted", "rank"]]
    table = markdown(rows.rename(columns={"factor": "length factor, 95 % interval"}))
    return f"In the {LINK}, with tuned learning rates:\n\n{table}\n\n{LEGEND}"


def draw(name: str, path: pathlib.Path) -> None:
    """The picture of a page: log attention weight against distance at two places."""
    from matplotlib.figure import Figure

    encoding, figure = aj.encoding(name, **OPTIONS.get(name, {})), Figure(figsize=(7, 2.8), layout="constrained")
    axis = figure.subplots()
    axis.plot(curve(encoding, HERE), color=DARK, lw=2.2, label=f"query at position {HERE:,}")
    axis.plot(curve(encoding, THERE), color=LIGHT, lw=1.0, ls="--", label=f"query at position {THERE:,}")
    axis.set(xlabel="distance n = query position - key position", ylabel="log attention weight")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
