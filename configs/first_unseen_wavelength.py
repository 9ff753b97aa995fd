"""Does RoPE last as long as the first wavelength that training has not seen, and not as long as its base is large?

Question: pair k of RoPE goes around once in its wavelength of 2 pi theta^(2k/d) tokens. The *onset* of a base at a trained
length L is the shortest wavelength above L. As the base grows, the onset grows too, until the next pair passes L and it falls
back to L. The study unseen_phase gave no verdict, because only 10 of its 24 bases fitted at L = 128. Its records, looked at
afterwards, suggest the question here: at both trained lengths the length factor followed onset / L, lowest at 1.3 to 1.6, and
so had opposite correlations with the base. That was seen in the data, so it needs new runs.

Design: two families of bases with the same onsets. In the first the onset is the wavelength of pair 3, which makes
theta = (r L / 2 pi)^(8/3), in the second that of pair 2, theta = (r L / 2 pi)^4, with r = onset / L:
    r              1.05      1.4         2         2.8
    pair 3                 1,196     3,096       7,593
    pair 2       13,085   41,354   172,235     661,656
Trained at L = 64 with eight fresh seeds (200 to 207). Task, model, rate and tests are those of unseen_phase, with 3,000 steps
instead of 1,500: there bases below 1,800 had left the plateau of the loss by the end, and not reached its floor.

What is compared, said before the runs: the length factor of the excess (the loss less that of the best prediction): the largest
tested L'/L up to which it stays within 0.05 nats of that at L. A run whose excess at L is above 0.05 has not fitted, and is in
no pair. Differences are paired by seed; p is that of all sign flips, one-sided, with Holm's correction over the four:
    crossing   pair 3 at 2.8 less pair 2 at 1.4 is above 0: of two bases the one 5.4 times smaller lasts longer
    pair 3     at 2.8 less at 1.4 is above 0
    pair 2     at 2.8 less at 1.4 is above 0
    dip        pair 2 at 1.05 less at 1.4 is above 0: a wavelength right above L does less harm than one further above it
The verdict is *onset* if the first three have p below 0.05, otherwise *not shown*; the dip is told beside. So is the difference
of the families at equal r (pair 2 less pair 3, mean over 1.4, 2 and 2.8) with a 95 % t interval: what the base does by itself.
Fewer than seven pairs of seeds cannot reach 0.05 after Holm's correction, and are *not shown*.
Primary metric: loss_sliding

Paper: Liu et al. 2024 (arXiv:2310.05209) bound extrapolation by the wavelength of the first pair that training has not seen
around, from fine-tuned LLaMA 2.
Command: attnjax run first_unseen_wavelength --workers 2 --population 28
Run time: estimated at 85 core-minutes, from the records of unseen_phase.
Expected: onset, with the dip.
"""

import math

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

TRAINED = 64
ONSETS = {3: (1.4, 2.0, 2.8), 2: (1.05, 1.4, 2.0, 2.8)}
"""For the pair that has the onset, the onsets over the trained length."""
FACTORS = (0.75, 1, 1.125, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 8)
"""Tested lengths, as multiples of the trained one."""


def base(pair, ratio):
    """The base at which this pair of the eight of a head has a wavelength of `ratio` trained lengths."""
    return round((ratio * TRAINED / (2 * math.pi)) ** (8 / pair), 3)


def get_config():
    """Two layers of width 64 with four heads, so that a head of 16 channels has 8 wavelengths."""
    config = defaults()
    config.name = "first_unseen_wavelength"
    config.task.update({"name": "markov", "length_min": TRAINED, "length_max": TRAINED})
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 256, "activation": "gelu", "embed_scale": True}
    )
    config.model.encoding.name = "rope"
    config.train.update({"steps": 3000, "batch": 32, "learning_rate": 3e-3, "schedule": "cosine", "warmup": 100})
    config.train.update({"clip": 1.0, "weight_decay": 0.0, "log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"count": 128, "batch": 64, "validation_lengths": (TRAINED,)})
    config.evaluate.lengths = tuple(int(TRAINED * factor) for factor in FACTORS)
    config.evaluate.bucket_sizes = tuple(int(TRAINED * factor) for factor in (1.125, 2, 4, 8))
    return config


def sweep():
    """Seven bases, eight seeds each."""
    bases = [base(pair, ratio) for pair, ratios in ONSETS.items() for ratio in ratios]
    encodings = [{"name": "rope", "options": {"theta": theta}} for theta in bases]
    return product(vary("model.encoding", encodings), seeds(8, start=200))
