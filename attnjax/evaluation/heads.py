"""All that is known about every head of a model, in one call.

    found = head_scores("heads_lm/rope/0")          a run by what it is, or its folder, or a `LoadedModel`
    print(found)                                    a row per head: patterns, entropy, distance, sink
    found.best("previous_token")                    (layer, head) of the head with the largest score, from 0
    found.patterns["previous_token"].score          [L, N], with intervals, baseline and chance: see `counts.py`

Without tokens a run is shown held-out examples of its own task, at its longest length of training. Patterns that a parser
finds, such as the brackets of Python source (`experiments/heads/source.py`), are given as `linked`. Positions
are 0, 1, ..., also for a run that was trained with random ones.

Beside the patterns, statistics of the rows of weights [..., T, S], queries i and keys j both counted by index:

    entropy         -sum_j a_ij ln a_ij, in nats
    mean distance   sum_j a_ij |i - j|
    sink mass       a_i0, the attention on the first key: the attention sink of Xiao et al. 2024 (arXiv:2309.17453)
"""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.evaluation.counts import SEPARATORS, HeadScores, count_heads, scores, stands_out
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.tasks import Text, specials
from attnjax.tasks.base import Task
from attnjax.tasks.forms import Sequences
from attnjax.train.data import documents_of, sequences
from attnjax.train.streams import stream
from attnjax.typing import Array, ArrayLike, Bool, Float, Int

EXAMPLES = 64
"""How many held-out examples a run is shown."""
BATCH = 16


class HeadOverview(NamedTuple):
    """Scores of every pattern (see `counts.py`), and means over all rows of each statistic, each [L, N].

    entropy: in nats. distance: mean |i - j|, in tokens. sink: share of the attention on the first token.
    """

    patterns: dict[str, HeadScores]
    entropy: Float[np.ndarray, "L N"]
    distance: Float[np.ndarray, "L N"]
    sink: Float[np.ndarray, "L N"]
    tokens: Int[np.ndarray, "W T"]

    def best(self, pattern: str) -> tuple[int, int]:
        """The (layer, head), counted from 0, with the largest score of a pattern.

        Raises ValueError for a pattern that was not scored, or of which no row had a target.
        """
        known = [name for name, one in self.patterns.items() if one.rows]
        if pattern not in known:
            raise ValueError(f"pattern must have a target here, as {', '.join(known)} have, got {pattern!r}")
        score = self.patterns[pattern].score
        layer, head = np.unravel_index(score.argmax(), score.shape)
        return int(layer), int(head)

    def __str__(self) -> str:
        """A table: layer.head from 0, then each score, with * where it stands out, see `counts.stands_out`."""
        means = {"entropy": self.entropy, "distance": self.distance, "sink": self.sink}
        marked = {name: stands_out(name, one) for name, one in self.patterns.items()}
        rows = [["head", *self.patterns, *means]]
        for place in np.ndindex(*self.entropy.shape):
            cells = [
                f"{one.score[place]:.3f}{'*' if marked[name][place] else ' '}" for name, one in self.patterns.items()
            ]
            rows.append([".".join(map(str, place)), *cells, *(f"{one[place]:.3f}" for one in means.values())])
        for label in ("baseline", "chance"):
            rows.append([label, *(f"{getattr(one, label):.3f} " for one in self.patterns.values()), "", "", ""])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows)


def head_scores(
    run: str | pathlib.Path | LoadedModel,
    tokens: Int[np.ndarray, "W T"] | None = None,
    *,
    document: Int[np.ndarray, " W"] | None = None,
    linked: Mapping[str, Bool[np.ndarray, "W T T"]] | None = None,
    separators: tuple[int, ...] | None = None,
) -> HeadOverview:
    """Every score of every head.

    Args:
      run: a model with its parameters, or a trained run: its folder, or what it is (see `attnjax.sweep.find`).
      tokens: what the model reads, rows of equal length; None: held-out examples of the run.
      document: the number of the document that each row is from; None: each is a document of its own.
      linked: targets of patterns of your own, by name, true where a query should attend to a key; with `tokens`.
      separators: the tokens that separate; None: newline and space for models of bytes, the separator between input and answer
        for decoders of other tasks, and no token for all others, whose score is then NaN.

    Raises:
      ValueError: where the run cannot be found or loaded (see `loaded_model.load`), arrays do not fit the model or each
        other, or no tokens are given, with a document or targets, or for a model that was not trained here.

    Example:
      >>> from flax import nnx
      >>> from attnjax.modules import Decoder, TransformerConfig
      >>> model = Decoder(TransformerConfig(vocab=8, model=16, layers=2, heads=2, hidden=16), rngs=nnx.Rngs(0))
      >>> found = head_scores(LoadedModel(model), np.tile(np.arange(8), (4, 2)))
      >>> found.patterns["previous_token"].score.shape, sorted(found.patterns)
      ((2, 2), ['first_token', 'induction', 'previous_token', 'same_token', 'separator'])
      >>> layer, head = found.best("previous_token")
      >>> bool(found.patterns["previous_token"].score.max() == found.patterns["previous_token"].score[layer, head])
      True
    """
    subject = run if isinstance(run, LoadedModel) else load(run)
    if tokens is not None:
        rows = subject.check_tokens(tokens)
        document = np.arange(len(rows)) if document is None else document
    elif document is None and linked is None:
        rows, document = held_out(subject)
    else:
        raise ValueError("document and linked are about the rows of tokens, so that tokens have to be given too")
    separators = _separators(subject) if separators is None else separators
    counts = count_heads(subject, rows, document, linked or {}, separators=separators, batch=BATCH)
    entropies, distances, sinks = _means(subject, rows)
    return HeadOverview({name: scores(one) for name, one in counts.items()}, entropies, distances, sinks, rows)


def held_out(subject: LoadedModel) -> tuple[Int[np.ndarray, "W T"], Int[np.ndarray, " W"]]:
    """Examples that the subject's run has not been trained on, at its longest length of training, and the document of each.

    Windows of text have the number of the file that they were cut from; any other example is a document of its own.

    Raises ValueError for a subject that is no run.
    """
    run, task = subject.run, subject.task
    if run is None or task is None:
        raise ValueError(f"{subject.name} was not trained here, so that tokens have to be given: integers [W, T]")
    length, documents = run.task.length_max, task.for_split("test").documents
    made = held_out_examples(run, task, length, EXAMPLES)
    full = int(np.asarray(made.valid).sum(-1).min())
    document = np.arange(EXAMPLES)
    if documents is not None:
        document = documents_of(held_out_examples(run, task, length, EXAMPLES, (documents,)))
    return np.asarray(made.tokens[:, :full], np.int32), document


def held_out_examples(
    run: RunConfig, task: Task, length: int, count: int, arrays: tuple[ArrayLike, ...] | None = None
) -> Sequences:
    """Returns held-out examples of a length, the same for every run of a task; cut from `arrays` in place of the task's own."""
    test, lengths = task.for_split("test"), jnp.full((count,), length, jnp.int32)
    test = test.given(*(test.arrays if arrays is None else arrays))
    made = sequences(run, test, stream(0, "test"), lengths, length)
    assert isinstance(made, Sequences)  # no subject has an encoder and a decoder
    return made


def _separators(subject: LoadedModel) -> tuple[int, ...]:
    """Newline and space of bytes, the separator between input and answer of a decoder; none where a model has neither."""
    run, task = subject.run, subject.task
    if run is None or task is None:
        return SEPARATORS if subject.config.vocab == 256 else ()
    if isinstance(task, Text):
        return SEPARATORS
    return (specials(task).separator,) if run.task.form == "decoder" and not task.aligned else ()


def _means(subject: LoadedModel, rows: Int[np.ndarray, "W T"]) -> list[Float[np.ndarray, "L N"]]:
    """Entropy, distance and sink mass of every head, mean over rows."""
    visible = subject.visible_keys(rows.shape[1])
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    totals = [_measured(subject.weights(jnp.asarray(part)), visible) for part in parts]
    return [np.sum(np.asarray(one), axis=0) / len(rows) for one in zip(*totals, strict=True)]


@jax.jit
def _measured(weights: Float[Array, "L B N T T"], visible: Bool[Array, "T T"]) -> list[Float[Array, "L N"]]:
    """Returns entropy, distance and sink mass, mean over the rows of an example, summed over examples."""
    measured = (entropy(weights), mean_distance(weights), sink_mass(weights, visible))
    return [jnp.sum(jnp.nanmean(one, axis=-1), axis=1) for one in measured]


def entropy(weights: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """Returns -sum_j a_ij ln a_ij of every row, in nats: 0 where all is on one key, ln(n) where n keys have the same."""
    return jnp.sum(jax.scipy.special.entr(weights), axis=-1)


def mean_distance(weights: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """Returns sum_j a_ij |i - j| of every row, in tokens."""
    T, S = weights.shape[-2:]
    away = np.abs(np.arange(T)[:, None] - np.arange(S)[None, :])
    return jnp.einsum("...ts,ts->...t", weights, away.astype(weights.dtype))


def sink_mass(weights: Float[Array, "*axes T S"], visible: Bool[Array, "T S"]) -> Float[Array, "*axes T"]:
    """Returns the attention on the first key; NaN for rows that see no other key."""
    return jnp.where(jnp.any(jnp.asarray(visible)[:, 1:], axis=-1), weights[..., 0], jnp.nan)
