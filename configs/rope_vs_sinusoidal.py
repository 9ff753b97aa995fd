"""RoPE or sinusoidal, past the training length?

Question: trained on short sequences, which encoding still works at several times the length? Three tasks, chosen on seed 1000,
which no run here has, so that small models fit the trained lengths (NoPE alone did not fit markov there, with two layers or
three):
    copy      counting: repeat one token as often as it was given ("rsc"), trained at 1 to 16
    markov    a language that every sequence makes anew, so that context pays at every length, trained at 64 symbols
    text      bytes of Python's own standard library, trained at 64 bytes; near-duplicate files are in one split (`paper` only)
`quick` asks the same in minutes: copying 1 to 12 tokens, and chains of 3 symbols at length 32, by models with half of the
hidden units, in sizes that were chosen on the same seeds. NoPE, ALiBi, T5 and learned positions stand beside as context. Tests
include lengths just past the trained ones.

Embeddings are multiplied by sqrt(D) (Vaswani et al. 2017), so that tokens have deviation 1 where sinusoids have 0.71. Learned
positions begin as large as tokens, as in GPT-2 and BERT.

What is compared, said before the runs of `paper`: the score past training (its mean over the tests beyond the trained length)
of RoPE and sinusoidal positions, paired by seed; then all pairs of encodings, with Holm's correction. For each run, the length
factor: the largest tested L'/L up to which the loss stays within 0.05 nats of that at the trained length, or exact match is at
least 0.9.

Paper: Press et al. 2022 (arXiv:2108.12409) for text; Kazemnejad et al. 2023 (arXiv:2305.19466), copy rsc, for counting;
Edelman et al. 2024 (arXiv:2402.11004) for Markov chains.
Command: ./run            (the same as: attnjax run rope_vs_sinusoidal --workers 2 --report)
         ./run paper      (the same as: attnjax run rope_vs_sinusoidal:paper --workers 2 --report)
Run time: see experiments/rope_vs_sinusoidal/README.md
Expected: sinusoidal and learned positions fail at the first lengths past training; RoPE lasts longer on text and markov, ALiBi
longest; counting, NoPE and T5 ahead of both.
"""

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds, vary

VARIANTS = {
    "quick": "shorter copy and markov, four encodings, three seeds, one learning rate for all; the main job",
    "paper": "all three tasks, six encodings, ten seeds; each encoding has the learning rate that is best for it on validation "
    "sets at the trained lengths, and sinusoidal positions are also added to embeddings that are not scaled",
    "copy": "the runs of `paper` on this task; `--extend` puts them into the folder of `paper`",
    "markov": "the same",
    "text": "the same",
}

QUICK = ("sinusoidal", "rope", "nope", "alibi")
ENCODINGS = (*QUICK, "t5", "learned")
LONGEST = 520
JUST_PAST = range(65, 73)

COPY = {
    "task": {"name": "copy", "options": {"variant": "rsc"}, "length_min": 1, "length_max": 16},
    "train.steps": 1500,
    "train.batch": 64,
    "evaluate.lengths": (8, 12, 16, *range(17, 25), 32, 48, 64, 128),
    "evaluate.validation_lengths": (16,),
    "evaluate.bucket_sizes": (24, 64, 128),
}
MARKOV = {
    "task": {"name": "markov", "length_min": 64, "length_max": 64},
    "train.steps": 2000,
    "train.batch": 32,
    "evaluate.lengths": (32, 48, 64, *JUST_PAST, 96, 128, 256, 512),
    "evaluate.validation_lengths": (64,),
    "evaluate.bucket_sizes": (72, 128, 512),
}
TEXT = MARKOV | {
    "task": {"name": "text", "options": {"split_by": "group"}, "length_min": 64, "length_max": 64},
    "train.steps": 3000,
}
TASKS = {"copy": COPY, "markov": MARKOV, "text": TEXT}

SHORT_COPY = COPY | {
    "task": {"name": "copy", "options": {"variant": "rsc"}, "length_min": 1, "length_max": 12},
    "train.steps": 750,
    "train.batch": 32,
    "evaluate.lengths": (4, 8, 12, *range(13, 17), 18, 20, 24, 48, 96),
    "evaluate.validation_lengths": (12,),
    "evaluate.bucket_sizes": (20, 96),
}
SHORT_MARKOV = {
    "task": {"name": "markov", "options": {"symbols": 3}, "length_min": 32, "length_max": 32},
    "train.steps": 1000,
    "train.batch": 16,
    "evaluate.lengths": (16, 24, *range(32, 37), 40, 64, 128, 256),
    "evaluate.validation_lengths": (32,),
    "evaluate.bucket_sizes": (40, 256),
}


def get_config(variant):
    """Two layers of width 64, four heads; what the tasks share."""
    config = defaults()
    config.name = "rope_vs_sinusoidal_paper"
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 256, "activation": "gelu", "embed_scale": True}
    )
    config.train.update({"learning_rate": 3e-3, "schedule": "cosine", "warmup": 100, "clip": 1.0, "weight_decay": 0.0})
    config.train.update({"log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"count": 512, "batch": 128})
    if variant == "quick":
        config.name = "rope_vs_sinusoidal"
        config.model.hidden = 128
        config.train.update({"warmup": 50, "log_every": 50, "checkpoint_every": 0})
        config.evaluate.count = 128
    return config


def sweep(variant):
    """The tasks under each encoding, by seed; beyond `quick`, sinusoidal positions with unscaled embeddings beside them."""
    encodings = [{"model.encoding": encoding(name)} for name in (QUICK if variant == "quick" else ENCODINGS)]
    if variant == "quick":
        return product([SHORT_COPY, SHORT_MARKOV], encodings, seeds(3))
    unscaled = {"model.encoding": encoding("sinusoidal"), "model.embed_scale": False}
    tasks = list(TASKS.values()) if variant == "paper" else [TASKS[variant]]
    return product(chain(tasks), [*encodings, unscaled], seeds(10))


def tune(variant):
    """Learning rates, of which every encoding has its best on every task."""
    return vary("train.learning_rate", (1e-3, 3e-3, 1e-2)) if variant != "quick" else []


def tuning_seeds():
    """Seeds that no run of the sweep has."""
    return (2000, 2001)


def encoding(name):
    """An encoding with options that cover the longest test."""
    return {"name": name, "options": {"length": LONGEST, "std": 1.0} if name == "learned" else {}}
