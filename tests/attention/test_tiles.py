"""What attention by tiles promises about memory, work and repeatability, most of it read off its program without running it.

No array has two axes as long as the sequence, forward or backward; compiled temporaries grow linearly; key tiles that the mask
leaves empty are not visited; sums are in a fixed order; a bias of consecutive positions is computed once per distance.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import ALiBi, FoX, Mask, NoPE, RoPE, Sizes, T5Bias, Tiling, attend, compose
from attnjax.attention.attend import attention_call
from attnjax.attention.relative_bias import Toeplitz, per_distance, toeplitz
from tests.attention.matrix import FAST, compiled, learned, witness
from tests.cases import slow_except
from tests.widened import equations

N, H = 2, 16
SIZES = Sizes(N * H, N, N, H)
SCORES = {
    "nope": NoPE(),
    "t5": T5Bias(),
    "fire": aj.FIRE(hidden=4),
    "transformer_xl": aj.TransformerXL(),
    "fox": FoX(),
    "rope+alibi": compose(RoPE(), ALiBi()),
}


def gradient(encoding, way, T, pos=None):
    """A function of parameters, q, k and v that are not there, and their shapes."""
    params = learned(encoding, SIZES, np.random.default_rng(0))
    x = jax.ShapeDtypeStruct((1, T, N, H), jnp.float32)
    pos = jax.ShapeDtypeStruct((1, N, T), jnp.float32) if encoding.has("context") else None

    def loss(params, q, k, v, pos):
        options = {"encoding": encoding, "params": params, "mask": Mask(causal=True), "q_pos": pos, "k_pos": pos}
        return (attend(q, k, v, implementation=way, **options) ** 2).sum()

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3)), (params, x, x, x, pos)


def quadratic(program, T) -> set[tuple[int, ...]]:
    """Shapes with two axes of at least T - 1, of every array that a program names, inner programs included."""
    variables = (one for equation in equations(program.jaxpr) for one in (*equation.invars, *equation.outvars))
    shapes = {one.aval.shape for one in variables if hasattr(one.aval, "shape")}
    return {shape for shape in shapes if sum(size >= T - 1 for size in shape) > 1}


@pytest.mark.parametrize("name", slow_except(SCORES, "t5", "fire", "fox"))
def test_no_array_has_two_long_axes(name):
    run, arguments = gradient(SCORES[name], Tiling(16, 16), 512)
    assert quadratic(jax.make_jaxpr(run)(*arguments), 512) == set()


def test_the_walk_sees_inside_loops_and_derivatives():
    """The check above can fail: dense is quadratic, also where it hides in a loop inside a custom derivative."""
    run, arguments = gradient(NoPE(), "dense", 512)
    assert (1, N, 1, 512, 512) in quadratic(jax.make_jaxpr(run)(*arguments), 512)

    @jax.custom_vjp
    def hidden(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: y + jnp.outer(y, x).sum(1), x)

    backward = lambda x, g: (jax.lax.map(lambda y: (y * jnp.outer(x, x)).sum(0), g).sum(0),)
    hidden.defvjp(lambda x: (x, x), backward)
    x = jax.ShapeDtypeStruct((512,), jnp.float32)
    for f in (hidden, jax.grad(lambda x: hidden(x).sum())):
        assert quadratic(jax.make_jaxpr(f)(x), 512) == {(512, 512)}


def temporary_bytes(encoding, T, way="chunked") -> int:
    run, arguments = gradient(encoding, way, T)
    return jax.jit(run, compiler_options=FAST).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", slow_except(SCORES, "t5"))
def test_temporary_memory_grows_linearly(name):
    """At 32 times the length, and a hundredth of that of dense at 16 thousand tokens."""
    short, long = (temporary_bytes(SCORES[name], T) for T in (1024, 32 * 1024))
    assert math.log(long / short) / math.log(32) <= 1.1, f"{name}: {short} bytes at 1k, {long} at 32k"
    if name == "fire":
        assert 100 * temporary_bytes(SCORES[name], 2**14) <= temporary_bytes(SCORES[name], 2**14, "dense")


# Which tiles are visited

T, S, TILE = 37, 53, (5, 7)


HERE = np.arange(T)


def mask_of(kind) -> Mask:
    """A mask of 3 examples, of random numbers."""
    random = np.random.default_rng(MASKS.index(kind))
    order = lambda n: np.sort(random.integers(0, 4, (3, n)), axis=1)
    ids, few = {"q_segments": order(T), "k_segments": order(S)}, lambda: int(random.integers(1, 9))
    return {
        "causal": lambda: Mask(causal=True, q_index=HERE),
        "window": lambda: Mask(window=(few(), few()), q_index=HERE),
        "causal window": lambda: Mask(causal=True, window=few(), q_index=HERE),
        "full": Mask,
        "segments": lambda: Mask(**ids),
        "packed": lambda: Mask(True, 6, q_index=HERE, **ids),
        "padding": lambda: Mask(causal=True, k_valid=np.arange(S)[None] >= random.integers(0, S, (3, 1)), q_index=HERE),
        "scattered": lambda: Mask(k_valid=random.random((3, S)) < 0.03),
        "offset": lambda: Mask(causal=True, window=9, q_index=HERE + 16),
        "ring": lambda: Mask(causal=True, window=9, k_index=np.roll(np.arange(S), 11), q_index=HERE),
        "shuffled": lambda: Mask(causal=True, q_index=random.permutation(T), k_index=random.permutation(S)),
        "nobody": lambda: Mask(k_valid=np.zeros(S, bool)),
        "allowed": lambda: Mask(causal=True, allowed=random.random((T, S)) < 0.05, q_index=HERE),
        "first": lambda: Mask(True, (few(), 0), first=few(), q_index=HERE),
    }[kind]()


def seen_by_hand(mask) -> np.ndarray:
    """[examples, T, S], every rule on its own."""
    at = lambda array, n: np.broadcast_to(np.arange(n) if array is None else array, (3, n))
    i, j = at(mask.q_index, T)[:, :, None], at(mask.k_index, S)[:, None, :]
    left, right = mask.window if isinstance(mask.window, tuple) else (mask.window, mask.window)
    far = 10**6
    seen = ((j >= i - (far if left is None else left)) | (j < mask.first)) & (
        j <= i + (far if right is None else right)
    )
    seen &= (j <= i) | (not mask.causal)
    if mask.q_segments is not None:
        seen &= at(mask.q_segments, T)[:, :, None] == at(mask.k_segments, S)[:, None, :]
    seen &= at(True if mask.k_valid is None else mask.k_valid, S)[:, None, :]
    return seen if mask.allowed is None else seen & mask.allowed


def visited(mask, *, backward=False, examples=3, T=T, S=S) -> list[tuple[int, int]]:
    """(query tile, key tile) of every tile computed. Positions are the places in the arrays, whatever the indices."""
    seer = witness()
    q, k = np.ones((examples, T, 1, 2), np.float32), np.ones((examples, S, 1, 2), np.float32)
    options = {"encoding": seer, "mask": mask, "q_pos": np.arange(T), "k_pos": np.arange(S)}
    run = lambda q: attend(q, k, k, implementation=Tiling(*TILE), **options).sum()
    jax.block_until_ready(jax.jit(jax.grad(run) if backward else run, compiler_options=FAST)(q))
    jax.effects_barrier()
    return [(i // TILE[0], j // TILE[1]) for i, j in seer.seen]


MASKS = ("causal", "window", "causal window", "full", "segments", "packed", "padding", "scattered")
MASKS += ("offset", "ring", "shuffled", "nobody", "allowed", "first")
EXACT = {"first", "causal", "window", "causal window", "full", "scattered", "offset", "nobody"}
"""Masks whose empty tiles are all skipped; others are bounded by the smallest and largest index and segment of a tile."""


@pytest.mark.parametrize("kind", slow_except(MASKS, "causal window", "padding", "packed", "first"))
def test_empty_tiles_are_skipped(kind):
    mask = mask_of(kind)
    needed = {(int(i) // TILE[0], int(j) // TILE[1]) for _, i, j in np.argwhere(seen_by_hand(mask))}
    found = set(visited(mask))
    assert needed <= found
    assert needed == found or kind not in EXACT


@pytest.mark.parametrize("kind", slow_except(("causal", "window", "padding"), "window"))
def test_backward_visits_each_tile_once_more(kind):
    """Once forward and once backward, for one example: nothing is computed twice in either direction."""
    mask = mask_of(kind)
    mask = dataclasses.replace(mask, k_valid=None if mask.k_valid is None else mask.k_valid[0])
    found = visited(mask, backward=True, examples=1)
    assert len(found) == 2 * len(set(found)) > 0
    assert all(found.count(tile) == 2 for tile in set(found))


def test_packed_sequences_cost_what_they_would_apart():
    """Four segments of equal length and of whole tiles leave a quarter of the tiles."""
    ids = np.arange(4).repeat(35)
    found = visited(Mask(q_segments=ids, k_segments=ids), examples=1, T=ids.size, S=ids.size)
    assert len(found) == len(set(found)) == (140 // TILE[0]) * (140 // TILE[1]) / 4


# Sums in a fixed order


def gradient_of(name, way):
    """The gradient by parameters, q, k and v, as a function of them."""
    options = {"encoding": SCORES[name], "mask": Mask(causal=True), "implementation": way}
    return jax.grad(lambda params, *x: jnp.sin(attend(*x, params=params, **options)).sum(), argnums=(0, 1, 2, 3))


def drawn(name, T=61):
    random = np.random.default_rng(0)
    arrays = (random.normal(size=(2, T, N, H)).astype(np.float32) for _ in range(3))
    return learned(SCORES[name], SIZES, random), *arrays


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "fire", "transformer_xl"])
def test_gradients_repeat_bit_for_bit(name):
    """Over calls of one program, and over programs compiled anew, with all optimisations."""
    optimized = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    bits = lambda tree: [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
    made = lambda: jax.jit(gradient_of(name, Tiling(16, 8)), compiler_options=optimized)
    run, given = made(), drawn(name)
    first = bits(run(*given))
    assert all(bits(run(*given)) == first for _ in range(5))
    jax.clear_caches()
    assert bits(made()(*given)) == first


@pytest.mark.parametrize("name", slow_except(("t5", "fire"), "t5"))
def test_gradients_depend_neither_on_the_tile_nor_on_other_examples(name):
    """Those of a batch are the sum of those of its examples, though tiles are planned for all at once."""
    params, *arrays = drawn(name)

    def run(params, *arrays):
        alone = lambda x: gradient_of(name, Tiling(16, 8))(params, *(a[None] for a in x))
        return gradient_of(name, "chunked")(params, *arrays), jax.lax.map(alone, tuple(arrays))

    whole, parts = compiled(run, params, *arrays)
    parts = jax.tree.map(lambda x: x.sum(0), parts[0]), *(x[:, 0] for x in parts[1:])
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(b).max())))


# Groups of heads, decided where a program is lowered


@pytest.mark.parametrize("platform", ["tpu", "cuda", "cpu"])
def test_heads_go_at_once_on_accelerators(platform):
    """A loop over tiles of queries and one over tiles of keys; a CPU has one more over groups of heads, as has every platform
    where a tiling asks for groups."""
    x, k = (jax.ShapeDtypeStruct((64, 1024, heads, 8), jnp.float32) for heads in (4, 2))

    def loops(way):
        program = jax.jit(lambda q, k, v: attend(q, k, v, mask=Mask(causal=True), implementation=way)).trace(x, k, k)
        return len(re.findall(r"stablehlo\.while", program.lower(lowering_platforms=(platform,)).as_text()))

    assert loops("chunked") == (3 if platform == "cpu" else 2)
    assert loops(Tiling(128, 128, heads=1)) == 3
    assert loops(Tiling(128, 128)) == 2


# A bias per distance


def test_toeplitz_by_hand_and_its_derivative():
    """It is linear, so a tangent goes the same way; the transpose sums each diagonal."""
    np.testing.assert_array_equal(toeplitz(jnp.arange(6.0), 3, 4), [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2]])
    shapes = [(1, 1), (1, 5), (5, 1), (4, 7), (7, 4)]
    draw = np.random.default_rng(0)
    given = [(draw.normal(size=t + s - 1).astype("f"), draw.normal(size=(t, s)).astype("f")) for t, s in shapes]

    def run(given):
        of = lambda t, s: lambda w: toeplitz(w, t, s)
        each = lambda f, w, c: (f(w), jax.jvp(f, (jnp.zeros_like(w),), (w,))[1], jax.vjp(f, w)[1](c)[0])
        return [each(of(*shape), *one) for shape, one in zip(shapes, given, strict=True)]

    for (t, s), (_, c), (out, tangent, dw) in zip(shapes, given, jax.jit(run)(given), strict=True):
        np.testing.assert_array_equal(tangent, out)
        expected = [sum(c[a, b] for a in range(t) for b in range(s) if a - b + s - 1 == i) for i in range(t + s - 1)]
        np.testing.assert_allclose(dw, expected, atol=1e-5)


def per_distance_of(encoding, q_pos, k_pos, T=19, S=23):
    """The parts of a call before and after biases are read from distances, and the shape of the first parameter."""
    found, params = [], learned(encoding, SIZES, np.random.default_rng(0))

    def trace(q, k):
        mask = Mask(causal=True, q_index=np.arange(T))
        call = attention_call(q, k, k, encoding=encoding, params=params, q_pos=q_pos, k_pos=k_pos, mask=mask)
        far = per_distance(call, (8, 5))
        found.extend([call.encodings, far.encodings, jax.tree.leaves(far.params)[0].shape])

    jax.eval_shape(trace, *(jax.ShapeDtypeStruct((4, n, N, H), jnp.float32) for n in (T, S)))
    return found


@pytest.mark.parametrize(
    "encoding", [T5Bias(), aj.Sandwich(width=16), compose(RoPE(), ALiBi())], ids=["t5", "sandwich", "composed"]
)
def test_consecutive_positions_are_read_from_distances(encoding):
    _, far, shape = per_distance_of(encoding, np.arange(19) + 1000, np.arange(23) - 5)
    assert (far, shape) == ((Toeplitz(1000 + 5 - 24),), (1, N, 1, 24 + 25 - 1))


UNEVEN = {
    "a gap": np.r_[0:10, 11:20],
    "backwards": np.arange(19)[::-1],
    "floats": np.arange(19, dtype=np.float32),
    "by example": np.tile(np.arange(19), (4, 1)),
    "traced": jnp.arange(19),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_other_positions_go_to_the_encoding(name):
    before, after, _ = per_distance_of(T5Bias(), UNEVEN[name], np.arange(23))
    assert before == after == (T5Bias(),)


def test_distances_that_int32_cannot_hold():
    """They wrapped around, so that the key farthest away got the largest bias."""
    x, options = np.ones((1, 2, 1, 4), np.float32), {"encoding": ALiBi(slopes=(1e-9,)), "mask": Mask(causal=True)}
    run = lambda q_pos, k_pos, **more: attend(x, x, x, q_pos=q_pos, k_pos=k_pos, **options | more)
    near, far = np.array([2**31 - 2, 2**31 - 1]), np.array([-1, 0])
    for q_pos, k_pos, came in ((near, far, "-1..2147483647"), (jnp.asarray(far - 2), near, "-3..2147483647")):
        with pytest.raises(ValueError, match=rf"int32.*ALiBi.*{came}"):
            run(q_pos, k_pos)
    # What has no bias is no matter; and what fits serves, with tiles that go on behind the end.
    with pytest.raises(ValueError, match=r"int32 .* for ALiBi"):
        run((far, near), (near, far), encoding=compose(NoPE(), ALiBi(slopes=(1e-9,))))

    def served():
        both = compose(RoPE(), aj.LogN())
        biased = [run(near, far + 1, implementation=way)[0, :, 0, 0] for way in ("dense", "chunked")]
        return biased, run((near, near), far, encoding=both), run(near, (far, far), encoding=both)

    biased, one, other = jax.jit(served, compiler_options=FAST)()
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(biased, [[1, 1], [1, 1]], rtol=1e-6)
