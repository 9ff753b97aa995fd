"""How many heads, at equal width?

Question: 1, 2, 4 or 8 heads share the 64 channels of a layer. More heads look at more places at once, each with fewer
channels, and RoPE has fewer wavelengths per head, ALiBi more slopes. Which number does best at the trained length, and which
past it?

Paper: Vaswani et al. 2017 (arXiv:1706.03762), table 3, rows (A).
Command: attnjax run heads --workers 2
Run time: about 7 minutes on two cores.
Expected: a single head somewhat worse, too many worse again. The paper's development perplexity for 1, 4, 8, 16 and 32 heads
at width 512: 5.29, 5.00, 4.92, 4.91 and 5.01 (BLEU 24.9, 25.5, 25.8, 25.8, 25.4).
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary


def get_config():
    """Two layers of width 64."""
    config = defaults()
    config.name = "heads"
    config.task.update({"name": "text", "length_min": 64, "length_max": 64})
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 256})
    config.model.encoding.name = "rope"
    config.train.update({"steps": 300, "batch": 32, "learning_rate": 3e-3, "warmup": 20, "clip": 1.0})
    config.train.update({"log_every": 50, "checkpoint_every": 300})
    config.evaluate.update({"lengths": (48, 64, 96, 128, 200, 256), "validation_lengths": (64,)})
    config.evaluate.update({"count": 64, "batch": 32, "bucket_sizes": (64, 256)})
    return config


def sweep():
    """Four numbers of heads under RoPE and ALiBi, two seeds."""
    return product(vary("model.heads", (1, 2, 4, 8)), vary("model.encoding", ("rope", "alibi")), seeds(2))
