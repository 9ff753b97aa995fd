"""Between encodings and attention: hooks of one head, called for all heads, and a contract on what they return.

Every array leads with three axes, [B or 1, K or 1, G or 1]: examples, key heads, and the query heads of a key head. An axis of
size 1 serves all, so that what heads or examples share is computed once. Hooks get floating arrays in float32 (float64 where
an input is) and may return any floating type.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.record import Call, Cols, Rows
from attnjax.positions.base import PositionEncoding, Sizes, Tile, distance
from attnjax.typing import Array, Bool, Float, PyTree


class Own(dict):
    """The parameters of one head, with an error for a name that is missing."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(
            f"a hook reads p[{name!r}], and p has {sorted(self)}: params must have it, and map_k sees nothing that per_head "
            "names, because the query heads of a group share a key head"
        )


def over(axes: int, f: Callable[..., Any], *trees: PyTree) -> Any:
    """Returns f of slices along the first `axes` axes of every leaf; where all leaves have size 1, f runs once.

    Example:
        >>> over(2, lambda x, y: x + y, jnp.zeros((4, 1, 3)), jnp.ones((1, 1, 3))).shape
        (4, 1, 3)
    """
    if axes == 0:
        return f(*trees)
    leaves, structure = jax.tree.flatten(trees)
    at = [0 if leaf.shape[0] > 1 else None for leaf in leaves]
    leaves = [leaf if axis == 0 else leaf[0] for leaf, axis in zip(leaves, at, strict=True)]
    inner = lambda *leaves: over(axes - 1, f, *jax.tree.unflatten(structure, leaves))
    if 0 in at:
        return jax.vmap(inner, in_axes=tuple(at))(*leaves)
    return jax.tree.map(lambda x: jnp.asarray(x)[None], inner(*leaves))


def widened(tree: PyTree, dtype: Any) -> PyTree:
    """Returns the tree with floating leaves of type `dtype`; NumPy arrays stay NumPy arrays, whose values are known."""
    xp = lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    cast = lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    return jax.tree.map(lambda leaf: cast(xp(leaf)), tree)


def by_head(part: PositionEncoding, p: dict, sizes: Sizes, dtype: Any) -> dict:
    """Returns parameters whose leaves lead with [1, K or 1, G or 1], in the type that hooks get."""
    K, G = sizes.kv_heads, sizes.heads // sizes.kv_heads

    def lead(name: str) -> Callable[[Any], Any]:
        if name in part.per_head:
            return lambda leaf: leaf.reshape(1, K, G, *leaf.shape[1:])
        if name in part.per_kv_head:
            return lambda leaf: leaf.reshape(1, K, 1, *leaf.shape[1:])
        return lambda leaf: leaf[None, None, None]

    return {name: jax.tree.map(lead(name), widened(value, dtype)) for name, value in p.items()}


def of_keys(part: PositionEncoding, p: dict) -> dict:
    """Returns the parameters that `map_k` sees: those of its key head, and those of all heads."""
    return {name: value for name, value in p.items() if name not in part.per_head}


def mapped(part: PositionEncoding, hook: str, p: dict, x: Float[Array, "B K G T H"], pos: PyTree, dtype: Any) -> Array:
    """Returns `map_q` or `map_k` of every head, in the type of x."""

    def one(p: dict, x: Array, pos: Array) -> Array:
        return expect(part, hook, getattr(part, hook)(Own(p), x.astype(dtype), pos), (x.shape[0], None))

    return over(3, one, p, x, pos).astype(x.dtype)


def scores(
    call: Call, rows: Rows, cols: Cols, products: Float[Array, "B K G t s"], seen: Bool[Array, "*B 1 1 t s"]
) -> Float[Array, "B K G t s"]:
    """Returns the logits of a tile of all heads, after `bias` or `score` of each part, before the mask.

    `rows` and `cols` are those of the tile, and `products` its q_i . k_j, in float32 or float64.
    """
    dtype = products.dtype
    scale = jnp.asarray(call.scale, dtype)
    logits, q, k = scale * products, rows.q.astype(dtype), cols.k.astype(dtype)
    for part, p, q_pos, k_pos in zip(call.encodings, call.params, rows.pos, cols.pos, strict=True):
        tile = (logits, q, k, jnp.asarray(q_pos), jnp.asarray(k_pos), seen)
        if part.whole_table:
            logits = over(1, _score(part, scale), *_with_all_heads(part, p, *tile)).reshape(products.shape)
        elif part.has("score"):
            logits = over(3, _score(part, scale), p, *tile)
        else:
            logits = logits + over(3, _bias(part, dtype), p, *tile[3:5])
    return logits


def _score(part: PositionEncoding, scale: Array) -> Callable[..., Array]:
    def one(p: dict, logits: Array, *rest: Array) -> Array:
        found = part.score(Own(p), Tile(logits, *rest, scale))
        return expect(part, "score", found, logits.shape).astype(logits.dtype)

    return one


def _bias(part: PositionEncoding, dtype: Any) -> Callable[..., Array]:
    def one(p: dict, q_pos: Array, k_pos: Array) -> Array:
        n = distance(q_pos, k_pos, dtype)
        return expect(part, "bias", part.bias(Own(p), n), n.shape).astype(dtype)

    return one


def expect(part: PositionEncoding, hook: str, got: Any, shape: tuple[int | None, ...]) -> Array:
    """Returns the result of a hook. Raises ValueError unless it is a floating array of this shape (None: any size).

    Example:
        >>> from attnjax import NoPE
        >>> expect(NoPE(), "map_q", np.zeros((3, 4)), (3, None)).shape
        (3, 4)
    """
    came = tuple(jnp.shape(got)) if hasattr(got, "shape") else None
    if came is None or len(came) != len(shape) or any(m not in (None, n) for n, m in zip(came, shape, strict=True)):
        allowed = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
        what = type(got).__name__ if came is None else list(came)
        raise ValueError(f"{part}: the hook {hook} must return an array of shape {allowed}, got {what}")
    if not jnp.issubdtype(got.dtype, jnp.floating):
        raise ValueError(f"{part}: the hook {hook} must return floating numbers, got {got.dtype}")
    return got


def _with_all_heads(
    part: PositionEncoding, p: dict, logits: Array, q: Array, k: Array, q_pos: Array, k_pos: Array, seen: Array
) -> tuple:
    """Parameters and arrays that lead with an example, and then with all N heads, or with 1 where heads share them."""
    K, G = logits.shape[1:3]
    heads = lambda x: jnp.broadcast_to(x, (x.shape[0], K, G, *x.shape[3:])).reshape(x.shape[0], K * G, *x.shape[3:])
    shared = lambda x: x[:, :, 0] if x.shape[1:3] == (1, 1) else heads(x)
    own = part.per_head + part.per_kv_head
    p = {name: jax.tree.map(heads if name in own else lambda x: x[:, 0, 0], value) for name, value in p.items()}
    return p, heads(logits), heads(q), heads(k), shared(q_pos), shared(k_pos), seen[:, 0, 0]
