"""Does RoPE break where a pair first shows an unseen phase, whatever the base?

Question: pair k of RoPE turns by theta^(-2k/d) a token, once around in its wavelength of 2 pi theta^(2k/d) tokens. Trained at
length L, a pair with a wavelength up to L has shown all its phases; one with a longer wavelength shows new ones from the
distance L on: soon where the wavelength is just above L, late where it is far above. Does the length at which a model breaks
follow these phases, or the base? 24 bases, four a decade, from 5.6 to 3.2 million, trained at L = 64 and 128.

Task: Markov chains that every sequence draws anew (Edelman et al. 2024), at the sizes of configs/rope_vs_sinusoidal.py, so that
context pays at every length and the best prediction is known. Batches of L = 128 have half as many sequences, so that a step
has as many tokens. Chosen by the committed records of experiments/rope_vs_sinusoidal (base 10,000, seeds 0 to 2, which no run
here has): at L = 64 their excess (below) is 0.01 nats, at 2L 0.03, at 4L 0.12 and at 8L 0.24, so the task is fitted, and broken
within the tests; the loss leaves its plateau at steps 700 to 1,100 of 2,000, and 1,500 steps are trained here. Text, on which
RoPE breaks too (experiments/theta), has no known best prediction. Other bases were not tried on this task before.

What is compared, said before the runs. The *excess* of a run is its loss less that of the best prediction on the same windows
(the pairs counted so far). The outcome is the length factor: the largest tested L'/L up to which the excess stays within 0.05
nats of that at L. (The loss itself hides a break, since the best prediction falls by 0.14 nats from L to 4L; its own length
factor is told beside, and so is the rise of the excess from L to 4L.) Predictors of a base at an L, computed from wavelengths
alone (`experiments/unseen_phase/phases.py`), and the sign of their rank correlation with the length factor over the bases:
    base       the longest wavelength                                                            +  larger bases last longer
    critical   how many pairs have a wavelength in (L, 4L)                                       -
    novelty    how far phases at the distances L .. 2L-1 are from any that training showed       -  mean over distances, pairs
    onset      the shortest wavelength above L, infinite where there is none                     +
The statistic is Spearman's rho over the bases, times its sign above, for each seed and L; six seeds give its mean and a 95 % t
interval. A predictor *predicts* at an L if its interval lies above 0. *Unseen phase* is the verdict if novelty predicts at both
L and its rho less that of base has an interval above 0 at both; *base* if it is the other way round; otherwise *neither*.
Partial correlations (novelty given base, base given novelty), critical and onset are told beside. Bases of which half of the
runs or more have an excess above 0.05 nats at L have not fitted, are grey and in no correlation; where fewer than 12 bases are
left at an L, there is no verdict.

Cause: for every second base, the phases of chosen pairs of the trained models are held at their values at the distance L - 1
for all longer distances (`experiments/unseen_phase/clamped.py`), in tests only: each pair alone, all, and three groups:
critical pairs (wavelength in (L, 4L)), fast ones (up to L) and slow ones (4L and more). The effect is the loss at 4L with the
clamp less that without, mean over the runs that fitted, whose excess rose by more than 0.05 at 4L and whose base has a critical
pair, by seed. The verdict is *critical pairs* if their effect has a 95 % interval below 0 at both L and, averaged over both L,
is below those of fast and of slow pairs (paired by seed, one-sided p of all sign flips, Holm over the two, below 0.05).

One learning rate for all: only the base differs, which changes no norm of queries or keys, and rates would double the cost.
Primary metric: loss_sliding

Paper: Liu et al. 2024 (arXiv:2310.05209), whose "critical dimension" is the first pair with a wavelength above L, from
fine-tuned LLaMA 2; Men et al. 2024 (arXiv:2405.14591), who hold the base against it; Su 2023 (ReRoPE) clamps all pairs.
Command: attnjax sweep unseen_phase --workers 2 --population 24
         python -m experiments.unseen_phase --runs runs/unseen_phase --out experiments/unseen_phase
Run time: estimated at 200 core-minutes of training and 30 of clamps, from the records of rope_vs_sinusoidal.
Expected: unseen phase, not base; bases below 14 (L = 64) and 31 (L = 128), which have no unseen phase, last longest.
"""

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds, vary

BASES = tuple(round(10 ** (i / 4), 3) for i in range(3, 27))
TRAINED = (64, 128)
FACTORS = (0.75, 1, 1.125, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 8)
"""Tested lengths, as multiples of the trained one."""
TOKENS = 2048
"""Of a training step."""


def get_config():
    """Two layers of width 64 with four heads, so that a head of 16 channels has 8 wavelengths."""
    config = defaults()
    config.name = "unseen_phase"
    config.task.name = "markov"
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 256, "activation": "gelu", "embed_scale": True}
    )
    config.model.encoding.name = "rope"
    config.train.update({"steps": 1500, "learning_rate": 3e-3, "schedule": "cosine", "warmup": 100, "clip": 1.0})
    config.train.update({"weight_decay": 0.0, "log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"count": 128, "batch": 64})
    return config


def sweep():
    """24 bases at two lengths, six seeds each."""
    encodings = [{"name": "rope", "options": {"theta": theta}} for theta in BASES]
    return product(chain(*([at(length)] for length in TRAINED)), vary("model.encoding", encodings), seeds(6, start=100))


def at(length):
    """Training at one length, and its tests."""
    return {
        "task.length_min": length,
        "task.length_max": length,
        "train.batch": TOKENS // length,
        "evaluate.lengths": tuple(int(length * factor) for factor in FACTORS),
        "evaluate.validation_lengths": (length,),
        "evaluate.bucket_sizes": tuple(int(length * factor) for factor in (1.125, 2, 4, 8)),
    }
