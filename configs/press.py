"""Does a language model trained on short windows keep its loss in longer ones?

Question: trained on windows of L bytes, how far above its loss at L is the loss in windows of 2 L, 7 L and 24 L? Four cells:
sinusoidal, rotary, T5's bias, ALiBi. Two ways to test, as in the paper: windows one after the other, whose loss falls with
their length because fewer bytes stand at a beginning; and a sliding window, of which the last bytes count, that have all of
it before them. The paper finds that the first falls under ALiBi and that the second stays: the gain is that of beginnings.

Paper: Press et al. 2022 (arXiv:2108.12409), tables 2 and 13 to 15; code ofirpress/attention_with_linear_biases.
Command: attnjax run press:cpu --workers 2        then python -m experiments.study published
Run time: smoke: minutes on two CPU cores; cpu: see experiments/published
Expected, as the rise of the loss over that at 512 tokens in nats (ln of the ratio of perplexities), separate windows at 1012,
3512 and 12512: sinusoidal .775, 2.189, 2.924; rotary .063, .571, 1.245; T5 -.045, .153, 1.195; ALiBi -.052, -.070, -.075.
Sliding at 1024 and 3072: sinusoidal 2.411, 2.977; T5 .032, .541; ALiBi -.003, .018.

What is compared, said before the runs: the rise at each published multiple of the trained length (to 5 %), by encoding, with
the median of six seeds and its interval; and Kendall's tau_b between the two orders of encodings at each multiple. A run that
fails counts with an infinite loss; none is left out.

Theirs is WikiText-103, words, 16 layers of width 1,024, 247 million parameters, dropout, Nesterov's accelerated gradient, and
one run. Here the text is the source of Python's own standard library, in bytes: its bytes differ from one Python version to
the next, and the manifest of a run has their sha256. Files that say nearly the same are in one split. Their separate windows
cut up the test text; here 512 windows end at random bytes, the same at every length, and may overlap. Their sliding window
moves by one token, and here the last 32 bytes of a window count. Their adaptive inputs and softmax, and their missing last
norm, are not here. Which rotary implementation they used is not in their repository; here all channels turn.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

VARIANTS = {
    "smoke": "one seed, 100 steps and few windows; for two CPU cores",
    "cpu": "two layers of width 64, six seeds, the learning rate of each encoding chosen on validation windows at L",
}

TRAINED = 64
ENCODINGS = {"sinusoidal": {"order": "concatenated"}, "rope": {}, "t5": {}, "alibi": {}}
SEPARATE, SLIDING = (2, 3, 5, 7, 9, 24), (2, 3, 4, 6)
"""Multiples of 512 tokens, to 5 %: separate windows of 1012, 1512, 2512, 3512, 4512, 12512; sliding 1024, 1536, 2048, 3072."""
LENGTHS = tuple(TRAINED * multiple for multiple in sorted({1, *SEPARATE, *SLIDING}))


def get_config(variant):
    """Two layers of width 64, four heads; embeddings as large as the sinusoids that are added to them."""
    config = defaults()
    config.name = f"press_{variant}"
    config.task.update({"name": "text", "options": {"split_by": "group"}})
    config.task.update({"length_min": TRAINED, "length_max": TRAINED})
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 256, "activation": "relu", "embed_scale": True}
    )
    config.train.update({"steps": 5000, "batch": 32, "learning_rate": 3e-3, "schedule": "cosine", "warmup": 100})
    config.train.update({"clip": 1.0, "weight_decay": 0.0, "log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"lengths": LENGTHS, "validation_lengths": (TRAINED,), "count": 512, "batch": 64})
    config.evaluate.update({"bucket_sizes": (64, 192, 576, 1536), "sliding_stride": 32})
    if variant == "smoke":
        config.train.update({"steps": 100, "warmup": 10, "checkpoint_every": 100})
        config.evaluate.update({"count": 32, "batch": 32})
    return config


def sweep(variant):
    """Encodings x seeds."""
    encodings = [{"model.encoding": {"name": name, "options": options}} for name, options in ENCODINGS.items()]
    return product(encodings, seeds(1 if variant == "smoke" else 6))


def tune(variant):
    """Learning rates, of which every encoding has its best."""
    return vary("train.learning_rate", (1e-3, 3e-3, 1e-2)) if variant == "cpu" else []


def tuning_seeds():
    """Seeds that no run of the sweep has."""
    return (2000, 2001)
