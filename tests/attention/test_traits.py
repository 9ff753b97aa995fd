"""Encodings with one trait each, against their tables of all queries and keys at once: output and every gradient.

Of each trait there is an encoding of this package too; these here are written as a stranger would, and know no tiles.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import (
    KVCache,
    Mask,
    RoPE,
    Tiling,
    attend,
    attend_with_lse,
    attention_weights,
    compose,
    context_positions,
)
from tests.attention.toys import (
    SIZES,
    Budget,
    H,
    K,
    MixedHeads,
    N,
    PerLength,
    Sigmoid,
    assert_trees_close,
    averaged,
    drawn,
    learned,
    products,
    softmax,
    with_gradients,
)

T, SCALE = 19, 0.4
WAYS = {"dense": "dense", "chunked": Tiling(5, 7), "one head at a time": Tiling(6, 4, heads=1)}
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", WAYS.values(), ids=WAYS)
CAUSAL = np.tril(np.ones((T, T), bool))
SEEN = CAUSAL & (np.arange(T) != 3)[None]
SEEN[6] = False
"""Causal, without key 3, and query 6 sees nothing."""


def n():
    return (np.arange(T)[:, None] - np.arange(T)[None]).astype(float)


# Constants that depend on the length, in hooks of scores

LENGTHS = np.array([19, 11])
VALID = np.arange(T)[None] < LENGTHS[:, None]


def by_length(q, k, v, lengths=LENGTHS, seen=CAUSAL[None] & VALID[:, None]):
    """The bias of each example by its own length."""
    slope = np.arange(1.0, N + 1)[None] / np.asarray(lengths)[:, None]
    table = products(q, k, SCALE) - slope[:, :, None, None] * n()[None, None]
    return averaged(softmax(table, jnp.asarray(seen)[:, None]), v)


@pytest.mark.quick("chunked")
@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
def test_a_bias_scaled_by_the_length_of_each_example(implementation):
    """The constants are float32, so that the comparison is, too."""
    options = {"encoding": PerLength(), "mask": Mask(causal=True, k_valid=VALID), "scale": SCALE}
    run = with_gradients(lambda q, k, v: attend(q, k, v, implementation=implementation, **options))
    assert_trees_close(run(*drawn(T)), with_gradients(by_length)(*drawn(T)), rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_a_length_that_is_known_while_tracing():
    q, k, v = drawn(T, dtype="float32")
    out = attend(q, k, v, encoding=PerLength(), mask=Mask(causal=True), scale=SCALE, implementation="dense")
    expected = by_length(q, k, v, [T, T], np.broadcast_to(CAUSAL, (2, T, T)))
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5], ids=["whole", "ring"])
def test_a_bias_scaled_by_the_length_in_a_cache(window):
    """Each step sees the length so far, of each example; a ring knows it although it forgot the beginning."""
    q, k, v = drawn(T, dtype="float32")
    cache = KVCache.create(2, T if window is None else 6, K, H, encoding=PerLength(), window=window)
    mask = Mask(causal=True, window=window)

    @jax.jit
    def step(cache, now, valid):
        q, k, v = now
        cache = cache.append(k, v, valid=valid)
        return cache, attend(q, cache=cache, encoding=PerLength(), mask=mask, scale=SCALE)

    for t in range(T):
        cache, out = step(cache, tuple(x[:, t : t + 1] for x in (q, k, v)), jnp.asarray(VALID[:, t : t + 1]))
        lengths = np.minimum(t + 1, LENGTHS)
        near = CAUSAL if window is None else CAUSAL & (n() <= window)
        expected = by_length(q, k, v, lengths, near[None] & VALID[:, None])[:, t : t + 1]
        np.testing.assert_allclose(out, expected, atol=1e-5)


# Weights that are not normalized


def sigmoids(q, k, v, params):
    table = products(q, k, SCALE) + params.head["bias"][None, :, None, None]
    return averaged(jnp.where(SEEN, 1 / (1 + jnp.exp(-table)), 0), v)


@pytest.mark.quick("chunked")
@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
def test_weights_that_are_not_normalized(implementation):
    options = {"encoding": Sigmoid(), "mask": Mask(allowed=SEEN), "scale": SCALE, "implementation": implementation}
    run = with_gradients(lambda q, k, v, params: attend(q, k, v, params=params, **options))
    arguments = (*drawn(T), learned(Sigmoid()))
    assert_trees_close(run(*arguments), with_gradients(sigmoids)(*arguments))


def test_weights_that_are_not_normalized_as_they_are():
    q, k, v = drawn(T, dtype="float32")
    options = {"encoding": Sigmoid(), "params": learned(Sigmoid(), dtype="float32"), "mask": Mask(allowed=SEEN)}
    weights = attention_weights(q, k, scale=SCALE, **options)
    np.testing.assert_allclose(averaged(weights, v), attend(q, k, v, scale=SCALE, **options), atol=1e-6)
    assert weights.sum(-1).max() > 1.5
    assert not np.asarray(weights)[:, :, 6].any()


@pytest.mark.parametrize("encoding", [Sigmoid(), compose(RoPE(), Sigmoid())], ids=["alone", "composed"])
def test_weights_that_are_not_normalized_have_no_log_sum_exp_and_no_sink(encoding):
    arrays = drawn(T, dtype="float32")
    options = {"encoding": encoding, "params": learned(encoding, dtype="float32")}
    with pytest.raises(
        ValueError, match="weights of this encoding are not normalized, so that there is no log-sum-exp"
    ):
        attend_with_lse(*arrays, **options)
    with pytest.raises(ValueError, match="weights of this encoding are not normalized, so that a sink has no meaning"):
        attend(*arrays, sink=jnp.zeros(N), **options)


# Scores of all heads at once


def mixed(q, k, v, params, q_pos=None, k_pos=None):
    """Positions are [T], or [B,N,T] and [B,K,S] with a row per head."""
    far = n()[None, None] if q_pos is None else (q_pos[..., :, None] - jnp.repeat(k_pos, N // K, 1)[..., None, :])
    x = jnp.tanh(products(q, k, SCALE) - jnp.abs(far) / 10)
    of_queries = jnp.einsum("btnh,nh->bnt", q, params.head["u"])
    of_keys = jnp.repeat(jnp.einsum("bskh,kh->bks", k, params.kv_head["w"]), N // K, axis=1)
    table = jnp.einsum("hg,bgts->bhts", params.shared["mix"], x) + of_queries[..., None] + of_keys[:, :, None]
    return averaged(softmax(table, SEEN), v)


@pytest.mark.quick("positions for all heads-chunked", "positions per head-one head at a time")
@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
@pytest.mark.parametrize("rows", ["positions for all heads", "positions per head"])
def test_scores_that_mix_the_heads(implementation, rows):
    """Grouped heads, and a group of examples at a time: heads of one example stay together."""
    arguments = (*drawn(T), learned(MixedHeads()))
    if rows == "positions per head":
        draw = np.random.default_rng(4)
        arguments += (jnp.asarray(draw.uniform(0, 9, (2, N, T))), jnp.asarray(draw.uniform(0, 9, (2, K, T))))

    def run(q, k, v, params, q_pos=None, k_pos=None):
        options = {"encoding": MixedHeads(), "params": params, "mask": Mask(allowed=SEEN), "scale": SCALE}
        return attend(q, k, v, q_pos=q_pos, k_pos=k_pos, implementation=implementation, **options)

    assert_trees_close(with_gradients(run)(*arguments), with_gradients(mixed)(*arguments))


def test_scores_that_mix_the_heads_in_a_cache():
    q, k, v = drawn(T, dtype="float32")
    params = learned(MixedHeads(), dtype="float32")
    options = {"encoding": MixedHeads(), "params": params, "mask": Mask(causal=True), "scale": SCALE}
    cache = KVCache.create(2, T, K, H, encoding=MixedHeads()).append(k, v)
    np.testing.assert_allclose(attend(q, cache=cache, **options), attend(q, k, v, **options), atol=1e-5)


# A carry that starts from the queries


def budgets(q, k, v, params):
    """The sum over keys behind j, for every j on its own."""
    table = products(q, k, SCALE)
    start = jax.nn.softplus(jnp.einsum("btnh,nh->bnt", q, params.head["u"]))
    cost = jnp.where(SEEN, jnp.tanh(table) ** 2, 0) / 8
    behind = jnp.stack([cost[..., j + 1 :].sum(-1) for j in range(T)], -1)
    return averaged(softmax(table + jnp.log1p(start[..., None] * jnp.exp(-behind)), SEEN), v)


@pytest.mark.quick("chunked")
@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
def test_a_carry_that_starts_from_the_queries(implementation):
    """Its gradient reaches queries and parameters through the first state alone."""
    options = {"encoding": Budget(), "mask": Mask(allowed=SEEN), "scale": SCALE, "implementation": implementation}
    run = with_gradients(lambda q, k, v, params: attend(q, k, v, params=params, **options))
    arguments = (*drawn(T), learned(Budget()))
    got, expected = run(*arguments), with_gradients(budgets)(*arguments)
    assert_trees_close(got, expected)
    assert np.abs(expected[1][3].head["u"]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_carry_of_mapped_queries():
    """Composed with RoPE, the state starts from turned queries, and is one of two."""
    both = compose(RoPE(), Budget())
    arguments = (*drawn(T), learned(both))
    runs = [
        with_gradients(
            lambda q, k, v, params, way=way: attend(
                q, k, v, encoding=both, params=params, mask=Mask(allowed=SEEN), implementation=way
            )
        )
        for way in WAYS.values()
    ]
    dense, *others = [run(*arguments) for run in runs]
    for other in others:
        assert_trees_close(other, dense)


def test_toys_compute_no_positions():
    """What `context_positions` returns for them is what it was given."""
    pos = np.arange(T)
    for encoding in (PerLength(), Sigmoid(), MixedHeads(), Budget()):
        assert context_positions(encoding, None, jnp.zeros((2, T, N * H)), pos, SIZES) is pos
