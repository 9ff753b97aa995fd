"""Scores of heads: the share of attention that a head gives to the targets of a pattern, beside baseline and chance.

    score      mass on the targets, mean over all rows that have one
    baseline   the same for the best head that attends by offset alone: the one offset that hits most, chosen on half of the
               documents and counted on the other half, both ways (fixed offsets: Clark et al. 2019, arXiv:1906.04341, table 1)
    chance     the same for a head that attends to all visible keys alike

The targets are masks [T, S], the keys that a query should attend to, made from the tokens alone (`token_targets`):

    previous_token   j = i - 1                                     next_token   j = i + 1 (encoders)
    first_token      j = 0 < i
    same_token       j < i with token j = token i                  the query itself is no target
    separator        j < i with token j in a given set             newline and space unless given
    induction        0 < j <= i with token j-1 = token i           what followed an earlier occurrence: Olsson et al. 2022
                     and j - 1 < i                                 (arXiv:2209.11895)

or by a parser (`linked` of `count_heads`). A row without a target counts nowhere.

All scores are sums over rows, added up by document first, because windows of one document are not independent samples.
Intervals are percentiles of a bootstrap over documents (95 %). A head *beats* the baseline where the interval of the
difference, head less baseline paired by document, lies above 0, and that over chance too. What offsets find by definition
(the previous token, the first) no head can beat there: such a head is one whose interval lies above 1/2, by the "more than
half of the attention" of Clark et al., section 3.1.

Letters here: Q patterns, D documents, O offsets.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.typing import Array, ArrayLike, Bool, Float, Int

SEPARATORS = (ord("\n"), ord(" "))
POSITIONAL = ("previous_token", "next_token", "first_token")
"""Patterns that do not depend on the tokens: an offset alone finds their target."""
RESAMPLES, SEED = 10_000, 2108_13264
LEAST = 1e-4
"""A smaller gain does not count, because sums of attention in float32 are uncertain by up to this."""


class Counts(NamedTuple):
    """Of one pattern, by document: sums over the rows that have a target.

    mass: of attention on the targets, for each head. rows: their number. hits: in how many of them the key at each offset is
    a target. chance: of the share of visible keys that are targets.
    """

    mass: Float[np.ndarray, "D L N"]
    rows: Float[np.ndarray, " D"]
    hits: Float[np.ndarray, "D O"]
    chance: Float[np.ndarray, " D"]
    offsets: Int[np.ndarray, " O"]

    @property
    def with_rows(self) -> "Counts":
        """The documents that have a row with a target."""
        kept = self.rows > 0
        return Counts._make([*(part[kept] for part in self[:-1]), self.offsets])


class HeadScores(NamedTuple):
    """The scores of all heads for one pattern.

    `gain` is the lower end of the interval of the score less the larger of baseline and chance.
    `offset` is the best offset on all documents. Without rows all numbers are NaN; intervals need two documents.
    """

    score: Float[np.ndarray, "L N"]
    low: Float[np.ndarray, "L N"]
    high: Float[np.ndarray, "L N"]
    gain: Float[np.ndarray, "L N"]
    baseline: float
    chance: float
    offset: int
    rows: int
    documents: int


def token_targets(
    tokens: Int[np.ndarray, "B T"], separators: tuple[int, ...] = SEPARATORS
) -> dict[str, Bool[np.ndarray, "B T T"]]:
    """Returns the targets of every pattern by name."""
    places = np.arange(tokens.shape[1])
    i, j = places[None, :, None], places[None, None, :]
    query, key, before_key = tokens[:, :, None], tokens[:, None, :], np.roll(tokens, 1, axis=1)[:, None, :]
    found = {
        "previous_token": j == i - 1,
        "next_token": j == i + 1,
        "first_token": (j == 0) & (i > 0),
        "same_token": (query == key) & (j < i),
        "separator": np.isin(key, separators) & (j < i),
        "induction": (before_key == query) & (j > 0) & (j <= i),
    }
    shape = (*tokens.shape, tokens.shape[1])
    return {name: np.broadcast_to(targets, shape) for name, targets in found.items()}


def count_heads(
    subject: LoadedModel,
    tokens: Int[np.ndarray, "W T"],
    document: Int[np.ndarray, " W"],
    linked: Mapping[str, Bool[np.ndarray, "W T T"]],
    *,
    separators: tuple[int, ...] = SEPARATORS,
    batch: int = 16,
) -> dict[str, Counts]:
    """Returns the counts of every pattern of `token_targets`, and of `linked`, whose targets are given, over all windows.

    Patterns in the future are left out for a decoder. Raises ValueError for tokens that the subject cannot take, or arrays
    that do not fit together.
    """
    tokens = subject.check_tokens(tokens)
    W, T = tokens.shape
    if np.shape(document) != (W,):
        raise ValueError(f"document must have one entry for each of the {W} windows, got shape {np.shape(document)}")
    for name, masks in linked.items():
        if masks.shape != (W, T, T) or masks.dtype != bool:
            raise ValueError(f"targets of {name!r} must be booleans {[W, T, T]}, got {masks.dtype}{list(masks.shape)}")
    visible = subject.visible_keys(T)
    offsets, keys = offset_keys(visible)
    parts, names = [], []
    for start in range(0, W, batch):
        here = _filled(tokens[start : start + batch], batch)
        targets = token_targets(here, separators)
        if not visible[0, 1:].any():
            del targets["next_token"]
        targets |= {name: _filled(masks[start : start + batch], batch) for name, masks in linked.items()}
        names = list(targets)
        weights = subject.weights(jnp.asarray(here))
        parts.append(jax.device_get(count(weights, np.stack([*targets.values()]), visible, keys)))
    found = [np.concatenate(part, axis=1)[:, :W].astype(np.float64) for part in zip(*parts, strict=True)]
    of = lambda q: Counts._make([*(_by_document(part[q], document) for part in found), offsets])
    return {name: of(q) for q, name in enumerate(names)}


@jax.jit
def count(
    weights: Float[Array, "L B N T T"],
    targets: Bool[ArrayLike, "Q B T T"],
    visible: Bool[ArrayLike, "T T"],
    keys: Int[ArrayLike, "O T"],
) -> tuple[Float[Array, "Q B L N"], Float[Array, "Q B"], Float[Array, "Q B O"], Float[Array, "Q B"]]:
    """Returns (mass, rows, hits, chance) of every example. `keys` says which key each offset means to each row."""
    dtype = weights.dtype
    targets = jnp.asarray(targets) & jnp.asarray(visible)[None, None]
    mass = jnp.einsum("lbnts,qbts->qbln", weights, targets.astype(dtype))
    number = jnp.sum(targets, axis=-1)
    rows = jnp.sum(number > 0, axis=-1).astype(dtype)
    seen = jnp.maximum(jnp.sum(jnp.asarray(visible), axis=-1), 1).astype(dtype)
    chance = jnp.sum(number.astype(dtype) / seen[None, None], axis=-1)
    hit = lambda key: jnp.sum(targets[:, :, jnp.arange(targets.shape[2]), key], axis=-1)
    hits = jax.lax.map(hit, jnp.asarray(keys))
    return mass, rows, jnp.moveaxis(hits, 0, -1).astype(dtype), chance


def offset_keys(visible: Bool[np.ndarray, "T T"]) -> tuple[Int[np.ndarray, " O"], Int[np.ndarray, "O T"]]:
    """Returns all offsets i - j that some row can see, and the key that each means to every row.

    Where a row does not reach as far, it is the nearest key that it sees: a head that attends by distance alone, to the
    farthest key say, looks there. Visible keys of a row are neighbours, as under causal masks and windows.
    """
    places = np.arange(len(visible))
    distances = places[:, None] - places[None, :]
    offsets = np.arange(distances[visible].min(), distances[visible].max() + 1)
    first, last = visible.argmax(-1), len(visible) - 1 - visible[:, ::-1].argmax(-1)
    return offsets, np.clip(places[None, :] - offsets[:, None], first[None, :], last[None, :]).astype(np.int32)


def scores(counts: Counts) -> HeadScores:
    """Returns scores, baseline and intervals of one pattern. Documents without a row that has a target are left out."""
    counts = counts.with_rows
    D, total = len(counts.rows), counts.rows.sum()
    if not D:
        nothing = np.full(counts.mass.shape[1:], np.nan)
        return HeadScores(nothing, nothing, nothing, nothing, np.nan, np.nan, 0, 0, 0)
    draws = resampled(D)
    share = lambda sums: np.tensordot(draws, sums, 1) / (draws @ counts.rows)[:, None, None]
    over = lambda other: np.percentile(share(counts.mass - other[:, None, None]), 2.5, axis=0)
    low, high = np.percentile(share(counts.mass), (2.5, 97.5), axis=0)
    positional = _crossed(counts.hits) if D > 1 else np.full(D, np.nan)
    unknown = np.nan if D < 2 else 0.0
    return HeadScores(
        score=counts.mass.sum(0) / total,
        low=low + unknown,
        high=high + unknown,
        gain=np.minimum(over(positional), over(counts.chance)) + unknown,
        baseline=float(positional.sum() / total),
        chance=float(counts.chance.sum() / total),
        offset=int(counts.offsets[counts.hits.sum(0).argmax()]),
        rows=int(total),
        documents=D,
    )


def stands_out(name: str, found: HeadScores) -> Bool[np.ndarray, "L N"]:
    """Returns which heads have the pattern: above 1/2 if an offset defines it, otherwise above baseline and chance.

    The interval is over documents. Random parameters can stand out as well where the baseline is no more than chance, as for
    separators (`experiments/heads`): compare with the model before training.
    """
    return found.low > 0.5 if name in POSITIONAL else found.gain > LEAST


def best_head(counts: Counts) -> float:
    """Returns the score of the best head, chosen on half of the documents and counted on the other half, both ways.

    The largest of several scores on the documents it was chosen on would be too high. NaN for fewer than two documents.
    """
    counts = counts.with_rows
    if len(counts.rows) < 2:
        return np.nan
    return float(_crossed(counts.mass.reshape(len(counts.rows), -1)).sum() / counts.rows.sum())


def resampled(documents: int) -> Int[np.ndarray, "Z D"]:
    """Returns how often each document is in each resample; the same for the same number of documents."""
    drawn = np.random.default_rng(SEED).integers(documents, size=(RESAMPLES, documents))
    return np.stack([np.bincount(row, minlength=documents) for row in drawn])


def _crossed(candidates: Float[np.ndarray, "D C"]) -> Float[np.ndarray, " D"]:
    """Returns of each document the sum of the candidate that is best on the other half: even places, or odd ones."""
    half = np.arange(len(candidates)) % 2
    best = [candidates[half != side].sum(0).argmax() for side in (0, 1)]
    return candidates[np.arange(len(candidates)), np.asarray(best)[half]]


def _filled(part: np.ndarray, size: int) -> np.ndarray:
    """Returns the last batch padded to the size of the others, so that one program computes all."""
    return np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), part.dtype)])


def _by_document(part: Float[np.ndarray, "W *axes"], document: Int[np.ndarray, " W"]) -> Float[np.ndarray, "D *axes"]:
    """Returns sums over the windows of each document."""
    _, place = np.unique(document, return_inverse=True)
    out = np.zeros((place.max() + 1, *part.shape[1:]))
    np.add.at(out, place, part)
    return out
