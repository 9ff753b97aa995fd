"""Stick-breaking against the authors' arrays, against loops, by hand, in decoding and in compositions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Mask, RoPE, Sizes, StickBreaking, Tiling, attend, attend_with_lse, attention_weights, compose
from attnjax.positions.base import EncodingParams
from tests.positions.attending import (
    DECODING,
    TILES,
    assert_close,
    check_decoding,
    drawn,
    golden,
    gradient_program,
    outcome,
    quadratic,
)

CAUSAL = Mask(causal=True)
B, T, N, K, H = 2, 13, 4, 2, 6
STRICT = StickBreaking(attend_current=False)


def by_loops(q, k, v, seen):
    """Break a piece off the stick for one visible key after another, from the last to the first: (output, what is left)."""
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    out, left = np.zeros(q.shape), np.ones(q.shape[:3])
    for b, i, h in np.ndindex(*q.shape[:3]):
        for j in reversed(range(k.shape[1])):
            if seen[b, i, j]:
                share = 1 / (1 + np.exp(-q[b, i, h] @ k[b, j, h] / np.sqrt(q.shape[3])))
                out[b, i, h] += left[b, i, h] * share * v[b, j, h]
                left[b, i, h] *= 1 - share
    return out, left


def with_rest(q, k, v, **options):
    """out_i + (1 - sum of weights) v_i, by a channel of ones, as the module's text says."""
    ones = jnp.ones((*v.shape[:-1], 1), v.dtype)
    both = attend(q, k, jnp.concatenate([v, ones], -1), **options)
    return both[..., :-1] + (1 - both[..., -1:]) * v


WAYS = {
    "strict": [(STRICT, CAUSAL), (StickBreaking(), Mask(causal=True, q_index=np.arange(12) - 1))],
    "current": [(StickBreaking(), CAUSAL)],
}
CASES = [(case, *way) for case, ways in WAYS.items() for way in ways]


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["dense", TILES], ids=["dense", "tiles"])
@pytest.mark.parametrize(("case", "encoding", "mask"), CASES, ids=["option", "index", "current"])
def test_values_and_gradients_of_the_authors(case, encoding, mask, implementation, x64):
    arrays = golden("frontier_stick_breaking")
    q, k, v, w = (jnp.asarray(arrays[name]) for name in "qkvw")
    options = {"encoding": encoding, "mask": mask, "implementation": implementation}
    np.testing.assert_allclose(attend(q, k, v, **options), arrays[f"{case}_out"], atol=1e-13)
    np.testing.assert_allclose(attention_weights(q, k, **options), arrays[f"{case}_weights"], atol=1e-14)
    whole = lambda *qkv: (w * with_rest(*qkv, **options)).sum()
    for name, gradient in zip("qkv", jax.grad(whole, (0, 1, 2))(q, k, v), strict=True):
        np.testing.assert_allclose(gradient, arrays[f"{case}_whole_grad_{name}"], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("case", ["strict", "current"])
def test_single_precision(case):
    arrays = golden("frontier_stick_breaking")
    q, k, v = (jnp.asarray(arrays[name], jnp.float32) for name in "qkv")
    out = attend(q, k, v, encoding=WAYS[case][0][0], mask=CAUSAL, implementation=TILES)
    np.testing.assert_allclose(out, arrays[f"{case}_out"], atol=2e-6)


def test_halves_by_hand():
    """Logits of 0 break half of what is left each time."""
    x = jnp.zeros((1, 4, 1, 2))
    expected = [[1 / 2, 0, 0, 0], [1 / 4, 1 / 2, 0, 0], [1 / 8, 1 / 4, 1 / 2, 0], [1 / 16, 1 / 8, 1 / 4, 1 / 2]]
    found = attention_weights(x, x, encoding=StickBreaking(), mask=CAUSAL)[0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    strict = attention_weights(x, x, encoding=STRICT, mask=CAUSAL)[0, 0]
    np.testing.assert_allclose(strict[1:, :-1], np.array(expected)[:-1, :-1], rtol=1e-6)
    np.testing.assert_array_equal(np.diag(strict), 0)


SEGMENTS = np.arange(T, dtype=np.int32) // 5
MASKS = {
    "full": Mask(),
    "window": Mask(causal=True, window=(3, 0)),
    "segments": Mask(causal=True, q_segments=SEGMENTS, k_segments=SEGMENTS),
    "padding": Mask(causal=True, k_valid=np.arange(T)[None] >= np.array([[3], [0]])),
    "scattered": Mask(allowed=np.random.default_rng(4).random((B, T, T)) < 0.4),
}


def seen_by(mask):
    at = np.arange(T)
    n = at[:, None] - at[None, :]
    seen = np.ones((B, T, T), bool) if mask.allowed is None else np.array(mask.allowed)
    seen &= (n >= 0) | (not mask.causal)
    seen &= (n <= mask.window[0]) if mask.window else True
    seen &= (SEGMENTS[:, None] == SEGMENTS[None, :]) if mask.q_segments is not None else True
    return seen & (mask.k_valid[:, None, :] if mask.k_valid is not None else True)


@pytest.mark.quick("segments", "padding")
@pytest.mark.parametrize("name", MASKS)
def test_masks_against_loops(name, x64):
    mask, (q, k, v) = MASKS[name], drawn(B, T, N, K, H)
    expected, left = by_loops(q, k, v, seen_by(mask))
    options = {"encoding": StickBreaking(), "mask": mask}

    def run(implementation):
        return outcome(lambda q, k, v: attend(q, k, v, implementation=implementation, **options), q, k, v)

    tiles, dense = run(TILES), run("dense")
    np.testing.assert_allclose(dense["out"], expected, atol=1e-13)
    assert_close(tiles, dense, 1e-12)
    total = attend(*(jnp.asarray(x) for x in (q, k, np.ones_like(v))), implementation=TILES, **options)[..., 0]
    np.testing.assert_allclose(1 - total, left, atol=1e-13)


@pytest.mark.quick("strict-chunks in a ring, jitted")
@pytest.mark.parametrize("way", DECODING)
@pytest.mark.parametrize("encoding", [StickBreaking(), STRICT], ids=["current", "strict"])
def test_decoding_is_the_full_forward(encoding, way, x64):
    pos = np.broadcast_to(np.arange(T, dtype=np.int32) + 7, (B, T))
    check_decoding(encoding, None, *drawn(B, T, N, K, H), pos, way, atol=1e-12)


def test_composed_with_rope_it_breaks_at_turned_logits(x64):
    encoding, rope, mask = compose(RoPE(), StickBreaking()), RoPE(), MASKS["window"]
    q, k, v = drawn(B, T, N, K, H)
    p = rope.constants(Sizes(N * H, N, K, H))
    turn = jax.vmap(jax.vmap(functools.partial(rope.map_q, p), (1, None), 1), (0, None))
    turned = [np.asarray(turn(jnp.asarray(x), np.arange(T))) for x in (q, k)]
    expected, _ = by_loops(*turned, v, seen_by(mask))
    for implementation in ("dense", TILES):
        out = attend(*map(jnp.asarray, (q, k, v)), encoding=encoding, mask=mask, implementation=implementation)
        np.testing.assert_allclose(out, expected, atol=1e-12)


@pytest.mark.parametrize("encoding", [StickBreaking(), STRICT, compose(RoPE(), StickBreaking())], ids=str)
def test_tiles_need_linear_memory(encoding):
    assert quadratic(gradient_program(encoding, 512), 512) == []
    assert quadratic(gradient_program(encoding, 512, implementation="dense"), 512) != []


@pytest.mark.slow
@pytest.mark.parametrize("size", [30.0, 1e4, 1e18])
@pytest.mark.parametrize("implementation", ["dense", TILES], ids=["dense", "tiles"])
def test_large_logits_leave_all_to_the_nearest_key_that_wants_it(size, implementation):
    """Alternating signs: every second key takes all that is left of the stick, and the others nothing."""
    sign = jnp.where(jnp.arange(T) % 2 == 0, 1.0, -1.0)[None, :, None, None] * jnp.ones((1, T, 1, 1))
    q, k = jnp.ones((1, T, 1, 1)), size * sign
    v = jnp.arange(T, dtype=jnp.float32)[None, :, None, None] * jnp.ones((1, T, 1, 1))
    run = lambda q, k, v: attend(
        q, k, v, encoding=StickBreaking(), mask=CAUSAL, scale=1.0, implementation=implementation
    )
    np.testing.assert_allclose(run(q, k, v)[0, :, 0, 0], np.arange(T) // 2 * 2, atol=1e-5)
    for gradient in jax.grad(lambda *qkv: run(*qkv).sum(), (0, 1, 2))(q, k, v):
        assert np.all(np.isfinite(gradient))


def test_a_far_key_keeps_its_share_beside_a_huge_logit():
    """The sum beyond a key is not the inclusive sum less its own entry, which float32 would round to 0.1 here."""
    logits = jnp.array([[1e6, -3.0, -2.0]])
    v = jnp.array([1.0, 0.0, 0.0])[None, :, None, None]
    out = attend(jnp.ones((1, 1, 1, 1)), logits.reshape(1, 3, 1, 1), v, encoding=StickBreaking(), scale=1.0)
    np.testing.assert_allclose(out.ravel(), 1 / ((1 + np.exp(-3)) * (1 + np.exp(-2))), rtol=1e-6)


@pytest.mark.slow
def test_what_hides_has_no_effect_and_rows_without_keys_are_zero():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in drawn(B, T, N, K, H))
    mask = Mask(causal=True, k_valid=np.arange(T) >= 3)
    run = lambda k, v, way: attend(q, k, v, encoding=StickBreaking(), mask=mask, implementation=way)
    for way in ("dense", TILES):
        out = run(k, v, way)
        np.testing.assert_array_equal(out[:, :3], 0)
        np.testing.assert_array_equal(run(k.at[:, :3].set(jnp.inf), v.at[:, :3].set(jnp.nan), way), out)
        spoiled = run(k.at[:, 5].set(jnp.nan), v, way)
        assert np.all(np.isnan(spoiled[:, 5:]))
        np.testing.assert_array_equal(spoiled[:, :5], out[:, :5])


@pytest.mark.slow
def test_two_tiles_from_right_to_left_equal_the_whole(make_tile, cut):
    tile = make_tile(np.arange(9), np.arange(12), np.random.default_rng(6).random((9, 12)) < 0.6, dtype=np.float32)
    encoding, p = StickBreaking(), EncodingParams()
    whole, total = encoding.score(p, tile)
    right, carry = encoding.score(p, cut(tile, slice(None), slice(7, 12)), encoding.carry(p, tile.q))
    left, carry = encoding.score(p, cut(tile, slice(None), slice(0, 7)), carry)
    np.testing.assert_allclose(jnp.concatenate([left, right], 1), whole, atol=2e-6)
    np.testing.assert_allclose(carry, total, atol=2e-6)


def test_refuses():
    with pytest.raises(ValueError, match="attend_current must be True or False, got 1"):
        StickBreaking(attend_current=1)
    x = jnp.ones((1, 3, 2, 4))
    with pytest.raises(ValueError, match="not normalized, so that there is no log-sum-exp"):
        attend_with_lse(x, x, x, encoding=StickBreaking())
    with pytest.raises(ValueError, match="not normalized, so that a sink has no meaning"):
        attend(x, x, x, encoding=StickBreaking(), sink=jnp.zeros(2))
    with pytest.raises(NotImplementedError, match="the hook 'score' of the encoding computes the logits"):
        attend(x, x, x, encoding=StickBreaking(), implementation="xla")
    assert attend(x, x, x, encoding=StickBreaking(), implementation=Tiling(2, 2)).shape == x.shape
