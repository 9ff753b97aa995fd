"""A small RoPE model to be read past its training length: what `python -m experiments.context_extension` changes.

Question: trained on windows of 128 bytes, how far does it read under position interpolation, NTK-aware and dynamic scaling,
YaRN, LongRoPE, p-RoPE, and without its RoPE? The text is the source of Python's standard library with facts
planted in it, rare bytes that are asked for within a window: `experiments/context_extension/planting.py` writes the file.

Papers: Chen et al. 2023 (arXiv:2306.15595), Peng et al. 2023 (arXiv:2309.00071), Ding et al. 2024 (arXiv:2402.13753),
Barbero et al. 2025 (arXiv:2410.06205), Gelberg et al. 2025 (DroPE, arXiv:2512.12167).
Command: python -m experiments.context_extension        (writes the text, trains, measures)
Run time: see experiments/context_extension/README.md
Expected: YaRN ahead of NTK-aware and NTK-aware ahead of interpolation without training, all close after a short one.
"""

from attnjax.config import defaults
from attnjax.sweep import seeds

LENGTH, TIMES = 128, 8
PATH = "runs/context_extension_text/planted.txt"


def get_config():
    """Two layers of width 64 with two heads, trained on windows of 128 bytes."""
    config = defaults()
    config.name = "context_extension"
    config.task.update({"name": "text", "length_min": LENGTH, "length_max": LENGTH, "options": {"path": PATH}})
    config.model.update({"layers": 2, "model": 64, "heads": 2, "hidden": 128, "encoding": {"name": "rope"}})
    config.train.update({"steps": 1200, "batch": 16, "learning_rate": 3e-3, "warmup": 50, "schedule": "cosine"})
    config.train.update({"log_every": 100, "checkpoint_every": 600, "keep": 1})
    config.evaluate.update({"lengths": (LENGTH, TIMES * LENGTH), "validation_lengths": (), "count": 32, "batch": 32})
    config.evaluate.update({"bucket_sizes": (LENGTH, TIMES * LENGTH), "sliding_stride": 32})
    return config


def sweep():
    """Three seeds of one cell."""
    return seeds(3)
