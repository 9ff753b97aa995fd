"""Calls of the hooks of one head, as one compiled program with NumPy on both sides, and golden arrays."""

import functools
from typing import Any

import jax
import numpy as np

import attnjax as aj
from tests.golden_arrays import constants as constants, load

SIZES = aj.Sizes(model=16, heads=4, kv_heads=2, head_dim=8)
CAUSAL = aj.Mask(causal=True)


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    """Arrays that the code of others made; floats as float64."""
    return {key: x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x for key, x in load(name).items()}


def run(function: Any, *arguments: Any) -> Any:
    """The result of a function, compiled as one program, as NumPy arrays."""
    return jax.tree.map(np.asarray, jax.jit(function)(*arguments))


def drawn(encoding: aj.PositionEncoding, sizes: aj.Sizes, size: float = 1.0) -> Any:
    """Random parameters in float64, of the shapes that `init` makes."""
    draw = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes))
    return jax.tree.map(lambda leaf: size * draw.normal(size=leaf.shape), shapes)


def tile(q_pos: Any, k_pos: Any, visible: Any = None, *, head_dim: int = 4, scale: float = 0.3) -> aj.Tile:
    """A tile of one head in float64 with random content, visible where the key is not in the future unless given."""
    draw = np.random.default_rng(0)
    q_pos, k_pos = np.asarray(q_pos), np.asarray(k_pos)
    q, k = (draw.normal(size=(len(pos), head_dim)) for pos in (q_pos, k_pos))
    seen = q_pos[:, None] >= k_pos[None, :] if visible is None else visible
    return aj.Tile(scale * q @ k.T, q, k, q_pos, k_pos, seen, scale)


def self_attention(encoding: aj.PositionEncoding, params: Any, x: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Dense attention at the positions of the tokens x; the mask is causal unless given."""
    sizes = aj.Sizes(x.shape[2], q.shape[2], k.shape[2], q.shape[3])
    pos = aj.context_positions(encoding, params, x, np.arange(x.shape[1], dtype=np.int32), sizes)
    options = {"mask": CAUSAL, "implementation": "dense"} | options
    return aj.attend(q, k, v, encoding=encoding, params=params, q_pos=pos, k_pos=pos, **options)


def with_gradients(call: Any, w: np.ndarray, *arguments: Any) -> tuple[np.ndarray, Any]:
    """The result of `call`, and the gradients of sum(w * result) with respect to every argument."""

    def loss(*arguments: Any) -> tuple[Any, Any]:
        out = call(*arguments)
        return (w * out).sum(), out

    (_, out), gradients = run(jax.value_and_grad(loss, tuple(range(len(arguments))), has_aux=True), *arguments)
    return out, gradients


def close(found: Any, expected: Any, atol: float = 1e-12, rtol: float = 0) -> None:
    """Equal shapes, and every entry near."""
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
