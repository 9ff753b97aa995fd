"""Which tasks do decoders with learned positions, or with none, carry past the training length?

Question: trained at lengths up to 50, is the whole answer right at 51-100 and at 101-150? The paper predicts yes for tasks
that have a short program in C-RASP (binary majority, majority, sort, unique copy), no for the others (parity, repeated
copy, addition). Two cells: learned positions with a random start in training and none in tests ("ape"), and no positions.

Paper: Huang et al. 2025 (arXiv:2410.02140); code lacoco-lab/length_generalization, folder algorithmic.
Command: attnjax run huang:smoke        then attnjax report
Run time: smoke: minutes on two CPU cores; cheap: 2 core-hours with `--workers 2 --population 5` (experiments/published);
copy: about 4 with `--population 3` (an estimate from the logs of smaller runs), or eight minutes of one H200 with
`--population 6`, beside other work (experiments/published); short: about an hour of one GPU; paper: weeks of one GPU. `cheap`
and `copy` were run.
Expected exact match at 51-100 / 101-150 (lm-out-new-multi-run/*.txt, experiments/published): sort ape .9996 / .9937
and nope .998 / .806; binary majority 1.0 / 1.0 in both; majority nope .9986 / .9846; unique copy ape .9986 / .9874; repeated
copy .256 / 0 and .280 / 0; parity .830 / .621 and .745 / .633.

`cheap`: binary majority with learned positions and with none (1 layer, 1 head, D 16), six seeds each, and majority with none
(1, 1, 64), ten seeds, because 5 of 16 published runs fitted. `copy`: unique copy with learned positions (2, 1, 64), six seeds.
What is compared, said before the runs: exact match at 51-100 and 101-150 as the median of all runs with its interval, beside
the published mean; and, as theirs, the mean of the runs that answered all trained lengths. How many did is a result too.

Theirs looks every 3,000 steps at 2,000 examples of the trained lengths, ends a run of which all are right, and averages only
runs that got there, five of up to 16; the 12-layer models enter as they are. `cheap`, `copy` and `paper` end runs by the same
rule (`train.until`), with 40 examples of each length, and count all runs. In `smoke` and `short` every run goes on to the last
step; `exact_match` at lengths up to 50 tells which fitted.
`cheap`, `copy` and `paper` start as GPT-2 does: matrices with deviation 0.02, those that write to the residual stream with
0.02 / sqrt(2 L). `paper` rounds lengths of interleaved majority as they do, so that 101 gives 102 tokens. In the others
matrices start with variance 1 / inputs. In all of them decay acts on all parameters, there not on norms and biases, and parity
has no length 0, which is 1 of 51 lengths there. `short` has the model chosen for learned positions on parity
without positions too, because the one chosen for that has twelve layers.
"""

import itertools

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds

VARIANTS = {
    "smoke": "two tasks, small models, 600 steps; for two CPU cores",
    "cheap": "the three cells with the smallest published models, with the published stop; for two CPU cores",
    "copy": "the same for unique copy with learned positions, the next in size",
    "short": "four tasks, the published models and steps, three seeds; for one GPU",
    "paper": "the search (54 models x 8 tasks x 2 cells, seed 0), then the models it chose with five seeds",
}

LAST = 150
PLACES = {
    "binary_majority": LAST + 3,
    "majority": LAST + 3,
    "interleaved_majority": LAST + 5,
    "unique_copy": 2 * LAST + 2,
    "repeated_copy": 2 * LAST + 2,
    "sort": 2 * LAST + 2,
    "parity": LAST + 3,
    "big_endian_addition": 2 * LAST - 1,
}
"""Tokens that the model reads at most: the range of random starts and the learned table. The last token is only answered."""
SHORTEST = {"interleaved_majority": 3, "big_endian_addition": 4}

BIG, SMALL_RATE = (12, 12, 768, 1e-4), 1e-4
CHOSEN = {
    "learned": {
        "binary_majority": (1, 1, 16, 1e-3),
        "majority": (1, 2, 256, 1e-3),
        "interleaved_majority": (2, 4, 256, SMALL_RATE),
        "unique_copy": (2, 1, 64, 1e-3),
        "repeated_copy": (4, 4, 256, 1e-3),
        "sort": (1, 2, 256, SMALL_RATE),
        "parity": (4, 2, 256, SMALL_RATE),
        "big_endian_addition": BIG,
    },
    "nope": {
        "binary_majority": (1, 1, 16, 1e-3),
        "majority": (1, 1, 64, 1e-3),
        "interleaved_majority": BIG,
        "unique_copy": (4, 4, 256, 1e-3),
        "repeated_copy": (4, 4, 256, 1e-3),
        "sort": (1, 1, 256, 1e-3),
        "parity": (12, 12, 768, 3e-5),
        "big_endian_addition": BIG,
    },
}
"""Layers, heads, width and rate that the search chose (task_arch of run_multiple_seeds.py)."""

SEARCH = tuple(itertools.product((1, 2, 4), (1, 2, 4), (16, 64, 256), (1e-3, 1e-4)))
SHORT = ("binary_majority", "sort", "parity", "repeated_copy")
SMALL = {
    "cheap": (("learned", "binary_majority", 6), ("nope", "binary_majority", 6), ("nope", "majority", 10)),
    "copy": (("learned", "unique_copy", 6),),
}
"""Cells whose published models are small, with their number of seeds."""


def get_config(variant):
    """GPT-2 of the transformers library without dropout, and its trainer's AdamW with linear decay."""
    config = defaults()
    config.name = f"huang_{variant}"
    config.task.update({"form": "decoder", "begin": True, "length_min": 1, "length_max": 50})
    config.model.update({"activation": "gelu_tanh", "norm": "layer", "norm_position": "pre", "norm_epsilon": 1e-5})
    config.model.update({"tie_embeddings": True, "embed_std": 0.02, "hidden": 4 * config.model.get_ref("model")})
    config.train.update({"steps": 30_000, "batch": 64, "schedule": "linear", "warmup": 0, "weight_decay": 0.01})
    config.train.update({"b1": 0.9, "b2": 0.999, "epsilon": 1e-8, "clip": 1.0})
    config.train.update({"log_every": 1000, "checkpoint_every": 3000})
    # 40 examples at each of 50 lengths are the 2,000 of a published range.
    lengths = tuple(range(4, LAST + 1))
    config.evaluate.update({"lengths": lengths, "validation_lengths": (50,), "count": 40, "batch": 40})
    if variant in (*SMALL, "paper"):
        config.model.update({"kernel_std": 0.02, "residual_start": True})
        # Every 3,000 steps, as theirs; `published` has the lengths. A run without an error ends.
        config.train.until = 1.0
        config.evaluate.update({"every": 3000, "bucket_sizes": (50, 100, LAST)})
    if variant == "smoke":
        config.train.update({"steps": 600, "log_every": 100, "checkpoint_every": 300})
        config.evaluate.update({"lengths": (25, 50, 75, 100, 125, 150), "count": 100, "batch": 100})
    return config


def sweep(variant):
    """Tasks x encodings x models x seeds."""
    if variant == "smoke":
        small = {"binary_majority": (1, 1, 16, 1e-3), "sort": (1, 1, 64, 1e-3)}
        return chain(*(product([cell(name, task, small[task])], seeds(1)) for task in small for name in CHOSEN))
    if variant == "short":
        model = lambda name, task: CHOSEN["learned" if CHOSEN[name][task][0] == BIG[0] else name][task]
        chosen = [cell(name, task, model(name, task)) for task in SHORT for name in CHOSEN]
        return product(chosen, seeds(3))
    if variant in SMALL:
        model = lambda name, task: [published(cell(name, task, CHOSEN[name][task]))]
        return chain(*(product(model(name, task), seeds(runs)) for name, task, runs in SMALL[variant]))
    searched = [published(cell(name, task, model)) for task in PLACES for name in CHOSEN for model in SEARCH]
    chosen = [published(cell(name, task, CHOSEN[name][task])) for task in PLACES for name in CHOSEN]
    return chain(product(searched, seeds(1)), product(chosen, seeds(5)))


def cell(name, task, model):
    """One task with one encoding in one model; the twelve layers have their own steps."""
    layers, heads, width, rate = model
    changes = {
        "task.name": task,
        "task.length_min": SHORTEST.get(task, 1),
        "model.layers": layers,
        "model.heads": heads,
        "model.model": width,
        "model.encoding": {"name": name, "options": {"length": PLACES[task]} if name == "learned" else {}},
        "train.learning_rate": rate,
    }
    if name == "learned":
        changes.update({"positions.policy": "offset", "positions.maximum": PLACES[task]})
    if layers == BIG[0]:
        changes.update({"train.steps": 60_000, "train.warmup": 3000})
    return changes


def published(changes):
    """A cell of `paper` or `cheap`: it validates on all trained lengths, and rounds lengths as the paper does."""
    lengths = tuple(range(changes["task.length_min"], 51))
    rounded = {"task.options": {"ranges": 50}} if changes["task.name"] == "interleaved_majority" else {}
    return {**changes, **rounded, "evaluate.validation_lengths": lengths}
