"""The kernel of cuDNN, through `jax.nn.dot_product_attention`, for the calls that it can express.

It takes causal and full masks and a window to the left, and a bias in one of two forms. A bias that is linear in the distance
(`slope`: ALiBi, FoX, Cable) is a product of extra columns, because a softmax ignores a constant of a row:

    m (i - j) = [m0 m1 m2 m0 m1 m2 ...] . [-c0 -c0 -c0 -c1 -c1 -c1 ...] + m i,    c = k_pos - (one of them)

with the slope m and the position c each split into three parts of 8 significant bits, which are exact in bfloat16 and float16
(FlashBias, arXiv:2505.12044). Whole positions must be known and span less than 65,536, where the float32 sum of the columns is
good to 2^-24 of m * 65,536. Where columns do not fit into the head, and for every other bias, the array [b, N, T, S] is made in
the type of the queries, if it takes at most `BIAS_BYTES`; learned biases have their gradient through it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.hooks import Own, over, scores
from attnjax.attention.masks import all_true, visibility
from attnjax.attention.record import Call
from attnjax.attention.relative_bias import per_distance
from attnjax.typing import Array, Float

SPAN = 2**16
"""Whole positions that two parts of 8 bits tell apart."""
BALANCE = 2.0**8
"""Slopes are multiplied by it and positions divided, so that all parts of both are numbers of float16."""
COLUMNS = 9
WIDEST = 128
"""Channels of a head that cuDNN's kernel takes on every GPU that it serves."""
BIAS_BYTES = 2**31
"""The largest array of a bias for cuDNN: 16 heads of 8,192 tokens in 16 bits. Its gradient takes as much again. On an H200 with
128 channels tiles took 2.2 to 3.6 times as long as the kernel with such an array (experiments/speed)."""


def has_cuda() -> bool:
    """Returns whether this process can trace a program for an NVIDIA GPU; its lowering decides where it runs."""
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def obstacle(call: Call) -> str | None:
    """Returns why the kernel cannot serve a call, or None if it can."""
    rows, cols, span = call.rows, call.cols, call.span
    T, S, h = rows.q.shape[3], cols.k.shape[3], rows.q.shape[4]
    if call.sink is not None:
        return "it has no sink"
    if any(part.has("score") for part in call.encodings):
        return "the hook 'score' of the encoding computes the logits"
    if not has_cuda():
        return "it needs an NVIDIA GPU, and this process sees none"
    if call.dtype not in (jnp.bfloat16, jnp.float16) or not call.dtype == rows.q.dtype == cols.k.dtype:
        return f"it needs bfloat16 or float16 queries and keys, got {rows.q.dtype} and {cols.k.dtype}"
    default = all(
        isinstance(index, np.ndarray) and np.array_equal(index.ravel(), np.arange(n))
        for index, n in ((rows.index, T), (cols.index, S))
    )
    plain = span.unlimited or (span.causal and T == S and not span.first)
    if not (default and plain and all_true(cols.valid) and call.allowed is None and rows.segments is None):
        return "it takes causal or full masks over default indices, with a window to the left only"
    if max(h, cols.v.shape[-1]) > WIDEST:
        return f"its heads have at most {WIDEST} channels, these have {h}"
    reason = _obstacle_of_columns(call) if call.encodings else None
    if reason is not None and bias_bytes(call) > BIAS_BYTES:
        return f"{reason}, and the array of the bias would take {bias_bytes(call)} bytes, more than {BIAS_BYTES}"
    return None


def fused(call: Call) -> Float[Array, "B K G T H"]:
    """Returns the output by cuDNN's kernel."""
    q, k, v, scale, bias = call.rows.q, call.cols.k, call.cols.v, call.scale, None
    if not isinstance(scale, np.ndarray) or scale == 0:
        # The kernel takes the scale as a number, and columns are divided by it.
        q, scale = q.astype(call.compute_dtype) * jnp.asarray(scale, call.compute_dtype), 1.0
    if call.encodings and _obstacle_of_columns(call) is None:
        q, k, v = with_columns(call, q, k, v, float(scale))
    elif call.encodings:
        bias = bias_table(call)
    B, K, G, T, _ = call.rows.q.shape
    width = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8
    heads = lambda x: (
        jnp.pad(x, [(0, 0)] * 4 + [(0, width - x.shape[-1])]).reshape(B, -1, x.shape[3], width).swapaxes(1, 2)
    )
    out = _kernel(call, *map(heads, (q, k, v)), bias, float(scale)).swapaxes(1, 2)[..., : call.cols.v.shape[-1]]
    return out.reshape(B, K, G, T, -1).astype(call.compute_dtype)


def _kernel(call: Call, q: Array, k: Array, v: Array, bias: Array | None, scale: float) -> Float[Array, "B T N H"]:
    (B, T), S, (left, causal) = q.shape[:2], k.shape[1], (call.span.left, call.span.causal)
    # JAX refuses gradients of an odd number of queries or keys. A causal mask hides the added key; others count it out.
    even = lambda x, *axes: jnp.pad(x, [(0, n % 2 if axis in axes else 0) for axis, n in enumerate(x.shape)])
    q, k, v = (even(x.astype(call.dtype), 1) for x in (q, k, v))
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        bias=None if bias is None else even(bias.astype(call.dtype), 2, 3),
        scale=scale,
        is_causal=causal,
        local_window_size=None if left is None else (left, 0),
        key_value_seq_lengths=None if causal or S % 2 == 0 else jnp.full(B, S, jnp.int32),
        implementation="cudnn",
    )[:, :T]


def bias_table(call: Call) -> Float[Array, "b N T S"]:
    """Returns the bias of all heads, with b = 1 where it is the same for every example; 0 where the mask hides it."""
    call = dataclasses.replace(per_distance(call, (1, 1)), scale=1.0)
    rows, cols = call.rows, call.cols
    (_, K, G, T, _), S = rows.q.shape, cols.k.shape[3]
    seen = visibility(call.span, rows.index, cols.index, rows.segments, cols.segments, cols.valid, call.allowed)
    none = jnp.zeros((_examples(call), K, G, T, S), call.compute_dtype)
    rows, cols = rows._replace(q=none[:1, :1, :1, :, :1]), cols._replace(k=none[:1, :1, :1, :1].swapaxes(3, 4))
    table = scores(call, rows, cols, none, jnp.ones((1, 1, 1, T, S), bool))
    # Of keys in the future it may be larger than 16 bits hold.
    return jnp.where(seen, table, jnp.zeros((), table.dtype)).reshape(-1, K * G, T, S)


def bias_bytes(call: Call) -> int:
    """Returns the bytes of `bias_table` in the type of the queries."""
    (_, K, G, T, _), S = call.rows.q.shape, call.cols.k.shape[3]
    return _examples(call) * K * G * T * S * jnp.dtype(call.dtype).itemsize


def _examples(call: Call) -> int:
    return max(pos.shape[0] for pos in (*call.rows.pos, *call.cols.pos))


def with_columns(call: Call, q: Array, k: Array, v: Array, scale: float) -> tuple[Array, Array, Array]:
    """Returns queries and keys with the columns of a linear bias; values and keys per query head where positions are so."""
    (part,), (p,), (pos,) = call.encodings, call.params, call.cols.pos
    (B, K, G, _, _), dtype = q.shape, call.compute_dtype
    # Divided by the scale, because the kernel multiplies these columns by it too.
    slopes = over(3, lambda p: jnp.asarray(part.slope(Own(p)), dtype)[None], p) / scale * BALANCE
    if jnp.issubdtype(pos.dtype, jnp.integer):
        # Less their middle, whole positions lie within 2^15 of 0.
        whole = np.asarray(pos, np.int64)
        pos = jnp.asarray(whole - (whole.min() + whole.max()) // 2, jnp.float32)
    else:
        # No gradient flows to the position that is subtracted: it is 0, and would be the sum of all rounding errors.
        pos = pos - jax.lax.stop_gradient(pos[:, :, :, :1])
    if pos.shape[2] > 1:
        k, v = (jnp.broadcast_to(x, (B, K, G, *x.shape[3:])) for x in (k, v))
    of_q = jnp.stack([part for _ in range(3) for part in _parts(slopes)], -1)
    of_k = jnp.stack([-part for part in _parts(pos / BALANCE) for _ in range(3)], -1)
    of_q, of_k = (jnp.broadcast_to(of, (*x.shape[:4], COLUMNS)).astype(x.dtype) for of, x in ((of_q, q), (of_k, k)))
    return jnp.concatenate([q, of_q], -1), jnp.concatenate([k, of_k], -1), v


def _parts(x: Float[Array, "*axes"]) -> tuple[Float[Array, "*axes"], ...]:
    """Three numbers of 8 significant bits that sum to a float32 exactly."""
    # Not a pair of casts: XLA may keep excess precision and drop them.
    first = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    second = jax.lax.reduce_precision(x - first, exponent_bits=8, mantissa_bits=7)
    return first, second, x - first - second


def _obstacle_of_columns(call: Call) -> str | None:
    """Why the bias cannot be extra columns, or None if it can."""
    (part, *others), pos = call.encodings, call.cols.pos[0]
    first = jax.tree.map(lambda leaf: leaf[0, 0, 0], call.params[0])
    if others or part.slope(Own(first)) is None:
        return "the bias is not linear in the distance, so that columns do not hold it"
    if call.rows.q.shape[-1] + COLUMNS > WIDEST:
        return f"its heads have at most {WIDEST} channels, with columns these have {call.rows.q.shape[-1] + COLUMNS}"
    if jnp.issubdtype(pos.dtype, jnp.floating):
        return None if call.dtype == jnp.bfloat16 else "columns of fractional positions are exact in bfloat16 alone"
    if not isinstance(pos, np.ndarray):
        return "the positions of the keys are traced, so that their columns cannot be known to be exact"
    spread = int(pos.max()) - int(pos.min())
    return None if spread < SPAN else f"positions of the keys span {spread}, and their columns are exact below {SPAN}"
