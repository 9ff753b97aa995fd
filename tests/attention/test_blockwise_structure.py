"""What blockwise attention promises about memory and work, read off its program: nothing is run and nothing is timed.

No array has two axes as long as the sequence, forward or backward; compiled temporaries grow linearly; key tiles that the
mask leaves empty are not visited.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import ENCODINGS, CoPE, Mask, NoPE, RoPE, Sizes, Tiling, XPos, compose, context_positions
from attnjax.attention.blockwise import blockwise
from attnjax.attention.inputs import from_caller, prepare
from attnjax.positions.base import PositionEncoding
from tests.cases import slow_except

N, H = 2, 16
EVERY = {name: kind() for name, kind in ENCODINGS.items() if name not in ("sinusoidal", "learned")}
EVERY |= {
    "xpos": XPos(scale_base=2048.0),
    "rope+cope": compose(RoPE(), CoPE()),
}


def loss_of(encoding, implementation, tile=None):
    """A scalar of the output of causal self-attention, as a function of (params, q, k, v).

    Positions from content are computed from the queries.
    """

    def loss(params, q, k, v):
        sizes, T = Sizes(N * H, N, N, H), q.shape[1]
        pos = context_positions(encoding, params, q.reshape(1, T, N * H), np.arange(T), sizes)
        options = {"encoding": encoding, "params": params, "mask": Mask(causal=True), "q_pos": pos, "k_pos": pos}
        if tile is None:
            return (attnjax.attend(q, k, v, implementation=implementation, **options) ** 2).sum()
        return (blockwise(inputs_of(q, k, v, **options), Tiling(*tile))[0] ** 2).sum()

    return loss


def inputs_of(q, k, v, encoding=NoPE(), params=None, mask=Mask(), q_pos=None, k_pos=None):
    return prepare(q, from_caller(q, k, v, k_pos), encoding, params, q_pos, mask, None, None, None)


def shapes_of(encoding, T):
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), Sizes(N * H, N, N, H)))
    x = jax.ShapeDtypeStruct((1, T, N, H), jnp.float32)
    return params, x, x, x


def gradient(encoding, implementation="chunked", tile=None):
    return jax.grad(loss_of(encoding, implementation, tile), argnums=(0, 1, 2, 3))


def arrays(jaxpr: Any) -> Iterator[Any]:
    """Every array that a program names, its inner programs (loops, branches, custom derivatives) included."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield from (variable.aval for variable in (*equation.invars, *equation.outvars))
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from arrays(inner)


def quadratic(program, T) -> list[tuple[int, ...]]:
    """Shapes with two axes of at least T - 1."""
    shapes = {aval.shape for aval in arrays(program) if hasattr(aval, "shape")}
    return [shape for shape in shapes if sum(size >= T - 1 for size in shape) > 1]


@pytest.mark.parametrize("name", slow_except(EVERY, "nope", "fire", "rope+cope"))
def test_no_array_has_two_long_axes(name):
    T, encoding = 512, EVERY[name]
    arguments = shapes_of(encoding, T)
    forward = jax.make_jaxpr(loss_of(encoding, "chunked", tile=(16, 16)))(*arguments)
    assert quadratic(forward, T) == []
    backward = jax.make_jaxpr(gradient(encoding, tile=(16, 16)))(*arguments)
    assert quadratic(backward, T) == []


def test_the_walk_sees_inside_loops_and_derivatives():
    """The check above can fail: dense is quadratic, also where it hides in a loop inside a custom derivative."""
    T, arguments = 512, shapes_of(NoPE(), 512)
    assert (1, N, 1, T, T) in quadratic(jax.make_jaxpr(loss_of(NoPE(), "dense"))(*arguments), T)

    @jax.custom_vjp
    def hidden(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: y + jnp.outer(y, x).sum(1), x)

    backward = lambda x, g: (jax.lax.map(lambda y: (y * jnp.outer(x, x)).sum(0), g).sum(0),)
    hidden.defvjp(lambda x: (x, x), backward)
    x = jax.ShapeDtypeStruct((T,), jnp.float32)
    assert quadratic(jax.make_jaxpr(hidden)(x), T) == [(T, T)]
    assert quadratic(jax.make_jaxpr(jax.grad(lambda x: hidden(x).sum()))(x), T) == [(T, T)]


def temporary_bytes(encoding, T, implementation="chunked") -> int:
    compiled = (
        jax.jit(gradient(encoding, implementation), compiler_options=QUICK).lower(*shapes_of(encoding, T)).compile()
    )
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.quick("rope+cope")
@pytest.mark.parametrize("name", slow_except(EVERY, "nope", "fire", "rope+cope"))
def test_temporary_memory_grows_linearly(name):
    short, long = (temporary_bytes(EVERY[name], T) for T in (1024, 32 * 1024))
    exponent = math.log(long / short) / math.log(32)
    assert exponent <= 1.1, f"{name}: {short} bytes at 1k, {long} at 32k"


@pytest.mark.parametrize("name", slow_except(["nope", "fire", "cope"], "cope"))
def test_a_hundredth_of_the_memory_of_dense(name):
    T = 16 * 1024
    assert 100 * temporary_bytes(EVERY[name], T) <= temporary_bytes(EVERY[name], T, "dense")


T, S, TILE = 37, 53, (5, 7)
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def random_mask(kind, random) -> Mask:
    """A mask of 3 examples, of random numbers."""
    order = lambda n: np.sort(random.integers(0, 4, (3, n)), axis=1)
    ids = order(T), order(S)
    masks = {
        "causal": lambda: Mask(causal=True),
        "window": lambda: Mask(window=(int(random.integers(0, 9)), int(random.integers(0, 9)))),
        "causal window": lambda: Mask(causal=True, window=int(random.integers(0, 9))),
        "full": Mask,
        "segments": lambda: Mask(q_segments=ids[0], k_segments=ids[1]),
        "packed": lambda: Mask(causal=True, window=6, q_segments=ids[0], k_segments=ids[1]),
        "padding": lambda: Mask(causal=True, k_valid=np.arange(S)[None] >= random.integers(0, S, (3, 1))),
        "scattered": lambda: Mask(k_valid=random.random((3, S)) < 0.03),
        "one example": lambda: Mask(k_valid=random.random(S) < 0.1),
        "offset": lambda: Mask(causal=True, window=9, q_index=np.arange(T) + 16),
        "ring": lambda: Mask(causal=True, window=9, k_index=np.roll(np.arange(S), 11)),
        "shuffled": lambda: Mask(causal=True, q_index=random.permutation(T), k_index=random.permutation(S)),
        "nobody": lambda: Mask(k_valid=np.zeros(S, bool)),
        "allowed": lambda: Mask(causal=True, allowed=random.random((T, S)) < 0.05),
        "first": lambda: Mask(causal=True, window=(int(random.integers(0, 9)), 0), first=int(random.integers(1, 9))),
    }
    return masks[kind]()


def seen_by_hand(mask) -> np.ndarray:
    """[examples, T, S], every rule on its own."""
    at = lambda array, n: np.broadcast_to(np.arange(n) if array is None else array, (3, n))
    i, j = at(mask.q_index, T)[:, :, None], at(mask.k_index, S)[:, None, :]
    left, right = mask.window if isinstance(mask.window, tuple) else (mask.window, mask.window)
    seen = ((j >= i - (10**6 if left is None else left)) | (j < mask.first)) & (
        j <= i + (10**6 if right is None else right)
    )
    if mask.causal:
        seen &= j <= i
    if mask.q_segments is not None:
        seen &= at(mask.q_segments, T)[:, :, None] == at(mask.k_segments, S)[:, None, :]
    if mask.k_valid is not None:
        seen &= at(mask.k_valid, S)[:, None, :]
    return seen if mask.allowed is None else seen & mask.allowed


class Witness(PositionEncoding):
    """Changes no score, and tells `seen` the first index of each tile it is called on. None is equal to another."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, sizes=TILE):
        self.seen, self.sizes = [], sizes

    def score(self, p, tile):
        jax.debug.callback(
            lambda i, j: self.seen.append((int(i) // self.sizes[0], int(j) // self.sizes[1])),
            tile.q_pos[0],
            tile.k_pos[0],
        )
        return tile.logits


def visited(mask, *, backward=False, examples=3) -> list[tuple[int, int]]:
    """(query tile, key tile) of every tile computed. Positions are the places in the arrays, whatever the indices."""
    witness = Witness()
    q, k = jnp.ones((examples, T, 1, 2)), jnp.ones((examples, S, 1, 2))

    def run(q):
        inputs = inputs_of(q, k, k, encoding=witness, mask=mask, q_pos=np.arange(T), k_pos=np.arange(S))
        return blockwise(inputs, Tiling(*TILE))[0].sum()

    jax.block_until_ready(jax.jit(jax.grad(run) if backward else run, compiler_options=QUICK)(q))
    jax.effects_barrier()
    return witness.seen


def tiles_with_something(seen) -> set[tuple[int, int]]:
    return {(int(i) // TILE[0], int(j) // TILE[1]) for _, i, j in np.argwhere(seen)}


MASKS = (
    "causal",
    "window",
    "causal window",
    "full",
    "segments",
    "packed",
    "padding",
    "scattered",
    "one example",
    "offset",
)
MASKS += ("ring", "shuffled", "nobody", "allowed", "first")
EXACT = {"first", "causal", "window", "causal window", "full", "scattered", "one example", "offset", "nobody"}
"""Masks whose empty tiles are all skipped; others are bounded by the smallest and largest index and segment of a tile."""


@pytest.mark.quick("causal window", "segments", "padding", "ring", "nobody", "allowed")
@pytest.mark.parametrize("kind", MASKS)
def test_empty_tiles_are_skipped(kind):
    mask = random_mask(kind, np.random.default_rng(MASKS.index(kind)))
    needed, found = tiles_with_something(seen_by_hand(mask)), set(visited(mask))
    assert needed <= found
    assert needed == found or kind not in EXACT


@pytest.mark.quick("causal window", "padding")
@pytest.mark.parametrize("kind", ["causal", "window", "causal window", "padding"])
def test_backward_visits_each_tile_once_more(kind):
    """Once forward and once backward, for one example: nothing is computed twice in either direction."""
    mask = random_mask(kind, np.random.default_rng(0))
    mask = dataclasses.replace(mask, k_valid=None if mask.k_valid is None else mask.k_valid[0])
    forward = visited(mask, examples=1)
    assert len(forward) == len(set(forward))
    assert sorted(visited(mask, backward=True, examples=1)) == sorted(forward * 2)


def test_packed_sequences_cost_what_they_would_apart():
    """Four segments of equal length and of whole tiles leave a quarter of the tiles."""
    ids = np.arange(4).repeat(2 * 35)
    q = jnp.ones((1, ids.size, 1, 2))
    witness = Witness()
    mask, pos = Mask(q_segments=ids, k_segments=ids), np.arange(ids.size)
    inputs = inputs_of(q, q, q, encoding=witness, mask=mask, q_pos=pos, k_pos=pos)
    blockwise(inputs, Tiling(*TILE))[0].block_until_ready()
    jax.effects_barrier()
    assert len(witness.seen) == len(set(witness.seen)) == (280 // TILE[0]) * (280 // TILE[1]) / 4
