"""How far past its trained lengths does each encoding reach?

Question: small decoders that have fitted the trained lengths, with the learning rate that suits their encoding: up to which
multiple of the longest trained length do they hold? Every encoding that a decoder can use on positions with one coordinate, on
six tasks of five kinds:
    copy         counting     repeat one token as often as it was given (`rsc`), trained at 1 to 16 tokens
    sort         algorithmic  different tokens in ascending order, trained at 1 to 8 of 80 tokens
    bucket_sort  algorithmic  five kinds of tokens in ascending order, trained at 1 to 16 tokens
    induction    retrieval    a random string again, token by token, trained at 8 to 16 tokens
    markov       in context   Markov chains of 4 symbols, a new one for every sequence, trained at 32 symbols
    text         language     bytes of Python's own standard library, trained at 32 bytes, near-duplicate files in one split
Each is tested just past training and up to 8 times the longest trained length. Axial and M-RoPE are left out, because no task
has positions with several coordinates. SSMax and Llama 4's temperature scale queries and are no positions: each is alone in a
model, because a config names one encoding for a layer, and cells of theirs are to be read beside those of NoPE. Llama 4's scale
begins to grow at 16 positions here, where its default of 8,192 would make it NoPE. DAPE has its default base, Kerple.

How the tasks were chosen: so that a small model can fit the trained lengths within one or two million tokens, seen on seed
1000, which no run of the table has, at trained lengths alone. Copying, sorting and Markov chains fitted under T5 and RoPE, and
but for the chains under NoPE, in longer trainings (configs/rope_vs_sinusoidal.py). Then, on 2026-11-26, `pilot` looked
at all: exact match, or loss in nats, at the longest trained length under T5, RoPE and NoPE,
    copy         1, 1, 1
    sort         0.996, 0.980, 0.977 after 2,000 steps; 0.996, 0.996, 0.996 after 3,000
    bucket_sort  1, 0.984, 1
    induction    3.20, 0.00, 3.98 after 1,000 steps; 0.17, 0.00, 3.26 after 3,000; 0.00, 0.00 after 4,000, where NoPE was not
                 tried (2.39 after 5,000)
    markov       1.208, 1.205, 1.293; the best prediction has 1.210 on test windows
    text         1.83, 1.68, 2.15; bigrams have 2.52 on test windows
    spare        recall 0.29, 0.27, 0.28 (0.31, 0.29 after 4,000 steps); majority 1, 1, 1; even_pairs 1, 1, 0.59
Before it, a task that two of the three do not fit was to be exchanged for a spare one. Sort and induction are trained longer
instead, for 3,000 and 4,000 steps, since no spare task that fits is retrieval. `pilot` trains them as they are now.

Tuning parity: on each task every encoding has three rates (3e-3, 1e-3, 1e-2) on the seeds 2000 and 2001, chosen by validation
sets at the longest trained length; of equal ones the first. The runs have the seeds 0 to 9. All runs do all steps.

What is compared, said before the runs: for each task and encoding the fit rate, the share of runs that fit the trained
lengths, and the length factor, the largest tested L'/L up to which a run holds: exact match is at least 0.9, or the loss
stays within 0.05 nats of that at L. To fit is exact match of 0.99 within the trained lengths; in markov and induction a loss
within 0.05 nats of the best prediction; in text a loss below that of bigrams of the training bytes. A cell in which fewer
than half of the runs fit is grey, and has no rank. The encoding with the largest median factor is called best where its
paired differences, by seed, to all other encodings that fit have an exact sign-flip p of at most 0.05 after Holm's correction
over these differences.

Papers: Kazemnejad et al. 2023 (arXiv:2305.19466) for copy; Huang et al. 2025 (arXiv:2410.02140) for sort; Deletang et al.
2023 (arXiv:2207.02098) for bucket_sort; Olsson et al. 2022 (arXiv:2209.11895) for induction; Edelman et al. 2024
(arXiv:2402.11004) for markov; Press et al. 2022 (arXiv:2108.12409) for text.
Command: attnjax run length_table:copy --extend --workers 2      (and so for every task)
Run time: see experiments/length_table/README.md
Expected: T5, Kerple, FIRE and the gates computed from tokens (FoX, Cable, stick-breaking) reach furthest on retrieval and
text, rotations and learned positions stop near the trained length everywhere; no encoding is first on all tasks.
"""

from attnjax.config import defaults
from attnjax.registry import ENCODINGS as KNOWN
from attnjax.sweep import chain, product, seeds, vary

VARIANTS = {
    "all": "all six tasks: 22 encodings, 10 seeds, after tuning of all tasks",
    "copy": "the runs of one task; `--extend` puts all tasks into one folder",
    "sort": "the same",
    "bucket_sort": "the same",
    "induction": "the same",
    "markov": "the same",
    "text": "the same",
    "pilot": "the six tasks and three spare ones under T5, RoPE and NoPE, seed 1000, no test lengths",
}

# Without the methods that change a trained model past its trained length: up to there they are the RoPE that they are put on.
ENCODINGS = tuple(name for name, row in KNOWN.items() if not row.axes and not row.untrained)
REFERENCES = ("t5", "rope", "nope")
LONGEST = 264
"""Positions of a learned table: the longest test has 258 tokens."""
OPTIONS = {"learned": {"length": LONGEST, "std": 1.0}, "llama4_temperature": {"floor_scale": 16}}
WITHIN, PAST = (1 / 2, 1), (17 / 16, 5 / 4, 3 / 2, 2, 3, 4, 8)
"""Tested lengths over the longest trained one; of fractions the next whole length."""


def lengths(longest):
    """The lengths at which a task is validated and tested, and the sizes that they are padded to."""
    tested = sorted({-int(-longest * ratio // 1) for ratio in (*WITHIN, *PAST)})
    return {
        "evaluate.lengths": tuple(tested),
        "evaluate.validation_lengths": (longest,),
        "evaluate.bucket_sizes": (3 * longest // 2, 4 * longest, 8 * longest),
    }


def task(name, low, high, steps, options=None, **changes):
    """A task trained at lengths from low to high, for so many steps."""
    made = {"task": {"name": name, "options": options or {}, "length_min": low, "length_max": high}}
    return {**made, "train.steps": steps, **lengths(high), **changes}


TASKS = {
    "copy": task("copy", 1, 16, 1000, {"variant": "rsc"}),
    "sort": task("sort", 1, 8, 3000, {"symbols": 80}),
    "bucket_sort": task("bucket_sort", 1, 16, 1500),
    "induction": task("induction", 8, 16, 4000, {"symbols": 128}),
    "markov": task("markov", 32, 32, 1500, {"symbols": 4}),
    "text": task("text", 32, 32, 1000, {"split_by": "group"}),
}
SPARE = {
    "recall": task("associative_recall", 1, 8, 1500, {"keys": 64, "values": 16}, **{"train.batch": 64}),
    "majority": task("binary_majority", 1, 32, 1000),
    "even_pairs": task("even_pairs", 1, 32, 1000),
}


def get_config(variant):
    """Two layers of width 64, four heads; what the tasks share."""
    config = defaults()
    config.name = "length_table_pilot" if variant == "pilot" else "length_table"
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 128, "activation": "gelu", "embed_scale": True}
    )
    config.train.update({"batch": 32, "learning_rate": 3e-3, "schedule": "cosine", "warmup": 100, "clip": 1.0})
    config.train.update({"weight_decay": 0.0, "log_every": 250, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"count": 256, "batch": 128, "sliding_stride": 16})
    return config


def sweep(variant):
    """The tasks of a variant under every encoding, by seed; of `pilot` under three, on one seed, without test lengths."""
    if variant == "pilot":
        tasks = [{**one, "evaluate.lengths": ()} for one in (*TASKS.values(), *SPARE.values())]
        return product(chain(tasks), [{"model.encoding": encoding(name)} for name in REFERENCES], seeds(1, start=1000))
    tasks = list(TASKS.values()) if variant == "all" else [TASKS[variant]]
    return product(chain(tasks), [{"model.encoding": encoding(name)} for name in ENCODINGS], seeds(10))


def tune(variant):
    """Learning rates, of which every encoding has its best on every task; of equal ones the first, that of the pilot."""
    return [] if variant == "pilot" else vary("train.learning_rate", (3e-3, 1e-3, 1e-2))


def tuning_seeds():
    """Seeds that no run of the sweep has."""
    return (2000, 2001)


def encoding(name):
    """An encoding with the options that it has in every model of the table."""
    return {"name": name, "options": OPTIONS.get(name, {})}
