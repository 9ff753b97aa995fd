"""One law for where encodings break: at the first code that training did not reach?

Question: an encoding gives a code to every distance, or to every position. Does a model trained at L tokens fail where a code
comes that no training sequence had, under every encoding; does it fail because of these codes; and by how much?

The law, for each encoding:
    RoPE, XPos, PoPE, Transformer-XL    the shortest wavelength above L. Phases beyond it repeat those of near keys, and no
                                        training distance taught the pair to tell them apart. XPos fades, but fading does not
                                        turn; PoPE has a wavelength for each channel; Transformer-XL adds 32 waves of the
                                        distance to the score
    T5                                  the first distance of the first row of its table that no training distance falls into
    sinusoidal, learned                 position L; none after random starts, which show every position of the tests
    FIRE                                distance L where its normaliser is longer than L, since all inputs of its network beyond
                                        are new; none where it is shorter, and the input is a share of the query's position
    ALiBi, Kerple, NoPE                 none: monotone functions of the distance go on as they were, or there is no code

Cells:    RoPE with the wavelength of pair 3, and that of pair 2, at 1.1, 1.4, 2 and 2.8 L, as in first_unseen_wavelength;
          XPos and PoPE with the base 1,195.8, at 1.4 L like RoPE; Transformer-XL (83.8 tokens, 1.3 L)
          T5 with 8 rows, whose last begins at 64, 83 and 128, or at 32 (none unseen), and with the usual 32 rows up to 128, of
          which the last five begin at 67 and beyond
          sinusoidal; learned with a deviation of 1 at the start, and of 0.02, as the size of an unseen row should matter;
          both kinds (learned with 1) after random starts in 0 .. 511, as in policy_placebo
          FIRE with a threshold of 512 and of 32; ALiBi; Kerple; NoPE
          Text has them all, and the slower tasks leave some out: pair 2 at 1.1 and 2 L; NoPE, which learns neither, and ALiBi,
          which does not learn chains (length_table); on recall XPos and PoPE
          Random starts change no distance, so that they are nothing new to RoPE or T5: not run (policy_placebo)
Tasks:    markov   Markov chains of 8 symbols, a new one for every sequence, trained at 64 symbols
          text     bytes of Python's own standard library, trained at 64 bytes
          recall   a random string of 16 to 32 of 256 symbols, and again (`induction`): at most 63 tokens, distances to 62. A
                   test of n symbols is one of 2 n - 1 tokens
          Two layers of width 64, four heads of 16 channels. Eight seeds.

Predictions are in experiments/onset/predictions.csv, a row for each task and cell, written before anything was trained by
experiments/onset/predict.py, which has the formulas. The rivals of the law, for the same breakpoint:
    trained    L for every encoding whose codes change with every distance or position; none for the others and for T5 with all
               rows seen. It differs from the law in the place alone
    liu        2 pi theta^(d_extra / d), with the critical dimension d_extra = 2 ceil(d / 2 log_theta(L / 2 pi)) of Liu et al.
               2024 (arXiv:2310.05209). For a model that is trained with its base from scratch this is the law for RoPE, and
               no rival: the formulas agree, and a test says so. Elsewhere as `trained`
    men        the first distance at which sum_k cos(n theta_k) is below 0 (Men et al. 2024, arXiv:2405.14591): it depends on
               the base, and not on L. Elsewhere as `trained`
    phase      L + 0.41 w, with w the shortest wavelength of at least 1.2 L: fitted to the length factors of the committed
               first_unseen_wavelength, by hand. RoPE, XPos, PoPE and Transformer-XL; elsewhere as the law
What is known already, and speaks against the law: in length_table (L = 32, base 10,000) RoPE and XPos leave the loss of text at
1.2 L, and the law says 2.0 L; Transformer-XL stays, to 8 L, on text and chains; a wavelength at 1.05 L did little harm on
chains. For it: T5, FIRE, sinusoidal and learned positions.

What is measured, said before the runs. A loss is `loss_sliding`, of the last 4 tokens of a window (of the second string).
    reference   The mean loss of Kerple's runs at the same length and task: an encoding without unseen codes, which fitted such
                tasks in length_table (ALiBi did not fit chains). Excess: the loss less the reference.
    breakpoint  Of a run: the first tested length beyond the trained one at which its excess is more than 0.05 nats above that
                at the trained length; none, if at no length up to 8 L. Of a cell: the median of the runs that fit, where none
                counts as infinite; of an even number the lower one.
    fit         Loss at the trained length within 0.05 nats of the best prediction on chains, below that of trigrams on text,
                below 0.1 on recall. A cell counts in which more than half of the runs fit. Kerple is the reference, and does
                not count.
    rises       A cell rises if its breakpoint is at most 4 L.
    rise        Of a run, at 4 L and at 8 L: its excess there less that at the trained length.
Comparisons, within each task and over all:
    1 place     Kendall's tau_b between predicted and measured breakpoints of all cells that count, with a 95 % interval of
                2,000 bootstrap samples of cells, and of runs within each; the share of cells at most one tested length off. The
                law holds on a task if tau is at least 0.6, its interval above 0, and the share at least 0.7. Beside it the same
                for the rivals, and for the cells of RoPE alone. The law is better than a rival where the difference of their
                tau has an interval above 0 in the same samples.
    2 when      Where an unseen code matters. Biases of the distance alone (T5, FIRE) with unseen codes are predicted to stay on
                chains, where all distances count alike and so little was learned of them (T5 had 1.895 at 2 L and 1.908 at
                8 L in rope_vs_sinusoidal_paper), and to rise on text and recall. All other cells with a code unseen rise,
                all without stay. Share of cells told right, of those that rise and of those that stay. A cell that is told
                to stay has no breakpoint in the first comparison, by the law and by its rivals.
    3 size      From trained models at trained lengths, before any test past L: the attention that unseen codes move. In windows
                of L tokens the second half stands 3 L further on, so that distances between the halves are those of a test at
                4 L. With A the attention of the model as it is, and B that of the repaired one (see 4), in which these codes
                are the last seen ones,
                    moved = mean over layers, heads, windows and queries of the second half of sum over keys |A - B| / 2
                Initial values enter where a row was never trained: it gives to attention what it had at the start, against
                what its neighbour learned. Kendall's tau_b of moved and rise at 4 L over the cells that can be repaired is
                predicted to be at least 0.5, on each task. Learned rows with a deviation of 0.02 at the start are predicted to
                rise less than with 1, on each task.
    4 cause     Repair without training (experiments/onset/repair.py). T5: unseen rows take the last seen one. RoPE: pairs with
                a wavelength above L keep their angle of distance L - 1 from there on. Learned: rows from L on take row L - 1.
                Sinusoidal: waves longer than L stop at position L - 1. Measured is the share of the rise at 4 L and at 8 L that
                goes, in cells whose median rise there is above 0.1 nats: predicted at least 0.8. Control: as many seen codes,
                or all if there are fewer, are changed the same way. T5 and learned: each of the last seen rows, at most half of
                them, takes the one below it. RoPE and sinusoidal: the longest of the other waves stop. Predicted at most 0.1.
                The cause is shown for an encoding on a task if the medians over its runs are on these sides at both lengths,
                and refuted if repair takes less than 0.5, or no more than the control.
    5 training  Sinusoidal and learned positions after random starts stay, on every task on which they fit.

Command: attnjax run onset:markov --extend --workers 2 --population 28        (and so for text and recall)
         python -m experiments.onset.repair                                   (moved attention, and repair of the trained runs)
         python -m experiments.study onset
Run time: about 9 core-hours: 4 for markov, 2 for text, 3 for recall, estimated from first_unseen_wavelength; repair one more
Expected: the law orders encodings, and does not place RoPE on text, where it leaves sooner. T5 breaks at its rows. Repair gives
back most of the rise under T5, learned and sinusoidal positions, and less under RoPE.
"""

import math
from typing import Any

from attnjax.config import defaults
from attnjax.sweep import chain, product, seeds

VARIANTS = {
    "all": "the three tasks",
    "markov": "Markov chains; `--extend` puts all tasks into one folder",
    "text": "the same on text",
    "recall": "the same on a repeated string",
}
TRAINED = 64
GRID = (64, 66, 68, 72, 76, 80, 84, 88, 92, 96, 104, 112, 120, 128, 136, 144, 160, 176, 192, 224, 256, 384, 512)
"""Tested lengths."""


def base(pair, ratio):
    """The base at which this pair of the eight of a head has a wavelength of `ratio` trained lengths."""
    return round((ratio * TRAINED / (2 * math.pi)) ** (8 / pair), 3)


def encoding(name, **options):
    """A change of the encoding."""
    return {"model.encoding": {"name": name, "options": options}}


STARTS = {"positions.policy": "offset", "positions.maximum": max(GRID)}
"""Random starts in training, so that every position of the tests is seen."""
CELLS: dict[str, Any] = {
    **{f"rope {pair} {r:g}": encoding("rope", theta=base(pair, r)) for pair in (3, 2) for r in (1.1, 1.4, 2.0, 2.8)},
    "xpos": encoding("xpos", theta=base(3, 1.4)),
    "pope": encoding("pope", theta=base(3, 1.4)),
    "transformer_xl": encoding("transformer_xl"),
    "t5 64": encoding("t5", buckets=8, max_distance=161),
    "t5 83": encoding("t5", buckets=8, max_distance=228),
    "t5 128": encoding("t5", buckets=8, max_distance=404),
    "t5 none": encoding("t5", buckets=8, max_distance=64),
    "t5 usual": encoding("t5", buckets=32, max_distance=128),
    "sinusoidal": encoding("sinusoidal"),
    "sinusoidal starts": encoding("sinusoidal") | STARTS,
    "learned 1": encoding("learned", length=max(GRID), std=1.0),
    "learned 0.02": encoding("learned", length=max(GRID), std=0.02),
    "learned starts": encoding("learned", length=max(GRID), std=1.0) | STARTS,
    "fire 512": encoding("fire", threshold=512.0),
    "fire 32": encoding("fire", threshold=32.0),
    "alibi": encoding("alibi"),
    "kerple": encoding("kerple"),
    "nope": encoding("nope"),
}
"""What each cell changes, by its name in experiments/onset."""

MARKOV: dict[str, Any] = {
    "task": {"name": "markov", "length_min": TRAINED, "length_max": TRAINED},
    "train.steps": 2500,
    "train.learning_rate": 3e-3,
    "evaluate.lengths": GRID,
    "evaluate.validation_lengths": (TRAINED,),
    "evaluate.bucket_sizes": (96, 192, 256, 512),
}
TEXT = MARKOV | {
    "task": {"name": "text", "options": {"split_by": "group"}, "length_min": TRAINED, "length_max": TRAINED},
    "train.steps": 1200,
    "train.learning_rate": 1e-2,
}
RECALL = MARKOV | {
    "task": {"name": "induction", "options": {"symbols": 256}, "length_min": 16, "length_max": TRAINED // 2},
    "train.steps": 2000,
    "evaluate.lengths": tuple(length // 2 for length in GRID),
    "evaluate.validation_lengths": (TRAINED // 2,),
    "evaluate.bucket_sizes": (48, 96, 128, 256),
}
TASKS = {"markov": MARKOV, "text": TEXT, "recall": RECALL}
LEFT_OUT = {
    "markov": ("rope 2 1.1", "rope 2 2", "alibi", "nope"),
    "text": (),
    "recall": ("rope 2 1.1", "rope 2 2", "xpos", "pope", "nope"),
}
"""Cells that a task does not have."""


def get_config(variant):
    """Two layers of width 64 with four heads, so that a head of 16 channels has 8 wavelengths."""
    config = defaults()
    config.name = "onset"
    config.model.update(
        {"layers": 2, "model": 64, "heads": 4, "hidden": 256, "activation": "gelu", "embed_scale": True}
    )
    config.train.update({"batch": 32, "schedule": "cosine", "warmup": 100, "clip": 1.0, "weight_decay": 0.0})
    config.train.update({"log_every": 100, "checkpoint_every": 500, "keep": 1})
    config.evaluate.update({"count": 512, "batch": 128, "sliding_stride": 4})
    return config


def sweep(variant):
    """The tasks of a variant under every cell, by seed."""
    return chain(*(grid(name) for name in (TASKS if variant == "all" else [variant])))


def grid(task):
    """One task: every cell, eight seeds."""
    return product([TASKS[task]], [CELLS[name] for name in cells(task)], seeds(8, start=400))


def cells(task):
    """The names of the cells of a task."""
    return [name for name in CELLS if name not in LEFT_OUT[task]]
