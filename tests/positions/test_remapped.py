"""Methods that extend a context without training, against arrays of their authors' code and distances of the papers' rules."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import slow_except
from tests.positions.hooks import CAUSAL, close, constants, golden, run, tile, with_gradients


def beside(first: int, window: int) -> aj.Mask:
    """The first keys, and a window to the left."""
    return aj.Mask(causal=True, window=(window, 0), first=first)


LOG_N = aj.LogN(length=11)
METHODS = {
    "self_extend": (aj.SelfExtend(group=4, window=8), CAUSAL, "out"),
    "rerope": (aj.compose(LOG_N, aj.ReRoPE(window=7)), CAUSAL, "out"),
    "leaky_rerope": (aj.compose(LOG_N, aj.LeakyReRoPE(window=6, factor=4)), CAUSAL, "out"),
    "lm_infinite": (aj.LMInfinite(first=3, window=8), beside(3, 8), "out_9"),
    "lm_infinite, farther": (aj.LMInfinite(first=3, window=8, limit=14), beside(3, 8), "out_14"),
    "dual_chunk": (aj.DualChunk(chunk=12, local=3), CAUSAL, "out"),
    "streaming_llm": (aj.StreamingLLM(first=2, window=6), beside(2, 6), "out"),
}
"""Method, mask, and the stored output that it must give."""


@pytest.mark.parametrize("name", slow_except(METHODS, "self_extend", "dual_chunk", "streaming_llm"))
def test_attention_and_gradients_are_those_of_the_authors(name, x64):
    (encoding, mask, output), arrays = METHODS[name], golden(f"untrained_{name.split(',')[0]}")
    call = lambda q, k, v: aj.attend(q, k, v, encoding=encoding, mask=mask, implementation="dense")
    out, gradients = with_gradients(call, arrays.get("w", 1.0), *(arrays[key] for key in "qkv"))
    close(out, arrays[output])
    if name not in ("dual_chunk", "lm_infinite"):  # which have no gradients of this output
        for key, gradient in zip("qkv", gradients, strict=True):
            close(gradient, arrays[f"grad_{key}"], 1e-11)


DISTANCES = {
    "self_extend": (
        aj.SelfExtend(group=3, window=5),
        lambda i, j: i - j if i - j < 5 else i // 3 - j // 3 + 5 - 5 // 3,
    ),
    "leaky_rerope": (
        aj.LeakyReRoPE(window=5, factor=2),
        lambda i, j: i - j if i - j < 5 else 5 + (i - j - 5) / 2,
    ),
    "dual_chunk": (
        aj.DualChunk(chunk=8, local=5),
        lambda i, j: (i - j, i % 3 + 3 - j % 3, 5 - j % 3)[min(i // 3 - j // 3, 2)],
    ),
}
"""Methods that compute distances far out, and those of the papers, for the same options."""
FAR = 9 * 2**17
"""A multiple of groups and chunks."""


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_are_those_of_the_paper(name):
    """Read from the rotation of a pair that turns by 1e-3 per position; of far positions, as far apart, they are the same."""
    (method, rule), index = DISTANCES[name], np.arange(21)
    slow = dataclasses.replace(method, theta=1e6)
    p, one = constants(slow, 4), tile(index, index)._replace(scale=1.0)
    channel = lambda i: np.tile(np.eye(4, dtype=np.float32)[i], (21, 1))

    @jax.jit
    def angles(pos):
        score = lambda k: slow.score(p, one._replace(q=channel(1), k=k, q_pos=pos, k_pos=pos))
        return jnp.arctan2(score(channel(3)), score(channel(1)))

    seen = np.tri(21, dtype=bool)
    expected = np.array([[rule(max(i, j), j) for j in index] for i in index])
    for start in (0, FAR):
        close(np.asarray(angles(start + index))[seen] / 1e-3, expected[seen], 1e-3)


@pytest.mark.parametrize(
    "rope", [aj.RoPE(500.0, "interleaved", 0.5), aj.RoPE(scaling=aj.YaRN(4.0, 8), keep=0.75)], ids=str
)
def test_a_method_takes_over_all_options_of_a_rope(rope):
    """Within its window it is RoPE."""
    one = tile(np.arange(9), np.arange(9), head_dim=8)
    method = aj.SelfExtend.of(rope, group=2, window=64)
    assert (method.group, method.window) == (2, 64)
    p = constants(rope, 8)
    turned = lambda x: rope.map_q(p, x, one.q_pos)
    found, expected = run(lambda one: (method.score(p, one), one.scale * turned(one.q) @ turned(one.k).T), one)
    close(found, expected, 2e-5)


def test_leaky_frequencies_are_those_of_the_length_over_the_factor():
    method = aj.LeakyReRoPE(factor=4.0, scaling=aj.DynamicNTK(2.0, 16))
    p = constants(method, 8, length=32)
    np.testing.assert_allclose(p["leaky"].radians, method.scaling.radians(4, 10_000.0, 32) / 4, rtol=1e-14)
    assert method.by_length
