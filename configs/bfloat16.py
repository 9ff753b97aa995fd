"""Does bfloat16 compute change what a model does past the training length?

Question: a run with train.dtype_policy="bfloat16" keeps parameters, positions, angles, biases, softmax and loss in float32, and
computes activations and products of matrices in bfloat16. Whole numbers above 256 are not exact in bfloat16, so a position that
passed through it anywhere would show past 256 and not at the trained length of 64. Does the policy change the loss there?

Protocol, fixed before the first run. Compared: the same run with "float32" and with "bfloat16", by encoding (RoPE, ALiBi,
sinusoidal, NoPE) and seed, of parameters and data alike; eight seeds, 64 runs, none left out. Measure: `loss_sliding`, the
loss of the last 32 bytes of test windows of Python's standard library (nats per byte); its mean over the lengths past
training, 128, 256 and 512, decides, and every tested length is shown. Statistic: the mean over seeds of the difference
bfloat16 - float32, with a 95 % t interval of eight pairs (seven degrees of freedom). Of the mean past training:

    the same     the interval lies within -0.05 .. 0.05 nats: a quarter of what RoPE and ALiBi differ by past training in
                 experiments/rope_vs_sinusoidal (0.22 in the records that it had then)
    changed      the interval leaves out 0, and does not lie within
    undecided    neither

Expected: the same for RoPE, ALiBi and NoPE; sinusoidal, whose loss past training differs by a nat between seeds, undecided.

Run on 2026-11-23 with 32 test windows, from files some of which are nearly the same as files of training; "the same" came out
for all four. By the same protocol it is run again with 512 windows and near-duplicates in one split.

Command: attnjax sweep bfloat16 --report, then python -m experiments.bfloat16 experiments/bfloat16
Run time: see experiments/bfloat16/README.md. On a CPU the products of bfloat16 are emulated: numbers are those of bfloat16,
times are not.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

ENCODINGS = ("rope", "alibi", "sinusoidal", "nope")
POLICIES = ("float32", "bfloat16")
SEEDS = 8


def get_config():
    """The text task of rope_vs_sinusoidal: two layers of width 64, four heads, windows of 64 bytes."""
    config = defaults()
    config.name = "bfloat16"
    config.task.update({"name": "text", "options": {"split_by": "group"}, "length_min": 64, "length_max": 64})
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 128, "activation": "relu"})
    config.train.update(
        {"steps": 300, "batch": 16, "learning_rate": 3e-3, "schedule": "cosine", "warmup": 50, "clip": 1.0}
    )
    config.train.update({"weight_decay": 0.0, "log_every": 50, "checkpoint_every": 100, "keep": 1})
    config.evaluate.update({"lengths": (32, 64, 128, 256, 512), "validation_lengths": ()})
    config.evaluate.update({"count": 512, "batch": 128, "bucket_sizes": (64, 512)})
    return config


def sweep():
    """Both policies under four encodings, eight seeds each: eight populations."""
    encodings = [{"model.encoding": {"name": name, "options": {}}} for name in ENCODINGS]
    return product(encodings, vary("train.dtype_policy", POLICIES), seeds(SEEDS))
