"""RoPE or sinusoidal, past the training length?

Question: trained on short sequences, which encoding still works at 8 times the length? Two tasks: a language model over
the bytes of Python's own standard library, trained at 64 bytes; and counting (copy of one repeated token, "rsc"),
trained at up to 16. NoPE, ALiBi, T5 and learned positions stand beside as context.

Paper: Press et al. 2022 (arXiv:2108.12409) for text; Kazemnejad et al. 2023 (arXiv:2305.19466), copy rsc, for counting.
Command: ./run            (the same as: attnjax sweep rope_vs_sinusoidal --workers 2 --report)
Run time: see experiments/rope_vs_sinusoidal/README.md
Expected: text, sinusoidal worse than RoPE and both worse than ALiBi past 64 bytes; counting, NoPE and T5 ahead of both.
"""

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds

ENCODINGS = ("sinusoidal", "rope", "nope", "alibi", "t5", "learned")
LONGEST = 520

TEXT = {
    "task": {"name": "text", "length_min": 64, "length_max": 64},
    "train.batch": 16,
    "train.steps": 300,
    "evaluate.lengths": (32, 64, 96, 128, 256, 512),
    "evaluate.count": 32,
    "evaluate.batch": 32,
    "evaluate.bucket_sizes": (512,),
}
COUNTING = {
    "task": {"name": "copy", "options": {"variant": "rsc"}, "length_min": 1, "length_max": 16},
    "train.batch": 32,
    "train.steps": 400,
    "evaluate.lengths": (8, 12, 16, 20, 24, 32, 64, 128),
    "evaluate.count": 64,
    "evaluate.batch": 64,
    "evaluate.bucket_sizes": (128,),
}


def get_config():
    """Two layers of width 64, four heads; what the tasks share."""
    config = defaults()
    config.name = "rope_vs_sinusoidal"
    config.model.update({"layers": 2, "model": 64, "heads": 4, "hidden": 128, "activation": "relu"})
    config.train.update({"learning_rate": 3e-3, "schedule": "cosine", "warmup": 50, "clip": 1.0, "weight_decay": 0.0})
    config.train.update({"log_every": 50, "checkpoint_every": 200, "keep": 1})
    config.evaluate.validation_lengths = ()  # nothing is chosen by looking at results
    return config


def sweep():
    """Both tasks under six encodings, three seeds each: twelve populations."""
    encodings = [
        {"model.encoding": {"name": name, "options": {"length": LONGEST} if name == "learned" else {}}}
        for name in ENCODINGS
    ]
    return product(chain([TEXT], [COUNTING]), encodings, seeds(3))
