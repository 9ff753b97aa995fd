"""Factors on the queries that grow with their position, so that attention over many keys stays sharp.

    SSMax                score[i, j] = s_h * ln(n_i) * scale * q_i . k_j             n_i = pos_i + 1
                         score[i, j] = (s_h * ln(n_i) + b_h) * scale * q_i . k_j     biased=True
    LogN                 score[i, j] = max(1, ln(n_i) / ln(L)) * scale * q_i . k_j
    Llama4Temperature    score[i, j] = (1 + a * ln(1 + floor(n_i / L))) * scale * q_i . k_j

Acts on queries (`map_q`): q[T,H], pos[T] -> [T,H], so biases of other encodings in a composition are not multiplied. n is the
number of keys that a causal query sees, as a function of the position: between whole positions it is pos + 1 too, before
position 0 it is 1, and a window or padding that hides keys does not lower it.

SSMax, scalable softmax: softmax(s ln(n) z) = n^(s z_j) / sum_j n^(s z_j), as the paper writes it. The first query sees one key,
so that its factor of 0 changes nothing. Learned: s [N], `initial` at first, and where `biased` b [N], 0 at first. 0.43 is the
value of the paper's figure 1; for replacing the softmax of a trained model it takes 0.168, about 1 / mean(ln n) for n =
1..1024. It finds that b helps in training and hurts length generalization.

LogN: L is the trained `length` (4,096), and up to it nothing changes. The entropy of attention over n keys then stays about as
large as over L. It goes with RoPE and with its remapped forms, as `compose(LogN(length=L), ReRoPE(window=w))`.

Llama4Temperature: a = 0.1 and L = 8,192 in Llama 4, which has it in every fourth layer, those without RoPE. The steps of whole
positions are exact below 2^24 - 1.

References: Nakanishi 2025, arXiv:2501.19399 (SSMax; the author published no code). Su 2021 (https://kexue.fm/archives/8823) and
Chiang & Cholak 2022 (arXiv:2202.12172), section 5.3 (LogN), for lengths unseen in training Su 2023
(https://github.com/bojone/rerope). Meta 2025 (Llama 4), as in `Llama4TextAttention` of Hugging Face transformers.
"""

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp

from attnjax.config.kinds import Positive, Range
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.typing import Array, ArrayLike, Float, Num

COUNTS = "takes pos + 1 for the number of keys that a query sees"


@dataclasses.dataclass(frozen=True)
class SSMax(PositionEncoding):
    """Queries times s * ln(pos + 1); needs a causal mask. `initial`: s at first; `biased`: with a learned summand b.

    Example:
        >>> q = SSMax().map_q({"s": jnp.float32(0.5)}, jnp.ones((3, 1)), jnp.array([0, 1, 7]))
        >>> q[:, 0].round(4).tolist()  # ln(n) / 2
        [0.0, 0.3465999960899353, 1.0397000312805176]
    """

    initial: Positive = 0.43
    biased: bool = False

    causal_only = COUNTS

    @property
    def per_head(self) -> tuple[str, ...]:
        return ("s", "b") if self.biased else ("s",)

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns s [N], and b [N] where `biased`."""
        s = {"s": jnp.full((sizes.heads,), self.initial, jnp.float32)}
        return s | {"b": jnp.zeros((sizes.heads,), jnp.float32)} if self.biased else s

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """Returns (s * ln n + b) q."""
        factor = p["s"] * _log_count(q, pos)
        return (factor + p["b"] if self.biased else factor)[:, None] * q


@dataclasses.dataclass(frozen=True)
class LogN(PositionEncoding):
    """Queries times max(1, ln(pos + 1) / ln(length)); needs a causal mask.

    Example:
        >>> LogN(length=4).map_q({}, jnp.ones((3, 1)), jnp.array([0, 3, 15]))[:, 0].round(4).tolist()
        [1.0, 1.0, 2.0]
    """

    length: Annotated[int, Range(2, 2**30)] = 4096

    causal_only = COUNTS

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """Returns max(1, ln n / ln L) q."""
        return jnp.maximum(_log_count(q, pos) / math.log(self.length), 1)[:, None] * q


@dataclasses.dataclass(frozen=True)
class Llama4Temperature(PositionEncoding):
    """Queries times 1 + attn_scale * ln(1 + floor((pos + 1) / floor_scale)).

    Example:
        >>> q = Llama4Temperature().map_q({}, jnp.ones((3, 1)), jnp.array([8190, 8191, 16383]))
        >>> q[:, 0].round(4).tolist()
        [1.0, 1.0692999362945557, 1.1098999977111816]
    """

    floor_scale: Positive = 8192.0
    attn_scale: Positive = 0.1

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """Returns (1 + attn_scale * ln(1 + floor((pos + 1) / floor_scale))) q."""
        n = jnp.asarray(pos).astype(q.dtype) + 1
        # XLA multiplies by 1 / floor_scale, which may round a whole number of steps down: the comparisons correct it.
        steps = jnp.floor(n / self.floor_scale)
        steps = jnp.where((steps + 1) * self.floor_scale <= n, steps + 1, steps)
        steps = jnp.where(steps * self.floor_scale > n, steps - 1, steps)
        return (1 + self.attn_scale * jnp.log1p(jnp.maximum(steps, 0)))[:, None] * q


def _log_count(q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, " T"]:
    """ln n with n = max(pos, 0) + 1, in the type of q."""
    return jnp.log1p(jnp.maximum(jnp.asarray(pos).astype(q.dtype), 0))
