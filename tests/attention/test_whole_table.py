"""Encodings that need all keys, or all heads, at once: dense attention serves them, and what cannot says so in a sentence."""

import functools
import re

import jax
import numpy as np
import pytest

import attnjax as aj
from attnjax import KVCache, Mask, Sizes, StickBreaking, Tiling, attend, attention_weights
from tests.attention.matrix import compiled, learned

N, K, H, T = 4, 2, 8, 6
SIZES, CAUSAL = Sizes(N * H, N, K, H), Mask(causal=True)
ENCODINGS = {
    "cope": aj.CoPE(max_position=4),
    "stick": StickBreaking(),
    "dape": aj.DAPE(aj.T5Bias(), width=3),
    "path": aj.PaTH(rank=3),
    "rope+stick": aj.compose(aj.RoPE(), StickBreaking()),
}
P = jax.sharding.PartitionSpec


def arrays(T=T):
    random = np.random.default_rng(0)
    return tuple(random.normal(size=(1, T, heads, H)).astype(np.float32) for heads in (N, K, K))


def options_of(name, T=T):
    """Keywords of `attend`."""
    encoding = ENCODINGS[name]
    pos = np.zeros((1, K, T, *encoding.features(SIZES)), np.float32) if encoding.has("context") else None
    params = learned(encoding, SIZES, np.random.default_rng(0))
    return {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": CAUSAL}


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_cannot_serve_says_so(name):
    """Other implementations, a mesh axis that spreads the keys, and a ring of slots. Dense is chosen for rows of any length."""
    options, part = options_of(name), re.escape(str(ENCODINGS[name].parts[-1] if "+" in name else ENCODINGS[name]))

    def refused(message, call):
        with pytest.raises(NotImplementedError, match=message):
            jax.eval_shape(call, *arrays())

    for way, reason in (("chunked", part), (Tiling(4, 4), part), ("cudnn", "'score'")):
        refused(rf"(?m){reason}.*these can: dense$", functools.partial(attend, implementation=way, **options))
    specs = {"in_specs": (P(None, "tokens"),) * 3, "out_specs": P(None, "tokens")}
    mesh = jax.make_mesh((2,), ("tokens",), axis_types=(jax.sharding.AxisType.Auto,))
    ring = functools.partial(attend, axis_name="tokens", **options_of(name, T // 2))
    refused(part, jax.shard_map(ring, mesh=mesh, **specs))
    with pytest.raises(ValueError, match=rf"{part}.*ring.*leave window out"):
        KVCache.create(1, 8, K, H, heads=N, encoding=ENCODINGS[name], window=3)
    long = [jax.ShapeDtypeStruct((1, 2**14, *x.shape[2:]), x.dtype) for x in arrays()]
    assert aj.explain(*long, **options_of(name, 2**14)).implementation == "dense"


def test_weights_that_no_softmax_made():
    """They are what the output is made of, sum to less than 1, and have neither a sink nor a log-sum-exp."""
    options, (q, k, v) = options_of("rope+stick"), arrays()
    weights, out = compiled(lambda *x: (attention_weights(*x, **options), attend(*x, **options)), q, k, v)
    np.testing.assert_allclose(out, np.einsum("bnts,bsnh->btnh", weights, np.repeat(v, N // K, axis=2)), atol=1e-6)
    assert weights.sum(-1).max() < 1
    with pytest.raises(NotImplementedError, match="not normalized.*log-sum-exp"):
        jax.eval_shape(lambda *x: aj.attend_with_lse(*x, **options), q, k, v)
    for function in (attend, attention_weights):
        with pytest.raises(ValueError, match="StickBreaking.*sink"):
            jax.eval_shape(functools.partial(function, sink=np.ones(N, np.float32), **options), q, k, v)


POSITIONS = {"zero": np.zeros(T, int), "abacus": np.array([0, 1, 2, 0, 1, 2]), "index": None}


def test_the_own_token_is_found_by_its_place():
    """It was found by its position, so that positions of digits, or of nothing, hid all keys or others.

    Of n keys with equal logits that a query sees, the weights are halves from the last to the first.
    """
    ids, x = np.array([0, 0, 0, 1, 1, 1]), np.zeros((1, T, N, H), np.float32)
    packed = Mask(causal=True, q_segments=ids, k_segments=ids)

    def run():
        of = lambda pos, mask: attention_weights(
            x, x[:, :, :K], encoding=StickBreaking(attend_current=False), q_pos=pos, k_pos=pos, mask=mask
        )
        return {name: (of(pos, CAUSAL)[0, 0, 4], of(pos, packed)[0, 0, 5]) for name, pos in POSITIONS.items()}

    for name, (causal, of_document) in compiled(run).items():
        np.testing.assert_allclose(causal, [1 / 16, 1 / 8, 1 / 4, 1 / 2, 0, 0], rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(of_document, [0, 0, 0, 1 / 4, 1 / 2, 0], rtol=1e-6, err_msg=name)
