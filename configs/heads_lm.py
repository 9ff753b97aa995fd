"""Which heads specialise, and does it depend on the encoding?

Question: a small language model over the bytes of Python's standard library has eight heads. How much of their attention do
the best of them give to the previous byte, to the first, to white space, to equal bytes, to what followed an equal byte
(induction), to the bracket that a bracket closes, and to the definition of a name? Trained on windows of 128 bytes under six
encodings, three seeds each; `python -m experiments.head_specialization` measures the heads on files that were never trained on.

Paper: Clark et al. 2019 (arXiv:1906.04341) for heads and their baselines; Olsson et al. 2022 (arXiv:2209.11895) for induction.
Command: attnjax sweep heads_lm --workers 2
Run time: about 18 minutes on two cores
White space is no longer reported, because untrained heads stand out there (experiments/head_specialization).
Expected: a head for the previous byte under RoPE, less so under the other encodings and none without; little for induction
and names at this size and budget.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

LENGTH, LONGEST = 128, 256
ENCODINGS = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5")


def get_config():
    """Two layers of width 64 with four heads each."""
    config = defaults()
    config.name = "heads_lm"
    config.task.update({"name": "text", "length_min": LENGTH, "length_max": LENGTH})
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 128, "activation": "relu"})
    config.train.update(
        {"steps": 1500, "batch": 16, "learning_rate": 3e-3, "warmup": 100, "schedule": "cosine", "clip": 1.0}
    )
    config.train.update({"log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"lengths": (LENGTH, LONGEST), "validation_lengths": (), "count": 64, "batch": 32})
    config.evaluate.update({"bucket_sizes": (LENGTH, LONGEST), "sliding_stride": 32})
    return config


def sweep():
    """Six encodings, three seeds each; a learned table has a row for each tested position."""
    options = {"learned": {"length": LONGEST}}
    encodings = [{"name": name, "options": options.get(name, {})} for name in ENCODINGS]
    return product(vary("model.encoding", encodings), seeds(3))
