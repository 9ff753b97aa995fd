"""Where positions come from, apart from how they are encoded.

Question: an encoding fails past the training length because it meets positions it never saw. Does showing it such positions
in training, on short sequences, help? Three policies: 0, 1, ...; the same from a random start; a random sorted sample of
0 .. 255. Under each, RoPE, sinusoidal, learned and ALiBi, in an encoder on a task of the Chomsky hierarchy, trained at lengths
up to 20 and tested to 100. A sample is random in tests too, as in the paper; a start is 0. Other tasks by their name, such as
task.name=reverse_string or task.name=missing_duplicate_string.

Paper: Ruoss et al. 2023 (arXiv:2305.16843); random starts: Kiyono et al. 2021 (arXiv:2109.05644).
Command: attnjax run randomized_positions --workers 2
Run time: about 10 minutes on two cores.
Expected: randomized positions ahead of 0, 1, ... past the training length. The paper reports 12.0 points of accuracy on
average over its 15 tasks (abstract), trained at up to 40, tested at 41 to 500, with the best of its seeds and rates.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

MAXIMUM = 256
POLICIES = (
    {"positions.policy": "arange"},
    {"positions.policy": "offset", "positions.maximum": MAXIMUM},
    {"positions.policy": "randomized", "positions.maximum": MAXIMUM, "positions.at_test": "same"},
)
ENCODINGS = (
    {"name": "rope", "options": {}},
    {"name": "sinusoidal", "options": {}},
    {"name": "learned", "options": {"length": MAXIMUM}},
    {"name": "alibi", "options": {"symmetric": True}},
)


def get_config():
    """An encoder of two layers; the chance of a token of bucket_sort is 1/5."""
    config = defaults()
    config.name = "randomized_positions"
    config.task.update({"name": "bucket_sort", "form": "encoder", "length_min": 1, "length_max": 20})
    config.model.update({"layers": 2, "model": 64, "heads": 8, "hidden": 256})
    config.train.update({"steps": 400, "batch": 32, "learning_rate": 1e-3, "warmup": 20, "clip": 1.0})
    config.train.update({"log_every": 50, "checkpoint_every": 400})
    config.evaluate.update({"lengths": (10, 20, 23, 30, 41, 60, 81, 100), "validation_lengths": (20,)})
    config.evaluate.update({"count": 256, "batch": 128, "bucket_sizes": (25, 100)})
    return config


def sweep():
    """Three policies, four encodings, two seeds each."""
    return product(POLICIES, vary("model.encoding", ENCODINGS), seeds(2))
