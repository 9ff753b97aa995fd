"""Multi-head attention: in NumPy, in Flax, as its authors computed it, and its arguments one by one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from attnjax.attention import Mask
from attnjax.modules import AttentionOptions, MultiHeadAttention
from attnjax.positions import ALiBi, FoX, LogN, MRoPE, PaTH, RoPE, SelectiveRoPE, T5Bias, compose
from attnjax.positions.indices import zigzag
from tests.golden_arrays import load
from tests.modules.by_hand import attend_by_hand, attention, build, call, draw

X, CAUSAL = draw(2, 6, 16), Mask(causal=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False, "kv_heads": 2, "scale": 1.0},
        {"head_dim": 6, "attention_sink": True, "attention_output_bias": False},
        {"qk_norm": True, "qk_norm_epsilon": 0.25, "attention_gate": "head"},
        {"attention_gate": "channel", "kv_heads": 1},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_outputs_and_weights_are_those_in_numpy(options):
    module, gate = attention(**options), np.float32([[1, 0, 1, 0.3], [0.5, 1, 2, 0]])
    run = lambda module, x: (module(x, mask=CAUSAL, gate=gate), module.weights(x, mask=CAUSAL))
    expected = attend_by_hand(module, X, np.tri(6, dtype=bool), gate[:, None, :, None])
    for found, right in zip(jax.jit(run)(module, X), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_equals_flax():
    theirs = build(nnx.MultiHeadAttention, 4, 16, decode=False, keep_rngs=False)
    ours, memory = attention(), draw(2, 5, 16, seed=1)
    for name, layer in (("q", theirs.query), ("k", theirs.key), ("v", theirs.value), ("o", theirs.out)):
        getattr(ours, f"w_{name}")[...] = layer.kernel[...]
        getattr(ours, f"b_{name}")[...] = layer.bias[...]
    expected = call(theirs, X, mask=np.tri(6, dtype=bool)[None, None])
    np.testing.assert_allclose(call(ours, X, mask=CAUSAL), expected, atol=1e-5)
    expected, projected = call(theirs, X, memory), call(ours.keys_values, memory)
    np.testing.assert_allclose(call(ours, X, memory), expected, atol=1e-5)
    np.testing.assert_allclose(call(ours, X, projected), expected, atol=1e-5)


@pytest.mark.parametrize(("case", "gate"), [("headwise", "head"), ("elementwise", "channel")])
def test_a_gated_layer_of_the_authors(case, gate, x64):
    """One matrix of theirs holds the queries and then the gates of the query heads of each key head."""
    golden, (D, N, K, H) = load("frontier_gated"), (16, 4, 2, 8)
    options = AttentionOptions(kv_heads=K, head_dim=H, bias=False, attention_gate=gate, param_dtype="float64")
    module = build(MultiHeadAttention, D, N, encoding=RoPE(), options=options)
    queries, gates = np.split(golden[f"{case}_q_proj.weight"].reshape(K, -1, D), [N // K * H], axis=1)
    gates = gates.reshape(N, D).T if gate == "head" else gates.reshape(N, H, D).transpose(2, 0, 1)
    rows = lambda w, heads: w.reshape(heads, H, D).transpose(2, 0, 1)
    module.w_q[...], module.w_g[...] = (jnp.asarray(w, jnp.float64) for w in (rows(queries, N), gates))
    for name in "kv":
        getattr(module, f"w_{name}")[...] = jnp.asarray(rows(golden[f"{name}_proj.weight"], K), jnp.float64)
    module.w_o[...] = jnp.asarray(golden["o_proj.weight"].reshape(D, N, H).transpose(1, 2, 0), jnp.float64)
    x, w = (golden[name].astype(np.float64) for name in "xw")

    def loss(x):
        out = module(x, mask=CAUSAL)
        return (w * out).sum(), out

    gradient, out = jax.jit(jax.grad(loss, has_aux=True))(x)
    np.testing.assert_allclose(out, golden[f"{case}_out"], atol=1e-12)
    np.testing.assert_allclose(gradient, golden[f"{case}_grad_x"], atol=1e-11)


def test_positions_reach_queries_and_keys():
    module, pos = attention(encoding=RoPE()), np.arange(6)
    plain = call(module, X)
    np.testing.assert_allclose(call(module, X, q_pos=pos + 100), plain, atol=1e-5)
    assert not np.allclose(call(module, X, q_pos=pos * 2), plain, atol=1e-3)
    np.testing.assert_allclose(call(module, X, X, q_pos=pos + 7, k_pos=pos + 7), plain, atol=1e-5)
    assert not np.allclose(call(module, X, X, q_pos=pos + 7, k_pos=pos), plain, atol=1e-3)


def test_parameters_of_an_encoding_can_be_passed():
    own, shared = (attention(encoding=T5Bias(), shares_encoding=share) for share in (False, True))
    for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"):
        getattr(shared, name)[...] = getattr(own, name)[...]
    table = {"table": draw(4, 32, seed=3)}
    expected = call(own, X, mask=CAUSAL, params=table)
    np.testing.assert_allclose(call(shared, X, mask=CAUSAL, params=table), expected, atol=1e-6)
    assert not np.allclose(call(own, X, mask=CAUSAL), expected, atol=1e-3)
    with pytest.raises(ValueError, match=r"T5Bias.*learns parameters"):
        shared(X, mask=CAUSAL)


ROWS = np.random.default_rng(1).integers(0, 20, (2, 6, 3)).cumsum(1)
SEGMENTS = np.array([[0, 0, 0, 1, 1, 1], [4, 4, 4, 4, 4, 9]])
DOCUMENTS = Mask(causal=True, q_segments=SEGMENTS, k_segments=SEGMENTS)


@pytest.mark.parametrize(
    ("encoding", "pos", "mask"),
    [
        pytest.param(compose(SelectiveRoPE(rank=2), LogN(4)), None, DOCUMENTS, id="documents by content"),
        pytest.param(compose(MRoPE(), ALiBi()), ROWS[..., 0], CAUSAL, id="one number for all coordinates"),
        pytest.param(PaTH(rank=2, forget=True), None, CAUSAL, id="path", marks=pytest.mark.slow),
        pytest.param(MRoPE(), ROWS, CAUSAL, id="coordinates", marks=pytest.mark.slow),
    ],
)
def test_a_subset_of_queries_has_the_rows_of_all(encoding, pos, mask):
    module, some = attention(encoding=encoding, attention_gate="head"), np.array([[1, 2, 5], [5, 0, 3]])
    run = lambda module, **options: module(X, mask=mask, q_pos=pos, **options)
    every, found = jax.jit(lambda module: (run(module), run(module, query_indices=some)))(module)
    np.testing.assert_allclose(found, np.take_along_axis(np.asarray(every), some[:, :, None], 1), atol=1e-5)


@pytest.mark.parametrize(
    "encoding", [pytest.param(RoPE(), id="rope", marks=pytest.mark.slow), pytest.param(FoX(), id="fox")]
)
def test_tokens_that_are_spread_over_devices(encoding):
    """`query_indices` count the tokens of a device; masks, positions and sums of FoX count those of all devices."""
    module, x, some = attention(encoding=encoding), draw(1, 8, 16), np.array([[3], [1]])
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("sequence",))
    spread = lambda run, *specs: jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P(None, "sequence")))
    own = lambda x, some: module(x, mask=CAUSAL, query_indices=some, axis_name="sequence")
    found = spread(own, P(None, "sequence"), P("sequence"))(x, some)
    np.testing.assert_allclose(found, np.asarray(call(module, x, mask=CAUSAL))[:, [3, 4 + 1]], atol=2e-6)
    if encoding == FoX():
        at = lambda index: dataclasses.replace(CAUSAL, q_index=index, k_index=index)
        turned = lambda x, index: module(x, mask=at(index), axis_name="sequence")
        with pytest.raises(ValueError, match="FoX.*order of the devices.*q_index"):
            spread(turned, P(None, "sequence"), P("sequence"))(x, jnp.asarray(zigzag(8, 2)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda a, x: a(x[0]), r"x must be floats \[B, T, 16\], got float32\[6, 16\]"),
        (lambda a, x: a(x.astype(np.int32)), r"x must be floats \[B, T, 16\], got int32\[2, 6, 16\]"),
        (lambda a, x: a(x, x[..., :3]), r"memory must be floats \[B, T, 16\], got float32\[2, 6, 3\]"),
        (lambda a, x: a(x, gate=jnp.ones(3)), r"gate .*\(4,\) or \(2, 4\), got \(3,\)"),
        (lambda a, x: a(x, q_pos=np.arange(4)), r"q_pos .*\(6,\).*got .*4"),
        (lambda a, x: attention(encoding=FoX())(x, x), "FoX.* self-attention"),
        (lambda a, x: attention(encoding=FoX())(x, mask=CAUSAL, q_pos=[0, 1, 2]), "pos list"),
        (lambda a, x: attention(heads=3), "MultiHeadAttention.model=16 .*heads=3.*head_dim"),
    ],
)
def test_mistakes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: wrong(attention(), X))
