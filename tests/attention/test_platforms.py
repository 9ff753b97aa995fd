"""Programs for devices that are not here, read as text: where a program runs is decided when it is lowered.

On a CPU heads are taken in groups that fit into its caches, one after another; on an accelerator all go at once.
"""

import re

import jax
import jax.numpy as jnp
import pytest

from attnjax import KVCache, Mask, RoPE, T5Bias, Tiling, attend
from tests.attention.toys import H, K, N, learned

T, BATCH = 1024, 64
"""From this length on groups are smaller than all heads of so many examples, whatever the size of a tile."""


def lowered(function, platform, *arguments):
    """The text of the program for a platform."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def arrays(batch=8, T=T, dtype="float32"):
    shape = lambda heads: jax.ShapeDtypeStruct((batch, T, heads, H), dtype)
    return shape(N), shape(K), shape(K)


def self_attention(encoding, implementation=None):
    params = learned(encoding, dtype="float32")
    options = {"encoding": encoding, "params": params, "mask": Mask(causal=True), "implementation": implementation}
    return lambda q, k, v: attend(q, k, v, **options).sum()


def loops(text) -> int:
    return len(re.findall(r"stablehlo\.while", text))


@pytest.mark.parametrize("platform", ["tpu", "cuda", "rocm"])
@pytest.mark.parametrize("encoding", [RoPE(), T5Bias()], ids=["rope", "t5"])
@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_heads_go_at_once_on_accelerators(platform, encoding, direction):
    """A loop over tiles of queries and one over tiles of keys; the CPU has two more, over groups of examples and of heads."""
    run = self_attention(encoding, "chunked")
    run = run if direction == "forward" else jax.grad(run, argnums=(0, 1, 2))
    there, here = (lowered(run, name, *arrays(BATCH)) for name in (platform, "cpu"))
    each = 1 if direction == "forward" else 2
    assert loops(there) == 2 * each
    assert loops(here) == 4 * each
    # Nothing of the size of a group remains: all examples are in every product of tiles.
    groups = lambda text: {int(n) for n in re.findall(r"dot_general.*?: \(tensor<(\d+)x", text)}
    assert groups(there) == {BATCH * K}
    assert max(groups(here)) < BATCH * K


@pytest.mark.parametrize("platform", ["tpu", "cuda", "cpu"])
def test_groups_that_a_caller_asks_for_hold_on_every_platform(platform):
    assert loops(lowered(self_attention(RoPE(), Tiling(128, 128, heads=2)), platform, *arrays())) == 4
    assert loops(lowered(self_attention(RoPE(), Tiling(128, 128)), platform, *arrays())) == 2


@pytest.mark.parametrize("platform", ["tpu", "cuda", "cpu"])
def test_writing_into_a_cache_is_conditional_on_a_cpu_alone(platform):
    """There XLA would copy the cache otherwise; on an accelerator a condition would cost time."""
    cache = jax.eval_shape(lambda: KVCache.create(2, 64, K, H, encoding=RoPE()))
    new = jax.ShapeDtypeStruct((2, 1, K, H), jnp.float32)
    text = lowered(lambda cache, new: cache.append(new, new), platform, cache, new)
    # Two are of constants: the platform, and what is left of the choice by it.
    assert text.count("stablehlo.case") == (3 if platform == "cpu" else 2)


def operands(text) -> set[tuple[str, str]]:
    """Types of the operands of all products."""
    return set(re.findall(r"dot_general.*?: \(tensor<[\dx]*x(\w+)>, tensor<[\dx]*x(\w+)>\)", text))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_xla_kernel_multiplies_in_sixteen_bits_where_it_can(dtype):
    """XLA has no products of float16 with float32 sums on a CPU."""
    run, short = self_attention(RoPE(), "xla"), {"bfloat16": "bf16", "float16": "f16"}[dtype]
    assert operands(lowered(run, "cuda", *arrays(2, 64, dtype))) == {(short, short)}
    assert operands(lowered(run, "cpu", *arrays(2, 64, dtype))) == {("f32", "f32")}


@pytest.mark.parametrize("direction", ["forward", "gradient"])
@pytest.mark.parametrize("implementation", ["dense", "chunked"])
def test_products_have_operands_of_sixteen_bits(implementation, direction):
    """So that the matrix units of an accelerator run at full speed; sums and what is added to them are float32."""
    run = self_attention(RoPE(), implementation)
    run = run if direction == "forward" else jax.grad(run, argnums=(0, 1, 2))
    assert operands(lowered(run, "cuda", *arrays(2, 256, "bfloat16"))) == {("bf16", "bf16")}
