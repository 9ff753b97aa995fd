"""The seam between encodings and attention: hooks of one head, called for all heads, and a contract on what they return.

`p.head` leads with [K, G] here and `p.kv_head` with [K]. A hook that returns another shape or a type that is not floating
is a ValueError that names encoding, hook, what came and what is allowed, raised once, while tracing.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention.position_axes import arrays, each, mapped_over
from attnjax.attention.products import finite
from attnjax.positions.base import EncodingParams, PositionEncoding, SequentialScore, Tile, Trait
from attnjax.positions.checks import expect
from attnjax.typing import Array, Bool, Float, PyTree, compute_dtype


def by_head(p: EncodingParams, kv_heads: int) -> EncodingParams:
    """Parameters with `head` leaves [N, ...] as [K, G, ...]: the queries of a group follow each other."""
    split = lambda leaf: jnp.reshape(leaf, (kv_heads, -1, *jnp.shape(leaf)[1:]))
    return p._replace(head=jax.tree.map(split, p.head))


@jax.tree_util.register_pytree_node_class
class Unseen(tuple[()]):
    """What `map_k` has as `p.head`: nothing, with an error that says why."""

    def tree_flatten(self) -> tuple[tuple[()], None]:
        """No leaves."""
        return (), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> "Unseen":
        """Nothing again."""
        del aux, children
        return cls()

    def __getitem__(self, key: Any) -> Any:
        raise ValueError(
            f"map_k sees no p.head[{key!r}]: the query heads of a group share one key head, so keys are mapped by p.kv_head "
            "and p.shared"
        )


def map_queries(
    encoding: PositionEncoding,
    params: Callable[[Any], EncodingParams],
    q: Float[Array, "B K G T H"],
    pos: PyTree,
    length: Any,
) -> Float[Array, "B K G T h"]:
    """`map_q` of every head. `params(length)` are those of an example of that length, before `by_head`."""

    def one(head: PyTree, kv_head: PyTree, shared: PyTree, q: Array, pos: PyTree) -> Array:
        mapped = encoding.map_q(EncodingParams(head, kv_head, shared), q, arrays(pos))
        return expect(encoding, "map_q", mapped, (q.shape[0], None))

    def example(q: Array, pos: PyTree, length: Any) -> Array:
        p = by_head(params(length), q.shape[0])
        groups = jax.vmap(one, in_axes=(0, None, None, 0, mapped_over(pos, 1)))
        heads = jax.vmap(groups, in_axes=(0, 0, None, 0, mapped_over(pos, 0)))
        return heads(p.head, p.kv_head, p.shared, q, pos)

    return _over_examples(example, q, pos, length)


def map_keys(
    encoding: PositionEncoding,
    params: Callable[[Any], EncodingParams],
    k: Float[Array, "B K S H"],
    pos: PyTree,
    length: Any,
) -> Float[Array, "B K S h"]:
    """`map_k` of every key head."""

    def one(kv_head: PyTree, shared: PyTree, k: Array, pos: PyTree) -> Array:
        mapped = encoding.map_k(EncodingParams(Unseen(), kv_head, shared), k, arrays(pos))
        return expect(encoding, "map_k", mapped, (k.shape[0], None))

    def example(k: Array, pos: PyTree, length: Any) -> Array:
        p = params(length)
        heads = jax.vmap(one, in_axes=(0, None, 0, mapped_over(pos, 0)))
        return heads(p.kv_head, p.shared, k, pos)

    return _over_examples(example, k, pos, length)


def _over_examples(example: Callable[..., Array], x: Array, pos: PyTree, length: Any) -> Array:
    of_length = None if length is None or not jnp.ndim(length) else 0
    return jax.vmap(example, in_axes=(0, mapped_over(pos, 0), of_length))(x, pos, length)


def scores(
    encoding: PositionEncoding,
    p: EncodingParams,
    scale: Any,
    products: Float[Array, "B K G t s"],
    q: Float[Array, "B K G t h"],
    k: Float[Array, "B K s h"],
    pos: tuple[PyTree, PyTree],
    visible: Bool[Array, "*B 1 1 t s"],
    carry: PyTree,
) -> tuple[Float[Array, "B K G t s"], PyTree]:
    """Logits of all heads after the encoding's `bias` or `score`, before the mask, and the carry.

    `products` are q_i . k_j; `scale` is NumPy where it is known.
    """
    traits = encoding.traits
    # A product behind the mask may overflow; its share in the gradient of a scale or of a score would be 0 * inf.
    linear = not isinstance(scale, jax.Array) and Trait.SCORE not in traits
    scale = jnp.asarray(scale, products.dtype)
    logits = scale * (products if linear else jnp.where(visible, products, 0))
    if not traits & Trait.ON_SCORES:
        return logits, carry
    seen = visible[:, 0, 0]
    seen, over_seen = (seen[0], None) if seen.shape[0] == 1 else (seen, 0)
    # What a map made infinite stays in the products; in a derivative of a hook it would meet the 0 of a hidden entry.
    q, k = (finite(x.astype(logits.dtype)) for x in (q, k))
    run = _all_heads if Trait.ALL_HEADS in traits else _each_head
    over_examples = (_examples(encoding), 0, 0, 0, *(mapped_over(at, 0) for at in pos), over_seen, None, 0)
    example = lambda p, logits, q, k, q_pos, k_pos, seen, scale, carry: run(
        encoding, p, Tile(logits, q, k, q_pos, k_pos, seen, scale), carry
    )
    logits, carry = jax.vmap(example, in_axes=over_examples)(p, logits, q, k, *pos, seen, scale, carry)
    # A hook may leave out the logits that it is given; a query or key that is NaN must not be lost.
    return (logits if Trait.SCORE not in traits else jnp.where(jnp.isnan(products), products, logits)), carry


def _each_head(encoding: PositionEncoding, p: EncodingParams, tile: Tile, carry: PyTree) -> tuple[Array, PyTree]:
    """`score` over the heads of one example: logits and q lead with [K, G], k with [K]."""

    def one(head: PyTree, kv_head: PyTree, tile: Tile, carry: PyTree) -> tuple[Array, PyTree]:
        return score_of_head(encoding, EncodingParams(head, kv_head, p.shared), tile, carry)

    positions = lambda axis: (mapped_over(tile.q_pos, axis), mapped_over(tile.k_pos, axis))
    groups = jax.vmap(one, in_axes=(0, None, Tile(0, 0, None, *positions(1), None, None), 0))
    return jax.vmap(groups, in_axes=(0, 0, Tile(0, 0, 0, *positions(0), None, None), 0))(p.head, p.kv_head, tile, carry)


def _all_heads(encoding: PositionEncoding, p: EncodingParams, tile: Tile, carry: PyTree) -> tuple[Array, PyTree]:
    """`score` of all heads of one example at once."""
    K, G = tile.logits.shape[:2]
    joined = lambda x: x.reshape(K * G, *x.shape[2:])
    q_pos, k_pos = (each(lambda one: _per_head(one, K, G), at) for at in (tile.q_pos, tile.k_pos))
    p = p._replace(head=jax.tree.map(joined, p.head))
    tile = tile._replace(logits=joined(tile.logits), q=joined(tile.q), q_pos=q_pos, k_pos=k_pos)
    logits, carry = score_of_head(encoding, p, tile, jax.tree.map(joined, carry))
    apart = lambda x: x.reshape(K, G, *x.shape[1:])
    return apart(logits), jax.tree.map(apart, carry)


def _per_head(pos: Any, K: int, G: int) -> Any:
    """Positions of one example with one row per query head where they have rows per head."""
    values = jnp.asarray(pos.values)
    if pos.lead == 0:
        return pos
    values = jnp.broadcast_to(values[:, None], (K, G, *values.shape[1:])) if pos.lead == 1 else values
    return type(pos)(values.reshape(K * G, *values.shape[2:]), pos.axes)


def score_of_head(encoding: PositionEncoding, p: EncodingParams, tile: Tile, carry: PyTree) -> tuple[Array, PyTree]:
    """The scores of a tile by the encoding's `score` or `bias`, and the next carry."""
    shape, dtype = tile.logits.shape, tile.logits.dtype
    as_arrays = lambda pos: jax.tree.map(jnp.asarray, arrays(pos))
    tile = tile._replace(q_pos=as_arrays(tile.q_pos), k_pos=as_arrays(tile.k_pos))
    if Trait.SCORE not in encoding.traits:
        return tile.logits + expect(encoding, "bias", encoding.bias(p, tile.distance), shape).astype(dtype), carry
    if Trait.CARRY not in encoding.traits:
        return expect(encoding, "score", encoding.score(p, tile), shape).astype(dtype), carry
    assert isinstance(encoding, SequentialScore)
    logits, state = encoding.score(p, tile, carry)
    _expect_like(encoding, state, carry)
    state = jax.tree.map(lambda new, old: new.astype(old.dtype), state, carry)
    return expect(encoding, "score", logits, shape).astype(dtype), state


def initial_carry(encoding: PositionEncoding, p: EncodingParams, q: Float[Array, "B K G t h"]) -> PyTree:
    """The encoding's carry for every row of every head."""
    if Trait.CARRY not in encoding.traits:
        return ()
    assert isinstance(encoding, SequentialScore)
    B, K, G = q.shape[:3]
    q = q.astype(compute_dtype(q))
    one = lambda head, kv_head, shared, q: encoding.carry(EncodingParams(head, kv_head, shared), q)
    if Trait.ALL_HEADS in encoding.traits:
        joined = lambda x: x.reshape(K * G, *x.shape[2:])
        whole = lambda p, q: one(jax.tree.map(joined, p.head), p.kv_head, p.shared, joined(q))
        carry = jax.vmap(whole, in_axes=(_examples(encoding), 0))(p, q)
        return jax.tree.map(lambda leaf: leaf.reshape(B, K, G, *leaf.shape[2:]), carry)
    groups = jax.vmap(one, in_axes=(0, None, None, 0))
    heads = jax.vmap(groups, in_axes=(0, 0, None, 0))
    return jax.vmap(lambda p, q: heads(p.head, p.kv_head, p.shared, q), in_axes=(_examples(encoding), 0))(p, q)


def _examples(encoding: PositionEncoding) -> int | None:
    """The axis of examples in the parameters of scores: they differ where constants depend on the length."""
    return 0 if Trait.LENGTH in encoding.traits else None


def check_widths(encoding: PositionEncoding, q: Array, k: Array) -> None:
    """Raise ValueError where `map_q` and `map_k` return different numbers of channels."""
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"{encoding}: map_q and map_k must return the same number of channels, got {q.shape[-1]} and {k.shape[-1]}"
        )


def _expect_like(encoding: PositionEncoding, state: PyTree, carry: PyTree) -> None:
    shapes = lambda tree: jax.tree.map(jnp.shape, tree)
    if jax.tree.structure(state) != jax.tree.structure(carry) or shapes(state) != shapes(carry):
        raise ValueError(
            f"{encoding}: the hook score must return a state like that of carry, {shapes(carry)}, got {shapes(state)}"
        )
