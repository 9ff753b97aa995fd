"""The base of RoPE, against length.

Question: theta sets the wavelengths of RoPE, 2 pi theta^(2k/d) positions. Trained at 128 bytes, does a larger base, whose
slow pairs hardly turn within a window, hold out longer past it? With heads of 16 channels the longest wavelength is 353
positions for a base of 100, and over a million for one of 1,000,000.

Paper: Su et al. 2021 (arXiv:2104.09864) for the base of 10,000; Barbero et al. 2025 (arXiv:2410.06205) for other bases.
Command: attnjax sweep theta                 (one worker: the base is data, so that all ten runs are one program)
Run time: about 5 minutes on two cores.
Expected: within the trained length the base matters little; Gemma-2B from scratch on Wikipedia has perplexity 4.4627 with
10,000 and 4.4485 with 500,000 (Barbero et al.). No number is published for bytes at this size past the trained length.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

THETAS = (1e2, 1e3, 1e4, 1e5, 1e6)


def get_config():
    """Two layers of width 64 with four heads, so that a head of 16 channels has 8 wavelengths."""
    config = defaults()
    config.name = "theta"
    config.task.update({"name": "text", "length_min": 128, "length_max": 128})
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 256})
    config.model.encoding.name = "rope"
    config.train.update({"steps": 300, "batch": 16, "learning_rate": 3e-3, "warmup": 20, "clip": 1.0})
    config.train.update({"log_every": 50, "checkpoint_every": 300})
    config.evaluate.update({"lengths": (64, 128, 160, 200, 256, 400, 512), "validation_lengths": (144,)})
    config.evaluate.update({"count": 64, "batch": 32, "bucket_sizes": (128, 256, 512), "sliding_stride": 32})
    return config


def sweep():
    """Five bases, two seeds each."""
    encodings = [{"name": "rope", "options": {"theta": theta}} for theta in THETAS]
    return product(vary("model.encoding", encodings), seeds(2))
