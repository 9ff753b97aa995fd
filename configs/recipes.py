"""Does the answer survive another recipe?

Question: a recipe is a learning rate and a number of steps. Under several recipes that all fit the trained lengths, which of
the differences between encodings past these lengths keep their sign? Committed records of the same copying task disagree: 17
tokens after training at 16 are copied by RoPE in 57, 27, 7 or 0 % of cases, 20 tokens by ALiBi in 9, 97, 86 or 64 %.

Tasks:    copy     repeat one token as often as it was given (`rsc`), trained at 1 to 16 tokens; eight seeds, nine recipes
          markov   Markov chains of 8 symbols, a new one for every sequence, trained at 64 symbols; six seeds, four recipes
          text     bytes of Python's own standard library, trained at 64 bytes; six seeds, four recipes
Encodings: sinusoidal, RoPE, NoPE, ALiBi, T5, learned. Every row of T5's table is reached in training (`max_distance` 32).

What is compared, said before the runs. The score of a run past training is its mean over the tested lengths beyond the trained
ones: exact match on copy, loss in nats on the others.
    counts     A recipe counts for an encoding where more than half of its runs fit the trained lengths: exact match of 0.99
               over them on copy; a loss within 0.05 nats of the best prediction on markov, below that of trigrams on text. A
               recipe counts for a task where it counts for RoPE and for sinusoidal positions; it is kept for a pair of
               encodings where it counts for both.
    variance   Over the encodings for which every counting recipe counts: shares of the sum of squares of the score that belong
               to encoding, recipe, their interaction, and seeds, in a balanced two-way analysis of variance.
    order      Kendall's tau between the orders of these encodings under each two counting recipes: median and smallest.
    opposite   For all pairs of encodings under all recipes kept for them: paired t tests over seeds, with Holm's correction
               over all of a task. How many pairs differ significantly in opposite directions under two recipes? (An exact test
               of sign flips cannot be significant here: with eight seeds its smallest p is 1/128, before the correction.)
    claim      RoPE less sinusoidal positions: mean difference and its 95 % t interval under every counting recipe. It keeps its
               sign where all means have one sign. Only such a sign is claimed.
The same for the score at the first tested length past training, for the lengths up to twice the trained one, and for all.

Command: attnjax run recipes:copy --extend        (and so for markov and text)
         python -m experiments.study recipes
Run time: about 7 core-hours for copy, 7 for markov and 5 for text, from 25 and 55 ms a step on one core of an AMD EPYC
Expected: on copy, recipe and interaction have a larger share than encoding within the encodings that fit, and RoPE less
sinusoidal changes its sign; on text it keeps it, in favour of RoPE; on markov it is small and changes its sign.
"""

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds, vary

VARIANTS = {
    "all": "all three tasks",
    "copy": "copying: 6 encodings, 3 rates, 3 numbers of steps, 8 seeds; `--extend` puts all tasks into one folder",
    "markov": "Markov chains: 6 encodings, 2 rates, 2 numbers of steps, 6 seeds",
    "text": "the same on text",
}

ENCODINGS = (
    {"name": "sinusoidal"},
    {"name": "rope"},
    {"name": "nope"},
    {"name": "alibi"},
    {"name": "t5", "options": {"max_distance": 32}},
    {"name": "learned", "options": {"length": 520, "std": 1.0}},
)

COPY = {
    "task": {"name": "copy", "options": {"variant": "rsc"}, "length_min": 1, "length_max": 16},
    "train.batch": 32,
    "evaluate.lengths": (8, 12, 16, *range(17, 25), 32, 48, 64, 128),
    "evaluate.validation_lengths": (16,),
    "evaluate.bucket_sizes": (24, 64, 128),
}
MARKOV = {
    "task": {"name": "markov", "length_min": 64, "length_max": 64},
    "train.batch": 32,
    "evaluate.lengths": (32, 48, 64, *range(65, 73), 96, 128, 256, 512),
    "evaluate.validation_lengths": (64,),
    "evaluate.bucket_sizes": (72, 128, 512),
}
TEXT = MARKOV | {"task": {"name": "text", "options": {"split_by": "group"}, "length_min": 64, "length_max": 64}}

RECIPES = {
    "copy": (COPY, (1e-3, 3e-3, 1e-2), (1000, 2000, 4000), 8),
    "markov": (MARKOV, (3e-3, 1e-2), (2000, 4000), 6),
    "text": (TEXT, (3e-3, 1e-2), (1500, 3000), 6),
}


def get_config(variant):
    """Two layers of width 64, four heads, as configs/rope_vs_sinusoidal.py."""
    config = defaults()
    config.name = "recipes"
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 256, "activation": "gelu", "embed_scale": True}
    )
    config.train.update({"schedule": "cosine", "warmup": 100, "clip": 1.0, "weight_decay": 0.0})
    config.train.update({"log_every": 250, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"count": 512, "batch": 128})
    return config


def sweep(variant):
    """The tasks of a variant under every recipe and encoding, by seed."""
    return chain(*(grid(*RECIPES[name]) for name in (RECIPES if variant == "all" else [variant])))


def grid(task, rates, steps, count):
    """One task: every number of steps, rate, and encoding, by seed."""
    recipes = product(vary("train.steps", steps), vary("train.learning_rate", rates))
    return product([task], recipes, vary("model.encoding", ENCODINGS), seeds(count))
