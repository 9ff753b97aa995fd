"""What is said of the numbers, in sentences that are made from them: no sentence is written by hand for one result."""

from collections.abc import Callable, Sequence

import numpy as np

from attnjax.report.formatting import decimal, interval, markdown
from attnjax.report.intervals import FEWEST, INTERVAL, RANGE, Estimate, of_mean
from attnjax.report.style import style
from experiments.head_pruning.results import SHARES, Cell, Results
from experiments.recorded import sorted_out

Values = Callable[[Cell], np.ndarray]
"""One number per run of a cell."""


def claim(results: Results) -> str:
    """What half of the heads cost, alone and beside all of them, and whether their choice matters."""
    short, long = (results.cells[length] for length in results.lengths)
    cost = lambda cell: cell.rise("importance")
    gone = results.heads - int(short[0].kept[short[0].half])
    twice = f" At twice the length the same heads cost {span(long, cost, gain)}." if long else ""
    return (
        f"Without the {gone} least important of its {results.heads} heads a trained model loses {span(short, cost, gain)} "
        f"nats per byte, at the trained length and without training again. That is "
        f"{span(short, lambda cell: cell.share('importance'), percent)} of what it loses without any head, and in "
        f"random order {span(short, lambda cell: cell.share('random'), percent)}. {spared(results)} {choice(short)}{twice}"
    )


def spared(results: Results) -> str:
    """How many heads go before the loss rises by the smallest share, in a sentence."""
    cells = results.cells[results.lengths[0]]
    most = max(float(cell.removable(SHARES[0]).max()) for cell in cells)
    if most == 0:
        return f"In no run does even one head go, in that order, before the loss rises by more than {SHARES[0]:.0%}."
    return f"At most {most:g} of {results.heads} heads go, in that order, before the loss rises by more than {SHARES[0]:.0%}."


def choice(cells: Sequence[Cell]) -> str:
    """Whether the order by importance is better than a random one, in a sentence."""
    better, worse, rest = sorted_out(cells, lambda cell: cell.rise("importance") - cell.rise("random"))
    parts = [f"cheaper than random ones under {named(better, cells)}"]
    parts += [f"dearer under {named(worse, cells)}"] if worse else []
    parts += [f"not to be told apart from them under {named(rest, cells)}"] if rest else []
    return f"The least important are {', '.join(parts)} ({ground(cells)})."


def ground(cells: Sequence[Cell]) -> str:
    """What `sorted_out` goes by: the runs themselves where they are few, and otherwise an interval over them."""
    runs = min(len(cell.correlation) for cell in cells)
    if runs < FEWEST:
        return f"in all {runs} runs; so few runs show no more" if runs > 1 else "one run shows no difference"
    return "95 % interval of the difference, over runs, each encoding by itself: not corrected for their number"


def bullets(results: Results) -> list[str]:
    """What else the tables say, a sentence each."""
    short, long = (results.cells[length] for length in results.lengths)
    spare = [span(short, lambda cell, share=share: cell.removable(share), number) for share in SHARES]
    better, worse, _ = sorted_out(short, lambda cell: cell.rise("recomputed") - cell.rise("importance"))
    bare = span(short, lambda cell: cell.bare(), gain)
    right = span(short, lambda cell: cell.accuracy["importance"][:, 0, cell.half], percent)
    whole = span(short, lambda cell: cell.accuracy["importance"][:, 0, 0], percent)
    return [
        f"**Heads to spare**, of {results.heads}: within 1 % of the loss {spare[0]}; within 5 % {spare[1]}. "
        "(Michel et al. 2019, section 4.2: about 20 % of the heads of a translation model and 40 % of BERT's without a "
        "noticeable loss.)",
        f"**All heads** gone, the loss rises by {bare}.",
        *([counted(results)] if results.ngrams else []),
        f"**Accuracy** of the next byte: {whole} with all heads, {right} with half of them.",
        f"**Importance computed anew** after each removal is cheaper at half of the heads than once for all under "
        f"{named(better, short)}, and dearer under {named(worse, short)}.",
        f"**Gradient and ablation**: the rank correlation is {span(short, lambda cell: cell.correlation, number)} at the "
        "trained length.",
        *([twice_the_length(short, long)] if long else []),
    ]


def counted(results: Results) -> str:
    """What n-gram models of the training bytes lose on the same windows, and which whole models lose more than a trigram."""
    short, levels = results.lengths[0], results.ngrams[results.lengths[0]]
    told = ", ".join(f"{name} {decimal(loss)}" for name, loss in levels.items())
    best = min(levels, key=levels.__getitem__)
    cells = results.cells[short]
    less, more, _ = sorted_out(cells, lambda cell: cell.loss["importance"][:, 0, 0] - levels[best])
    return (
        f"**N-grams** of the training bytes, on the same windows: {told}. With all heads the loss is below that of the {best} "
        f"under {named(less, cells)}, above it under {named(more, cells)}."
    )


def twice_the_length(short: Sequence[Cell], long: Sequence[Cell]) -> str:
    """Under which encodings half of the heads cost another loss at twice the length."""
    pairs = {cell.encoding: cell for cell in short}
    less, more, _ = sorted_out(long, lambda cell: cell.rise("importance") - pairs[cell.encoding].rise("importance"))
    return (
        f"**Twice the length**: half of the heads cost more than at the trained length under {named(more, long)}, less "
        f"under {named(less, long)}. The rank correlation there is {span(long, lambda cell: cell.correlation, number)}."
    )


def absences(results: Results) -> list[str]:
    """A sentence for every encoding that was not measured at twice the length."""
    return [
        f"{markdown(style(name).label)} is not here: {markdown(reason)}." for name, reason in results.absent.items()
    ]


def span(cells: Sequence[Cell], values: Values, shown: Callable[[Estimate], str]) -> str:
    """The least and the greatest of the encodings, each with its interval: a (RoPE) to b (ALiBi)."""
    # Equal means differ in their last bits with the order of a summation: of these the first encoding is named.
    found = sorted(
        ((of_mean(values(cell)), cell) for cell in cells),
        key=lambda pair: (np.isnan(pair[0].value), round(pair[0].value, 9)),
    )
    (least, first), (most, last) = found[0], found[-1]
    if len(found) > 1 and shown(least) == shown(most):
        return f"{shown(least)} under every encoding"
    return " to ".join(dict.fromkeys(f"{shown(one)} ({label(cell)})" for one, cell in ((least, first), (most, last))))


def gain(found: Estimate) -> str:
    """A change with its sign: +0.021 [0.010, 0.040]."""
    return f"{'+' if found.value >= 0 else ''}{interval(found)}"


def number(found: Estimate) -> str:
    """2.3 [1.0, 3.0], or two decimals for what is below 1."""
    return interval(found, 2 if abs(found.value) < 1 else 1)


def percent(found: Estimate) -> str:
    """41.2 % [40.1, 42.0]."""
    value, low, high = (decimal(100 * end, 1) for end in (found.value, found.low, found.high))
    known = {INTERVAL: f"[{low}, {high}]", RANGE: f"(range {low} to {high})"}
    return f"{value} % {known.get(found.kind, '(no interval)')}"


def named(cells: Sequence[Cell], among: Sequence[Cell]) -> str:
    """2 of 6 encodings (RoPE, ALiBi)."""
    inside = f" ({', '.join(map(label, cells))})" if cells else ""
    return f"{len(cells)} of {len(among)} encodings{inside}"


def label(cell: Cell) -> str:
    """The name of an encoding as Markdown."""
    return markdown(style(cell.encoding).label)
