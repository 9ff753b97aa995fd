"""What attention by tiles promises about memory and repeatability, most of it read off its program without running it.

No array has two axes as long as the sequence, forward or backward; compiled temporaries grow linearly; sums are in a fixed
order.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import ALiBi, FoX, Mask, NoPE, RoPE, Sizes, T5Bias, Tiling, attend, compose
from tests.attention.matrix import learned
from tests.cases import OPTIMISED, slow_except
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


def temporary_bytes(encoding, T, way="chunked") -> int:
    run, arguments = gradient(encoding, way, T)
    return jax.jit(run).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", slow_except(SCORES, "t5"))
def test_temporary_memory_grows_linearly(name):
    """At 32 times the length, and a hundredth of that of dense at 16 thousand tokens."""
    short, long = (temporary_bytes(SCORES[name], T) for T in (1024, 32 * 1024))
    assert math.log(long / short) / math.log(32) <= 1.1, f"{name}: {short} bytes at 1k, {long} at 32k"
    if name == "fire":
        assert 100 * temporary_bytes(SCORES[name], 2**14) <= temporary_bytes(SCORES[name], 2**14, "dense")


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
    bits = lambda tree: [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
    made = lambda: jax.jit(gradient_of(name, Tiling(16, 8)), compiler_options=OPTIMISED)
    run, given = made(), drawn(name)
    first = bits(run(*given))
    assert all(bits(run(*given)) == first for _ in range(5))
    jax.clear_caches()
    assert bits(made()(*given)) == first


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

    biased, one, other = jax.jit(served)()
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(biased, [[1, 1], [1, 1]], rtol=1e-6)
