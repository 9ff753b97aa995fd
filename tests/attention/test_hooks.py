"""Encodings of others: what hooks get and may return, which parameters reach which head, and what is refused, in every
implementation and while tracing.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import ALiBi, KVCache, Mask, PositionEncoding, RoPE, Sizes, T5Bias, Tiling, attend, compose
from tests.attention.matrix import compiled

B, T, N, K, H = 2, 6, 4, 2, 8
SIZES, CAUSAL = Sizes(N * H, N, K, H), Mask(causal=True)
WAYS = {"dense": "dense", "tiles": Tiling(4, 3)}
IMPLEMENTATIONS = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def drawn(dtype="float32"):
    random = np.random.default_rng(0)
    return tuple(random.normal(size=(B, T, heads, H)).astype(dtype) for heads in (N, K, K))


def toy(*, whole_table=False, width=None, **hooks):
    """An encoding whose hooks are functions of the array that they get, of the logits in `score`."""
    of = lambda f: lambda self, p, x, *rest: f(getattr(x, "logits", x))
    body = {name: of(f) for name, f in hooks.items()} | {"whole_table": whole_table}
    body["features"] = lambda self, sizes: () if width is None else (width,)
    return dataclasses.dataclass(frozen=True)(type("Toy", (PositionEncoding,), body))()


def refused(message, call, *arrays):
    """The call is refused while tracing, by one sentence."""
    with pytest.raises(ValueError, match=message) as told:
        jax.eval_shape(call, *arrays)
    assert "\n" not in str(told.value).partition("\n----")[0]


WRONG = [
    # Maps of q [T,H] and k [S,H] of one head.
    (toy(map_q=lambda q: q[:3]), r"map_q .*\[6, any\], got \[3, 8\]"),
    (toy(map_q=lambda q: None), r"map_q .*\[6, any\], got NoneType"),
    (toy(map_k=lambda k: k.astype(int)), "map_k .*floating.*int32"),
    (toy(map_q=lambda q: q[:, :4]), "map_q and map_k .*4 and 8"),
    # Biases like the distances, which are a vector where positions are consecutive.
    (toy(bias=lambda n: jnp.zeros(())), r"bias .*\[\d+(, \d+)?\], got \[\]"),
    (toy(bias=lambda n: n.astype(int)), "bias .*floating.*int32"),
    # Logits [t,s] of a tile of one head, or [N,t,s] of all.
    (toy(score=lambda x: x.T[:, :2]), r"score .*\[\d, \d\], got \[\d, 2\]"),
    (toy(score=lambda x: x > 0), "score .*floating.*bool"),
    (compose(RoPE(), toy(score=lambda x: x[0])), r"^Toy\(\): the hook score"),
    (toy(score=lambda x: x.sum(0), whole_table=True), r"score .*\[4, 6, 6\], got \[6, 6\]"),
]


@IMPLEMENTATIONS
@pytest.mark.parametrize(("encoding", "message"), WRONG, ids=[message[-24:] for _, message in WRONG])
def test_what_hooks_may_not_return(encoding, message, way):
    way = "dense" if getattr(encoding, "whole_table", False) else way
    refused(message, lambda *x: attend(*x, encoding=encoding, implementation=way), *drawn())


@IMPLEMENTATIONS
def test_what_hooks_may_return(way):
    """Any number of channels, as long as queries and keys agree, and any floating type; they get float32 and float64."""
    seen, half = [], lambda x: seen.append(x.dtype.name) or x.astype(jnp.bfloat16)
    double = lambda x: jnp.concatenate([x, x], 1)
    encodings = [
        toy(map_q=double, map_k=lambda k: jnp.concatenate([k, jnp.zeros_like(k)], 1), score=half),
        toy(map_q=half, map_k=half, bias=lambda n: half(0 * n)),
    ]
    run = lambda *x: [attend(*x, encoding=encoding, implementation=way) for encoding in encodings]
    q, k, v = drawn()
    plain, *outs = compiled(lambda *x: [attend(*x, implementation="dense"), *run(*x)], q, k, v)
    for out in outs:
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        np.testing.assert_allclose(out, plain, atol=0.05)
    jax.eval_shape(run, *drawn(jnp.bfloat16))
    assert set(seen) == {"float32"}
    with jax.enable_x64(True):
        assert {out.dtype.name for out in jax.eval_shape(run, *drawn("float64"))} == {"float64"}
    assert set(seen) == {"float32", "float64"}


def test_the_contract_holds_in_a_cache():
    """`map_k` runs when keys are appended, `map_q` and the scores when they are read."""
    create = lambda **hooks: KVCache.create(B, T, K, H, heads=N, encoding=toy(**hooks))
    refused("map_k .*floating.*int32", lambda: create(map_k=lambda k: k.astype(int)))

    def read(q, k, v):
        cache = create(map_q=lambda q: q[:, :4]).append(k, v)
        return attend(q, cache=cache, encoding=cache.encoding, mask=CAUSAL)

    refused("map_q and map_k .*4 and 8", read, *drawn())
    learning = KVCache.create(B, T, K, H, heads=N, encoding=All())
    refused(r"All\(\).*learns parameters.*params=", lambda k, v: learning.append(k, v), *drawn()[1:])


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (toy(context=lambda x: x, bias=lambda n: -n), r"context .*\(6,\).*got \(6, 32\)"),
        (toy(context=lambda x: x[:, 0], map_q=lambda q: q, width=3), r"context .*\(6, 3\).*got \(6,\)"),
    ],
)
def test_positions_of_content_have_one_number_per_token_or_those_of_features(encoding, message):
    x = np.zeros((B, T, N * H), np.float32)
    refused(message, lambda x: aj.context_positions(encoding, None, x, np.arange(T), SIZES), x)


# Parameters


@dataclasses.dataclass(frozen=True)
class All(PositionEncoding):
    """Learned numbers of every kind: of the heads h and u, of the key heads k, of all heads s, and a constant c per head.

    q_i -> q_i h,    k_j -> k_j k s,    score = logit - c u |n| + log(1 + e^k)
    """

    per_head = ("h", "u", "c")
    per_kv_head = ("k",)

    def init(self, key, sizes):
        of = lambda i, *shape: 1 + jax.random.uniform(jax.random.fold_in(key, i), shape)
        N, K, D = sizes.heads, sizes.kv_heads, sizes.model
        return {"h": of(0, N, sizes.head_dim), "u": of(1, N), "k": of(2, K), "s": {"inner": of(3, D)}}

    def constants(self, sizes, length=None):
        return {"c": np.arange(sizes.heads) / 8}

    def map_q(self, p, q, pos):
        return q * p["h"][None]

    def map_k(self, p, k, pos):
        return k * p["k"] * p["s"]["inner"].mean()

    def score(self, p, tile):
        return tile.logits - p["c"] * p["u"] * jnp.abs(tile.distance) + jnp.logaddexp(0.0, p["k"])

    # Public methods may have any name.
    def unit(self):
        return 1

    core = rescore = map = unit


def by_hand(p, q, k, v, scale):
    """[B,T,N,H], from the formula of `All` with c = h / 8."""
    spread = lambda x, axis: jnp.repeat(x, N // K, axis)
    q, k = q * p["h"][None, None], k * p["k"][None, None, :, None] * p["s"]["inner"].mean()
    n = np.abs(np.arange(T)[:, None] - np.arange(T)[None]).astype(float)
    slopes = jnp.arange(N, dtype=q.dtype) / 8 * p["u"]
    logits = scale * jnp.einsum("btnh,bsnh->bnts", q, spread(k, 2)) - slopes[None, :, None, None] * n[None, None]
    logits = logits + spread(jnp.logaddexp(0.0, p["k"]), 0)[None, :, None, None]
    weights = jax.nn.softmax(jnp.where(np.tri(T, dtype=bool)[None, None], logits, -jnp.inf), axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", weights, spread(v, 2))


def made(encoding, sizes=SIZES, dtype="float32"):
    """Parameters of the shapes that `init` makes."""
    shapes, random = jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes)), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: random.uniform(1, 2, leaf.shape).astype(dtype), shapes)


@pytest.mark.usefixtures("x64")
def test_an_encoding_with_parameters_of_every_kind():
    """Output and all gradients with grouped heads: as a part of a composition in tiles, and through a cache."""
    both = compose(All(), ALiBi(slopes=(1e-30,) * N))

    def results(f, *given):
        loss = lambda *given: (jnp.sin(out := f(*given)).sum(), out)
        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)(*given)

    def tiles(p, q, k, v, scale):
        options = {"encoding": both, "params": (p, {}), "mask": CAUSAL, "implementation": Tiling(4, 3)}
        return attend(q, k, v, scale=scale, **options)

    def cached(p, q, k, v, scale):
        cache = KVCache.create(B, T, K, H, "float64", heads=N, encoding=All()).append(k, v, params=p)
        return attend(q, cache=cache, encoding=All(), params=p, mask=CAUSAL, scale=scale)

    given = made(All(), dtype="float64"), *drawn("float64"), np.float64(0.4)
    expected, *found = compiled(lambda *x: [results(f, *x) for f in (by_hand, tiles, cached)], *given)
    for got in found:
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("D", [N * H // 2, N * H // 16, N * H + 1])
def test_a_parameter_of_any_width_is_taken(D):
    """The width of the model was guessed from that of the parameters, and some widths were refused."""
    for encoding, width in ((All(), D), (aj.TransformerXL(), 2 * D)):
        params = made(encoding, SIZES._replace(model=width))
        run = lambda *x, encoding=encoding, params=params: attend(*x, encoding=encoding, params=params, mask=CAUSAL)
        assert jax.eval_shape(run, *drawn()).shape == (B, T, N, H)


@dataclasses.dataclass(frozen=True)
class Narrow(All):
    """An `init` that refuses other sizes than those of its model."""

    def init(self, key, sizes):
        assert sizes.head_dim == 4, "made for these sizes alone"
        return super().init(key, sizes)


def test_init_is_not_called_by_attend():
    """It was, with sizes of its own."""
    params = made(Narrow(), SIZES._replace(head_dim=4)) | {"h": np.ones((N, H), np.float32)}
    run = lambda *x: attend(*x, encoding=Narrow(), params=params, mask=CAUSAL)
    assert jax.eval_shape(run, *drawn()).shape == (B, T, N, H)


def zeros(*shape):
    return np.zeros(shape, np.float32)


BOTH = compose(RoPE(), T5Bias())
PARAMS = [
    (ALiBi(), np.ones(N), "ALiBi.*params must be a dict .*ndarray"),
    (T5Bias(), None, "T5Bias.*learns parameters.*params=encoding.init"),
    (T5Bias(), {"tabel": zeros(N, 32)}, r"T5Bias.*lacks 'table', got \['tabel'\]"),
    (T5Bias(), {"table": zeros(N + 1, 32)}, r"T5Bias.*'table'.* 4 heads .*\(5, 32\)"),
    (T5Bias(), {"table": zeros(N, 16)}, "T5Bias: .*32 rows"),
    (All(), made(All()) | {"k": zeros(N)}, r"All.*'k'.* 2 key heads .*\(4,\)"),
    (All(), {name: x for name, x in made(All()).items() if name != "s"}, r"p\['s'\]"),
    (ALiBi(), {"slopes": zeros(N)}, r"ALiBi.*no parameter 'slopes'.*\['slope'\]"),
    (RoPE(), {"table": zeros(3)}, "RoPE.*no parameter 'table'.*frequencies.*gain"),
    (BOTH, ({}, {}, {}), "params .*2 parts.*3 entries"),
]


@pytest.mark.parametrize(("encoding", "params", "message"), PARAMS, ids=[message[-28:] for *_, message in PARAMS])
def test_parameters_that_do_not_fit(encoding, params, message):
    """Each is one sentence, however far the parameter is from its place."""
    refused(message, lambda *x: attend(*x, encoding=encoding, params=params, mask=CAUSAL), *drawn())


def test_a_key_map_that_reads_parameters_of_query_heads_is_told_why_there_are_none():
    @dataclasses.dataclass(frozen=True)
    class Reads(All):
        def map_k(self, p, k, pos):
            return k + p["h"][None]

    encoding = compose(RoPE(), Reads())
    message = r"p\['h'\].*\['k', 's'\].*map_k .*per_head.*share a key head"
    refused(message, lambda *x: attend(*x, encoding=encoding, params=made(encoding)), *drawn())


OWN = type("Plain", (ALiBi,), {"__init__": lambda self: None})
TYPO = dataclasses.dataclass(frozen=True)(type("Typo", (PositionEncoding,), {"bais": lambda self, p, n: -n}))


@pytest.mark.parametrize(("made", "message"), [(OWN, "Plain .*frozen dataclass"), (TYPO, "Typo .*bias")])
def test_what_is_no_encoding(made, message):
    refused(message, lambda *x: attend(*x, encoding=made()), *drawn())
