"""Library kernels: `jax.nn.dot_product_attention` for every encoding that needs no bias tensor.

An encoding qualifies when it acts on embeddings, queries and keys only, or when its score is an exact low-rank
function of query and key (ALiBi, Sandwich, Transformer-XL): then extra columns join q and k, zeros join v, and the
kernel computes

    [scale * q, columns_q] . [k, columns_k]  =  scale * q.k + columns_q . columns_k  =  score + a constant per row

which the softmax ignores. The idea: FlashBias (arXiv:2505.12044). The log-sum-exp of such a row is off by its constant,
so it is not offered here.
"""

import jax
import jax.numpy as jnp

from attnjax.attention.problem import Problem, batch_axis
from attnjax.attention.tile import visibility
from attnjax.typing import Array, Bool, Float


def xla(problem: Problem) -> Float[Array, "B K G T H"]:
    """The plain XLA path of `jax.nn`: any mask, float32 and below, T x S memory."""
    q, k, v = lower(problem)
    seen = visibility(problem.span, problem.rows, problem.cols, problem.allowed)
    dims = (seen.shape[0], 1, q.shape[1], k.shape[1])
    mask = jnp.broadcast_to(seen[:, :, 0], dims)
    # The softmax of `jax.nn` multiplies a hidden weight, 0, by the gradient from its value: no huge padding may be there.
    v = jnp.where(seen[:, 0, 0].any(-2)[:, :, None, None], v, 0)
    out = jax.nn.dot_product_attention(q, k, v, mask=mask, scale=1.0, implementation="xla")
    bad = ((problem.rows.bad[..., None] | problem.cols.bad[:, :, None, None]) & seen).any(-1)
    return settle(problem, out, seen.any(-1), bad)


def cudnn(problem: Problem) -> Float[Array, "B K G T H"]:
    """The cuDNN kernel: causal or full, an optional window to the left, bfloat16 or float16 inside, linear memory."""
    q, k, v = (pad_width(x.astype(problem.dtype), 8) for x in lower(problem))
    left, causal = problem.span.left, problem.span.causal
    window = None if left is None else (left, 0)
    out = jax.nn.dot_product_attention(
        q, k, v, scale=1.0, is_causal=causal, local_window_size=window, implementation="cudnn"
    )
    everyone = jnp.ones((1, 1, 1, q.shape[1]), bool)
    return settle(problem, out.astype(problem.cols.v.dtype), everyone, _bad_rows(problem))


def lower(problem: Problem) -> tuple[Float[Array, "B T N c"], Float[Array, "B S K c"], Float[Array, "B S K c"]]:
    """Queries (times scale), keys and values with the encoding's columns, in the layout and widths `jax.nn` takes."""
    q, k = problem.rows.q * problem.scale, problem.cols.k
    if problem.encoding.has("columns_q"):
        columns_q, columns_k = _columns(problem)
        q, k = jnp.concatenate([q, columns_q], -1), jnp.concatenate([k, columns_k], -1)
    B, K, G, T, c = q.shape
    v = problem.cols.v
    wide = max(c, v.shape[-1])
    q, k, v = (_widen(x, wide) for x in (q, k, v))
    return q.reshape(B, K * G, T, wide).swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)


def _columns(problem: Problem) -> tuple[Float[Array, "B K G T c"], Float[Array, "B K S c"]]:
    encoding, rows, cols, shared = problem.encoding, problem.rows, problem.cols, problem.shared
    of_q = lambda head, q, pos: encoding.columns_q(head, shared, q, jnp.asarray(pos), problem.scale)
    of_k = lambda k, pos: encoding.columns_k(shared, k, jnp.asarray(pos))
    heads_q = jax.vmap(jax.vmap(of_q, in_axes=(0, 0, None)), in_axes=(0, 0, None))
    heads_k = jax.vmap(of_k, in_axes=(0, None))
    columns_q = jax.vmap(heads_q, in_axes=(None, 0, batch_axis(rows.pos, 2)))(problem.head, rows.q, rows.pos)
    columns_k = jax.vmap(heads_k, in_axes=(0, batch_axis(cols.pos, 2)))(cols.k, cols.pos)
    return columns_q.astype(rows.q.dtype), columns_k.astype(cols.k.dtype)


def _widen(x: Array, width: int) -> Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def pad_width(x: Array, multiple: int) -> Array:
    """Zero columns up to a multiple: products and sums do not change."""
    return _widen(x, x.shape[-1] + -x.shape[-1] % multiple)


def _bad_rows(problem: Problem) -> Bool[Array, "B K G T"]:
    """Rows that see a non-finite key or are one, when index equals place: a running count replaces the T x S table."""
    bad, span = problem.cols.bad, problem.span
    T = problem.rows.q.shape[3]
    count = jnp.cumsum(bad.astype(jnp.int32), -1)
    if not span.causal:
        return problem.rows.bad | (count[..., -1:] > 0)[:, :, None]
    if span.left is not None:
        before = jnp.pad(count, [(0, 0), (0, 0), (span.left + 1, 0)])[..., :T]
        count = count - before
    return problem.rows.bad | (count > 0)[:, :, None]


def settle(problem: Problem, out: Float[Array, "B T N c"], sees: Array, bad: Array) -> Float[Array, "B K G T H"]:
    """Our contract on a kernel's output: rows that see nothing are 0, rows that see a non-finite entry are NaN."""
    B, K, G, T, _ = problem.rows.q.shape
    width = problem.cols.v.shape[-1]
    out = out[..., :width].swapaxes(1, 2).reshape(B, K, G, T, width)
    out = jnp.where(sees[..., None], out, jnp.zeros((), out.dtype))
    return jnp.where(bad[..., None], jnp.asarray(jnp.nan, out.dtype), out)
