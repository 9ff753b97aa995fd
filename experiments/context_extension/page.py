"""README.md of the experiment: claim, figures, tables and protocol, all from the records."""

import dataclasses
import pathlib

from attnjax.evaluation.methods import KEEP, extended_encoding
from attnjax.positions import RoPE
from attnjax.report.formatting import markdown
from attnjax.report.intervals import FEWEST
from experiments import recorded
from experiments.context_extension import suite_page, suite_records
from experiments.context_extension.claims import bullets, claim
from experiments.context_extension.methods import POSITIONS, look, published_name
from experiments.context_extension.results import Results, read
from experiments.context_extension.suite_records import Suite
from experiments.context_extension.tables import STAGED, TITLES, by_place, length_table, places, table_md, titled, units

RECORDS = recorded.RECORDS

PAGE = """# How far past its training length does a model with RoPE read?

**Claim.** {claim}

![Loss against position, and needles found by length](figure.png)

*Above: mean loss in one window of {longest} {unit}s, by position, with the {over}; shaded up to the
trained length.{dotted} (NTK and dynamic NTK are the same in a window of this length.)
Below: share of needles found, over {depths} depths; chance is {chance:.3g}.*

## Question

A decoder trained at {trained} {unit}s with RoPE meets angles it has never seen in a sequence of {longest}. Which change of its
frequencies lets it read on, without training and after {steps} steps of it, and does it find there what it needs? Papers:
position interpolation (PI), Chen et al. 2023 (arXiv:2306.15595); NTK-aware, dynamic NTK and YaRN, Peng et al. 2023
(arXiv:2309.00071); LongRoPE, Ding et al. 2024 (arXiv:2402.13753); p-RoPE, Barbero et al. 2025 (arXiv:2410.06205); DroPE,
Gelberg et al. 2025 (arXiv:2512.12167); sliding windows, Press et al. 2022 (arXiv:2108.12409).{papers}

**Expected**: as trained, the loss rises steeply past the trained length. NTK-aware scaling was made to be used without
training, PI and YaRN with some. Published perplexities of LLaMA 2 7B fine-tuned for 8,192 tokens (those of YaRN on fewer
tokens), at 8,192 and at 10,240 (Peng et al. 2023): YaRN 3.36 and 6.05, NTK 3.59 and 6.24, PI 3.34 and 8.07. Needles at twice
the trained length, one kind of three (multi-query, Gelberg et al. 2025): RoPE and PI 0, NTK 21, YaRN 18, DroPE 28 %; without
recalibration a model is not expected to do anything without its RoPE.

## What was run

{models} All numbers are measured on held-out text ({text}).

* **Methods** exchange the encoding of the trained weights; the factor is {factor} at every length, as in a model that is
  published for one longer context. Dynamic NTK looks at the length of each sequence, LongRoPE changes nothing up to the trained
  length. **LongRoPE**: {longrope}. **p-RoPE** (p = {keep}) is put on a model that was trained with all its frequencies; its
  authors train with it.{positions}
* **Fine-tuning**: {steps} steps of Adam on {tokens} {unit}s each, rate {rate:g}, at {longest} {unit}s; the same windows for
  every method. **DroPE** is recalibrated at {trained} {unit}s instead, as its authors do, on as many {unit}s.{logit_scale}
* **Loss**: {documents} documents of {longest} {unit}s. *Windows that do not overlap* are the documents cut into windows of T;
  *sliding* counts the last {stride} {unit}s of windows of T that end at the same {unit}s, so that lengths differ by their
  context alone.
* **Needles**: {needle}. {needles} of them at each of {depths} depths and each length. An answer is found if {exact} the
  likeliest given what stands before it. Guessing {symbols} is right in {chance:.3g} of cases.

## What came out

{bullets}
{agreeing}
{tables}
{units} All numbers are in [table.md](table.md) and [records.jsonl](records.jsonl){more}.

![Needles found, by depth and length](figure_depth.png)

*Share of answers found (bright: all) by depth of the needle, from the start of the context (0) to right before the
question (1), and by length of the context in {unit}s.*

{suite}## Limits

{limits}

## Make it again

```sh
{command}
python -m experiments.context_extension --render experiments/context_extension      # page, tables, figures from the records
```

Measured on {places}: {training}{minutes} of fine-tuning and measuring.
{suite_minutes}"""

PAPERS = """ And which change of its
positions, without training: Self-Extend, Jin et al. 2024 (arXiv:2401.01325); ReRoPE and Leaky ReRoPE, Su 2023
(https://github.com/bojone/rerope); Dual Chunk Attention, An et al. 2024 (arXiv:2402.17463); LM-Infinite, Han et al. 2024
(arXiv:2308.16137); StreamingLLM, Xiao et al. 2023 (arXiv:2309.17453); log-n scaling, Chiang & Cholak 2022 (arXiv:2202.12172).
Resonance RoPE, Wang et al. 2024 (arXiv:2403.00071), changes frequencies, those of YaRN."""
POSITIONED = """
* **Positions** are remapped, and logits scaled, without training alone, with sizes made of the trained length L = {trained} as
  `attnjax evaluate --extend` does: {sizes}. LM-Infinite and StreamingLLM see the first tokens and the last L alone, so that
  a needle further back is out of their sight. Nothing was chosen by looking at results."""

SIZES = ("group", "window", "factor", "chunk", "local", "first", "length")
"""Of methods, as the page tells them."""

DOTTED = " Dotted: n-gram models of the training bytes (Witten and Bell 1991) on the same documents."

PLANTED = (
    "a line of four rare bytes, each a value of one of 12 kinds, and at the end a line in which four other bytes ask for these "
    "kinds one by one; the answers stand in the context nowhere else"
)
SPOKEN = "*The secret number of Greta is 48213.*, asked for again at the end in the same words"
SMALL = (
    "A model of {parameters} parameters, trained for minutes on windows of {trained} bytes: what holds for it "
    "need not hold for a large one. Facts, their number and the size of the model were chosen until facts were "
    "found at the trained length, without looking past it. All methods share one rate and one number of steps, "
    "set by the time they take and made more and shorter (40 of 4,096 bytes for 30 of 8,192) when some numbers had been "
    "seen. The factor is {factor} at all lengths: with "
    "the factor of each length, PI, NTK and YaRN may cost less on shorter ones; that was not measured. Facts are told by "
    "what they are and not by where they stand, which suits models that lose their positions. Files are put into splits one by "
    "one, so that a near-duplicate of a held-out file may be trained on. Seeds 3 to 5 were added when the numbers of the first "
    "three had been seen, so that there are intervals."
)
PUBLISHED = (
    "One model: intervals are over documents and needles, not over trainings. Only one kind of needle, one text, and one "
    "factor at all lengths."
)


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md, table.md and, where matplotlib is installed, the figures, from the records in a folder.

    Raises ValueError where the records are missing or damaged.
    """
    suite = suite_records.read(folder / suite_records.RECORDS)
    pages = {"README.md": lambda results: page(results, suite), "table.md": lambda results: tables_of(results, suite)}
    return recorded.render(folder, read, pages, lambda results, folder: _draw(results, suite, folder))


def _draw(results: Results, suite: Suite | None, folder: pathlib.Path) -> list[pathlib.Path]:
    from experiments.context_extension import figure, suite_figure

    return figure.draw(results, folder) + ([] if suite is None else suite_figure.draw(suite, folder))


def tables_of(results: Results, suite: Suite | None = None) -> str:
    """The text of table.md."""
    return table_md(results) if suite is None else f"{table_md(results)}\n{suite_page.tables(suite)}"


def agreeing(runs: int) -> str:
    """What it means that a number is higher, with several runs; nothing for a single model.

    Example:
      >>> print(agreeing(3).strip())
      No difference is shown by 3 runs: *higher*, *lower*, *more*, *less*, *ahead* and *behind* say that all of them agree in
      the sign, which chance does in 1 of 4 cases.
      >>> print(agreeing(6).strip())
      *Higher*, *lower*, *more*, *less*, *ahead* and *behind* say that 0 lies outside the 95 % t interval of the differences of
      6 pairs, one by one: their number is not corrected for.
    """
    if runs == 1:
        return ""
    if runs >= FEWEST:
        words = (
            "*Higher*, *lower*, *more*, *less*, *ahead* and *behind* say that 0 lies outside the 95 % t interval of the"
        )
        return f"\n{words} differences of\n{runs} pairs, one by one: their number is not corrected for.\n"
    words = "*higher*, *lower*, *more*, *less*, *ahead* and *behind* say that all of them agree in"
    return f"\nNo difference is shown by {runs} runs: {words}\nthe sign, which chance does in 1 of {2 ** (runs - 1)} cases.\n"


def page(results: Results, suite: Suite | None = None) -> str:
    """The text of README.md, with what the suite says where it was asked."""
    about, run = results.about, results.runs[0]
    small = about["unit"] == "byte"
    limits = SMALL if small else PUBLISHED
    names = ("unit", "trained", "factor", "steps", "tokens", "rate", "documents", "needles", "stride", "chance")
    scale = about["logit_scale"]
    return PAGE.format(
        claim=claim(results),
        bullets="\n".join(f"* {line}" for line in bullets(results)),
        agreeing=agreeing(len(results.runs)),
        tables="\n".join(
            section(results, stage, name) for name in ("sliding", "windows", "found") for stage in results.stages
        ),
        units=units(results),
        dotted=DOTTED if results.ngrams else "",
        over=recorded.t_ends_of(len(results.runs)) if len(results.runs) > 1 else "95 % t interval over documents",
        longest=results.lengths[-1],
        depths=len(about["depths"]),
        models=models(results),
        longrope=factors(results),
        keep=KEEP,
        papers=PAPERS if remapped(results) else "",
        positions=positioned(results),
        needle=PLANTED if small else SPOKEN,
        logit_scale=f" Its logits are multiplied by 1 + {scale:g} ln(T / {about['trained']}) past that."
        if scale
        else "",
        symbols="values" if small else "digits",
        exact="its byte is" if small else "every token of it is",
        limits=limits.format(
            parameters=f"{run['parameters']:,}", **{name: about[name] for name in ("trained", "factor")}
        ),
        command=command(results),
        minutes=spent(results),
        training=training(results),
        more="" if suite is None else f", those of the suite in [{suite_records.RECORDS}]({suite_records.RECORDS})",
        suite="" if suite is None else f"{suite_page.section(suite, results)}\n",
        suite_minutes="" if suite is None else f"{suite_page.spent(suite)}\n",
        text=markdown(about["text"]),
        places=places(results.runs, about),
        **{name: about[name] for name in names},
    )


def section(results: Results, stage: str, measure: str) -> str:
    """A table with its title."""
    return f"### {STAGED[stage]}: {titled(results, TITLES[measure])}\n\n{length_table(results, stage, measure)}"


def models(results: Results) -> str:
    """What was read, in a sentence."""
    run, about = results.runs[0], results.about
    sizes = f"{run['layers']} layers of {run['heads']} heads, D = {run['model']}, {run['parameters']:,} parameters"
    if about["unit"] == "token":
        return f"{markdown(run['run'])}: {sizes}, trained at {about['trained']} tokens."
    seeds = ", ".join(str(one["seed"]) for one in results.runs)
    count = f"{len(results.runs)} decoder{'s' if len(results.runs) > 1 else ''} of bytes, seeds {seeds}"
    return (
        f"{count}: {sizes}, {run['steps']} steps of {run['batch']} windows of {about['trained']} bytes from the standard "
        "library of Python with facts planted in it."
    )


def factors(results: Results) -> str:
    """Where the factors come from, and those of the first model."""
    found = ", ".join(f"{factor:.3g}" for factor in results.runs[0]["factors"])
    return f"factors by {results.about['longrope']} ({found}{', for the first model' if len(results.runs) > 1 else ''})"


def remapped(results: Results) -> list[str]:
    """The methods of these records that remap positions or scale logits by them."""
    return [name for name in POSITIONS if name in results.cells["zero-shot"]]


def positioned(results: Results) -> str:
    """What was done with positions, and the sizes of each method; "" where nothing was."""
    trained, factor = results.about["trained"], float(results.about["factor"])
    said = []
    for name in remapped(results):
        encoding = extended_encoding(published_name(name), RoPE(), trained, factor)
        own = [(part, field) for part in getattr(encoding, "parts", (encoding,)) for field in dataclasses.fields(part)]
        sizes = {field.name: getattr(part, field.name) for part, field in own if field.name in SIZES}
        told = ", ".join(f"{key} {value:g}" for key, value in sizes.items() if value is not None)
        said.append(f"{markdown(look(name).label)} ({told})" if told else markdown(look(name).label))
    return POSITIONED.format(trained=trained, sizes=", ".join(said)) if said else ""


def spent(results: Results) -> str:
    """Minutes of all methods and searches."""
    seconds = sum(cell.seconds.sum() for found in results.cells.values() for cell in found.values())
    return f"{(seconds + sum(run['seconds'] for run in results.runs)) / 60:.1f} minutes"


def training(results: Results) -> str:
    """Minutes of training, where the models were trained for this; runs of one place train at the same time."""
    there = by_place(results.runs, results.about).values()
    seconds = sum(max(run.get("training", 0) for run in runs) for runs in there)
    return f"{seconds / 60:.1f} minutes of training, " if seconds else ""


def command(results: Results) -> str:
    """What to call for these records."""
    if results.about["unit"] == "byte":
        return "python -m experiments.context_extension"
    return f"python -m experiments.context_extension --model {results.runs[0]['run']} --text {results.about['text']}"
