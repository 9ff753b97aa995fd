"""Library kernels: `jax.nn.dot_product_attention` for what they can express.

The plain XLA path takes a bias array, so it serves every encoding without a score of its own. The cuDNN kernel takes none,
but a bias that is linear in the distance (`LinearBias`: ALiBi, FoX, Cable) is a product of extra columns, because a softmax
ignores what is constant along a row:

    m (i - j) = [m0 m1 m2 m0 m1 m2 ...] . [-c0 -c0 -c0 -c1 -c1 -c1 ...] + m i,    c = k_pos - (one of them)

with the slope m and the position c each split into three parts of 8 significant bits, which are exact in bfloat16 and
float16. Whole positions must be known and span less than 65,536, where the float32 sum of the columns is good to 2^-24 of
m * 65,536; other positions and types are refused. The idea: FlashBias (arXiv:2505.12044). The log-sum-exp of such a row is
off by its constant, so it is not offered here.
"""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.hooks import initial_carry, scores
from attnjax.attention.inputs import AttentionInputs, nan_marks
from attnjax.attention.masks import visibility
from attnjax.attention.position_axes import Positions
from attnjax.attention.products import finite
from attnjax.positions.base import EncodingParams, Trait
from attnjax.typing import Array, Bool, Float, compute_dtype

SPAN = 2**16
"""Whole positions that two parts of 8 bits tell apart."""
BALANCE = 2.0**8
"""What slopes are multiplied by and positions divided by, so that all parts of both are numbers of float16."""


@runtime_checkable
class LinearBias(Protocol):
    """An encoding with `bias(p, n) == slope(p) * n` for all n, unless `slope` returns None."""

    def slope(self, p: EncodingParams) -> Float[Array, ""] | None:
        """The slope of one head."""
        ...


def xla(inputs: AttentionInputs) -> Float[Array, "B K G T H"]:
    """The plain XLA path of `jax.nn`: any mask and any bias, T x S memory."""
    inputs, own, others = _finite(inputs)
    queries, keys = inputs.queries, inputs.keys
    T, S = queries.q.shape[3], keys.k.shape[2]
    seen = visibility(inputs.span, queries, keys, inputs.allowed)
    mask = jnp.broadcast_to(seen[:, :, 0], (seen.shape[0], 1, T, S))
    # The softmax of `jax.nn` multiplies a hidden weight, 0, by the gradient from its value: no huge padding may be there.
    v = jnp.where(seen[:, 0, 0].any(-2)[:, None, :, None], keys.v, jnp.zeros((), keys.v.dtype))
    q, scale = _scaled(inputs)
    bias = _bias_table(inputs, seen) if Trait.BIAS in inputs.encoding.traits else None
    q, k, v = _layout(q, keys.k, v)
    out = _plain(inputs, scale, q, k, v, bias, mask)
    flags = ((own[..., None] | others[:, :, None, None]) & seen).any(-1)
    return settle(inputs, out, seen.any(-1), flags)


def _plain(inputs: AttentionInputs, scale: float, q: Array, k: Array, v: Array, bias: Any, mask: Array) -> Array:
    """The kernel, in the type of logits on a CPU, for which XLA has no products of float16 with float32 sums."""
    dtype = inputs.compute_dtype

    def run(q: Array, k: Array, v: Array, bias: Any, mask: Array) -> Array:
        # Under strict promotion of types `jax.nn` refuses its own float32 logits of 16-bit inputs.
        with jax.numpy_dtype_promotion("standard"):
            out = jax.nn.dot_product_attention(q, k, v, bias=bias, mask=mask, scale=scale, implementation="xla")
        return out.astype(dtype)

    wide = lambda q, k, v, bias, mask: run(*(x.astype(dtype) for x in (q, k, v)), bias, mask)
    if q.dtype == dtype:
        return run(q, k, v, bias, mask)
    return jax.lax.platform_dependent(q, k, v, bias, mask, cpu=wide, default=run)


def _finite(inputs: AttentionInputs) -> tuple[AttentionInputs, Bool[Array, "B K G T"], Bool[Array, "B K S"]]:
    """Inputs without non-finite numbers, which kernels multiply by the 0 of hidden entries, and where there were some."""
    q, k = inputs.queries.q, inputs.keys.k
    own, others = jnp.isnan(nan_marks(q)), jnp.isnan(nan_marks(k))
    queries, keys = inputs.queries._replace(q=finite(q)), inputs.keys._replace(k=finite(k))
    return inputs._replace(queries=queries, keys=keys), own, others


def _scaled(inputs: AttentionInputs) -> tuple[Float[Array, "B K G T h"], float]:
    """Queries and the scale as the number that kernels take; one that is traced, or 0, is multiplied in before.

    The queries are then of the type of logits, because 16 bits would round the scale and then the product. cuDNN takes no
    other type, so that `cudnn` rounds the product.
    """
    q = inputs.queries.q
    # Columns are divided by the scale, so that one of 0 is multiplied in before, too.
    if isinstance(inputs.scale, np.ndarray) and inputs.scale != 0:
        return q, float(inputs.scale)
    dtype = inputs.compute_dtype
    return q.astype(dtype) * jnp.asarray(inputs.scale, dtype), 1.0


def _bias_table(inputs: AttentionInputs, seen: Bool[Array, "*B 1 1 T S"]) -> Float[Array, "B N T S"]:
    """The bias of all heads; 0 where the mask hides it, because there it may be infinite."""
    encoding, p, queries, keys = inputs.encoding, inputs.params, inputs.queries, inputs.keys
    none = jnp.zeros((*queries.q.shape[:4], keys.k.shape[2]), inputs.compute_dtype)
    carry, pos = initial_carry(encoding, p, queries.q), (queries.pos, keys.pos)
    table, _ = scores(encoding, p, np.ones(()), none, queries.q, keys.k, pos, seen, carry)
    table = jnp.where(seen, table, jnp.zeros((), table.dtype))
    return table.reshape(table.shape[0], -1, *table.shape[3:])


def cudnn(inputs: AttentionInputs) -> Float[Array, "B K G T H"]:
    """The cuDNN kernel: causal or full, an optional window to the left, bfloat16 or float16, linear memory."""
    inputs, own, others = _finite(inputs)
    q, k, v, scale = columns(inputs)
    q, k, v = (pad_width(x.astype(inputs.dtype), 8) for x in (q, k, v))
    (B, T), S, (left, causal) = q.shape[:2], k.shape[1], (inputs.span.left, inputs.span.causal)
    # JAX refuses gradients of an odd number of queries or keys. A causal mask hides the key that is added; others count it out.
    q, k, v = (jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0))) for x in (q, k, v))
    counted = None if causal or S % 2 == 0 else jnp.full(B, S, jnp.int32)
    window = None if left is None else (left, 0)
    options = {"scale": scale, "is_causal": causal, "local_window_size": window, "key_value_seq_lengths": counted}
    out = jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)[:, :T]
    everyone = jnp.ones((1, 1, 1, T), bool)
    return settle(inputs, out.astype(inputs.compute_dtype), everyone, _rows_that_see(inputs, own, others))


def columns(
    inputs: AttentionInputs,
) -> tuple[Float[Array, "B T N c"], Float[Array, "B S M c"], Float[Array, "B S M c"], float]:
    """Queries, keys and values with the columns of a linear bias, in the layout and widths of `jax.nn`, and the scale.

    Keys have one copy per query head (M = N) where positions differ between the heads of a group, and M = K otherwise.
    """
    keys = inputs.keys
    (q, scale), k, v = _scaled(inputs), keys.k, keys.v
    if Trait.BIAS in inputs.encoding.traits:
        # Divided by the scale, because the kernel multiplies these columns by it too.
        slopes, pos = _slopes(inputs) / scale, _relative_positions(keys.pos)
        B, K, G, T, _ = q.shape
        if pos.ndim == 4:
            k, v = (jnp.repeat(x, G, axis=1) for x in (k, v))
            q, slopes, pos = q.reshape(B, K * G, 1, T, -1), slopes.reshape(-1, 1), pos.reshape(pos.shape[0], K * G, -1)
        of_q = jnp.stack([part for _ in range(3) for part in _parts(slopes * BALANCE)], -1)
        of_k = jnp.stack([-part for part in _parts(pos / BALANCE) for _ in range(3)], -1)
        of_q = jnp.broadcast_to(of_q[None, :, :, None], (*q.shape[:4], 9))
        of_k = jnp.broadcast_to(of_k, (*k.shape[:3], 9))
        q, k = (jnp.concatenate([x, of.astype(x.dtype)], -1) for x, of in ((q, of_q), (k, of_k)))
    return *_layout(q, k, v), scale


def _slopes(inputs: AttentionInputs) -> Float[Array, "K G"]:
    encoding, p = inputs.encoding, inputs.params
    assert isinstance(encoding, LinearBias)
    one = lambda head, kv_head: jnp.asarray(encoding.slope(EncodingParams(head, kv_head, p.shared)), jnp.float32)
    K, G = inputs.queries.q.shape[1:3]
    groups = jax.vmap(one, in_axes=(0, None), axis_size=G)
    return jax.vmap(groups, axis_size=K)(p.head, p.kv_head)


def _relative_positions(pos: Positions) -> Float[Array, "B *heads S"]:
    """Positions less one of them, as float32: [1, 1, S], [B, 1, S], [B, K, S] or [B, K, G, S].

    The middle of whole positions, which lie then within 2^15 of 0, and that of the first key where they are fractional. What
    is subtracted has no gradient: it is 0, since a softmax ignores it, and would be the sum of all rounding errors.
    """
    values = pos.values
    if jnp.issubdtype(values.dtype, jnp.integer):
        whole = np.asarray(values, np.int64)
        values = whole - (whole.min() + whole.max()) // 2
    values = jnp.asarray(values, jnp.float32)
    values = values.reshape(*values.shape[: pos.lead], *(1,) * max(0, 2 - pos.lead), values.shape[-1])
    return values if jnp.issubdtype(pos.values.dtype, jnp.integer) else values - jax.lax.stop_gradient(values[..., :1])


def _parts(x: Float[Array, "*axes"]) -> tuple[Float[Array, "*axes"], ...]:
    """Three numbers of 8 significant bits that sum to a float32 exactly."""
    # Not a pair of casts: XLA may keep excess precision and drop them.
    first = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    second = jax.lax.reduce_precision(x - first, exponent_bits=8, mantissa_bits=7)
    return first, second, x - first - second


def linear_bias_obstacle(inputs: AttentionInputs) -> str | None:
    """Why the bias cannot be extra columns, or None if it can."""
    encoding, pos = inputs.encoding, inputs.keys.pos
    if not isinstance(encoding, LinearBias) or not _has_slope(encoding, inputs.params):
        return "the hook 'bias' of the encoding would need a bias tensor"
    if not isinstance(pos, Positions) or jnp.issubdtype(pos.values.dtype, jnp.floating):
        return None if inputs.dtype == jnp.bfloat16 else "columns of fractional positions are exact in bfloat16 alone"
    if not isinstance(pos.values, np.ndarray):
        return "the positions of the keys are traced, so that their columns cannot be known to be exact"
    spread = int(pos.values.max()) - int(pos.values.min())
    return None if spread < SPAN else f"positions of the keys span {spread}, and their columns are exact below {SPAN}"


def _has_slope(encoding: LinearBias, p: EncodingParams) -> bool:
    """Whether these hyper-parameters make the bias linear."""
    first = lambda tree, axes: jax.tree.map(lambda leaf: leaf[(0,) * axes], tree)
    slope = lambda p: encoding.slope(EncodingParams(first(p.head, 2), first(p.kv_head, 1), p.shared))
    return jax.eval_shape(slope, p) is not None


def _layout(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """[B,K,G,T,c], [B,K,S,c], [B,K,S,H] -> [B,T,N,w], [B,S,K,w], [B,S,K,w] of one width and one type."""
    B, K, G, T, c = q.shape
    wide, dtype = max(c, v.shape[-1]), q.dtype if q.dtype == k.dtype == v.dtype else compute_dtype(q, k, v)
    q, k, v = (_widen(x, wide).astype(dtype) for x in (q, k, v))
    return q.reshape(B, K * G, T, wide).swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)


def _widen(x: Array, width: int) -> Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def pad_width(x: Array, multiple: int) -> Array:
    """Zero columns up to a multiple: products and sums do not change."""
    return _widen(x, x.shape[-1] + -x.shape[-1] % multiple)


def _rows_that_see(
    inputs: AttentionInputs, own: Bool[Array, "B K G T"], others: Bool[Array, "B K S"]
) -> Bool[Array, "B K G T"]:
    """Rows that see a flagged key or are flagged, when index equals place: a running count replaces the T x S table."""
    span, count = inputs.span, jnp.cumsum(others.astype(jnp.int32), -1)
    if not span.causal:
        return own | (count[..., -1:] > 0)[:, :, None]
    if span.left is not None:
        before = jnp.pad(count, [(0, 0), (0, 0), (span.left + 1, 0)])[..., : own.shape[-1]]
        count = count - before
    return own | (count > 0)[:, :, None]


def settle(
    inputs: AttentionInputs, out: Float[Array, "B T N c"], sees: Array, flags: Array
) -> Float[Array, "B K G T H"]:
    """Our contract on a kernel's output: rows that see nothing are 0, rows that see a non-finite entry are NaN."""
    B, K, G, T, _ = inputs.queries.q.shape
    width = inputs.keys.v.shape[-1]
    out = out[..., :width].swapaxes(1, 2).reshape(B, K, G, T, width)
    out = jnp.where(sees[..., None], out, jnp.zeros((), out.dtype))
    return jnp.where(flags[..., None], jnp.asarray(jnp.nan, out.dtype), out)
