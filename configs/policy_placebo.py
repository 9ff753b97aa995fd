"""Where positions come from, under six encodings, with cells where it must make no difference.

Question: does showing a model places that it will meet in longer tests, by a random start ("offset") or by a random sorted
sample ("randomized"), make it copy longer sequences, and under which encodings? An experiment on positions that shows an effect
where there cannot be one is broken, so the table has placebo cells: RoPE, ALiBi and T5 see distances alone, and a random start
changes no distance; without positions (NoPE) no policy changes anything.

Policies: arange      0, 1, ... in training and in tests
          offset      0, 1, ... from a random start in training, each example its own; 0, 1, ... in tests (at_test="arange")
          randomized  a random sorted sample of 0 .. maximum-1, in training and tests (at_test="same", as Ruoss et al. 2023)
maximum is the number of tokens of the longest test, so that offset and randomized show every place of the tests, and no other.
Tasks:    copy         repeat one token as often as it was given (rsc, Kazemnejad et al. 2023), trained at 1 to 16, tested to 48
          unique_copy  repeat distinct symbols (Huang et al. 2025), trained at 1 to 8, tested to 24

What is compared, said before the runs: the score past training (mean exact match over the tests beyond the trained lengths) of
offset and of randomized less that of arange, paired by seed, under each encoding and task: 24 differences, each with its mean
and 95 % t interval over seven seeds. Cells of which fewer than half of the runs answer 99 % within the trained lengths have not
fitted; they are grey, and so is a difference that one of them enters, which is in no test.
    placebo   offset under RoPE, ALiBi, T5 and NoPE, randomized under NoPE, on both tasks: ten differences that must be 0.
              Under NoPE they must be 0 exactly; under the others up to rounding, which training amplifies to the noise between
              two runs. The table is broken if NoPE shows any difference, or if so many of the other intervals leave 0 out that
              chance does so with p < 0.05 (binomial, 5 % each).
    primary   offset under learned and under sinusoidal positions, on both tasks, predicted above 0: one-sided exact p of all
              sign flips, with Holm's correction over these four (1/128 with seven seeds, 0.031 after the correction).
    others    randomized under the five encodings, on both tasks: intervals only, no test.
One learning rate for all: a policy must be compared at the rate of its arange, or a placebo would differ by the rate. It is
that of configs/rope_vs_sinusoidal.py, whose committed records fit copy under four of these encodings.
Primary metric: exact_match

Paper: Ruoss et al. 2023 (arXiv:2305.16843) for randomized positions; Kiyono et al. 2021 (arXiv:2109.05644) for random starts.
Command: attnjax run policy_placebo --workers 2
         python -m experiments.study policy_placebo
Run time: estimated at 125 to 165 core-minutes, from the records of rope_vs_sinusoidal and of a run of unique_copy.
Expected: placebo cells at 0; offset lifts learned positions on unique_copy (Huang et al. train them so), and less on copy,
which needs counting; randomized helps sinusoidal and learned positions, and harms RoPE and ALiBi, whose distances it blurs.
"""

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds

ENCODINGS = ("learned", "sinusoidal", "rope", "alibi", "t5", "nope")
COPY = {
    "task": {"name": "copy", "options": {"variant": "rsc"}, "begin": True, "length_min": 1, "length_max": 16},
    "train.steps": 1000,
    "evaluate.lengths": (8, 16, 17, 18, 20, 24, 32, 48),
    "evaluate.validation_lengths": (16,),
    "evaluate.bucket_sizes": (24, 48),
}
UNIQUE_COPY = {
    "task": {"name": "unique_copy", "options": {"symbols": 24}, "begin": True, "length_min": 1, "length_max": 8},
    "train.steps": 3000,
    "model.hidden": 128,
    "evaluate.lengths": (4, 8, 9, 10, 12, 16, 20, 24),
    "evaluate.validation_lengths": (8,),
    "evaluate.bucket_sizes": (12, 24),
}


def get_config():
    """Two layers of width 64, four heads, as configs/rope_vs_sinusoidal.py."""
    config = defaults()
    config.name = "policy_placebo"
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 256, "activation": "gelu", "embed_scale": True}
    )
    config.train.update({"batch": 64, "learning_rate": 3e-3, "schedule": "cosine", "warmup": 100, "clip": 1.0})
    config.train.update({"weight_decay": 0.0, "log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"count": 256, "batch": 128})
    return config


def sweep():
    """Two tasks, six encodings, three policies, seven seeds."""
    return chain(*(product([task], cells(places(task)), seeds(7, start=100)) for task in (COPY, UNIQUE_COPY)))


def cells(maximum):
    """Every encoding under every policy."""
    policies = (
        {"positions.policy": "arange"},
        {"positions.policy": "offset", "positions.maximum": maximum},
        {"positions.policy": "randomized", "positions.maximum": maximum, "positions.at_test": "same"},
    )
    options = {"learned": {"length": maximum, "std": 1.0}}
    encodings = [{"model.encoding": {"name": name, "options": options.get(name, {})}} for name in ENCODINGS]
    return product(encodings, policies)


def places(task):
    """Tokens of the longest test: tokens, separator, tokens, and one more for `begin`."""
    return 2 * max(task["evaluate.lengths"]) + 2
