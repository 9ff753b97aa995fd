"""Rotary frequencies: which of them the heads use, which leave the angles seen in training, how scores fall with distance.

    use of pair c      scale * mean |q_c| * mean |k_c|, over tokens: a bound of what the pair can add to a logit, since
                       |<R q_c, R' k_c>| <= |q_c| |k_c| (Barbero et al. 2024, arXiv:2410.06205, section 4)
    leaves training    theta_c (L - 1) < 2 pi: training up to length L has not turned the pair once around, so a longer text
                       meets new angles. Of the others every angle was seen.

Queries and keys are taken as the model makes them, before the rotation.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.modules.attention import MultiHeadAttention
from attnjax.modules.parameters import add, normalize
from attnjax.positions import PositionEncoding, RoPE, Sizes
from attnjax.positions.compose import parts_of
from attnjax.positions.rotary import Layout
from attnjax.typing import Array, Float, Int, PyTree


class Reach(NamedTuple):
    """The frequencies of a rotary encoding, fastest first, in radians per token, and the largest angle at two lengths."""

    frequency: Float[np.ndarray, " c"]
    trained_angle: Float[np.ndarray, " c"]
    tested_angle: Float[np.ndarray, " c"]

    @property
    def leaves(self) -> np.ndarray:
        """Which pairs meet an angle in the longer text that training has not shown them, [c]."""
        return (self.trained_angle < 2 * math.pi) & (self.tested_angle > self.trained_angle)

    @property
    def wavelength(self) -> Float[np.ndarray, " c"]:
        """Tokens per turn; infinite for pairs that do not turn."""
        return np.divide(
            2 * math.pi, self.frequency, out=np.full_like(self.frequency, np.inf), where=self.frequency > 0
        )


def rotary_encoding(encoding: PositionEncoding) -> RoPE:
    """The RoPE that an encoding is or is composed of. Raises ValueError where there is none."""
    found = [part for part in parts_of(encoding) if isinstance(part, RoPE)]
    if not found:
        raise ValueError(f"rotary diagnostics need RoPE, got {encoding}")
    return found[0]


def reach(rope: RoPE, head: int, trained: int, tested: int) -> Reach:
    """The angles of a head of `head` channels over texts of two lengths. Raises ValueError for lengths below 1."""
    if min(trained, tested) < 1:
        raise ValueError(f"reach: lengths must be at least 1, got trained={trained} and tested={tested}")
    radians = rope.constants(Sizes(head, 1, 1, head), tested)["frequencies"].radians
    return Reach(radians, radians * (trained - 1), radians * (tested - 1))


def frequency_use(subject: LoadedModel, tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "L N c"]:
    """Use of each pair by each head, as part of a logit, mean over examples; see the module's text.

    Channels that a partial RoPE does not turn are not counted. Raises ValueError for a subject without RoPE.
    """
    return np.asarray(_by_layer(subject.graph, _use, subject.params, _checked(subject, tokens)))


def mean_scores(subject: LoadedModel, tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "L N T"]:
    """The mean logit of queries and keys n = 0 .. T-1 tokens apart, the key in the past, over places and examples.

    Raises ValueError for a subject without RoPE.
    """
    return np.asarray(_by_layer(subject.graph, _scores, subject.params, _checked(subject, tokens)))


def pair_norms(x: Float[Array, "*axes H"], pairs: int, layout: Layout) -> Float[Array, "*axes c"]:
    """The length of each pair of channels of the rotary part of x."""
    width = x[..., : 2 * pairs]
    shape, axis = ((2, pairs), -2) if layout == "half" else ((pairs, 2), -1)
    return jnp.linalg.norm(width.reshape(*x.shape[:-1], *shape), axis=axis)


def queries(attention: MultiHeadAttention, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
    """The queries of a layer before the encoding, given its normed input."""
    return normalize(attention.q_norm, add(jnp.einsum("btd,dnh->btnh", x, attention.w_q[...]), attention.b_q))


@functools.partial(jax.jit, static_argnames=("graph", "function"))
def _by_layer(graph: Any, function: Callable[..., Array], params: PyTree, tokens: Int[Array, "B T"]) -> Array:
    """function(RoPE, queries, keys, scale) of each layer; keys that heads share stand there once for each."""
    model, found = nnx.merge(graph, params), []
    for block, x in zip(model.stack.layers, model.hidden_states(tokens), strict=False):
        y = normalize(block.attention_norm, x) if model.config.norm_position == "pre" else x
        q, k = queries(block.attention, y), block.attention.keys_values(y).k
        scale = q.shape[-1] ** -0.5 if block.attention.scale is None else block.attention.scale
        k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
        found.append(function(rotary_encoding(block.attention.encoding), q, k, scale))
    return jnp.stack(found)


def _use(rope: RoPE, q: Float[Array, "B T N H"], k: Float[Array, "B T N H"], scale: float) -> Float[Array, "N c"]:
    pairs, _ = rope.pairs(q.shape[-1])
    size = lambda x: jnp.mean(pair_norms(x, pairs, rope.layout), axis=1)
    return jnp.mean(size(q) * size(k), axis=0) * scale


def _scores(rope: RoPE, q: Float[Array, "B T N H"], k: Float[Array, "B T N H"], scale: float) -> Float[Array, "N T"]:
    B, T, N, H = q.shape
    places = np.arange(T, dtype=np.int32)
    p = rope.constants(Sizes(model=N * H, heads=N, kv_heads=N, head_dim=H), T)
    turn = jax.vmap(jax.vmap(lambda one: rope.map_k(p, one, places), in_axes=1, out_axes=1))
    logits = jnp.einsum("btnh,bsnh->nts", turn(q), turn(k)) * scale / B
    at = (places[:, None] - places[None, :] == places[:, None, None]).astype(logits.dtype)
    return jnp.einsum("nts,xts->nx", logits, at) / at.sum((1, 2))[None]


def _checked(subject: LoadedModel, tokens: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
    for encoding in subject.config.encodings:
        rotary_encoding(encoding)
    return subject.check_tokens(tokens)
