"""Does a decoder without any positional encoding copy, reverse and add past its training length better than with one?

Question: trained on up to 20 tokens (addition: 8 digits), is the whole answer right at 21-40 (9-16)? Five cells: none, T5's
bias, ALiBi, rotary on a quarter of each head, sinusoidal.

Paper: Kazemnejad et al. 2023 (arXiv:2305.19466); code McGill-NLP/length-generalization.
Command: attnjax run kazemnejad:smoke        then attnjax report
Run time: smoke: minutes on two CPU cores; cpu: about 11 core-hours (60 tuning runs and 120 of the sweep, 40 to 50 ms a step,
28 to 33 with length buckets; no pilot said whether these models fit all four tasks), see experiments/published; wide: eight
minutes of one H200; whole: 40 minutes with `--workers 2 --population 6`; see experiments/published; short: about an hour
of one GPU; paper: 135 runs of 85 million parameters, some weeks of one GPU. The last two were not run here.
Expected exact match at 21-40 (results/sanity_check.jsonl, `attnjax report --published`): copy rsc nope .986, t5 .771, alibi
.289, rope and sinusoidal 0; copy rdc .967, .939, .170, .016, 0; copy cmc nope .305, t5 .420, alibi .331, rope .011, sinusoidal
.028; reverse mc .230, .242, .171, .077, .023; addition at 9-16 nope .085, t5 .072, alibi .077, rope and sinusoidal below .01.

What `cpu` compares, said before its runs: exact match at 21 to 40, the mean over these lengths, of each encoding beside the
published number (median of six seeds, with its interval), and Kendall's tau_b between the two orders of encodings on each
task. A cell of which fewer than half of the runs answer 99 % of the examples at 2 to 20 is greyed and not ranked. A failed
run counts as 0; none is left out.

What `wide` compares, said before its runs but after those of `cpu`, in which RoPE stood close to no positions on rsc and rdc
(0.55 and 0.72) where the paper prints .0002 and .016: is that so because a quarter of a head of 16 channels has two pairs, with
wavelengths of 6.3 and 628 tokens? A quarter of 64 channels has eight, from 6.3 to 19,869, as in the paper. If so, RoPE falls
below ALiBi, as published, on both tasks. Width, with it all other encodings, changes too: the table has all five beside those
of `cpu`, by the same measure, rule of fit and number of seeds.

What `whole` compares, said before its runs but after those of `wide`, in which RoPE fell to 0 and 0.002: width and learning
rates had changed there, too. Here RoPE turns whole heads of the models of `cpu`, eight pairs from 6.3 to 19,869 tokens, tuned
by the same candidates. If the pairs are the reason, it falls below ALiBi of `cpu` (0.15 and 0.12) by the median of six seeds.

In all variants: theirs reads words with the tokenizer of T5, here a token is a token; it draws from a fixed training set of
100,000, here every example is new; it tests the checkpoint with the best validation exact match, of one every 2,000 steps (for
rsc without positions those of steps 20,000, 20,000 and 28,000), here that of the last step is tested; it also drops inside the
feed-forward layer and behind the last norm; and the table of T5's bias does not decay, since its name has "bias" in it, as all
parameters do here. T5 has no 1/sqrt(d) in its logits but starts W_q that much smaller, and multiplies logits by 1/sqrt(D) but
starts embeddings that much larger: both are the same function as here at the start.
Data: their result files, not the defaults of their scripts, say what was trained on. Lengths are 2 to 20 (`pred/valid_acc_2` to
`_20`), with 500 tests at each of 21 to 40. Addition has pairs of 1 to 8 digits alike, 64 of them, in tests the 192 pairs of 1
to 16 digits with one above 8; `paper` has the same pairs at each length of the longer operand, and lengths alike, not pairs.
Tokens: with 100,000 training examples their rsc and rsc2x have 6,052, rdc 78, the others 100. `paper` has the same; `cpu` too
but for rsc, where it has 100, since the logits of 6,052 tokens would be most of a narrow model. `smoke` and `short` have 100
everywhere.
`cpu` has no dropout, a rate that is 30 times theirs or more, and 16 channels a head, of which the quarter that turns is 4.
`wide` has 16 of 64, and rates of 10 times theirs or more; tokens, steps and the rest are those of `cpu`.
"""

from attnjax.config import defaults
from attnjax.sweep import product, seeds, vary

VARIANTS = {
    "smoke": "copying one repeated token, two narrow layers, 400 steps; for two CPU cores",
    "cpu": "four tasks (rsc, rdc, cmc, mc), two layers of width 64, six seeds, the learning rate of each encoding on each task "
    "chosen on validation sets at the trained lengths, the same candidates for all; for two CPU cores",
    "wide": "rsc and rdc, heads of 64 channels as published (width 256), else as `cpu`, with one candidate more; for one GPU",
    "whole": "rsc and rdc under rotary on whole heads of 16 channels, else as `cpu`; for two CPU cores",
    "short": "two copying tasks, four layers, 10,000 steps, the three published seeds; for one GPU",
    "paper": "nine tasks, the body of T5-base, 40,000 steps, the three published seeds",
}

SEEDS = (256788, 234054, 146317)
ENCODINGS = {
    "nope": {},
    "t5": {"buckets": 32, "max_distance": 128},
    "alibi": {},
    "rope": {"fraction": 0.25, "layout": "interleaved"},
    "sinusoidal": {"order": "concatenated"},
}
SYMBOLS = {"rsc": 6052, "rsc2x": 6052, "rdc": 78}
"""Tokens of the published data where they are not 100: each, or each ordered pair, occurs once at each of the 19 lengths."""
COPIES = ("rsc", "rsc2x", "rdc", "cmc", "cmc2x")
REVERSALS = ("mc", "mc2x", "mcrv")
RATE = {"smoke": 1e-3, "cpu": 3e-3, "wide": 1e-3, "whole": 3e-3, "short": 3e-4, "paper": 3e-5}
STEPS = {"smoke": 400, "cpu": 3500, "wide": 3500, "whole": 3500, "short": 10_000, "paper": 40_000}
CANDIDATES = {"cpu": (1e-3, 3e-3, 1e-2), "wide": (3e-4, 1e-3, 3e-3, 1e-2), "whole": (1e-3, 3e-3, 1e-2)}
"""Learning rates of the variants that tune."""
NARROW = {"layers": 2, "model": 64, "heads": 4, "hidden": 256}
SIZES = {
    "smoke": NARROW,
    "cpu": NARROW,
    "wide": {"layers": 2, "model": 256, "heads": 4, "hidden": 1024},
    "whole": NARROW,
    "short": {"layers": 4, "model": 256, "heads": 4, "hidden": 1024},
    "paper": {"layers": 12, "model": 768, "heads": 12, "hidden": 3072},
}


def get_config(variant):
    """A decoder with the parts of T5; smaller and faster below `paper`."""
    config = defaults()
    config.name = f"kazemnejad_{variant}"
    config.task.update({"form": "decoder", "length_min": 2, "length_max": 20})
    config.model.update({**SIZES[variant], "activation": "relu", "norm": "rms", "norm_position": "pre", "bias": False})
    config.model.update({"embed_scale": True, "tie_embeddings": True, "share_encoding": True})
    config.model.update({"attention_dropout": 0.1, "residual_dropout": 0.1})
    config.train.update({"steps": STEPS[variant], "batch": 64, "learning_rate": RATE[variant], "weight_decay": 0.05})
    config.train.update({"schedule": "linear", "b1": 0.9, "b2": 0.999, "clip": 1.0})
    steps = config.train.get_ref("steps")
    config.train.update({"warmup": steps * 6 // 100, "log_every": steps // 20, "checkpoint_every": steps // 10})
    config.evaluate.update({"lengths": tuple(range(2, 41)), "validation_lengths": (20,), "count": 500, "batch": 100})
    if variant in ("smoke", *CANDIDATES):
        config.model.update({"attention_dropout": 0.0, "residual_dropout": 0.0})
        config.evaluate.update({"count": 100, "bucket_sizes": (20, 30, 40)})
    if variant == "smoke":
        config.train.batch = 32
        config.evaluate.update({"lengths": (10, 20, 21, 25, 30, 40), "bucket_sizes": ()})
    return config


def sweep(variant):
    """Tasks x encodings x seeds."""
    named = ENCODINGS if variant != "whole" else {"rope": {**ENCODINGS["rope"], "fraction": 1.0}}
    encodings = [{"model.encoding": {"name": name, "options": options}} for name, options in named.items()]
    chosen = [{"seed": seed, "data_seed": seed} for seed in (SEEDS[:1] if variant == "smoke" else SEEDS)]
    return product(tasks(variant), encodings, seeds(6) if variant in CANDIDATES else chosen)


def tune(variant):
    """Learning rates, of which every encoding has its best on every task."""
    return vary("train.learning_rate", CANDIDATES[variant]) if variant in CANDIDATES else []


def tuning_seeds():
    """A seed that no run of the sweep has."""
    return (2000,)


def tasks(variant):
    """The tasks of a rung; addition has other lengths."""
    if variant in CANDIDATES:
        names = ("rsc", "rdc", "cmc") if variant == "cpu" else ("rsc", "rdc")
        copies = product(vary("task.name", ("copy",)), options(names, {"rdc": SYMBOLS["rdc"]}))
        reversals = product(vary("task.name", ("reverse",)), options(("mc",)))
        return [*copies, *reversals] if variant == "cpu" else copies
    if variant != "paper":
        names = ("rsc",) if variant == "smoke" else ("rsc", "cmc")
        return product(vary("task.name", ("copy",)), options(names))
    addition = {
        "task.name": "addition",
        "task.options": {"order": "plain"},
        "task.length_min": 1,
        "task.length_max": 8,
        "evaluate.lengths": tuple(range(1, 17)),
        "evaluate.validation_lengths": (8,),
    }
    copies = product(vary("task.name", ("copy",)), options(COPIES, SYMBOLS))
    return [*copies, *product(vary("task.name", ("reverse",)), options(REVERSALS)), addition]


def options(names, symbols=()):
    """The options of each task; `symbols` says how many tokens it has where these are not the default."""
    return vary(
        "task.options",
        [{"variant": name, **({"symbols": symbols[name]} if name in symbols else {})} for name in names],
    )
