"""Frequencies and rotations against arrays of Hugging Face transformers, x-transformers and others; see golden/README.md."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.golden_arrays import SINGLE, Precision, constants, in_precision, load

pytestmark = pytest.mark.slow


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[Precision]:
    """float32, then float64; a test may also ask for one of them by indirect parametrisation."""
    with in_precision(request.param) as precision:
        yield precision


def turned(encoding: aj.RoPE, head: int, width: int, length, precision: Precision) -> tuple[jax.Array, jax.Array]:
    """A query and a key whose pairs are all (1, 0), at position 1: (cos, sin) of every frequency, times the factor."""
    x = precision.array(np.arange(head) < width // 2)[None]
    p, one = constants(encoding, head, length), np.ones(1, np.int32)
    return encoding.map_q(p, x, one)[0, :width], encoding.map_k(p, x, one)[0, :width]


def check_frequencies(vectors: tuple[jax.Array, jax.Array], name: str, precision: Precision) -> None:
    golden = load("rope_frequencies")
    expected, factor = golden[f"{name}_inv_freq"], golden.get(f"{name}_attention_factor", 1.0)
    # An angle of float32 comes from a 32-bit fraction of a turn, 1.5e-9 radians.
    rtol, atol = (2e-6, 3e-9) if precision is SINGLE else (1e-12, 1e-15)
    for vector in vectors:
        cos, sin = np.split(np.asarray(vector), 2)
        np.testing.assert_allclose(np.arctan2(sin, cos), expected, rtol=rtol, atol=atol)
        np.testing.assert_allclose(np.hypot(cos, sin), np.full(expected.shape, factor), rtol=rtol)


LONG = aj.LongRoPE([1 + 0.05 * i for i in range(8)], [1.0 + 0.75 * i**1.5 for i in range(8)], 4096, factor=32.0)
FREQUENCIES = {  # name: (encoding, head dimension, rotary width, length)
    "default": (aj.RoPE(), 16, 16, None),
    "linear": (aj.RoPE(scaling=aj.PositionInterpolation(4.0)), 16, 16, None),
    "ntk": (aj.RoPE(scaling=aj.NTKAware(8.0)), 16, 16, None),
    "dynamic_1024": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 1024),
    "dynamic_2048": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 2048),
    "dynamic_2049": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 2049),
    "dynamic_10000": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 10_000),
    "dynamic_half": (aj.RoPE(fraction=0.5, scaling=aj.DynamicNTK(4.0, 2048)), 64, 32, 5000),
    "yarn": (aj.RoPE(scaling=aj.YaRN(16.0, 4096)), 128, 128, None),
    "yarn_clamped": (aj.RoPE(scaling=aj.YaRN(4.0, 64)), 16, 16, None),
    "yarn_degenerate": (aj.RoPE(scaling=aj.YaRN(4.0, 4)), 8, 8, None),
    "yarn_betas": (aj.RoPE(theta=500_000.0, scaling=aj.YaRN(2.5, 2048, 16.0, 2.0, 1.3)), 64, 64, None),
    "yarn_half": (aj.RoPE(fraction=0.5, scaling=aj.YaRN(8.0, 1024)), 64, 32, None),
    "llama3": (aj.RoPE(theta=500_000.0, scaling=aj.Llama3(8.0, 8192)), 128, 128, None),
    "llama3_2": (aj.RoPE(theta=500_000.0, scaling=aj.Llama3(32.0, 4096, 1.5, 3.0)), 64, 64, None),
    "longrope_short": (aj.RoPE(scaling=LONG), 16, 16, 4096),
    "longrope_long": (aj.RoPE(scaling=LONG), 16, 16, 4097),
    "proportional": (aj.RoPE(keep=0.75), 16, 16, None),
    "proportional_odd": (aj.RoPE(keep=0.3), 16, 16, None),
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_rope_frequencies_and_attention_factors(name: str, precision: Precision):
    check_frequencies(turned(*FREQUENCIES[name], precision), name, precision)


ROTATIONS = {
    "llama_default": aj.RoPE(),
    "llama_yarn_clamped": aj.RoPE(scaling=aj.YaRN(4.0, 64)),
    "gptj": aj.RoPE(layout="interleaved"),
    "neox": aj.RoPE(fraction=0.25),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotated_queries_and_keys(name: str, precision: Precision):
    golden, encoding = load("rope_rotations"), ROTATIONS[name]
    pos = jnp.asarray(golden["positions"], jnp.int32)
    q, k = precision.array(golden["q"]), precision.array(golden["k"])
    over_heads = functools.partial(jax.vmap, in_axes=(1, None), out_axes=1)
    p = constants(encoding, q.shape[3])
    turn_q = jax.vmap(over_heads(lambda q, pos: encoding.map_q(p, q, pos)))
    turn_k = jax.vmap(over_heads(lambda k, pos: encoding.map_k(p, k, pos)))
    turned_q, turned_k = jax.jit(lambda q, k, pos: (turn_q(q, pos), turn_k(k, pos)))(q, k, pos)
    precision.check(turned_q, golden[f"{name}_q"])
    precision.check(turned_k, golden[f"{name}_k"])


def test_layouts_are_not_interchangeable():
    golden = load("rope_rotations")
    pos = jnp.asarray(golden["positions"][0], jnp.int32)
    x, encoding = SINGLE.array(golden["q"][0, :, 0]), aj.RoPE(layout="half")
    turned = encoding.map_q(constants(encoding, x.shape[1]), x, pos)
    assert np.abs(turned - golden["gptj_q"][0, :, 0]).max() > 0.1


def test_xpos_scores(precision: Precision):
    golden, encoding = load("xpos"), aj.XPos(layout="interleaved")
    pos = np.arange(24, dtype=np.int32)

    @jax.jit
    @jax.vmap
    def scores(q, k):
        p = constants(encoding, q.shape[1])
        return encoding.map_q(p, q, pos) @ encoding.map_k(p, k, pos).T

    precision.check(scores(precision.array(golden["q"]), precision.array(golden["k"])), golden["scores"])
