"""Do randomized positions let encoders answer inputs that are longer than any of the training?

Question: 15 tasks of Deletang et al. 2023, trained at lengths 1-40 and tested up to 500: does drawing sorted positions out
of 0 .. 2047, instead of counting 0, 1, ..., help at unseen lengths, and with which encoding?

Paper: Ruoss et al. 2023 (arXiv:2305.16843); code google-deepmind/randomized_positional_encodings.
Command: attnjax run ruoss:smoke        then attnjax report
Run time: not run here (smoke: minutes on two CPU cores; short: about an hour of one GPU; paper: thousands of GPU hours).
Expected: over the 15 tasks, the best randomized cell is 12.0 points of token accuracy above the best other one at lengths
41-500 (the paper's abstract). Score: the mean over lengths, then the maximum over seeds and rates.

Steps: 1,000,000, as the authors gave for the sister paper (neural_networks_chomsky_hierarchy, issue 7). The rates and seeds
are from there too. Here and there differ: weights start normal, not truncated normal; the output layer may answer any token of
the input and the empty one, which are never right; the accuracy of a length is the mean over examples, there over tokens; and
randomized Relative and ALiBi take the differences of sampled positions, as the paper writes, where the code samples the
distances themselves.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

VARIANTS = {
    "smoke": "one task, four cells, 300 small batches; for two CPU cores",
    "short": "four tasks, all eleven cells, three seeds, 10,000 steps and the rate of the authors' example; for one GPU",
    "paper": "15 tasks x 11 cells x 3 rates x 10 seeds at every length up to 500",
    "smoke-faithful": "`smoke` with the quirks of the released code, see `cell`",
    "short-faithful": "`short` with the same",
    "paper-faithful": "`paper` with the same",
}

TASKS = (
    "even_pairs",
    "modular_arithmetic",
    "parity_check",
    "cycle_navigation",
    "stack_manipulation",
    "reverse_string",
    "modular_arithmetic_brackets",
    "solve_equation",
    "duplicate_string",
    "missing_duplicate_string",
    "odds_first",
    "binary_addition",
    "binary_multiplication",
    "compute_sqrt",
    "bucket_sort",
)
SOLVED = ("even_pairs", "bucket_sort", "missing_duplicate_string", "reverse_string")
LONGEST, RANGE = 500, 2048

OPTIONS = {
    "nope": {},
    "sinusoidal": {"order": "concatenated"},
    "learned": {"length": 3 * LONGEST, "std": 1.0},
    "rope": {"layout": "interleaved"},
    "alibi": {"symmetric": True, "past": 0.5},
    "transformer_xl": {},
}
ON_EMBEDDINGS = ("sinusoidal", "learned")

LADDER = {
    "smoke": {
        "train.steps": 300,
        "train.batch": 32,
        "train.learning_rate": 1e-3,
        "evaluate.lengths": (20, 40, 41, 60, 80, 100),
        "evaluate.count": 128,
    },
    "short": {
        "train.steps": 10_000,
        "train.learning_rate": 1e-3,
        "evaluate.lengths": (10, 20, 30, 40, 41, *range(45, 101, 5)),
    },
    "paper": {"train.steps": 1_000_000, "evaluate.lengths": tuple(range(1, LONGEST + 1))},
}


def get_config(variant):
    """The published model and training, with the steps and lengths of a rung of the ladder."""
    rung, faithful = ladder(variant)
    config = defaults()
    config.name = f"ruoss_{variant.replace('-', '_')}"
    config.task.update({"form": "encoder", "length_min": 1, "length_max": 40, "length_per": "batch", "tail": faithful})
    config.model.update({"layers": 5, "model": 64, "heads": 8, "hidden": 256, "activation": "relu"})
    config.model.update({"norm_position": "post", "norm_epsilon": 1e-5, "bias": False, "feed_forward_bias": True})
    config.model.update({"embed_scale": True, "embed_std": 0.02, "tie_embeddings": False, "output_bias": True})
    config.model.residual_dropout = 0.1
    config.positions.update({"at_test": "same", "sample_per": "batch" if faithful else "example"})
    config.train.update({"batch": 128, "schedule": "constant", "b1": 0.9, "b2": 0.999, "epsilon": 1e-8, "clip": 1.0})
    config.evaluate.update({"count": 512, "batch": 64, "validation_lengths": (40,), "dropout": faithful})
    for key, value in LADDER[rung].items():
        table, name = key.split(".")
        config[table][name] = value
    if faithful:
        # Their score begins one length late, and their loop makes one update more.
        config.evaluate.lengths = tuple(n for n in config.evaluate.lengths if n != config.task.length_max + 1)
        config.train.steps += 1
    stride = divisor(config.train.steps, 1000)
    config.train.update({"log_every": stride, "checkpoint_every": 10 * stride})
    return config


def sweep(variant):
    """Tasks x cells x rates x seeds of a rung."""
    rung, faithful = ladder(variant)
    if rung == "smoke":
        chosen = cells(("rope", "transformer_xl"), faithful)
        return product(vary("task.name", ("even_pairs",)), chosen, seeds(1))
    if rung == "short":
        return product(vary("task.name", SOLVED), cells(OPTIONS, faithful), seeds(3))
    rates = vary("train.learning_rate", (1e-4, 3e-4, 5e-4))
    return product(vary("task.name", TASKS), cells(OPTIONS, faithful), rates, seeds(10))


def cells(names, faithful):
    """Each encoding with counted positions, then each but NoPE with randomized ones."""
    counted = [cell(name, False, faithful) for name in names]
    return counted + [cell(name, True, faithful) for name in names if name != "nope"]


def cell(name, randomized, faithful):
    """One encoding under one policy of positions. Faithful, as released:

    * the randomized relative table is read past its end, so that nothing tells keys in the future apart;
    * rotary, relative and ALiBi draw positions for each layer anew (and a batch shares them: see `get_config`);
    * only sinusoidal and learned embeddings are dropped out.
    """
    options = dict(OPTIONS[name])
    if randomized and name == "learned":
        options["length"] = RANGE
    if randomized and faithful and name == "transformer_xl":
        options.update({"table": "clamped", "length": RANGE})
    changes = {"model.encoding": {"name": name, "options": options}}
    if randomized:
        changes.update({"positions.policy": "randomized", "positions.maximum": RANGE})
        changes["positions.sample_per_layer"] = faithful and name not in ON_EMBEDDINGS
    if faithful:
        changes["model.embedding_dropout"] = 0.1 if name in ON_EMBEDDINGS else 0.0
    return changes


def ladder(variant):
    """The rung that a variant names, and whether it is faithful."""
    return variant.removesuffix("-faithful"), variant.endswith("-faithful")


def divisor(number, most):
    """The largest divisor up to `most`: all intervals are multiples of it, so that one program serves."""
    return next(n for n in range(min(most, number), 0, -1) if number % n == 0)
