"""Multi-head attention: against Flax, against arithmetic done by hand, and its parts against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.attention import Dropout, Mask
from attnjax.modules import AttentionOptions, MultiHeadAttention
from attnjax.positions import ALiBi, RoPE, T5Bias
from tests.modules.by_hand import attention_arguments


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.fixture
def make(build):
    """Attention with D = 16, N = 4 unless told otherwise."""
    return lambda model=16, heads=4, **options: build(MultiHeadAttention, model, heads, **attention_arguments(options))


@pytest.fixture
def identity(make):
    """Attention whose matrices are the identity, cut into heads, but for the one of the keys where it is given."""

    def build(model, heads, w_k=None):
        attention = make(model, heads, bias=False)
        shape = (model, heads, model // heads)
        for name in ("w_q", "w_k", "w_v"):
            getattr(attention, name)[...] = jnp.eye(model).reshape(shape)
        if w_k is not None:
            attention.w_k[...] = jnp.asarray(w_k.reshape(shape), jnp.float32)
        attention.w_o[...] = jnp.eye(model).reshape(heads, model // heads, model)
        return attention

    return build


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_equals_flax(build, make, call):
    theirs = build(nnx.MultiHeadAttention, 4, 16, decode=False, keep_rngs=False)
    ours = make()
    for name, layer in (("q", theirs.query), ("k", theirs.key), ("v", theirs.value), ("o", theirs.out)):
        getattr(ours, f"w_{name}")[...] = layer.kernel[...]
        getattr(ours, f"b_{name}")[...] = layer.bias[...]
    x = draw(2, 6, 16)
    expected = call(theirs, x, mask=nnx.make_causal_mask(jnp.ones((2, 6))))
    np.testing.assert_allclose(call(ours, x, mask=Mask(causal=True)), expected, atol=1e-5)
    memory = draw(2, 5, 16, seed=1)
    np.testing.assert_allclose(call(ours, x, memory), call(theirs, x, memory), atol=1e-5)


def test_projections_of_the_text_hold_12288_parameters(make, count):
    attention = make(64, 4, bias=False)
    assert sum(w[...].size for w in (attention.w_q, attention.w_k, attention.w_v)) == 3 * 64 * 16 * 4 == 12_288
    four, one = (count(MultiHeadAttention, 64, heads, options=AttentionOptions(bias=False)) for heads in (4, 1))
    assert four == one == 4 * 64 * 64


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, 4 * 16 * 16 + 4 * 16),
        ({"bias": False, "kv_heads": 1}, 2 * 16 * 16 + 2 * 16 * 4),
        ({"bias": False, "head_dim": 6}, 4 * 16 * 24),
        ({"bias": False, "qk_norm": True}, 4 * 16 * 16 + 2 * 4),
        ({"bias": False, "encoding": T5Bias(buckets=8)}, 4 * 16 * 16 + 4 * 8),
        ({"bias": False, "encoding": T5Bias(buckets=8), "shares_encoding": True}, 4 * 16 * 16),
    ],
)
def test_parameters_counted_by_hand(options, parameters, count):
    assert count(MultiHeadAttention, 16, 4, **attention_arguments(options)) == parameters


def test_shapes_of_the_text(make, call):
    attention, x = make(64, 8), draw(1, 10, 64)
    assert call(attention, x).shape == (1, 10, 64)
    assert call(attention.weights, x).shape == (1, 8, 10, 10)


def test_heads_are_concatenated_and_passed_through_the_identity(identity, call):
    attention = identity(4, 2)
    np.testing.assert_allclose(
        call(attention, jnp.array([[[0.5, -0.3, 0.8, 0.1]]])), [[[0.5, -0.3, 0.8, 0.1]]], atol=1e-6
    )


SENTENCE = np.array([[0.1, 0.2, 1.0, -0.5], [1.5, 0.3, 0.0, 0.2], [-1.2, 0.8, 0.1, 0.1], [0.2, -0.1, -0.9, 1.1]])
SWAPPED = np.eye(4)[:, [2, 3, 0, 1]]
FLIPPED = np.diag([1.0, 1.0, -1.0, -1.0])


@pytest.mark.parametrize("w_k", [np.eye(4), SWAPPED, FLIPPED], ids=["identity", "swapped", "flipped"])
def test_split_attend_concat(identity, call, w_k):
    x, keys = SENTENCE, SENTENCE @ w_k
    halves = [softmax(x[:, cut] @ keys[:, cut].T / np.sqrt(2)) for cut in (slice(0, 2), slice(2, 4))]
    out = np.concatenate([halves[0] @ x[:, :2], halves[1] @ x[:, 2:]], axis=-1)
    attention, batch = identity(4, 2, w_k), jnp.asarray(x, jnp.float32)[None]
    np.testing.assert_allclose(call(attention.weights, batch)[0], np.stack(halves), atol=1e-6)
    np.testing.assert_allclose(call(attention, batch)[0], out, atol=1e-6)


def test_flipping_the_keys_of_one_head_turns_its_attraction_around_and_leaves_the_other(identity, call):
    batch = jnp.asarray(SENTENCE, jnp.float32)[None]
    plain, flipped = (np.asarray(call(identity(4, 2, w).weights, batch)[0]) for w in (np.eye(4), FLIPPED))
    np.testing.assert_array_equal(plain[0], flipped[0])
    # e^s / Z times e^-s / Z' does not depend on the key.
    product = plain[1] * flipped[1]
    np.testing.assert_allclose(product, np.broadcast_to(product[:, :1], product.shape), rtol=1e-5)


def test_grouped_queries_equal_repeated_key_heads(make, call):
    grouped, full, x = make(kv_heads=2, bias=False), make(bias=False), draw(2, 5, 16)
    full.w_q[...], full.w_o[...] = grouped.w_q[...], grouped.w_o[...]
    for name in ("w_k", "w_v"):
        getattr(full, name)[...] = jnp.repeat(getattr(grouped, name)[...], 2, axis=1)
    np.testing.assert_allclose(call(grouped, x), call(full, x), atol=1e-6)


def test_a_gate_of_zero_removes_the_head(make, call):
    keep = jnp.array([0, 2, 3])
    four, x = make(encoding=ALiBi(symmetric=True)), draw(2, 5, 16)
    three = make(16, 3, head_dim=4, encoding=ALiBi(slopes=(2**-2, 2**-6, 2**-8), symmetric=True))
    for name in ("w_q", "w_k", "w_v"):
        getattr(three, name)[...] = getattr(four, name)[...][:, keep]
        getattr(three, f"b{name[1:]}")[...] = getattr(four, f"b{name[1:]}")[...][keep]
    three.w_o[...], three.b_o[...] = four.w_o[...][keep], four.b_o[...]
    np.testing.assert_allclose(call(four, x, gate=jnp.array([1.0, 0.0, 1.0, 1.0])), call(three, x), atol=1e-6)


def test_gates_differ_per_example(make, call):
    attention, x = make(), draw(2, 5, 16)
    gate = jnp.array([[1.0, 0.0, 1.0, 1.0], [0.5, 1.0, 1.0, 0.0]])
    each = jnp.concatenate([call(attention, x[i : i + 1], gate=gate[i]) for i in range(2)])
    np.testing.assert_allclose(call(attention, x, gate=gate), each, atol=1e-6)


def test_norm_of_queries_and_keys(make, call):
    attention, x = make(model=8, heads=2, qk_norm=True, bias=False), draw(1, 3, 8)

    def project(w, norm):
        heads = np.einsum("td,dnh->nth", x[0], w[...])
        return heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(norm.scale[...])

    q, k = project(attention.w_q, attention.q_norm), project(attention.w_k, attention.k_norm)
    expected = softmax(np.einsum("nth,nsh->nts", q, k) / np.sqrt(4))
    np.testing.assert_allclose(call(attention.weights, x)[0], expected, atol=1e-5)


def test_positions_reach_queries_and_keys(make, call):
    attention, x = make(encoding=RoPE()), draw(2, 5, 16)
    shifted = call(attention, x, q_pos=np.arange(5) + 100)
    np.testing.assert_allclose(call(attention, x), shifted, atol=1e-5)
    assert not np.allclose(call(attention, x), call(attention, x, q_pos=np.arange(5) * 2), atol=1e-3)
    across = call(attention, x, x, q_pos=np.arange(5) + 7, k_pos=np.arange(5) + 7)
    np.testing.assert_allclose(across, call(attention, x), atol=1e-5)


def test_parameters_of_an_encoding_can_be_handed_in(make, call):
    owner = make(encoding=T5Bias(bidirectional=True))
    guest, x = make(encoding=T5Bias(bidirectional=True), shares_encoding=True), draw(2, 5, 16)
    for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"):
        getattr(guest, name)[...] = getattr(owner, name)[...]
    np.testing.assert_allclose(call(guest, x, params=owner.encoding_params()), call(owner, x), atol=1e-6)
    with pytest.raises(ValueError, match=r"T5Bias.*learns parameters"):
        call(guest, x)


@pytest.mark.parametrize("encoding", [RoPE(), T5Bias()], ids=["rope", "t5"])
def test_decoding_equals_the_whole_sequence(make, call, encoding):
    attention, x = make(kv_heads=2, encoding=encoding), draw(2, 5, 16)
    cache = attention.cache(2, 5)
    first, cache = call(attention.decode, x[:, :4], cache)
    last, cache = call(attention.decode, x[:, 4:], cache)
    assert int(cache.index) == 5
    np.testing.assert_allclose(jnp.concatenate([first, last], 1), call(attention, x, mask=Mask(causal=True)), atol=1e-5)


def test_a_memory_can_be_projected_once(make, call):
    attention, x, memory = make(), draw(2, 3, 16), draw(2, 5, 16, seed=1)
    valid = np.array([[True] * 5, [True, True, False, False, True]])
    projected = call(attention.keys_values, memory)
    expected = call(attention, x, memory, mask=Mask(k_valid=valid))
    np.testing.assert_allclose(call(attention, x, projected, mask=Mask(k_valid=valid)), expected, atol=1e-6)
    first_head = memory[1] @ attention.w_k[...][:, 0] + attention.b_k[...][0][None]
    np.testing.assert_allclose(projected.k[1, :, 0], first_head, atol=1e-5)


def test_dropout_repeats_with_its_key(make, call):
    attention, x = make(), draw(2, 5, 16)
    results = [call(attention, x, dropout=Dropout(jax.random.key(seed), 0.5)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.allclose(results[0], results[2], atol=1e-3)


def test_computes_in_the_type_of_its_input(make, call):
    attention, x = make(encoding=RoPE(), qk_norm=True), draw(2, 5, 16)
    half = call(attention, x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), call(attention, x), atol=0.05)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda a, x: a(x[0]), r"x must be floats \[B, T, 16\], got float32\[5, 16\]"),
        (lambda a, x: a(x[..., :8]), r"x must be floats \[B, T, 16\], got float32\[2, 5, 8\]"),
        (lambda a, x: a(x.astype(jnp.int32)), r"x must be floats \[B, T, 16\], got int32\[2, 5, 16\]"),
        (lambda a, x: a(x, x[..., :3]), r"memory must be floats \[B, T, 16\], got float32\[2, 5, 3\]"),
        (lambda a, x: a(x, gate=jnp.ones(3)), r"gate must have shape \(4,\) or \(2, 4\), got \(3,\)"),
        (lambda a, x: a(x, q_pos=np.arange(4)), r"q_pos must have shape \(5,\) or \(2, 5\), got \(4,\)"),
    ],
)
def test_calls_that_do_not_fit_are_refused(make, wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong(make(), jnp.ones((2, 5, 16)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"heads": 3},
            "MultiHeadAttention.model=16 is no multiple of .*heads=3; give MultiHeadAttention.head_dim",
        ),
        ({"kv_heads": 3}, "MultiHeadAttention.heads=4 is no multiple of MultiHeadAttention.kv_heads=3"),
        ({"model": 0}, "MultiHeadAttention.model must be a whole number of at least 1, got 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
