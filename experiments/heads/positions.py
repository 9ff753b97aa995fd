"""What a trained model knows of positions: linear probes of hidden states.

    y = w x + b,   (w, b) = argmin mean (y - w x - b)^2 + penalty |w|^2        R2 = 1 - sum (y - y_hat)^2 / sum (y - mean y)^2

Half of the windows fit the map at trained positions, a quarter chooses the penalty, the last quarter is tested, there and
beyond. Controls: the same model with random parameters, and positions shuffled within each window.

References: Haviv et al. 2022 (arXiv:2203.16634), Kazemnejad et al. 2023 (arXiv:2305.19466).
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.tasks import Text
from attnjax.typing import Array, Float, Int
from experiments.heads.pruning import drawn

KEY = 2203_16634
"""Of the windows: the same bytes for every run of one text and one length."""
WINDOWS = 128
PENALTIES = 10.0 ** np.arange(-8, 1)
"""What `penalty` is chosen from, relative to features of variance 1."""


def measure(subject: LoadedModel, text: Text, trained: int, seed: int, count: int = WINDOWS) -> list[tuple]:
    """Returns rows (stage, of, measure, place, value) of a run: R2 by layer, within trained positions and beyond."""
    tokens = drawn(text.for_split("test"), 2 * trained, count, KEY)
    target = np.tile(np.arange(2 * trained), (count, 1))
    model = subject.module()
    random = LoadedModel(type(model)(model.config, rngs=nnx.Rngs(seed)))
    states = subject.hidden_states(jnp.asarray(tokens))
    probed = {
        "trained": probe(states, target, trained),
        "untrained": probe(random.hidden_states(jnp.asarray(tokens)), target, trained),
        "shuffled": probe(states, shuffled(target, trained, seed), trained),
    }
    return [
        (stage, of, "R2", layer, float(value))
        for stage, scores in probed.items()
        for of, values in zip(("within", "beyond"), scores, strict=True)
        for layer, value in enumerate(values)
    ]


def probe(
    states: Float[Array, "layers B T D"], target: Int[np.ndarray, "B T"], fitted: int
) -> tuple[Float[np.ndarray, " layers"], Float[np.ndarray, " layers"]]:
    """Returns R2 of each layer (the input of each, and last the features) at positions below `fitted`, and from there on."""
    y = np.asarray(target, np.float64)
    fit, choose, test = np.split(np.arange(len(y)), [len(y) // 2, len(y) - len(y) // 4])
    scores = []
    for x in np.asarray(states, np.float64):
        seen = x[fit, :fitted].reshape(-1, x.shape[-1])
        scale = np.where(seen.std(0) > 0, seen.std(0), 1.0)
        weights, level = ridge(seen / scale, y[fit, :fitted].reshape(-1), PENALTIES)
        guess = lambda part, weights=weights / scale, level=level, x=x: x[part] @ weights.T + level
        wrong = (guess(choose)[:, :fitted] - y[choose, :fitted, None]) ** 2
        found = guess(test)[..., int(np.argmin(wrong.sum((0, 1))))]
        scores.append([r2(y[test, part], found[:, part]) for part in (slice(fitted), slice(fitted, None))])
    within, beyond = np.transpose(scores)
    return within, beyond


def r2(y: Float[np.ndarray, "B T"], found: Float[np.ndarray, "B T"]) -> float:
    """Returns 1 - the squared errors over those of the mean of y."""
    return float(1 - ((found - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def ridge(
    x: Float[np.ndarray, "n D"], y: Float[np.ndarray, " n"], penalties: Float[np.ndarray, " P"]
) -> tuple[Float[np.ndarray, "P D"], Float[np.ndarray, " P"]]:
    """Returns (w, b) for each penalty, by the singular values of the centred x; b has no penalty."""
    mean, level = x.mean(0), y.mean()
    left, values, right = np.linalg.svd(x - mean, full_matrices=False)
    weights = (values / (values**2 + len(x) * penalties[:, None]) * (left.T @ (y - level))) @ right
    return weights, level - weights @ mean


def shuffled(target: Int[np.ndarray, "B T"], fitted: int, seed: int) -> Int[np.ndarray, "B T"]:
    """Returns the target of each window in a random order, below `fitted` and from there on apart."""
    generator = np.random.default_rng(seed)
    return np.concatenate(
        [generator.permuted(part, axis=1) for part in (target[:, :fitted], target[:, fitted:])], axis=1
    )
