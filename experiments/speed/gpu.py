"""Attention in bfloat16 on a GPU beside the kernels of `jax.nn`: no bias, ALiBi, FoX and T5's learned bias.

16,384 tokens and 2,048 channels in all, heads of 64 and 128 channels, causal. The peers get a bias as an array that is made
from the same parameters. "no bias" is the kernel of cuDNN without one: it computes something else, and says what a bias costs.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import attnjax as aj
from attnjax.typing import Array, PyTree
from experiments.speed.attention import arguments, bias_array, ours, program
from experiments.speed.timing import Table, difference, timed

TOLERANCE = 2e-2
"""Five units in the last place of bfloat16."""
XLA, CUDNN, NO_BIAS = "jax.nn xla", "jax.nn cudnn", "jax.nn cudnn, no bias"
CASES = ("nope", "alibi", "fox", "t5")
TOKENS, CHANNELS = 16_384, 2_048
LARGEST = 20 * 2**30
"""Bytes of the largest table of scores that a peer is asked for."""


def measure(table: Table, lengths: Sequence[int] | None) -> int:
    """Adds a row for each length, width, encoding, direction and peer; returns how many peers disagree."""
    if jax.default_backend() != "gpu" and not table.smoke:
        raise ValueError("this process sees no GPU; --smoke runs small sizes anywhere")
    tokens, channels = (256, 32) if table.smoke else (TOKENS, CHANNELS)
    wrong = 0
    for T in lengths or ((128,) if table.smoke else (1024, 4096, 16_384)):
        for H in (16,) if table.smoke else (64, 128):
            for name in CASES:
                args = inputs(name, T, H, max(1, tokens // T), channels // H)
                for backward in (False, True):
                    wrong += compare(table, name, args, backward=backward)
    return wrong


def inputs(name: str, T: int, H: int, B: int, N: int) -> tuple[Any, ...]:
    """Returns (params, q, k, v, w); the parameters of FoX are its positions [B, N, T], which forget half at each token."""
    params, *arrays = arguments(name, T, B=B, N=N, H=H, dtype=jnp.bfloat16)
    if name == "fox":
        gates = jax.random.normal(jax.random.key(1), (B, N, T), jnp.float32)
        params = jnp.cumsum(jax.nn.softplus(-gates), -1)
    return params, *arrays


def attention(name: str, params: PyTree, q: Array, k: Array, v: Array) -> Array:
    """Returns our attention; the gates of FoX are in its positions already."""
    if name != "fox":
        return ours(aj.encoding(name))(params, q, k, v)
    N, H = q.shape[2:]
    fox = aj.encoding("fox")
    unread = fox.init(jax.random.key(0), aj.Sizes(N * H, N, N, H))
    return aj.attend(q, k, v, encoding=fox, params=unread, q_pos=params, k_pos=params, mask=aj.Mask(causal=True))


def of_peer(peer: str, name: str, params: PyTree, q: Array, k: Array, v: Array) -> Array:
    """Returns the same attention by `jax.nn`, but for `NO_BIAS` without the bias."""
    bias = None
    if peer != NO_BIAS and name == "fox":
        bias = params[:, :, None, :] - params[:, :, :, None]
    elif peer != NO_BIAS and name != "nope":
        bias = bias_array(aj.encoding(name), params, *q.shape[1:3])
    bias = None if bias is None else bias.astype(q.dtype)
    with jax.numpy_dtype_promotion("standard"):
        implementation = "xla" if peer == XLA else "cudnn"
        return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation=implementation)


def compare(table: Table, name: str, args: tuple[Any, ...], *, backward: bool) -> int:
    """Adds the rows of one case and returns how many peers disagree; a peer that cannot compute it is left out."""
    B, T, N, H = args[1].shape
    case = f"{'gradients' if backward else 'forward'}, {name}, H = {H}"
    run = program(functools.partial(attention, name), args, backward=backward)
    contenders, errors, wrong = {"attnjax": timed(run, *args)}, {}, 0
    for peer in (XLA,) if table.smoke else (XLA, CUDNN, *([NO_BIAS] if name in ("alibi", "fox") else [])):
        if peer == XLA and 4 * B * N * T * T > LARGEST:
            continue
        try:
            theirs = program(functools.partial(of_peer, peer, name), args, backward=backward)
            error = None if peer == NO_BIAS else difference(run(*args), theirs(*args))
        except (RuntimeError, ValueError, NotImplementedError) as problem:
            print(f"gpu, {case}, T = {T}: {peer} cannot: {' '.join(str(problem).split())[:200]}")
            continue
        if error is not None and not error <= TOLERANCE:
            print(f"gpu, {case}, T = {T}: {peer} differs by {error:.1e}, not measured")
            wrong += 1
            continue
        contenders[peer], errors[peer] = timed(theirs, *args), error
    taken = table.race(contenders)
    for peer, error in errors.items():
        fields = {"suite": "gpu", "case": case, "T": T, "ours": "attnjax", "peer": peer, "error": error}
        table.add(taken["attnjax"], taken[peer], **fields)
    return wrong
