"""Attention in which keys get no weight at all: TRA and ASEntmax. Only dense attention serves them.

TRA, threshold relative attention, drops keys whose logit is not positive, and counts distance over the keys that stay:

    kept_ij = logit_ij > 0, and visible
    A_ij    = softmax over the kept keys j of  logit_ij - d_i * sum_{j <= m <= i} kept_im,    d_i = softplus(-(w_h . x_i + b_h))

The key itself counts, and the order is that of the keys. A query that keeps no key has an output of 0. Acts through `context`,
whose positions are d, and `score`. The authors normalize queries and keys before (`qk_norm`). Learned: w [N, D] and b [N],
uniform in +-1/sqrt(D).

ASEntmax, adaptive scalable entmax, is 1.5-entmax of logits that grow with the position:

    A_ij = max(z_ij / 2 - tau_i, 0)^2,    tau_i such that sum_j A_ij = 1
    z_ij = f_i * scale * q_i . k_j,       f_i = delta + softplus(u_h . x_i) * ln(pos_i + 2)^(power * tanh(v_h . x_i))

Acts through `context`, whose positions are f, queries (`map_q`) and `score`. Biases of parts before it are not multiplied by f,
and in the first `unscaled` heads nothing is: the authors' models are `compose(NAPE(), ASEntmax(unscaled=heads // 2))`. The tau
of the sorted logits finds which keys have weight; it is then computed once more from these, whose sums round less. Learned:
beta [N, D] (u) and gamma [N, D] (v), normal with deviation 0.02. Of the paper's family of entmax, 1.5 alone is here.

Both return the logarithm of weights, as StickBreaking does, and go last in a composition.

References: Opper, Fernandez, Smolensky, Gao 2025 (arXiv:2503.23174), and the authors' notebook (MOSS workshop, submission 96).
Vasylenko et al. 2026 (arXiv:2506.16640), in the form of the authors' code (deep-spin/asentmax, "adapt-softplus-tanh"). Peters,
Niculae, Martins 2019 (arXiv:1905.05702), algorithm 2 (1.5-entmax).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Index, NonNegative, Positive
from attnjax.positions.base import Params, PositionEncoding, Sizes, Tile
from attnjax.positions.contextual import Past
from attnjax.positions.fire import uniform
from attnjax.positions.projection import project
from attnjax.positions.whole_table import LOWEST
from attnjax.typing import Array, ArrayLike, Bool, Float, Num


@dataclasses.dataclass(frozen=True)
class TRA(PositionEncoding):
    """Keys with a positive logit alone, with a bias of the number of these between; needs a causal mask.

    Example:
        >>> one = Tile(jnp.array([[[2.0, -1.0, 2.0]]]), *(None,) * 2, jnp.zeros((1, 1)), None, jnp.ones((1, 3), bool), 1.0)
        >>> jnp.exp(TRA().score({}, one)).round(3).tolist()
        [[[0.5, 0.0, 0.5]]]
    """

    per_head = ("w", "b")
    causal_only = "counts the keys up to the query"
    whole_table = log_weights = True

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns w [N, D] and b [N]."""
        keys = jax.random.split(key)
        w = uniform(keys[0], (sizes.heads, sizes.model), sizes.model)
        return {"w": w, "b": uniform(keys[1], (sizes.heads,), sizes.model)}

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, " T"]:
        """Returns d, what a kept key costs each query."""
        return jax.nn.softplus(-(project(x, p["w"]) + p["b"]))

    def score(self, p: Params, tile: Tile) -> Float[Array, "N T S"]:
        """Returns log A."""
        kept = tile.visible[None] & (tile.logits > 0)
        count = jax.lax.cumsum(kept.astype(tile.logits.dtype), axis=2, reverse=True)
        score = jnp.where(kept, tile.logits - tile.q_pos[:, :, None].astype(count.dtype) * count, LOWEST)
        return jnp.where(kept, jax.nn.log_softmax(score, axis=2), LOWEST)


@dataclasses.dataclass(frozen=True)
class ASEntmax(PositionEncoding):
    """1.5-entmax with a temperature from the token and the position of the query; needs a causal mask.

    `delta`: the factor that is always there; `power`: the largest power of ln(pos + 2); `unscaled`: heads without factors.

    Example:
        >>> one = Tile(jnp.array([[[4.0, 4.0, 1.0]]]), *(None,) * 4, jnp.ones((1, 3), bool), 1.0)
        >>> jnp.exp(ASEntmax().score({}, one)).round(3).tolist()
        [[[0.5, 0.5, 0.0]]]
    """

    delta: NonNegative = 1.0
    power: Positive = 2.0
    unscaled: Index = 0

    per_head = ("beta", "gamma", "scaled")
    causal_only = "takes pos + 1 for the number of keys that a query sees"
    whole_table = log_weights = True

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns beta and gamma [N, D]."""
        draw = lambda key: 0.02 * jax.random.normal(key, (sizes.heads, sizes.model), jnp.float32)
        return dict(zip(("beta", "gamma"), map(draw, jax.random.split(key)), strict=True))

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns scaled [N], whether the head has factors."""
        return {"scaled": np.arange(sizes.heads) >= self.unscaled}

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, " T"]:
        """Returns f, the factor of each query."""
        beta, gamma = jax.nn.softplus(project(x, p["beta"])), self.power * jnp.tanh(project(x, p["gamma"]))
        logarithm = jnp.log(jnp.maximum(jnp.asarray(pos).astype(beta.dtype), 0) + 2)
        return jnp.where(p["scaled"], self.delta + beta * logarithm**gamma, 1)

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """Returns f q."""
        return jnp.asarray(pos).astype(q.dtype)[:, None] * q

    def score(self, p: Params, tile: Tile) -> Float[Array, "N T S"]:
        """Returns log A."""
        visible, z = tile.visible[None], tile.logits / 2
        top = jnp.where(visible, z, LOWEST).max(2, keepdims=True)
        # Less than 1 below the largest is all that can have weight.
        z = jnp.where(visible, jnp.maximum(z - jax.lax.stop_gradient(top), -2), -2)
        above = _threshold(z, visible & (z > jax.lax.stop_gradient(_sorted_threshold(z))))
        return jnp.where(above > 0, 2 * jnp.log(jnp.where(above > 0, above, 1)), LOWEST)


def _sorted_threshold(z: Float[Array, "N T S"]) -> Float[Array, "N T 1"]:
    """The tau of each row, by sums over its largest entries."""
    z = -jnp.sort(-z, axis=2)
    count = jnp.arange(1, z.shape[2] + 1, dtype=z.dtype)[None, None]
    mean, square = jnp.cumsum(z, 2) / count, jnp.cumsum(z * z, 2) / count
    tau = mean - jnp.sqrt(jnp.maximum(1 / count - (square - mean * mean), 0))
    last = (tau <= z).sum(2, keepdims=True) - 1
    return jnp.take_along_axis(tau, last, axis=2)


def _threshold(z: Float[Array, "N T S"], support: Bool[Array, "N T S"]) -> Float[Array, "N T S"]:
    """z - tau where there is weight, 0 elsewhere."""
    count = jnp.maximum(support.sum(2, keepdims=True), 1).astype(z.dtype)
    total = lambda x: jnp.where(support, x, 0).sum(2, keepdims=True)
    mean = total(z) / count
    root = jnp.sqrt(jnp.maximum(1 - total((z - mean) ** 2), jnp.finfo(z.dtype).tiny) / count)
    return jnp.where(support, jnp.maximum(z - mean + root, 0), 0)
