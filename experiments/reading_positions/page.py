"""README.md of the experiment: claim, figure, tables and protocol, all from the records."""

import pathlib

import numpy as np

from attnjax.report.formatting import NONE, decimal, interval, markdown, markdown_table
from attnjax.report.intervals import of_mean
from attnjax.report.style import style
from experiments import recorded
from experiments.reading_positions.results import PROBES, Cell, Results, read

PAGE = """# What do trained models know of positions?

**Claim.** {claim}

![R2 of probes by layer, use of rotary frequencies, scores against distance](figure.png)

*Left: R2 of a linear probe of the position at each depth, mean of the seeds; dotted before training. Middle: the share of each
frequency in what RoPE can add to a logit, a line per head and seed; shaded are those that leave the angles of training. Right:
what positions add to a logit against the distance, less the value at distance 0, mean over heads, layers and seeds; under
RoPE it is the mean logit of queries and keys that far apart, what they hold included.*

## What was measured

{runs} decoders of bytes of {text}, {layers} layers of {heads} heads, D = {model}, {steps} steps at
{trained} bytes ([configs/{sweep}.py](../../configs/{sweep}.py)); seeds {seeds}. {documents} windows of the test split, which
training never reads, of {double} bytes: half of them fits a ridge regression from the hidden state to the position, at
positions below {trained}; a quarter chooses its penalty; the last quarter is tested, there and beyond.

* **R2** = 1 - sum (y - y_hat)^2 / sum (y - mean y)^2: 1 where the position is read exactly, 0 where nothing is known of it,
  below 0 beyond training where the map goes astray. After Haviv et al. 2022 (arXiv:2203.16634) and Kazemnejad et al. 2023
  (arXiv:2305.19466). *Untrained*: the same model with random parameters; *shuffled*: positions shuffled in each window.
* **Use** of a rotary frequency: scale * mean |q_c| * mean |k_c|, a bound of what the pair can add to a logit (Barbero et al.
  2024, arXiv:2410.06205, section 4). It *leaves training* where it turns less than once in {trained} tokens.
* **Layers** are counted from 0.

## The position in hidden states

At the trained positions, 0 to {last}, by depth: the input of each layer, and the features behind the last.

{within}
At initialisation:

{before}
Beyond them, {trained} to {end}, where the mean of the trained positions, the answer of a map that knows nothing, has R2 of -12:

{beyond}
Before training, and with shuffled positions, of the features behind the last layer:

{controls}
## The rotations in use

{rotary}
Cells are the mean over runs with the {ends}. All numbers are in [records.jsonl](records.jsonl).

## Make it again

```sh
attnjax sweep {sweep} --workers 2
python -m experiments.reading_positions --runs runs/{sweep} --out experiments/reading_positions
python -m experiments.reading_positions --render experiments/reading_positions      # from the records alone
```

Measured on {date} with Python {python}, jax {jax} and flax {flax} on {processor}.
"""


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md and, where matplotlib is installed, the figure.

    Raises ValueError where the records are missing or damaged.
    """
    return recorded.render(folder, read, {"README.md": page}, _draw)


def _draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    from experiments.reading_positions.figure import draw

    return draw(results, folder)


def page(results: Results) -> str:
    """The text of README.md."""
    about, run = results.about, results.runs[0]
    trained = run["trained"]
    return PAGE.format(
        claim=claim(results),
        within=probe_table(results, "within"),
        before=probe_table(results, "within", "untrained"),
        beyond=probe_table(results, "beyond"),
        controls=control_table(results),
        rotary="\n".join(filter(None, map(rotary_text, results.cells))) or "No encoding rotates.\n",
        runs=len(results.runs),
        seeds=", ".join(map(str, sorted({one["seed"] for one in results.runs}))),
        ends=recorded.t_ends_of(len({one["seed"] for one in results.runs})),
        # Records of before 2026-11-27 are of this text alone, and do not name it.
        text=run.get("text", "the standard library of Python"),
        last=trained - 1,
        double=2 * trained,
        end=2 * trained - 1,
        **{name: run[name] for name in ("layers", "heads", "model", "steps", "trained")},
        **{name: about[name] for name in ("documents", "date", "python", "jax", "flax")},
        **{name: markdown(about[name]) for name in ("sweep", "processor")},
    )


def claim(results: Results) -> str:
    """How well the position is read before the last layer, behind it, before training, and beyond trained lengths."""
    at = lambda depth, of="trained": {cell.encoding: of_mean(cell.within[of][:, depth]) for cell in results.cells}
    entering, last, before = at(-2), at(-1), at(-2, "untrained")
    ranked = sorted(last, key=lambda name: -entering[name].value)
    told = lambda found, show: ", ".join(f"{label(name)} {show(found[name])}" for name in ranked)
    short = lambda one: decimal(one.value, 2)
    sentences = [
        f"At the input of the last layer a linear map reads the position, within trained lengths, with R2 of "
        f"{told(entering, lambda one: interval(one, 2))}; at initialisation R2 there is {told(before, short)}.",
        f"After that layer R2 is {told(last, short)}.",
    ]
    beyond = {cell.encoding: of_mean(cell.beyond["trained"][:, -2]).value for cell in results.cells}
    there = [label(name) for name in ranked if beyond[name] > 0]
    sentences.append(f"Beyond trained lengths, at its input, it is above 0 under {', '.join(there) or 'no encoding'}.")
    for cell in results.cells:
        if cell.leaving is not None and cell.leaves is not None:
            count = f"{int(cell.leaves.sum())} of {len(cell.leaves)} frequencies"
            sentences.append(
                f"Under {label(cell.encoding)} {count} leave training: they carry {percent(cell)} of the use, "
                f"and equal use of all would give them {cell.leaves.mean():.2f}."
            )
    return " ".join(sentences)


def label(encoding: str) -> str:
    """The name of an encoding."""
    return markdown(style(encoding).label)


def percent(cell: Cell) -> str:
    """The share of the use on frequencies that leave training, with its interval."""
    return NONE if cell.leaving is None else interval(cell.leaving, 2)


def probe_table(results: Results, where: str, of: str = "trained") -> str:
    """A row per encoding, a column per depth."""
    depths = results.cells[0].within["trained"].shape[1]
    header = ["encoding", *(f"input of layer {layer}" for layer in range(depths - 1)), "features"]
    value = lambda cell, depth: interval(of_mean(getattr(cell, where)[of][:, depth]), 2)
    rows = [[label(cell.encoding), *(value(cell, depth) for depth in range(depths))] for cell in results.cells]
    return markdown_table(header, rows)


def control_table(results: Results) -> str:
    """A row per encoding: the probe, and its two controls."""
    value = lambda cell, of: interval(of_mean(cell.within[of][:, -1]), 2)
    return markdown_table(
        ["encoding", *PROBES], [[label(cell.encoding), *(value(cell, of) for of in PROBES)] for cell in results.cells]
    )


def rotary_text(cell: Cell) -> str:
    """The share of each frequency in the use, "" for an encoding that does not rotate."""
    if cell.share is None or cell.frequency is None or cell.leaves is None:
        return ""
    turns = np.divide(2 * np.pi, cell.frequency, out=np.full(len(cell.frequency), np.inf), where=cell.frequency > 0)
    header = ["layer", *(f"{turn:.0f}{' *' if out else ''}" for turn, out in zip(turns, cell.leaves, strict=True))]
    layers = np.moveaxis(cell.share, 1, 0).mean((1, 2))
    rows = [[str(number), *(decimal(one, 2) for one in row)] for number, row in enumerate(layers)]
    text = f"{label(cell.encoding)}: the share of each frequency in the use of a head, by its tokens per turn"
    return f"{text}, mean over heads and seeds; * leaves training.\n\n{markdown_table(header, rows)}"
