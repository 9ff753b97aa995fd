"""Our encodings inside Flax and Equinox modules, and `attend` under every transformation of JAX."""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from tests.cases import FAST, slow_except

B, T, N, H = 4, 6, 4, 4
D = N * H
SIZES = aj.Sizes(model=D, heads=N, kv_heads=N, head_dim=H)
CAUSAL = aj.Mask(causal=True)

# Those that act inside attention at positions that are indices.
ENCODINGS = {
    **{
        name: make()
        for name, make in aj.ENCODINGS.items()
        if name not in ("sinusoidal", "learned") and aj.Trait.CONTEXT not in make().traits
    },
    "fire": aj.FIRE(hidden=3, threshold=3.0),
    "cope": aj.CoPE(max_position=3),
    "dynamic_ntk": aj.RoPE(scaling=aj.DynamicNTK(4.0, original_length=3)),
    "rope_t5": aj.compose(aj.RoPE(), aj.T5Bias(buckets=4, max_distance=5)),
}

# Compiling is nearly all that these tests do, and optimising such small programs does not pay.
jit = functools.partial(jax.jit, compiler_options=FAST)


def learned(encoding: aj.PositionEncoding) -> aj.EncodingParams | None:
    """Parameters away from their initial value, which is often zero."""
    draw = np.random.default_rng(1)
    move = lambda x: x + jnp.asarray(0.5 * draw.normal(size=x.shape), x.dtype)
    return jax.tree.map(move, encoding.init(jax.random.key(0), SIZES)) if aj.learns(encoding) else None


@pytest.fixture(scope="module")
def x() -> jax.Array:
    return jax.random.normal(jax.random.key(2), (B, T, D))


@pytest.fixture(scope="module")
def qkv() -> tuple[jax.Array, ...]:
    return tuple(jax.random.normal(key, (B, T, N, H)) for key in jax.random.split(jax.random.key(3), 3))


def project(x, weights):
    """The projections of both Flaxes: one kernel [D, N, H] and bias [N, H] each for query, key and value."""
    return tuple(
        jnp.einsum("btd,dnh->btnh", x, weights[name]["kernel"]) + weights[name]["bias"][None, None] for name in "qkv"
    )


def join(heads, weights):
    return jnp.einsum("btnh,nhd->btd", heads, weights["out"]["kernel"]) + weights["out"]["bias"][None, None]


def linen_layer(x, fn, **options):
    """(apply(x, ...), weights of the same layer) of a Linen layer."""
    layer = nn.MultiHeadDotProductAttention(N, attention_fn=fn, bias_init=nn.initializers.normal(), **options)
    params = layer.init(jax.random.key(0), x, deterministic=True)["params"]
    weights = {"q": params["query"], "k": params["key"], "v": params["value"], "out": params["out"]}
    return functools.partial(layer.apply, {"params": params}), weights


def nnx_layer(fn, **options):
    """(apply(x, ...), weights of the same layer) of an NNX layer."""
    bias = nnx.initializers.normal()
    layer = nnx.MultiHeadAttention(N, D, attention_fn=fn, bias_init=bias, decode=False, rngs=nnx.Rngs(0), **options)
    read = lambda linear: {"kernel": linear.kernel[...], "bias": linear.bias[...]}
    return layer, {"q": read(layer.query), "k": read(layer.key), "v": read(layer.value), "out": read(layer.out)}


@pytest.mark.quick("alibi")
@pytest.mark.parametrize("name", slow_except(ENCODINGS, "rope", "xpos", "alibi", "t5", "dynamic_ntk"))
def test_flax_with_its_own_mask_equals_attend(name, x):
    encoding = ENCODINGS[name]
    params, valid = learned(encoding), np.arange(T) < np.array([[T], [T - 1], [2], [T]])
    fn = aj.attention_fn(encoding, params, mask=CAUSAL)
    linen, linen_weights = linen_layer(x, fn)
    in_nnx, nnx_weights = nnx_layer(fn)

    @jit
    def all_three(x):
        mask = nn.make_attention_mask(np.ones((B, T), bool), valid)
        attend = functools.partial(aj.attend, encoding=encoding, params=params)
        allowed = aj.Mask(causal=True, allowed=jnp.broadcast_to(valid[:, None], (B, T, T)))
        expected = [join(attend(*project(x, w), mask=allowed), w) for w in (linen_weights, nnx_weights)]
        return (linen(x, mask=mask), in_nnx(x, mask=mask)), expected

    for got, expected in zip(*all_three(x), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_dropout_of_flax(x):
    fn = aj.attention_fn(aj.ALiBi(), mask=CAUSAL)
    key = jax.random.key(7)
    linen, linen_weights = linen_layer(x, fn, dropout_rate=0.5)
    in_nnx, nnx_weights = nnx_layer(fn, dropout_rate=0.5)

    @jit
    def all_three(x):
        attend = functools.partial(aj.attend, encoding=aj.ALiBi(), mask=CAUSAL)
        first = nnx.Rngs(dropout=key).dropout()
        pairs = ((linen_weights, key), (nnx_weights, first))
        dropped = [join(attend(*project(x, w), dropout=aj.Dropout(key, 0.5)), w) for w, key in pairs]
        kept = [join(attend(*project(x, w)), w) for w, _ in pairs]
        got = [
            linen(x, deterministic=False, dropout_rng=key),
            in_nnx(x, rngs=nnx.Rngs(dropout=key), deterministic=False),
        ]
        return dropped, kept, got, [linen(x, deterministic=True), in_nnx(x, deterministic=True)]

    dropped, kept, got, without = all_three(x)
    for a, b, c, d in zip(dropped, kept, got, without, strict=True):
        np.testing.assert_allclose(c, a, atol=2e-6)
        np.testing.assert_allclose(d, b, atol=2e-6)
        assert np.abs(c - d).max() > 0.01


def test_positions_and_grouped_keys_through_flax(x):
    pos = np.arange(T) * 3
    layer, weights = nnx_layer(aj.attention_fn(aj.RoPE(), q_pos=pos, k_pos=pos), num_kv_heads=2)
    assert weights["k"]["kernel"].shape == (D, 2, H)

    @jit
    def both(x):
        out = aj.attend(*project(x, weights), encoding=aj.RoPE(), q_pos=pos, k_pos=pos, mask=CAUSAL)
        return layer(x, is_causal=True), join(out, weights)

    np.testing.assert_allclose(*both(x), atol=2e-6)


@pytest.mark.parametrize("lead", [(), (2, 2)], ids=["no batch axis", "two batch axes"])
def test_any_number_of_batch_axes(lead, qkv):
    q, k, v = (a[: int(np.prod(lead))].reshape(*lead, T, N, H) for a in qkv)
    mask = np.random.default_rng(0).random((*lead, 1, T, T)) < 0.7
    out = jit(aj.attention_fn(aj.RoPE()))(q, k, v, mask=mask)
    flat = (a.reshape(-1, T, N, H) for a in (q, k, v))
    expected = jit(functools.partial(aj.attend, encoding=aj.RoPE()))(
        *flat, mask=aj.Mask(allowed=mask.reshape(-1, T, T))
    )
    np.testing.assert_allclose(out, expected.reshape(q.shape), atol=2e-6)


@pytest.mark.quick("bool-shape0", "float32-shape3")
@pytest.mark.parametrize("shape", [(1, 1, T, T), (B, 1, 1, T), (1, T, T), (B, 1, T, T)])
@pytest.mark.parametrize("kind", [bool, np.float32])
def test_masks_that_broadcast(shape, kind, qkv):
    mask = np.random.default_rng(0).random(shape) < 0.7
    both = aj.Mask(causal=True, allowed=np.tri(T, k=-1) == 0)
    out = jit(aj.attention_fn(aj.RoPE(), mask=both))(*qkv, mask=mask.astype(kind))
    allowed = np.broadcast_to(mask.reshape((1,) * (4 - mask.ndim) + shape), (B, 1, T, T))[:, 0] & both.allowed
    attend = jit(functools.partial(aj.attend, encoding=aj.RoPE()))
    np.testing.assert_allclose(out, attend(*qkv, mask=aj.Mask(causal=True, allowed=allowed)), atol=2e-6)


def test_positions_that_flax_passes_on(qkv):
    pos, fn = jnp.tile(jnp.arange(T) * 2, (B, 1)), aj.attention_fn(aj.RoPE())
    attend = jit(functools.partial(aj.attend, encoding=aj.RoPE()))
    q, k, v = qkv
    np.testing.assert_allclose(jit(fn)(*qkv, input_positions=pos), attend(*qkv, q_pos=pos, k_pos=pos), atol=2e-6)
    # A step of decoding: one query, at the place it says, among all the keys.
    out = jit(fn)(q[:, 3:4], k, v, input_positions=jnp.full((B, 1), 3), mask=np.arange(T) <= np.full((1, 1, 1, 1), 3))
    np.testing.assert_allclose(out, attend(*qkv, mask=CAUSAL)[:, 3:4], atol=2e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(bias=np.zeros((B, N, T, T))), "takes no bias array: the encoding is the bias"),
        (dict(module=object()), "cannot sow weights: call attnjax.attention_weights"),
        (dict(mask=np.ones((B, N, T, T), bool)), r"the same for all heads, here \(4, 1, 6, 6\); got \(4, 4, 6, 6\)"),
        (dict(mask=np.ones((B, 1, T, T + 1), bool)), r"here \(4, 1, 6, 6\); got \(4, 1, 6, 7\)"),
        (dict(dropout_rate=0.5), "needs dropout_rng for dropout_rate=0.5, got None"),
        (dict(dropout_rate=1.0, dropout_rng=jax.random.key(0)), r"rate must be in \[0, 1\), got 1.0"),
        (dict(dropout_rate=0.5, dropout_rng=jnp.zeros(2, jnp.uint32)), "must be a typed PRNG key.*got dtype uint32"),
        (dict(softcap=50.0), "attention_fn does not know the option 'softcap'"),
        (dict(input_positions=np.arange(T)), "q_pos or k_pos, and input_positions from Flax: pass either"),
    ],
)
def test_attention_fn_refuses(options, message, qkv):
    with pytest.raises(ValueError, match=message):
        aj.attention_fn(aj.RoPE(), q_pos=np.arange(T))(*qkv, **options)


def test_a_causal_encoding_needs_the_structured_mask(qkv):
    with pytest.raises(ValueError, match=r"needs a causal mask; pass Mask\(causal=True\)"):
        aj.attention_fn(aj.ALiBi())(*qkv, mask=nn.make_causal_mask(np.ones((B, T))))


def test_embeddings_have_no_place_inside_attention(qkv):
    with pytest.raises(
        ValueError, match=r"Sinusoidal.* acts on the embeddings alone: add it to the input of the model"
    ):
        aj.attention_fn(aj.Sinusoidal())(*qkv)


@pytest.mark.parametrize(
    "fn", [aj.attention_fn(aj.RoPE()), aj.attention_fn(aj.NoPE(), mask=CAUSAL)], ids=["pos", "mask"]
)
def test_decoding_inside_flax_does_not_take_every_token_for_the_first(fn, x):
    layer, _ = nnx_layer(fn)
    layer.init_cache(x.shape)
    with pytest.raises(ValueError, match=r"one query, several keys and a mask, as from decode=True of Flax.*KVCache"):
        layer(x[:, :1], decode=True)


@pytest.mark.slow
def test_decoding_inside_flax_where_position_does_not_matter(x):
    layer, weights = nnx_layer(aj.attention_fn(aj.NoPE()))
    layer.init_cache(x.shape)
    out = jnp.concatenate([layer(x[:, t : t + 1], decode=True) for t in range(3)], axis=1)
    expected = join(aj.attend(*project(x[:, :3], weights), mask=CAUSAL), weights)
    np.testing.assert_allclose(out, expected, atol=2e-6)


def test_learned_parameters_inside_a_linen_module_get_a_gradient(x):
    encoding = aj.T5Bias(buckets=4, max_distance=5)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            params = self.param("encoding", encoding.init, SIZES)
            return nn.MultiHeadDotProductAttention(N, attention_fn=aj.attention_fn(encoding, params))(x)

    layer = Layer()
    params = jit(layer.init)(jax.random.key(0), x)
    gradient = jit(jax.grad(lambda params: jnp.sum(layer.apply(params, x) ** 2)))(params)
    assert np.abs(gradient["params"]["encoding"].head["table"]).max() > 1e-4


# Equinox -------------------------------------------------------------------------------------------------------------


@pytest.mark.quick("index-composed")
@pytest.mark.parametrize("name", ["nope", "rope", "xpos", "dynamic_ntk", "composed"])
@pytest.mark.parametrize("q_pos", [None, np.arange(T) * 3], ids=["index", "given"])
def test_equinox_equals_attend(name, q_pos, x):
    encoding = ENCODINGS.get(name, aj.compose(aj.RoPE(fraction=0.5), aj.XPos()))
    layer = eqx.nn.MultiheadAttention(N, D, key=jax.random.key(0))
    process = aj.process_heads(encoding, q_pos=q_pos, k_pos=q_pos)

    @jit
    def both(x):
        q, k, v = (jnp.einsum("btd,ed->bte", x, p.weight).reshape(B, T, N, H) for p in projections)
        heads = aj.attend(q, k, v, encoding=encoding, mask=CAUSAL, q_pos=q_pos, k_pos=q_pos).reshape(B, T, D)
        one = lambda x: layer(x, x, x, mask=np.tri(T, dtype=bool), process_heads=process)
        return jax.vmap(one)(x), jnp.einsum("bte,de->btd", heads, layer.output_proj.weight)

    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    np.testing.assert_allclose(*both(x), atol=2e-6)


@pytest.mark.parametrize("encoding", [aj.ALiBi(), aj.CoPE(), aj.compose(aj.RoPE(), aj.T5Bias())], ids=repr)
def test_equinox_cannot_change_scores(encoding):
    with pytest.raises(ValueError, match=r"can only map queries and keys; .* acts on scores: use attend"):
        aj.process_heads(encoding)


@pytest.mark.parametrize("encoding", [aj.Sinusoidal(), aj.Learned(8)], ids=repr)
def test_equinox_cannot_add_embeddings_to_heads(encoding):
    with pytest.raises(ValueError, match="acts on the embeddings alone: add it to the input of the model with attnjax"):
        aj.process_heads(encoding)


@pytest.mark.slow
def test_equinox_keeps_the_width_of_heads(x):
    layer = eqx.nn.MultiheadAttention(N, D, key=jax.random.key(0))
    process = aj.process_heads(aj.PoPE(), learned(aj.PoPE()))
    with pytest.raises(
        ValueError, match=r"keep the width of heads, PoPE\(theta=10000.0\) makes 4 channels 8: use attend"
    ):
        layer(x[0], x[0], x[0], process_heads=process)


def test_process_heads_checks_as_attend_does(qkv):
    q = qkv[0][0]
    with pytest.raises(ValueError, match="the head dimension must be even, got 3"):
        aj.process_heads(aj.RoPE())(q[..., :3], q[..., :3], q)
    with pytest.raises(ValueError, match=r"q_pos must have shape \(6,\)"):
        aj.process_heads(aj.RoPE(), q_pos=np.arange(5))(q, q, q)
    with pytest.raises(ValueError, match=r"XPos.*got positions 0..99999"):
        aj.process_heads(aj.XPos(), k_pos=np.array([0, 1, 2, 3, 4, 99_999]))(q, q, q)
    with pytest.raises(ValueError, match=r"PoPE.*learns parameters"):
        aj.process_heads(aj.PoPE())(q, q, q)
    with pytest.raises(ValueError, match=r"depends on the length needs positions \[S\]"):
        aj.process_heads(aj.compose(ENCODINGS["dynamic_ntk"], aj.AxialRoPE(axes=2)))(q, q, q)


# Plain JAX -----------------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("implementation", ["dense", "chunked"])
SOME = pytest.mark.parametrize("name", slow_except(["rope", "t5", "cope"], "t5", "cope"))


def function(name, implementation):
    """attend(params, q, k, v) of one encoding."""
    fixed = functools.partial(aj.attend, encoding=ENCODINGS[name], mask=CAUSAL, implementation=implementation)
    return lambda params, q, k, v: fixed(q, k, v, params=params)


@pytest.mark.quick("dense-cope", "chunked-t5")
@SOME
@BOTH
def test_vmap_over_models_equals_one_at_a_time(name, implementation, qkv):
    attend, params = function(name, implementation), learned(ENCODINGS[name])
    models = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    stacked = [jnp.stack([a, a[::-1]]) for a in qkv]
    together = jit(jax.vmap(attend))(models, *stacked)
    alone = jit(attend)
    for i in range(2):
        params, *arrays = jax.tree.map(lambda leaf, i=i: leaf[i], (models, *stacked))
        np.testing.assert_allclose(together[i], alone(params, *arrays), atol=2e-6)


@pytest.mark.quick("dense-cope")
@SOME
@BOTH
def test_remat_does_not_change_gradients(name, implementation, qkv):
    attend, params = function(name, implementation), learned(ENCODINGS[name])
    loss = lambda f: jit(jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), argnums=(0, 1, 2, 3)))
    plain, again = (loss(f)(params, *qkv) for f in (attend, jax.checkpoint(attend)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), again, plain)
    assert all(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(plain))


@pytest.mark.quick("dense-cope")
@SOME
@BOTH
def test_scan_over_layers_equals_a_loop(name, implementation, qkv):
    attend, params = function(name, implementation), learned(ENCODINGS[name])
    layers = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf, 2 * leaf]), params)
    body = lambda q, params: (attend(params, q, *qkv[1:]), None)
    scanned, _ = jit(lambda q: jax.lax.scan(body, q, layers, length=3))(qkv[0])
    looped, one = qkv[0], jit(lambda q, params: body(q, params)[0])
    for i in range(3):
        looped = one(looped, jax.tree.map(lambda leaf, i=i: leaf[i], layers))
    np.testing.assert_allclose(scanned, looped, atol=2e-6)


@pytest.mark.quick("heads-dense-cope")
@SOME
@BOTH
@pytest.mark.parametrize("axis", ["batch", "heads"])
def test_shard_map(name, implementation, axis, qkv):
    attend, params = function(name, implementation), learned(ENCODINGS[name])
    mesh = jax.make_mesh((4,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec
    of_arrays = P("devices") if axis == "batch" else P(None, None, "devices")
    # Leaves of `head` lead with the heads; those of `shared` are needed everywhere.
    head, shared = (P() if axis == "batch" else P("devices")), P()
    of_params = params and aj.EncodingParams(
        head=jax.tree.map(lambda _: head, params.head), shared=jax.tree.map(lambda _: shared, params.shared)
    )
    sharded = jax.shard_map(attend, mesh=mesh, in_specs=(of_params, *(of_arrays,) * 3), out_specs=of_arrays)

    def value_and_gradients(f):
        return jit(jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(f(*args))), argnums=(0, 1, 2, 3)))(params, *qkv)

    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), *map(value_and_gradients, (sharded, attend)))


@pytest.mark.slow
@SOME
def test_forward_mode_in_dense(name, qkv, x64):
    attend = function(name, "dense")
    params, *arrays = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (learned(ENCODINGS[name]), *qkv))
    args = (params, *arrays)
    along = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), args)
    value, slope = jit(lambda args, along: jax.jvp(attend, args, along))(args, along)
    step = 1e-6
    moved = [jax.tree.map(lambda a, b, s=s: a + s * b, args, along) for s in (step, -step)]
    run = jit(attend)
    np.testing.assert_allclose(value, run(*args), atol=1e-12)
    np.testing.assert_allclose(slope, (run(*moved[0]) - run(*moved[1])) / (2 * step), atol=1e-7)


@pytest.mark.slow
def test_forward_mode_in_chunked_fails_clearly(qkv):
    attend = function("rope", "chunked")
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(attend, (None, *qkv), (None, *qkv))


@pytest.mark.quick("t5")
@SOME
def test_double_precision_in_both_implementations(name, qkv, x64):
    double = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float64), tree)
    params, arrays = double(learned(ENCODINGS[name])), double(qkv)
    dense, tiled = (jit(function(name, i))(params, *arrays) for i in ("dense", "chunked"))
    assert dense.dtype == tiled.dtype == jnp.float64
    np.testing.assert_allclose(tiled, dense, atol=1e-12)
    single = jit(function(name, "dense"))(*jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, *arrays)))
    np.testing.assert_allclose(single, dense, atol=1e-5)
