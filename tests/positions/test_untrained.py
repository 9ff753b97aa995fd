"""Methods that extend a context without training, against arrays of their authors' code (golden/README.md), and in decoding.

The authors' layers have RoPE of base 10,000 in the half layout; other layouts, shares of the head and scalings are compared
with the oracle in `tests/attention/test_matrix.py`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions.rerope import slower
from tests.cases import FAST, slow_except
from tests.golden_arrays import load

CAUSAL = aj.Mask(causal=True)


def beside(first: int, window: int) -> aj.Mask:
    """The first keys, and a window to the left."""
    return aj.Mask(causal=True, window=(window, 0), first=first)


METHODS: dict[str, tuple[aj.PositionEncoding, aj.Mask, str]] = {
    "self_extend": (aj.SelfExtend(group=4, window=8), CAUSAL, "out"),
    "rerope": (aj.compose(aj.LogN(length=11), aj.ReRoPE(window=7)), CAUSAL, "out"),
    "leaky_rerope": (aj.compose(aj.LogN(length=11), aj.LeakyReRoPE(window=6, factor=4)), CAUSAL, "out"),
    "lm_infinite": (aj.LMInfinite(first=3, window=8), beside(3, 8), "out_9"),
    "lm_infinite, farther": (aj.LMInfinite(first=3, window=8, limit=14), beside(3, 8), "out_14"),
    "dual_chunk": (aj.DualChunk(chunk=12, local=3), CAUSAL, "out"),
    "streaming_llm": (aj.StreamingLLM(first=2, window=6), beside(2, 6), "out"),
}
"""Method, mask, and which of the stored outputs it must give."""
WAYS = {"dense": ("dense", "float64"), "tiles": (aj.Tiling(5, 7), "float64")}


def arrays(name: str) -> dict[str, np.ndarray]:
    return load(f"untrained_{name.split(',')[0]}")


def attend(name: str, dtype: str, implementation: Any) -> tuple[Any, dict[str, Any]]:
    """The output, and the gradients of sum(out * w) with respect to q, k and v."""
    encoding, mask, _ = METHODS[name]
    given = {key: jnp.asarray(arrays(name)[key], dtype) for key in "qkv"}
    w = jnp.asarray(arrays(name).get("w", 0), dtype)

    def loss(x: dict[str, Any]) -> tuple[Any, Any]:
        out = aj.attend(x["q"], x["k"], x["v"], encoding=encoding, mask=mask, implementation=implementation)
        return (out * w).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST)(given)
    return out, gradients


@pytest.mark.parametrize("way", slow_except(WAYS, "tiles"))
@pytest.mark.parametrize("name", METHODS)
def test_equals_the_code_of_its_authors(name, way):
    implementation, dtype = WAYS[way]
    with jax.enable_x64(dtype == "float64"):
        out, gradients = attend(name, dtype, implementation)
        tolerance = 1e-12 if dtype == "float64" else 2e-5
        np.testing.assert_allclose(out, arrays(name)[METHODS[name][2]], rtol=0, atol=tolerance)
        stored = {key for key in "qkv" if f"grad_{key}" in arrays(name)} if name != "lm_infinite" else set()
        assert len(stored) == (0 if name in ("dual_chunk", "lm_infinite") else 3)
        for key in stored:
            np.testing.assert_allclose(gradients[key], arrays(name)[f"grad_{key}"], rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("chunk", slow_except([1, 4], 1))
@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_decoding_is_the_last_row_of_the_full_forward(name, chunk):
    encoding, mask, _ = METHODS[name]
    q, k, v = (jnp.asarray(arrays(name)[key], jnp.float32) for key in "qkv")
    B, T, N, H = q.shape
    whole = aj.attend(q, k, v, encoding=encoding, mask=mask)
    cache = aj.KVCache.create(B, T, kv_heads=k.shape[2], head_dim=H, heads=N, encoding=encoding)
    step = jax.jit(
        lambda cache, q, k, v: (new := cache.append(k, v), aj.attend(q, cache=new, encoding=encoding, mask=mask)),
        compiler_options=FAST,
    )
    rows = []
    for t in range(0, T - T % chunk, chunk):
        cache, row = step(cache, *(x[:, t : t + chunk] for x in (q, k, v)))
        rows.append(row)
    found = jnp.concatenate(rows, 1)
    np.testing.assert_allclose(found, whole[:, : found.shape[1]], rtol=0, atol=2e-6)


def distance(method: Any, i: int, j: int) -> float:
    """The distance at which query i and key j are turned, from the rotation of a single pair."""
    slow = dataclasses.replace(method, theta=1e6)  # the second pair of four channels turns by 1e-3
    p = slow.constants(aj.Sizes(4, 1, 1, 4))
    at = lambda x, n: (jnp.array([[0.0, x, 0.0, 1.0 - x]]), jnp.array([n]))
    (q, q_pos), (k, k_pos) = at(1.0, i), at(1.0, j)
    across = at(0.0, j)[0]
    tile = aj.Tile(jnp.zeros((1, 1)), q, k, q_pos, k_pos, jnp.ones((1, 1), bool), 1.0)
    cosine, sine = slow.score(p, tile), slow.score(p, tile._replace(k=across))
    return float(jnp.arctan2(sine, cosine)[0, 0]) / 1e-3


DISTANCES = {
    # Worked out by hand from the formulas, for query 20 and keys 20, 19, ..., 0.
    "self_extend": (
        aj.SelfExtend(group=3, window=5),
        # i // 3 + 5 - 5 // 3 = 10; j // 3 = 5 (15), 4 (14..12), 3 (11..9), 2 (8..6), 1 (5..3), 0 (2..0)
        [0, 1, 2, 3, 4, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10, 10],
    ),
    "rerope": (aj.ReRoPE(window=5), [0, 1, 2, 3, 4, *[5] * 16]),
    "leaky_rerope": (aj.LeakyReRoPE(window=5, factor=2), [0, 1, 2, 3, 4, *(5 + n / 2 for n in range(16))]),
    "lm_infinite": (aj.LMInfinite(first=2, window=5), [0, 1, 2, 3, 4, 5, *[6] * 15]),
    # Chunks of 6 tokens: 18..20 of one, 12..17 at min(20 % 6 + 6, 8) = 8, all before at min(11, 8) = 8.
    "dual_chunk": (aj.DualChunk(chunk=8, local=2), [0, 1, 2, *[3, 4, 5, 6, 7, 8] * 3]),
    "streaming_llm": (aj.StreamingLLM(first=3, window=4), [*range(18), 5, 6, 7]),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_are_those_by_hand(name):
    method, expected = DISTANCES[name]
    found = [distance(method, 20, j) for j in range(20, -1, -1)]
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("name", DISTANCES)
def test_within_its_window_a_method_is_rope(name):
    method, _ = DISTANCES[name]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 4, 2, 8)), jnp.float32)
    same = [aj.attend(*x, encoding=one, mask=CAUSAL) for one in (method, aj.RoPE())]
    np.testing.assert_allclose(*same, atol=1e-6)


@pytest.mark.parametrize("rope", [aj.RoPE(500.0, "interleaved", 0.5), aj.RoPE(scaling=aj.YaRN(4.0, 8), keep=0.75)])
def test_a_method_takes_over_all_options_of_a_rope(rope):
    method = aj.SelfExtend.of(rope, group=2, window=64)
    assert (method.group, method.window) == (2, 64)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 2, 9, 2, 8)), jnp.float32)
    same = [aj.attend(*x, encoding=one, mask=CAUSAL) for one in (method, rope)]
    np.testing.assert_allclose(*same, atol=1e-5)


def test_far_positions_keep_their_distances():
    """A million tokens on, in multiples of groups and chunks, scores are the same to the precision of angles."""
    x = jnp.asarray(np.random.default_rng(2).normal(size=(3, 1, 30, 2, 8)), jnp.float32)
    for method in (
        aj.SelfExtend(group=4, window=8),
        aj.ReRoPE(window=7),
        aj.LeakyReRoPE(window=8, factor=4),
        METHODS["dual_chunk"][0],
    ):
        run = lambda start, method=method: aj.attend(
            *x, encoding=method, mask=CAUSAL, q_pos=np.arange(30) + start, k_pos=np.arange(30) + start
        )
        np.testing.assert_allclose(run(9 * 2**17), run(0), atol=1e-5)


@pytest.mark.parametrize("factor", [1, 4, 16])
def test_resonance_equals_the_code_of_its_authors(factor):
    """Whose float32 frequencies lie a rounding away from a half for none of these; a factor of 1 is plain RoPE."""
    golden = load("untrained_resonance")
    own = None if factor == 1 else aj.YaRN(float(factor), original_length=128)
    scaling = aj.Resonance(own)
    np.testing.assert_allclose(scaling.radians(32, 10_000.0), golden[f"inv_freq_{factor}"], rtol=1e-12)
    assert scaling.gain == pytest.approx(float(golden[f"attention_factor_{factor}"]), rel=1e-12)


def test_resonance_turns_as_the_tables_of_its_authors():
    golden, rope = load("untrained_resonance"), aj.RoPE(scaling=aj.Resonance(aj.YaRN(16.0, original_length=128)))
    first = jnp.asarray(np.arange(64) < 32, jnp.float32)
    turned = rope.map_q(rope.constants(aj.Sizes(64, 1, 1, 64)), jnp.broadcast_to(first, (96, 64)), np.arange(96))
    np.testing.assert_allclose(turned, np.concatenate([golden["cos"], golden["sin"]], 1), atol=2e-6)


def test_resonance_repeats_after_whole_wavelengths():
    rope = aj.RoPE(scaling=aj.Resonance())
    x = jnp.asarray(np.random.default_rng(3).normal(size=(1, 4)), jnp.float32)
    # The wavelengths of two pairs are 6 and 628 positions, and 1,884 is the smallest multiple of both.
    turn = lambda pos: rope.map_q(rope.constants(aj.Sizes(4, 1, 1, 4)), x, np.array([pos]))
    np.testing.assert_allclose(turn(5 + 1884 * 1000), turn(5), atol=1e-6)


def test_log_n_by_hand():
    q = aj.LogN(length=8).map_q(aj.EncodingParams(), jnp.ones((5, 1)), jnp.array([-3, 0, 7, 63, 511]))
    np.testing.assert_allclose(q[:, 0], [1, 1, 1, 2, 3], rtol=1e-6)


def test_leaky_frequencies_of_a_traced_length_are_rounded():
    rope = aj.RoPE(scaling=aj.DynamicNTK(2.0, 16))
    known = slower(rope.frequencies(8, 32), 4.0)
    traced = jax.jit(lambda n: slower(rope.frequencies(8, n), 4.0))(32)
    np.testing.assert_allclose(traced.radians, known.radians, rtol=2e-6)
    np.testing.assert_allclose(np.float64(traced.high), np.float64(known.high), rtol=2e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aj.SelfExtend(window=0), "SelfExtend: window must be at least 1, got 0"),
        (lambda: aj.SelfExtend(group=1.5), "SelfExtend: group must be an integer, got 1.5"),
        (lambda: aj.ReRoPE(theta=-1.0), "ReRoPE: theta must be positive and finite, got -1.0"),
        (lambda: aj.LeakyReRoPE(factor=0.5), "LeakyReRoPE: factor is the new length over the original one"),
        (
            lambda: aj.LeakyReRoPE(window=3, factor=1.5),
            r"window \* \(factor - 1\) must be a whole number .*, got 3 and 1.5",
        ),
        (lambda: aj.DualChunk(chunk=8, local=8), "DualChunk: local must be smaller than chunk, got 8 and 8"),
        (lambda: aj.LMInfinite(limit=2**31), "LMInfinite: limit must be at most 1073741824, got 2147483648"),
        (lambda: aj.StreamingLLM(first=True), "StreamingLLM: first must be an integer, got True"),
        (
            lambda: aj.Resonance(aj.DynamicNTK(2.0, 8)),
            "Resonance: of must be None or a rule that does not depend on the length",
        ),
        (lambda: aj.LogN(length=1), "LogN: length must be at least 2, got 1"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", DISTANCES)
def test_refuses_a_mask_that_shows_the_future(name):
    x = jnp.ones((1, 5, 2, 4))
    with pytest.raises(ValueError, match=r"maps distances to the past, so it needs a causal mask"):
        aj.attend(x, x, x, encoding=DISTANCES[name][0])
