"""Does copying distinct symbols past the training length need positions?

Question: every symbol occurs once, so "find the symbol I wrote last, take the one after it" copies any length. That needs to
know which symbol came after which. Learned positions with a random start in training meet every place that tests use;
without positions a causal mask has to stand in for them. Trained on 1 to 12 symbols, tested to 36.

Paper: Huang et al. 2025 (arXiv:2410.02140), task "unique copy"; Kazemnejad et al. 2023 (arXiv:2305.19466) for no positions.
Command: attnjax sweep unique_copy --workers 2 --report
Run time: see experiments/unique_copy/README.md
Seeds: ten. The first three had been run before, and differed at 36 symbols by more than half of the scale.
What is compared, said before the runs of seeds 3 to 9: the exact match past training of the two cells, paired by seed; and,
with no test, how many of ten seeds answer at least 0.9 at 36 symbols.
Expected: learned positions with a random start far above none past the training length (direction only, at this budget).
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds

LONGEST = 36
PLACES = 2 * LONGEST + 2
"""Tokens of the longest test: symbols, separator, symbols, and one more for `begin`."""


def get_config():
    """Two layers of width 64, four heads, one length of padding for all tests."""
    config = defaults()
    config.name = "unique_copy"
    config.task.update({"name": "unique_copy", "begin": True, "length_min": 1, "length_max": 12})
    config.task.options = {"symbols": LONGEST}
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 128, "activation": "relu"})
    config.train.update({"steps": 8000, "batch": 64, "learning_rate": 3e-3, "warmup": 100, "schedule": "cosine"})
    config.train.update({"log_every": 500, "checkpoint_every": 1000, "keep": 1})
    config.evaluate.update({"lengths": (6, 12, 14, 16, 20, 24, 30, 36), "validation_lengths": ()})
    config.evaluate.update({"count": 128, "batch": 64, "bucket_sizes": (LONGEST,)})
    return config


def sweep():
    """Learned positions with a random start, and none: ten seeds each."""
    learned = {
        "model.encoding": {"name": "learned", "options": {"length": PLACES}},
        "positions.policy": "offset",
        "positions.maximum": PLACES,
    }
    return product([learned, {"model.encoding": {"name": "nope", "options": {}}}], seeds(10))
