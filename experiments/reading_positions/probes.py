"""Can a linear map read the position of a token from its hidden state? One probe per layer, by ridge regression.

    y = w x + b,   (w, b) = argmin mean (y - w x - b)^2 + penalty |w|^2        in float64, in closed form
    R2 = 1 - sum (y - y_hat)^2 / sum (y - mean y)^2                            on documents that the fit never saw

The first half of the documents fits the map, the next quarter chooses the penalty (the one with the least error there), the
last quarter is tested. Features are centred and divided by their standard deviation over the first half, so that a
penalty means the same in every layer. Positions from `fitted` on are in no fit: R2 there, about their own mean, is
reported apart, and may fall far below 0. Intervals are 95 % of a bootstrap over the tested documents.

A probe that learns says little without controls: a model that was never trained (a causal one has something to say about
positions from the start), and positions shuffled within each document (nothing can be learned).

References: Haviv et al. 2022 (arXiv:2203.16634), Kazemnejad et al. 2023 (arXiv:2305.19466): decoders without encoding know
positions. Both probe with more than a linear map or prove it; what a linear map cannot read may still be there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.report import statistics
from attnjax.typing import Array, ArrayLike, Float, Int

PENALTIES = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""What `penalty` is chosen from, relative to features of variance 1."""
RESAMPLES = 10_000


class Scores(NamedTuple):
    """R2 of each layer (the input of each, and last the features) and the ends of its interval over documents."""

    value: Float[np.ndarray, " layers"]
    low: Float[np.ndarray, " layers"]
    high: Float[np.ndarray, " layers"]


class Probe(NamedTuple):
    """R2 at positions 0 .. fitted - 1 and at those beyond (None without), and the penalty that was chosen."""

    within: Scores
    beyond: Scores | None
    penalty: Float[np.ndarray, " layers"]


class PositionProbe(NamedTuple):
    """The probe of a model, and its two controls."""

    trained: Probe
    untrained: Probe
    shuffled: Probe


def position_probe(subject: LoadedModel, tokens: Int[ArrayLike, "B T"], fitted: int, seed: int = 0) -> PositionProbe:
    """Probes of the positions of these documents, see above; `seed` draws the untrained model and the shuffle.

    Raises ValueError as `linear_probe` does.
    """
    tokens = jnp.asarray(tokens)
    states = subject.hidden_states(tokens)
    target = positions(*tokens.shape)
    return PositionProbe(
        linear_probe(states, target, fitted),
        linear_probe(untrained(subject, seed).hidden_states(tokens), target, fitted),
        linear_probe(states, shuffled(target, fitted, seed), fitted),
    )


def linear_probe(
    states: Float[Array, "layers B T D"] | Float[np.ndarray, "layers B T D"],
    target: Int[np.ndarray, "B T"],
    fitted: int,
    penalties: Sequence[float] = PENALTIES,
) -> Probe:
    """The probe of any number per token: fitted at positions 0 .. fitted - 1 of some documents, tested on others.

    Raises ValueError for fewer than 8 documents, fewer than 2 positions to fit or 1 position alone beyond them, penalties
    that are not above 0, shapes that do not fit, and states that are not finite.
    """
    x = np.asarray(states, np.float64)
    y = np.asarray(target, np.float64)
    _check(x, y, fitted, penalties)
    layers = [_layer(states, y, fitted, np.asarray(penalties, np.float64)) for states in x]
    penalty, inside, outside = (np.stack(values) for values in zip(*layers, strict=True))
    y = y[_parts(len(y))[2]]
    beyond = _scores(outside, y[:, fitted:]) if fitted < y.shape[1] else None
    return Probe(_scores(inside, y[:, :fitted]), beyond, penalty)


def ridge(
    x: Float[np.ndarray, "n D"], y: Float[np.ndarray, " n"], penalties: Float[np.ndarray, " P"]
) -> tuple[Float[np.ndarray, "P D"], Float[np.ndarray, " P"]]:
    """(w, b) of the formula above for each penalty, by the singular values of the centred x; b has no penalty."""
    mean, level = x.mean(0), y.mean()
    left, values, right = np.linalg.svd(x - mean, full_matrices=False)
    shrunk = values / (values**2 + len(x) * penalties[:, None])
    weights = (shrunk * (left.T @ (y - level))) @ right
    return weights, level - weights @ mean


def positions(documents: int, length: int) -> Int[np.ndarray, "B T"]:
    """0, 1, .. of every document."""
    return np.tile(np.arange(length), (documents, 1))


def shuffled(target: Int[np.ndarray, "B T"], fitted: int, seed: int) -> Int[np.ndarray, "B T"]:
    """The target of each document in a random order, before and behind `fitted` apart: the control of `linear_probe`."""
    generator = np.random.default_rng(seed)
    parts = (target[:, :fitted], target[:, fitted:])
    return np.concatenate([generator.permuted(part, axis=1) for part in parts], axis=1)


def untrained(subject: LoadedModel, seed: int) -> LoadedModel:
    """A model of the same config with random parameters."""
    model = nnx.merge(subject.graph, subject.params)
    return LoadedModel(type(model)(model.config, rngs=nnx.Rngs(seed)), f"{subject.name}, untrained", subject.run)


def _layer(x: Float[np.ndarray, "B T D"], y: Float[np.ndarray, "B T"], fitted: int, penalties: Float[np.ndarray, " P"]):
    """The penalty, and the squared errors of each tested document summed within and beyond."""
    fit, choose, test = _parts(len(y))
    seen = x[fit, :fitted].reshape(-1, x.shape[-1])
    scale = seen.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    weights, level = ridge(seen / scale, y[fit, :fitted].reshape(-1), penalties)
    weights = weights / scale
    wrong = x[choose, :fitted] @ weights.T + level - y[choose, :fitted, None]
    best = int(np.argmin((wrong**2).sum((0, 1))))
    squares = (x[test] @ weights[best] + level[best] - y[test]) ** 2
    return penalties[best], squares[:, :fitted].sum(1), squares[:, fitted:].sum(1)


def _scores(squares: Float[np.ndarray, "layers B"], y: Float[np.ndarray, "B T"]) -> Scores:
    """R2 from the squared errors of each document, and its interval: documents are drawn anew, the mean of y is not."""
    spread = ((y - y.mean()) ** 2).sum(1)
    draws = statistics.resample([len(y)], RESAMPLES)[0]
    samples = 1 - squares[:, draws].sum(-1) / spread[draws].sum(-1)
    low, high = statistics.percentiles(samples.T)
    return Scores(1 - squares.sum(-1) / spread.sum(), low, high)


def _parts(documents: int) -> tuple[slice, slice, slice]:
    """Which documents fit, choose and test."""
    half, most = documents // 2, documents - documents // 4
    return slice(0, half), slice(half, most), slice(most, documents)


def _check(
    x: Float[np.ndarray, "layers B T D"], y: Float[np.ndarray, "B T"], fitted: int, penalties: Sequence[float]
) -> None:
    if x.ndim != 4 or x.shape[1:3] != y.shape:
        raise ValueError(f"states must be [layers, B, T, D] and target [B, T], got {x.shape} and {y.shape}")
    documents, length = y.shape
    if documents < 8:
        raise ValueError(f"a probe needs 8 documents or more, to fit, choose and test on, got {documents}")
    if not 2 <= fitted <= length or fitted == length - 1:
        raise ValueError(
            f"fitted must leave 2 positions or more to fit, and none or 2 or more beyond, of {length}, got {fitted}"
        )
    if not len(penalties) or not all(0 < penalty < np.inf for penalty in penalties):
        raise ValueError(f"penalties must be finite numbers above 0, got {list(penalties)}")
    if not np.isfinite(x).all():
        raise ValueError("states must be finite, got NaN or infinity: the model or its training went wrong")
