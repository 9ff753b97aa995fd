"""What is said of the numbers, in sentences that are made from them: no sentence is written by hand for one result."""

from attnjax.report.formatting import decimal, interval, markdown
from attnjax.report.intervals import FEWEST, Estimate, of_mean
from experiments.context_extension.methods import look
from experiments.context_extension.results import STAGES, Cell, Results
from experiments.recorded import sorted_out

EXPECTED = (("yarn", "ntk"), ("ntk", "pi"))
"""Pairs of methods of which the config expects the first to lose less."""


def claim(results: Results) -> str:
    """What a long window costs as trained, what the best method makes of it, and whether needles are found."""
    short, long, unit = results.lengths[0], results.lengths[-1], results.about["unit"]
    cells = results.cells["zero-shot"]
    parts = []
    if "none" in cells:
        plain = cells["none"]
        parts.append(
            f"Trained at {short} {unit}s, RoPE as it is has a loss of {interval(plain.estimate('sliding', long))} nats per "
            f"{unit} at the end of a window of {long}, against {interval(plain.estimate('sliding', short))} where it reads "
            f"the last {short} alone."
        )
    parts.append(f"Without training {lowest(results, 'zero-shot', long)}.")
    if "tuned" in results.stages:
        parts.append(f"After {results.about['steps']} steps of fine-tuning {lowest(results, 'tuned', long)}.")
    if results.ngrams:
        name, level = best_ngram(results, long)
        parts.append(f"A {name} of the training bytes has {decimal(level)} there.")
    parts.append(f"Needles at {long}: {'; '.join(finders(results, stage) for stage in results.stages)}.")
    return " ".join(parts)


def lowest(results: Results, stage: str, length: int) -> str:
    """The method with the lowest mean loss at the end of a length, beside the trained model at the trained length, and from
    what it is not told apart.
    """
    best, *others = ranked(results, stage, "sliding", length)
    _, _, tied = sorted_out(others, lambda cell: cell.units("sliding", length) - best.units("sliding", length))
    text, names = (
        f"{label(best)} has the lowest mean loss there, {interval(best.estimate('sliding', length))}",
        [label(x) for x in tied],
    )
    if (plain := results.cells["zero-shot"].get("none")) is not None:
        short = results.lengths[0]
        change = best.units("sliding", length) - plain.units("sliding", short)
        higher, lower = of_mean(change), of_mean(-change)
        if higher.low > 0:
            text += f", {interval(higher)} above {label(plain)} at {short}"
        elif lower.low > 0:
            text += f", {interval(lower)} below {label(plain)} at {short}"
        else:
            names = [f"{label(plain)} at {short}", *names]
    return f"{text} ({undecided(results)}: {', '.join(names)})" if names else text


def undecided(results: Results) -> str:
    """What is said where a difference is neither above nor below 0; of too few runs for an interval, of their signs."""
    return "not the same sign in every run" if 1 < len(results.runs) < FEWEST else "no difference shown"


def bullets(results: Results) -> list[str]:
    """What else the tables say, a sentence each."""
    short, long = results.lengths[0], results.lengths[-1]
    lines = [order(results, stage, long) for stage in results.stages]
    tuned = results.cells.get("tuned", {})
    if results.about["unit"] == "byte" and all(name in tuned for pair in EXPECTED for name in pair):
        lines.append(expected(results))
    lines += [context(results, stage) for stage in results.stages]
    lines += [counted(results, long)] if results.ngrams else []
    if "none" in results.cells["zero-shot"]:
        lines += [price(results, short), finding(results)]
        lines += [gain(results, long)] if "tuned" in results.stages else []
    lines += [dropping(results)] if "drope" in results.cells["zero-shot"] and "tuned" in results.stages else []
    return lines


def order(results: Results, stage: str, length: int) -> str:
    """All methods by their loss at a length."""
    cells = ranked(results, stage, "sliding", length)
    listed = ", ".join(f"{label(cell)} {decimal(cell.estimate('sliding', length).value)}" for cell in cells)
    return f"**Loss at the end of {length}, {named(stage)}**, from low to high: {listed}."


def expected(results: Results) -> str:
    """What the config says to have been expected of YaRN, NTK and PI, and how they differ."""
    told = []
    for stage, lengths in zip(STAGES, (results.lengths[1:], results.lengths[-1:]), strict=True):
        for method, other in EXPECTED:
            less = f"{label(results.cells[stage][method])} less {label(results.cells[stage][other])}"
            found = ", ".join(
                f"{signed(results.difference('sliding', n, stage, method, other))} at {n}" for n in lengths
            )
            told.append(f"{named(stage)}, {less} {found}")
    return (
        "**Expected by the config**: YaRN ahead of NTK and NTK ahead of PI without training, all close after it. Loss at the "
        f"end: {'; '.join(told)}."
    )


def context(results: Results, stage: str) -> str:
    """Which methods use what lies further back than the trained length, and for which more context is worse."""
    short, long = results.lengths[0], results.lengths[-1]
    cells = results.cells[stage].values()
    change = lambda cell: cell.units("sliding", long) - cell.units("sliding", short)
    better, worse, rest = sorted_out(cells, change)
    said = []
    for found, text in ((better, "lower"), (worse, "higher"), (rest, undecided(results))):
        said += [f"{text} under {listed(found)}"] if found else []
    return (
        f"**More context, {named(stage)}**: the same {results.about['unit']}s are predicted with {long} before them instead "
        f"of {short}; the loss is {'; '.join(said)}."
    )


def counted(results: Results, length: int) -> str:
    """What n-gram models of the training bytes lose at a length, and which methods lose more than the best of them."""
    best, lowest_loss = best_ngram(results, length)
    more = lambda stage: sorted_out(
        results.cells[stage].values(), lambda cell: cell.units("sliding", length) - lowest_loss
    )[1]
    above = "; ".join(f"{named(stage)}, {listed(more(stage))}" for stage in results.stages)
    told = ", ".join(f"{name} {decimal(level.sliding[length])}" for name, level in results.ngrams.items())
    text = f"**N-grams** of the training bytes, at the end of {length} of the same documents: {told}."
    return f"{text} Higher than the {best}: {above}."


def best_ngram(results: Results, length: int) -> tuple[str, float]:
    """The n-gram model that loses least at the end of a length, and what it loses."""
    losses = {name: level.sliding[length] for name, level in results.ngrams.items()}
    best = min(losses, key=losses.__getitem__)
    return best, losses[best]


def price(results: Results, length: int) -> str:
    """What each method costs on sequences of the trained length."""
    cells = [cell for name, cell in results.cells["zero-shot"].items() if name != "none"]
    costs = ", ".join(
        f"{label(cell)} {signed(results.difference('windows', length, 'zero-shot', cell.method, 'none'))}"
        for cell in cells
    )
    return f"**Price at the trained length** ({length}), without training, in nats: {costs}."


def gain(results: Results, length: int) -> str:
    """Which methods are ahead of plain fine-tuning, in which no frequency is changed."""
    cells = [cell for name, cell in results.cells["tuned"].items() if name != "none"]
    plain = results.cells["tuned"]["none"].units("sliding", length)
    better, worse, rest = sorted_out(cells, lambda cell: cell.units("sliding", length) - plain)
    said = [f"ahead: {listed(better)}"] if better else []
    said += [f"behind: {listed(worse)}"] if worse else []
    said += [f"{undecided(results)}: {listed(rest)}"] if rest else []
    return f"**Against fine-tuning RoPE as it is**, at the end of {length}: {'; '.join(said)}."


def finding(results: Results) -> str:
    """Where more needles are found than by the model as it was trained, and where fewer."""
    cells = [cell for name, cell in results.cells["zero-shot"].items() if name != "none"]
    said = []
    plain = results.cells["zero-shot"]["none"]
    for length in (results.lengths[0], results.lengths[-1]):
        fewer = lambda cell, length=length: plain.units("found", length) - cell.units("found", length)
        better, worse, _ = sorted_out(cells, fewer)
        found = interval(plain.estimate("found", length), 2)
        said.append(f"at {length} RoPE as trained finds {found} of them; {listed(better)} more; {listed(worse)} less")
    return f"**Needles without training**: {'; '.join(said)}."


def dropping(results: Results) -> str:
    """What DroPE is with and without recalibration, and what its needles are."""
    short, long = results.lengths[0], results.lengths[-1]
    before, after = (results.cells[stage]["drope"] for stage in results.stages)
    at = lambda cell, length: interval(cell.estimate("sliding", length))
    return (
        f"**DroPE** without recalibration: {at(before, short)} at {short} and {at(before, long)} at {long}; recalibrated at "
        f"{short}: {at(after, short)} and {at(after, long)}."
    )


def finders(results: Results, stage: str) -> str:
    """Who finds most needles at the longest context, and most of those that find fewer, at what loss: of the methods whose
    interval lies above chance, each with those from which it is not told apart.
    """
    long = results.lengths[-1]
    share = lambda cell: cell.estimate("found", long)
    found = [
        cell for cell in reversed(ranked(results, stage, "found", long)) if share(cell).low > results.about["chance"]
    ]
    if not found:
        return f"{named(stage)}, no method finds them more often than by chance"
    said = []
    while found and len(said) < 2:
        best, *others = found
        found, _, tied = sorted_out(
            others, lambda cell, best=best: cell.units("found", long) - best.units("found", long)
        )
        loss = decimal(best.estimate("sliding", long).value)
        names = ", ".join(f"{label(cell)} {decimal(share(cell).value, 2)}" for cell in tied)
        alike = f" ({undecided(results)}: {names})" if names else ""
        said.append(f"{label(best)} {interval(share(best), 2)} at a loss of {loss}{alike}")
    return f"{named(stage)}, most are found by {', then by '.join(said)}"


def ranked(results: Results, stage: str, measure: str, length: int) -> list[Cell]:
    """The cells of a stage, the lowest first."""
    return sorted(results.cells[stage].values(), key=lambda cell: cell.estimate(measure, length).value)


def listed(cells: list[Cell]) -> str:
    """Names joined by commas."""
    return ", ".join(label(cell) for cell in cells) or "none"


def signed(estimate: Estimate) -> str:
    """A difference with its sign and interval."""
    return f"{'+' if estimate.value >= 0 else ''}{interval(estimate)}"


def label(cell: Cell) -> str:
    """The method as the page calls it."""
    return markdown(look(cell.method).label)


def named(stage: str) -> str:
    """The stage in a sentence."""
    return "without training" if stage == "zero-shot" else "after fine-tuning"
