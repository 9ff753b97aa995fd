"""README.md of the experiment: claim, figures, tables and protocol, all from the records."""

import pathlib

from attnjax.report.formatting import markdown
from experiments import recorded
from experiments.head_pruning.claims import absences, bullets, claim, label
from experiments.head_pruning.results import Results, read
from experiments.head_pruning.tables import curves_md, half_table

RECORDS = recorded.RECORDS

PAGE = """# What does a trained language model lose with its heads?

**Claim.** {claim}

![Loss against heads kept, windows of {trained} bytes](figure.png)

*Windows of {trained} bytes, the trained length. Coloured line: heads removed in order of importance, the least important
first, with the {ends}; dotted: importance computed anew after each removal; grey: {orders} random orders of
each run, their mean and 95 % of them.{dotted}*

## What was run

{runs} decoders of bytes ({done}), {layers} layers of {heads} heads, D = {model}, feed-forward {hidden}, {steps} steps at
{trained} bytes of {text}; encodings: {encodings}; seeds: {seeds}. Nothing is trained after heads are removed.

* **Importance** of a head h: I_h = E | d loss / d gate_h | at gate = 1 over {documents} windows of the validation split, at
  the trained length, divided by the l2 norm of its layer (Michel et al. 2019, arXiv:1905.10650, eq. 2 and section 4.1).
* **Cost**: the rise of the loss, in nats per byte, on {documents} windows of the test split, which training never reads, of
  {trained} and of {double} bytes. Windows end at the same bytes at both lengths, and their last {counted} bytes count. Orders
  are those at the trained length at both.
* **Control**: {orders} random orders, the same for every run.
* **Ground truth**: each head removed alone; the rank correlation is Spearman's between that and I_h, on windows of the same
  length, over the {total} heads of a run.

## What came out

{bullets}

### Windows of {trained} bytes, the trained length

{short}
### Windows of {double} bytes

{long}{absent}
Cells are the mean over runs with the {ends}; a column with + is the
rise of the loss with {half} of {total} heads left, or with none. *Half, of all*: the rise with {half} heads left by
importance, divided by that without any, run by run. *Heads to spare*: how many go by importance before the loss first rises by
more than that share of it. The random column is the mean over orders. All
numbers are in [table.md](table.md) and [records.jsonl](records.jsonl).

![Loss against heads kept, windows of {double} bytes](figure_double.png)

*The same models and orders on windows of {double} bytes.*

## Make it again

```sh
attnjax sweep {sweep} --workers 2
python -m experiments.head_pruning --runs runs/{sweep} --out experiments/head_pruning
python -m experiments.head_pruning --render experiments/head_pruning      # from the records alone
```

Measured on {date} with Python {python}, jax {jax} and flax {flax} on {processor}.
"""


DOTTED = " Dotted grey: n-gram models of the training bytes (Witten and Bell 1991) on the same windows."


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md, table.md and, where matplotlib is installed, the figures, from the records in a folder.

    Raises ValueError where the records are missing or damaged.
    """
    return recorded.render(folder, read, {"README.md": page, "table.md": curves_md}, _draw)


def _draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    from experiments.head_pruning.figure import draw

    return draw(results, folder)


def page(results: Results) -> str:
    """The text of README.md."""
    short, long = (results.cells[length] for length in results.lengths)
    run, about = results.runs[0], results.about
    planned = about["planned"]
    return PAGE.format(
        claim=claim(results),
        bullets="\n".join(f"* {line}" for line in bullets(results)),
        short=half_table(short),
        long=half_table(long) if long else "",
        absent="".join(f"\n{one}\n" for one in absences(results)),
        trained=results.lengths[0],
        double=results.lengths[1],
        counted=results.lengths[0] - 1,
        runs=len(results.runs),
        done="all that were planned" if planned == len(results.runs) else f"of {planned} planned",
        encodings=", ".join(label(cell) for cell in short),
        seeds=", ".join(map(str, sorted({one["seed"] for one in results.runs}))),
        total=results.heads,
        ends=recorded.t_ends_of(min(len(cell.correlation) for cell in short)),
        dotted=DOTTED if results.ngrams else "",
        half=f"{short[0].kept[short[0].half]:g}",
        **{name: run[name] for name in ("layers", "heads", "model", "hidden", "steps", "text")},
        **{name: about[name] for name in ("documents", "orders", "date", "python", "jax", "flax")},
        **{name: markdown(about[name]) for name in ("sweep", "processor")},
    )
