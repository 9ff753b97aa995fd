"""Which heads specialise, and does it depend on the encoding?

Question: a small language model over the bytes of Python's standard library has eight heads. How much of their attention do
the best of them give to the previous byte, to the first, to equal bytes, to what followed an equal byte (induction), and to the
bracket that a bracket closes? Trained on windows of 128 bytes under six encodings, eight
seeds each; `python -m experiments.heads` measures the heads on files that were never trained on.

Embeddings are multiplied by sqrt(D) (Vaswani et al. 2017), so that tokens have deviation 1 where sinusoids have 0.71; learned
positions begin as large as tokens. Near-duplicate files are in one split.

What is compared, said before these runs: the attention of the best head to the previous byte under RoPE, less that under each
other encoding, paired by seed, by exact sign flips with Holm's correction over the five. For pruning the cost of half of the
heads in order of importance, less that in random order, under each encoding, by its 95 % interval. All else is described and
not tested. Three seeds of an earlier version, which added sinusoids to embeddings that were not scaled, are in the history;
they suggested the comparisons. `prune` was added later, because the six encodings lose more than a 5-gram.

Paper: Clark et al. 2019 (arXiv:1906.04341) for heads and their baselines; Olsson et al. 2022 (arXiv:2209.11895) for induction;
Michel et al. 2019 (arXiv:1905.10650) for pruning.
Command: attnjax run heads_lm --workers 2
Run time: 66 minutes on two cores, beside other work
White space is not reported, because untrained heads stand out there (experiments/heads).
Expected: more attention to the previous byte under RoPE than under each other encoding; little for induction and names at
this size and budget; the least important heads cheaper than random ones under every encoding but RoPE.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

VARIANTS = {
    "patterns": "six encodings, windows of 128 bytes",
    "prune": "RoPE as configs/rope_vs_sinusoidal.py trains it on text, in windows of 64 bytes at a tuned rate: models that "
    "lose less than a 5-gram",
}
LENGTH, LONGEST = 128, 256
ENCODINGS = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5")
SHORT = 64
"""Bytes of a window of `prune`."""


def get_config(variant):
    """Two layers of width 64 with four heads each."""
    config = defaults()
    config.name = "heads_lm" if variant == "patterns" else "heads_lm_prune"
    options = {"split_by": "group"}
    config.task.update({"name": "text", "options": options, "length_min": LENGTH, "length_max": LENGTH})
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 128, "activation": "relu", "embed_scale": True}
    )
    config.train.update(
        {"steps": 1500, "batch": 16, "learning_rate": 3e-3, "warmup": 100, "schedule": "cosine", "clip": 1.0}
    )
    config.train.update({"log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"lengths": (LENGTH, LONGEST), "validation_lengths": (), "count": 64, "batch": 32})
    config.evaluate.update({"bucket_sizes": (LENGTH, LONGEST), "sliding_stride": 32})
    if variant == "prune":
        config.task.update({"length_min": SHORT, "length_max": SHORT})
        config.model.update({"hidden": 256, "activation": "gelu"})
        config.train.update({"steps": 3000, "batch": 32, "learning_rate": 1e-2, "checkpoint_every": 3000})
        config.evaluate.update({"lengths": (SHORT,), "bucket_sizes": (SHORT,)})
    return config


def sweep(variant):
    """Six encodings with eight seeds each, or RoPE with six new ones; a learned table has a row for each tested position."""
    if variant == "prune":
        return product(vary("model.encoding", ("rope",)), seeds(6, start=400))
    options = {"learned": {"length": LONGEST, "std": 1.0}}
    encodings = [{"name": name, "options": options.get(name, {})} for name in ENCODINGS]
    return product(vary("model.encoding", encodings), seeds(8))
