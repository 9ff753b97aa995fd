"""The base of RoPE, against length.

Question: theta sets the wavelengths of RoPE, 2 pi theta^(k/8) positions for the 8 pairs of a head of 16 channels. Trained on
128 bytes, does a larger base, whose slow pairs hardly turn within a window, keep the loss low for longer texts?

Bases: an earlier protocol (in the history of experiments/theta) compared 100, 1,000, 10,000, 100,000 and 1,000,000, of
which all but 100,000 have a pair of 198.7 positions, which the trained length does not complete and the tests do. Here no
two bases have wavelengths within 10 % of each other between 64 and 2,048 positions, apart from which a pair either turns
often in training or hardly in the longest test. Pairs between the trained length and the longest test, 128 and 512, by
base:

    150: 144, 269, 504      2,500: 314      10,000: 199      80,000: 433      600,000: 175

So a base is still not all that differs: `unseen_phase` asks for wavelengths apart from bases.

What is compared, said before the runs: the loss past training of each base and the next larger one, four pairs, paired by seed,
with Holm's correction over the four (eight seeds, whose smallest p is 0.008, so that a difference can be shown); and the length
factor of each base. The answer is yes if the loss past training falls from each base to the next larger one. A base whose loss
at the trained length is not below that of trigrams, which the report prints, has learned too little for either.

Paper: Su et al. 2021 (arXiv:2104.09864) for the base of 10,000; Barbero et al. 2025 (arXiv:2410.06205) for other bases.
Command: attnjax run theta --report        (one worker: the base is data, so that all forty runs are one program)
Run time: 25 to 30 minutes on one core, estimated from 250 steps of one run of seed 1000 (0.07 s of processor time each).
Expected: no. Within the trained length the base matters little; Gemma-2B from scratch on Wikipedia has perplexity 4.4627 with
10,000 and 4.4485 with 500,000 (Barbero et al.). No number is published for bytes at this size past the trained length.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

THETAS = (150.0, 2_500.0, 10_000.0, 80_000.0, 600_000.0)


def get_config():
    """Two layers of width 64 with four heads, so that a head of 16 channels has 8 wavelengths."""
    config = defaults()
    config.name = "theta"
    config.task.update({"name": "text", "options": {"split_by": "group"}, "length_min": 128, "length_max": 128})
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 256, "embed_scale": True})
    config.model.encoding.name = "rope"
    config.train.update(
        {"steps": 500, "batch": 16, "learning_rate": 3e-3, "schedule": "cosine", "warmup": 50, "clip": 1.0}
    )
    config.train.update({"log_every": 50, "checkpoint_every": 250, "keep": 1})
    config.evaluate.update({"lengths": (64, 128, 160, 200, 256, 400, 512), "validation_lengths": (128,)})
    config.evaluate.update({"count": 128, "batch": 32, "bucket_sizes": (128, 256, 512), "sliding_stride": 32})
    return config


def sweep():
    """Five bases, eight seeds each."""
    encodings = [{"name": "rope", "options": {"theta": theta}} for theta in THETAS]
    return product(vary("model.encoding", encodings), seeds(8))
