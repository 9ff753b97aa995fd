"""Which tasks do decoders with learned positions, or with none, carry past the training length?

Question: trained at lengths up to 50, is the whole answer right at 51-100 and at 101-150? The paper predicts yes for tasks
that have a short program in C-RASP (binary majority, majority, sort, unique copy), no for the others (parity, repeated
copy, addition). Two cells: learned positions with a random start in training and none in tests ("ape"), and no positions.

Paper: Huang et al. 2025 (arXiv:2410.02140); code lacoco-lab/length_generalization, folder algorithmic.
Command: attnjax sweep huang:smoke        then attnjax report
Words: smoke    two tasks, small models, 600 steps; for two CPU cores
       short    four tasks, the published models and steps, three seeds; for one GPU
       paper    the search (54 models x 8 tasks x 2 cells, seed 0), then the models it chose with five seeds
Run time: not run here (smoke: minutes on two CPU cores; short: about an hour of one GPU; paper: weeks of one GPU).
Expected exact match at 51-100 / 101-150 (lm-out-new-multi-run/*.txt, `attnjax report --published`): sort ape .9996 / .9937
and nope .998 / .806; binary majority 1.0 / 1.0 in both; repeated copy .256 / 0 and .280 / 0; parity .830 / .621 and
.745 / .633.

Theirs stops a run once 2,000 examples of the training lengths are all right, and averages only runs that got there (5 of up
to 16; the 12-layer models enter as they are). Here every run goes on to the last step and counts; `exact_match` at lengths
up to 50 tells which fitted. Weights other than embeddings start with variance 1 / inputs, not 0.02^2, and decay acts on all
parameters, there not on norms and biases.
"""

import itertools

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds

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


def get_config(word="smoke"):
    """GPT-2 of the transformers library without dropout, and its trainer's AdamW with linear decay."""
    check(word)
    config = defaults()
    config.name = f"huang_{word}"
    config.task.update({"form": "decoder", "begin": True, "length_min": 1, "length_max": 50})
    config.model.update({"activation": "gelu_tanh", "norm": "layer", "norm_position": "pre", "norm_epsilon": 1e-5})
    config.model.update({"tie_embeddings": True, "embed_std": 0.02, "hidden": 4 * config.model.get_ref("model")})
    config.train.update({"steps": 30_000, "batch": 64, "schedule": "linear", "warmup": 0, "weight_decay": 0.01})
    config.train.update({"b1": 0.9, "b2": 0.999, "epsilon": 1e-8, "clip": 1.0})
    config.train.update({"log_every": 1000, "checkpoint_every": 3000})
    # 40 examples at each of 50 lengths are the 2,000 of a published range.
    lengths = tuple(range(4, LAST + 1))
    config.evaluate.update({"lengths": lengths, "validation_lengths": (50,), "count": 40, "batch": 40})
    if word == "smoke":
        config.train.update({"steps": 600, "log_every": 100, "checkpoint_every": 300})
        config.evaluate.update({"lengths": (25, 50, 75, 100, 125, 150), "count": 100, "batch": 100})
    return config


def sweep(word="smoke"):
    """Tasks x encodings x models x seeds."""
    check(word)
    if word == "smoke":
        small = {"binary_majority": (1, 1, 16, 1e-3), "sort": (1, 1, 64, 1e-3)}
        return chain(*(product([cell(name, task, small[task])], seeds(1)) for task in small for name in CHOSEN))
    if word == "short":
        # The models chosen for learned positions serve both: two of the others have twelve layers.
        chosen = [cell(name, task, CHOSEN["learned"][task]) for task in SHORT for name in CHOSEN]
        return product(chosen, seeds(3))
    searched = [cell(name, task, model) for task in PLACES for name in CHOSEN for model in SEARCH]
    chosen = [cell(name, task, CHOSEN[name][task]) for task in PLACES for name in CHOSEN]
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


def check(word):
    """Refuse a word that is no rung."""
    if word not in ("smoke", "short", "paper"):
        raise ValueError(f"huang takes one of smoke, short, paper, got {word!r}")
