"""Our encodings inside modules of Flax and Equinox."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax import Dropout, Mask, PoPE, RoPE, Sizes, T5Bias, attend
from tests.attention.matrix import ENCODINGS, compiled, learned
from tests.cases import slow_except

B, T, N, K, H = 2, 7, 4, 2, 4
CAUSAL = Mask(causal=True)
X = np.random.default_rng(2).normal(size=(B, T, N * H)).astype(np.float32)


def joined(x, weights, **options):
    """`attend` between the projections of a layer of Flax, [D, N, H] with biases [N, H]."""
    project = lambda name: jnp.einsum("btd,dnh->btnh", x, weights[name]["kernel"]) + weights[name]["bias"][None, None]
    out = attend(*map(project, ("query", "key", "value")), **options)
    return jnp.einsum("btnh,nhd->btd", out, weights["out"]["kernel"]) + weights["out"]["bias"][None, None]


INSIDE = ("nope", "rope", "rope-dynamic", "xpos", "alibi", "t5", "transformer_xl", "cope", "dape", "rope+t5")


@pytest.mark.parametrize("name", slow_except(INSIDE, "rope+t5"))
def test_layers_of_flax_equal_attend(name):
    """Linen with its dropout, and NNX with grouped keys without, under a mask of Flax and with learned parameters."""
    encoding, key, valid = ENCODINGS[name], jax.random.key(7), np.arange(T) < np.array([[T], [2]])
    layer = {"bias_init": nnx.initializers.normal(), "dropout_rate": 0.5}
    options = {"encoding": encoding, "mask": Mask(True, allowed=np.broadcast_to(valid[:, None], (B, T, T)))}

    def both(x, own, shared):
        fns = [aj.attention_fn(encoding, params, mask=CAUSAL) for params in (own, shared)]
        linen = nn.MultiHeadDotProductAttention(N, attention_fn=fns[0], **layer)
        params = linen.init(jax.random.key(0), x, deterministic=True)["params"]
        grouped = {"num_kv_heads": K, "decode": False, "rngs": nnx.Rngs(0)}
        in_nnx = nnx.MultiHeadAttention(N, N * H, attention_fn=fns[1], **grouped, **layer)
        of = {name: getattr(in_nnx, name) for name in ("query", "key", "value", "out")}
        of = {name: {"kernel": linear.kernel[...], "bias": linear.bias[...]} for name, linear in of.items()}
        mask = nn.make_attention_mask(np.ones((B, T), bool), valid)
        in_linen = linen.apply({"params": params}, x, mask=mask, dropout_rng=key, deterministic=False)
        expected = joined(x, params, params=own, dropout=Dropout(key, 0.5), **options)
        return (in_linen, expected), (in_nnx(x, mask=mask, deterministic=True), joined(x, of, params=shared, **options))

    params = [learned(encoding, Sizes(N * H, N, heads, H), np.random.default_rng(1)) for heads in (N, K)]
    for got, expected in compiled(both, X, *params):
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_what_flax_passes_on():
    """Any batch axes, masks that broadcast, beside one of ours too, positions, and a step of decoding whose place is said."""
    q = np.random.default_rng(0).normal(size=(2, 2, T, N, H)).astype(np.float32)
    flat, allowed = q.reshape(4, T, N, H), np.random.default_rng(0).random((1, 1, 1, T, T)) < 0.7
    pos, fn, own = np.arange(T) * 2, aj.attention_fn(RoPE()), np.random.default_rng(1).random((T, T)) < 0.7
    ours = aj.attention_fn(RoPE(), mask=Mask(allowed=own))

    def run(q, flat):
        square = lambda **options: attend(flat, flat, flat, encoding=RoPE(), **options)
        step = fn(flat[:, 3:4], flat, flat, input_positions=np.full((4, 1), 3), mask=np.arange(T)[None] <= 3)
        of_mask = square(mask=Mask(allowed=allowed[0, 0, 0])).reshape(q.shape)
        return [
            (fn(q, q, q, mask=allowed.astype(np.float32)), of_mask),
            (fn(flat, flat, flat, input_positions=pos, is_causal=True), square(q_pos=pos, k_pos=pos, mask=CAUSAL)),
            (ours(flat, flat, flat, mask=allowed[0]), square(mask=Mask(allowed=own & allowed[0, 0, 0]))),
            (step, square(mask=CAUSAL)[:, 3:4]),
        ]

    for got, expected in compiled(run, q, flat):
        np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": np.zeros((B, N, T, T))}, "bias"),
        ({"module": object()}, "attention_weights"),
        ({"mask": np.ones((B, N, T, T), bool)}, r"\(2, 1, 7, 7\); got \(2, 4, 7, 7\)"),
        ({"dropout_rate": 0.5}, "dropout_rng.*0.5"),
        ({"softcap": 50.0}, "'softcap'"),
        ({"input_positions": np.arange(T)}, "q_pos or k_pos, and input_positions"),
    ],
)
def test_attention_fn_refuses(options, message):
    q = np.zeros((B, T, N, H), np.float32)
    with pytest.raises(ValueError, match=message):
        aj.attention_fn(RoPE(), q_pos=np.arange(T))(q, q, q, **options)


@pytest.mark.parametrize("fn", [aj.attention_fn(RoPE()), aj.attention_fn(aj.NoPE(), mask=CAUSAL)], ids=["pos", "mask"])
def test_decoding_inside_flax_does_not_take_every_token_for_the_first(fn):
    layer = nnx.MultiHeadAttention(N, N * H, attention_fn=fn, decode=False, rngs=nnx.Rngs(0))
    layer.init_cache(X.shape)
    with pytest.raises(ValueError, match="one query, several keys.*KVCache"):
        layer(X[:, :1], decode=True)


def test_equinox_with_our_maps():
    layer = eqx.nn.MultiheadAttention(N, N * H, key=jax.random.key(0))
    pos, encoding = np.arange(T) * 3, aj.compose(RoPE(fraction=0.5), aj.XPos())

    def both(x):
        q, k, v = (jnp.einsum("btd,ed->bte", x, p.weight).reshape(B, T, N, H) for p in projections)
        heads = attend(q, k, v, encoding=encoding, mask=CAUSAL, q_pos=pos, k_pos=pos).reshape(B, T, N * H)
        process = aj.process_heads(encoding, q_pos=pos, k_pos=pos)
        one = lambda x: layer(x, x, x, mask=np.tri(T, dtype=bool), process_heads=process)
        return jax.vmap(one)(x), jnp.einsum("bte,de->btd", heads, layer.output_proj.weight)

    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    np.testing.assert_allclose(*compiled(both, X), atol=2e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda q: aj.process_heads(aj.compose(RoPE(), T5Bias())), "scores.*attend"),
        (lambda q: aj.process_heads(aj.Sinusoidal()), "Sinusoidal.*attnjax.embed"),
        (lambda q: aj.process_heads(PoPE())(q, q, q), "PoPE.*learns parameters"),
        (lambda q: aj.process_heads(PoPE(), {"delta": np.zeros((N, H))})(q, q, q), "PoPE.*4 channels 8"),
        (lambda q: aj.process_heads(RoPE(), q_pos=np.arange(5))(q, q, q), r"q_pos .*\(7,\).*\(5,\)"),
    ],
)
def test_process_heads_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(make, np.zeros((T, N, H), np.float32))
