"""The contract of hooks: what one returns in another shape or type is an error that names encoding, hook, what came and what
is allowed, raised while tracing, in every implementation.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import (
    EncodingParams,
    KVCache,
    Mask,
    PositionEncoding,
    RoPE,
    SequentialScore,
    Tiling,
    Trait,
    attend,
    compose,
    context_positions,
)
from tests.attention.toys import SIZES, H, K, N, drawn

T = 6
WAYS = {"dense": "dense", "tiles": Tiling(4, 3)}
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", WAYS.values(), ids=WAYS)


@dataclasses.dataclass(frozen=True)
class Map(PositionEncoding):
    """Queries and keys as two functions make them."""

    of_q: Callable[[Any], Any]
    of_k: Callable[[Any], Any]

    def __repr__(self):
        return "Map"

    def map_q(self, p, q, pos):
        return self.of_q(q)

    def map_k(self, p, k, pos):
        return self.of_k(k)


@dataclasses.dataclass(frozen=True)
class Bias(PositionEncoding):
    """A bias as a function makes it of distances."""

    of: Callable[[Any], Any]

    def __repr__(self):
        return "Bias"

    def bias(self, p, n):
        return self.of(n)


@dataclasses.dataclass(frozen=True)
class Score(PositionEncoding):
    """Logits as a function makes them of others, of one head or of all."""

    of: Callable[[Any], Any]
    all_heads: bool = False

    def __repr__(self):
        return "Score"

    @property
    def traits(self):
        return super().traits | Trait.ALL_HEADS if self.all_heads else super().traits

    def score(self, p, tile):
        return self.of(tile.logits)


@dataclasses.dataclass(frozen=True)
class State(SequentialScore):
    """Logits as they are, and a state as a function makes it of the one before."""

    of: Callable[[Any], Any]
    logits: Callable[[Any], Any] = lambda x: x

    def __repr__(self):
        return "State"

    def carry(self, p, q):
        return {"sum": jnp.zeros(q.shape[0], q.dtype)}

    def score(self, p, tile, carry=None):
        return self.logits(tile.logits), self.of(carry)


same = lambda x: x
WRONG = [
    # Maps of q [T,H] and k [S,H] of one head.
    (Map(lambda q: q[:3], same), r"Map: the hook map_q must return an array of shape \[6, any\], got \[3, 8\]"),
    (Map(lambda q: q[None], same), r"Map: the hook map_q must return an array of shape \[6, any\], got \[1, 6, 8\]"),
    (Map(same, lambda k: k.sum(0)), r"Map: the hook map_k must return an array of shape \[6, any\], got \[8\]"),
    (Map(lambda q: None, same), r"Map: the hook map_q must return an array of shape \[6, any\], got NoneType"),
    (Map(lambda q: 1.0, same), r"Map: the hook map_q must return an array of shape \[6, any\], got float"),
    (Map(lambda q: (q, q), same), r"Map: the hook map_q must return an array of shape \[6, any\], got tuple"),
    (Map(same, lambda k: k.astype(int)), "Map: the hook map_k must return floating numbers, got int32"),
    (Map(lambda q: q > 0, same), "Map: the hook map_q must return floating numbers, got bool"),
    (Map(lambda q: jax.lax.complex(q, q), same), "Map: the hook map_q must return floating numbers, got complex64"),
    (Map(lambda q: q[:, :4], same), "Map: map_q and map_k must return the same number of channels, got 4 and 8"),
    (
        Map(same, lambda k: jnp.concatenate([k, k], 1)),
        "Map: map_q and map_k must return the same number of channels, got 8 and 16",
    ),
    # Biases like the distances.
    (Bias(lambda n: jnp.zeros(())), r"Bias: the hook bias must return an array of shape \[\d+(, \d+)?\], got \[\]"),
    (Bias(lambda n: n.astype(jnp.float32)[..., None]), r"Bias: the hook bias must return an array of shape \[\d+"),
    (Bias(lambda n: 0.0), r"Bias: the hook bias must return an array of shape \[.*\], got float"),
    (Bias(lambda n: -n), "Bias: the hook bias must return floating numbers, got int32"),
    # Logits [t,s] of a tile of one head, or [N,t,s] of all.
    (Score(lambda x: x.T[:, :2]), r"Score: the hook score must return an array of shape \[\d, \d\], got \[\d, 2\]"),
    (Score(lambda x: x[0]), r"Score: the hook score must return an array of shape \[\d, \d\], got \[\d\]"),
    (Score(lambda x: x > 0), "Score: the hook score must return floating numbers, got bool"),
    (Score(lambda x: (x, x)), r"Score: the hook score must return an array of shape \[\d, \d\], got tuple"),
    (
        Score(lambda x: x.sum(0), all_heads=True),
        rf"Score: the hook score must return an array of shape \[{N}, \d, \d\], got \[\d, \d\]",
    ),
    # A state like that of `carry`.
    (
        State(lambda s: {"sum": s["sum"][:1]}),
        r"State: the hook score must return a state like that of carry, .*, got .*\(1,\)",
    ),
    (
        State(lambda s: {"total": s["sum"]}),
        "State: the hook score must return a state like that of carry, .*'sum'.*'total'",
    ),
    (State(lambda s: ()), r"State: the hook score must return a state like that of carry, .*'sum'.*, got \(\)"),
    (State(same, lambda x: x[:, :1]), r"State: the hook score must return an array of shape \[\d, \d\], got \[\d, 1\]"),
]


@IMPLEMENTATIONS
@pytest.mark.parametrize(("encoding", "message"), WRONG, ids=[f"{e}: {m[-30:]}" for e, m in WRONG])
def test_what_hooks_may_not_return(encoding, message, implementation):
    run = lambda q, k, v: attend(q, k, v, encoding=encoding, implementation=implementation)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(run, *drawn(T, dtype="float32"))


@pytest.mark.parametrize(
    ("hook", "encoding"), [("map_q", Map(lambda q: q[:3], same)), ("score", Score(lambda x: x[0]))]
)
def test_a_part_of_a_composition_is_told_with_the_whole(hook, encoding):
    """Where the parts are, a reader of the sentence sees."""
    both = compose(RoPE(), encoding)
    with pytest.raises(ValueError, match=rf"Compose\(parts=\(RoPE.*{encoding}\)\): the hook {hook} must return"):
        jax.eval_shape(lambda *arrays: attend(*arrays, encoding=both), *drawn(T, dtype="float32"))


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    "encoding",
    [
        Map(lambda q: jnp.concatenate([q, q], 1), lambda k: jnp.concatenate([k, jnp.zeros_like(k)], 1)),
        Map(lambda q: q.astype(jnp.bfloat16), lambda k: k.astype(jnp.bfloat16)),
        Score(lambda x: x.astype(jnp.bfloat16)),
        State(lambda s: {"sum": s["sum"].astype(jnp.bfloat16)}),
    ],
    ids=["wider", "maps in 16 bits", "a score in 16 bits", "a state in 16 bits"],
)
def test_what_hooks_may_return(encoding, implementation):
    """Any number of channels, as long as queries and keys agree, and any floating type."""
    q, k, v = drawn(T, dtype="float32")
    out = attend(q, k, v, encoding=encoding, implementation=implementation)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    np.testing.assert_allclose(out, attend(q, k, v), atol=0.05)


def test_the_contract_holds_in_a_cache():
    """`map_k` runs when keys are appended, `map_q` and the scores when they are read."""
    q, k, v = drawn(T, dtype="float32")
    with pytest.raises(ValueError, match="Map: the hook map_k must return floating numbers, got int32"):
        KVCache.create(2, T, K, H, encoding=Map(same, lambda k: k.astype(int)))
    encoding = Map(lambda q: q[:, :4], same)
    cache = KVCache.create(2, T, K, H, encoding=encoding).append(k, v)
    with pytest.raises(ValueError, match="map_q and map_k must return the same number of channels, got 4 and 8"):
        attend(q, cache=cache, encoding=encoding, mask=Mask(causal=True))


@dataclasses.dataclass(frozen=True)
class Context(PositionEncoding):
    """Positions as a function makes them of x [T,D], of one axis or more."""

    of: Callable[[Any], Any]
    axes: bool = False

    def __repr__(self):
        return "Context"

    @property
    def traits(self):
        return super().traits | Trait.AXES if self.axes else super().traits

    def context(self, p, x, pos, before):
        return self.of(x)

    def bias(self, p, n):
        return -n


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (Context(lambda x: x[:3, 0]), r"Context: the hook context must return .* \[T\] = \(6,\).*; got \(3,\)"),
        (Context(lambda x: x), r"Context: the hook context must return .* or \[T, F\] with Trait.AXES; got \(6, 32\)"),
        (
            Context(lambda x: x[:, 0], axes=True),
            r"must return .* \[T, F\] = \(6, F\), because it has Trait.AXES; got \(6,\)",
        ),
    ],
)
def test_positions_of_content_have_one_number_per_token(encoding, message):
    with pytest.raises(ValueError, match=message):
        context_positions(encoding, None, jnp.zeros((2, T, N * H)), np.arange(T), SIZES)


def test_parameters_reach_the_hooks_of_their_head():
    """`p.head` by query head, `p.kv_head` by key head, `p.shared` for all; `map_k` sees no head."""
    seen = {}

    class Asks(PositionEncoding):
        def constants(self, sizes, length=None):
            of = lambda heads: np.arange(heads, dtype=np.float32)
            return EncodingParams({"h": of(sizes.heads)}, {"k": of(sizes.kv_heads)}, {"s": np.float32(7)})

        def map_q(self, p, q, pos):
            seen["map_q"] = jax.tree.map(jnp.shape, p)
            return jnp.zeros_like(q) + p.head["h"] + 10 * p.kv_head["k"]

        def map_k(self, p, k, pos):
            seen["map_k"] = jax.tree.map(jnp.shape, p)
            return jnp.zeros_like(k).at[:, 0].set(p.kv_head["k"] + 1)

        def score(self, p, tile):
            seen["score"] = jax.tree.map(jnp.shape, p)
            return tile.logits

    q, k, _ = drawn(T, dtype="float32")
    v = jnp.broadcast_to(jnp.eye(T, H)[None, :, None], (2, T, K, H))
    attend(q, k, v, encoding=Asks())
    whole = EncodingParams({"h": ()}, {"k": ()}, {"s": ()})
    assert seen == {"map_q": whole, "map_k": whole._replace(head=()), "score": whole}


def learned(hook, **sides):
    """An encoding with these parameters, whose hook is a function of parameters and array."""
    body = {"init": lambda self, key, sizes: EncodingParams(**sides), hook: lambda self, p, x, *rest: x + reads(p)}
    reads = lambda p: p.head["h"]
    return type("Learned", (PositionEncoding,), body)()


@IMPLEMENTATIONS
@pytest.mark.parametrize("whole", [lambda encoding: encoding, lambda encoding: compose(RoPE(), encoding)])
def test_a_key_map_that_reads_parameters_of_query_heads_is_told_why_there_are_none(whole, implementation):
    encoding = whole(learned("map_k", head={"h": jnp.zeros((N,))}))
    params = encoding.init(jax.random.key(0), SIZES)
    q, k, v = drawn(T, dtype="float32")
    with pytest.raises(
        ValueError, match=r"^map_k sees no p.head\['h'\]: the query heads of a group share one key head"
    ):
        attend(q, k, v, encoding=encoding, params=params, implementation=implementation)
