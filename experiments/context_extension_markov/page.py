"""README.md and the figure, from the records alone."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnjax.report.drawing import INK, SHADE, new_figure, plain, save, settings
from attnjax.report.formatting import decimal, interval, markdown, markdown_table
from experiments import recorded
from experiments.context_extension.methods import FREQUENCIES, POSITIONS, look, named
from experiments.context_extension_markov.results import TOLERANCE, TRAINED, WINDOWED, Results, read

PAGE = """# Does context pay past the trained length, on chains where it can?

**Claim.** {claim}

![Loss by position under each method](figure.png)

*Mean loss of {runs} runs by position in windows of {longest} symbols, in bins of {bin}; all methods read the same chains,
and intervals are those of the paired differences below. Shaded: the trained length. Dotted: counting single symbols (above)
and pairs (below), of which pairs are the best prediction there is. Dashed: RoPE as trained in windows of {trained}.*

In text that a small model can learn, context beyond the trained length pays little, and a method that forgets it looks as
good as one that uses it ([context extension](../context_extension/README.md)). Every Markov chain here is drawn anew:
what follows a symbol can be learned only from what followed it before in the same sequence (Edelman et al. 2024,
arXiv:2402.11004), and counting goes on gaining at every length. So the loss says of each method whether it lets the model
use what lies past the trained length.

The protocol was written before the runs: [configs/context_extension.py](../../configs/context_extension.py), `markov`.
{runs} new runs, seeds {first_seed} to {last_seed}, of the config of the RoPE cell of [RoPE or
sinusoidal](../rope_vs_sinusoidal_paper/README.md): two layers of width 64, four heads, trained at {trained} symbols.
{fitted} of {runs} are within {tolerance} nats of the best prediction there; none is left out. Methods, formulas and
sources are those of [context extension](../context_extension/README.md), without training, with the factor
{factor}; factors of LongRoPE are searched on chains that are not measured.

## What context gains

Loss of the last {last} symbols of a window, in nats per symbol, less that of the same symbols in windows of {trained}
under RoPE as trained. Below 0, context pays. Means over {runs} runs and {chains} chains with their 95 % interval over
both. StreamingLLM and LM-Infinite are the control: they see the first symbols and about the last {trained}, always, where the
windows of {trained} hold {least} symbols before the first that counts. What that is worth is their gain; the last column, which
was not planned, leaves it out.

{gains}

Expected before the runs: RoPE as trained gains at twice the trained length and loses at eight times; the control gains nothing;
Self-Extend, ReRoPE and Dual chunk gain most, and none as much as counting pairs, the best prediction. Those that
gained most at {longest} are, in order, {most}; the control gained {control}.

## Losses

{losses}

## Limits

One task, one size of model, one factor at all lengths. In a window of {trained} the last {last} symbols have at least
{least} before them. {intervals} intervals are shown and none is a test.

## Make it again

```sh
python -m experiments.context_extension_markov
python -m experiments.context_extension_markov --render experiments/context_extension_markov      # from the records alone
```

Made on {date} with Python {python}, jax {jax} and flax {flax} on {processor}, beside other work: {minutes:.1f} minutes of
measuring. Records: [records.jsonl](records.jsonl).
"""


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md and, where matplotlib is installed, the figure, from the records in a folder."""
    return recorded.render(folder, read, {"README.md": page}, draw)


def page(found: Results) -> str:
    """README.md."""
    about, told = found.about, ("date", "python", "jax", "flax", "processor")
    return PAGE.format(
        claim=claim(found),
        gains=gains(found),
        most=", ".join(named(name) for name in found.ordered[:4]),
        control=", ".join(f"{interval(found.gain(name, found.lengths[-1]))} ({named(name)})" for name in WINDOWED),
        losses=losses(found),
        runs=len(found.runs),
        fitted=found.fitted,
        tolerance=TOLERANCE,
        longest=found.lengths[-1],
        least=found.lengths[0] - about["last"],
        intervals=len(found.methods) * len(found.lengths) - 1,  # the control has none in the last column
        first_seed=min(run["seed"] for run in found.runs),
        last_seed=max(run["seed"] for run in found.runs),
        minutes=found.minutes,
        **{name: about[name] for name in ("trained", "factor", "last", "bin", "chains")},
        **{name: markdown(str(about[name])) for name in told},
    )


def claim(found: Results) -> str:
    """What the records say, and no more."""
    first, longest = found.lengths[0], found.lengths[-1]
    paying = found.paying(longest)
    share = lambda name: found.gain(name, longest).value / found.possible
    listed = ", ".join(f"{named(name)} {interval(found.gain(name, longest))}" for name in paying)
    control = ", ".join(f"{named(name)} {interval(found.gain(name, longest))}" for name in WINDOWED)
    best = found.seeing[0]
    text = (
        f"From {first} to {longest} symbols the prediction from pairs counted in the context gains {-found.possible:.3f} "
        f"nats per symbol. RoPE as trained changes by {interval(found.gain(TRAINED, longest))}, and "
    )
    if not paying:
        return f"{text}under no method without training does context pay there. The control: {control}."
    return (
        f"{text}without training context pays under {len(paying)} of {len(found.seeing)} methods that see all of it: {listed}. "
        f"The best, {named(best)}, gains {share(best):.0%} of what counting does. The control, which sees no more than "
        f"{first}: {control}."
    )


def gains(found: Results) -> str:
    """A row per method, from the most gained to the least."""
    past = found.lengths[1:]
    last = lambda name: "" if name == WINDOWED[0] else interval(found.beyond(name))
    rows = [[named(name), *(interval(found.gain(name, n)) for n in past), last(name)] for name in found.ordered]
    first = found.best(found.lengths[0])
    rows.append(["*best prediction*", *(f"*{decimal(found.best(n) - first)}*" for n in past), ""])
    header = ["method", *(f"{n} ({n // found.lengths[0]}x)" for n in past), f"{past[-1]}, less {named(WINDOWED[0])}"]
    return markdown_table(header, rows).rstrip()


def losses(found: Results) -> str:
    """The same rows with losses, the trained length among them."""
    rows = [[named(name), *(decimal(found.loss(name, n)) for n in found.lengths)] for name in found.ordered]
    rows.append(["*best prediction*", *(f"*{decimal(found.best(n))}*" for n in found.lengths)])
    return markdown_table(["method", *(f"{n} ({n // found.lengths[0]}x)" for n in found.lengths)], rows).rstrip()


def draw(found: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the figure, as PNG and SVG: loss by position under other frequencies, and under other positions."""
    families = {"Other frequencies": FREQUENCIES, "Other positions": (TRAINED, *POSITIONS)}
    with settings():
        figure, axes = new_figure(11.0, 5.4, 1, 2)
        for axis, (title, family) in zip(axes, families.items(), strict=True):
            curves(axis, found, family)
            axis.set_title(title)
            axis.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.08), ncols=2, fontsize=9)
        return save(figure, folder / "figure")


def curves(axis: Any, found: Results, family: Sequence[str]) -> None:
    """A line per method, between those of counting."""
    size, longest = found.about["bin"], found.lengths[-1]
    middle = (np.arange(longest // size) + 0.5) * size
    axis.axvspan(0, found.lengths[0], color=SHADE, zorder=0, linewidth=0)
    axis.axhline(found.loss(TRAINED, found.lengths[0]), color=INK, linewidth=0.9, dashes=(5, 3))
    for counting in found.counting.values():
        axis.plot(middle, counting.position[0], color=INK, linewidth=1.2, dashes=(1, 1.5))
    for method in family:
        style, values = look(method), found.methods[method].position
        (line,) = axis.plot(middle, values.mean(0), color=style.color, linewidth=1.7, label=plain(style.label))
        line.set(dashes=style.dash or (None, None), marker=style.marker, markersize=5, markevery=(0, 2))
        line.set(markeredgecolor="white", markeredgewidth=0.6)
    axis.set_xlim(0, longest)
    axis.set_xticks([0, *found.lengths], ["0", *map(str, found.lengths)])
    axis.set_xlabel("position in the window, symbols (shaded: trained length)")
    axis.set_ylabel("loss, nats per symbol")
