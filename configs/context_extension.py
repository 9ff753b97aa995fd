"""A small RoPE model to be read past its training length: what `python -m experiments.context_extension` changes.

Question: trained on windows of 128 bytes, how far does it read under position interpolation, NTK-aware and dynamic scaling,
YaRN, LongRoPE, p-RoPE, and without its RoPE? The text is the source of Python's standard library with facts
planted in it, rare bytes that are asked for within a window: `experiments/context_extension/planting.py` writes the file.

What is compared for `markov`, said before the runs: the loss of the last 32 symbols of windows of 128, 256 and 512 under
each method, less that of the same model as trained in windows of 64 that end at the same symbols. Paired by run and chain;
means with 95 % intervals over ten runs and 256 chains, no tests. Context pays under a method where the interval lies below
0. Beside it what counting pairs gains, the best prediction. No run is left out; those more than 0.05 nats above the best
prediction at 64 are counted.

Papers: Chen et al. 2023 (arXiv:2306.15595), Peng et al. 2023 (arXiv:2309.00071), Ding et al. 2024 (arXiv:2402.13753),
Barbero et al. 2025 (arXiv:2410.06205), Gelberg et al. 2025 (DroPE, arXiv:2512.12167).
Command: python -m experiments.context_extension text   (writes the text, trains, measures)
         python -m experiments.context_extension markov (trains and measures `markov`)
Run time: see experiments/context_extension/README.md
Expected: YaRN ahead of NTK-aware and NTK-aware ahead of interpolation without training, all close after a short one. On Markov
chains RoPE as trained gains up to twice the trained length and loses at eight times; LM-Infinite and StreamingLLM, which see no
more than the trained length, gain nothing (they are the control); methods that keep near distances apart (Self-Extend, ReRoPE,
Dual chunk) gain most, and none as much as counting.
"""

from attnjax.config import defaults
from attnjax.sweep import seeds

VARIANTS = {
    "text": "in such text more context than the trained length pays little",
    "markov": "Markov chains, a new one for every sequence, so that context pays at every length; trained at 64 symbols. The "
    "RoPE cell of configs/rope_vs_sinusoidal.py, whose rate was tuned, on ten seeds that it does not have",
}

LENGTH, TIMES = 128, 8
SYMBOLS = 64
"""The trained length of `markov`."""
PATH = "runs/context_extension_text/planted.txt"


def get_config(variant):
    """Two layers of width 64: with two heads on windows of 128 bytes, or with four on chains of 64 symbols."""
    config = defaults()
    config.name = "context_extension" if variant == "text" else f"context_extension_{variant}"
    length = LENGTH if variant == "text" else SYMBOLS
    config.model.update({"layers": 2, "model": 64, "encoding": {"name": "rope"}})
    config.task.update({"name": variant, "length_min": length, "length_max": length})
    config.train.update({"learning_rate": 3e-3, "schedule": "cosine", "log_every": 100, "keep": 1})
    config.evaluate.update({"lengths": (length, TIMES * length), "validation_lengths": (), "sliding_stride": 32})
    config.evaluate.update({"bucket_sizes": (length, TIMES * length), "batch": 32})
    if variant == "text":
        config.task.update({"options": {"path": PATH}})
        config.model.update({"heads": 2, "hidden": 128})
        config.train.update({"steps": 1200, "batch": 16, "warmup": 50, "checkpoint_every": 600})
        config.evaluate.update({"count": 32})
        return config
    config.model.update({"heads": 4, "hidden": 256, "activation": "gelu", "embed_scale": True})
    config.train.update({"steps": 2000, "batch": 32, "warmup": 100, "clip": 1.0, "weight_decay": 0.0})
    config.train.update({"checkpoint_every": 1000})
    config.evaluate.update({"count": 256})
    return config


def sweep(variant):
    """Six seeds of one cell of text, ten of Markov chains."""
    return seeds(6) if variant == "text" else seeds(10, start=300)
