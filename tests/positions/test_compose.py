import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask, attention_weights
from attnjax.positions.alibi import ALiBi
from attnjax.positions.base import EncodingParams, NoPE, PositionEncoding, Sizes, Trait, learns, resolve
from attnjax.positions.compose import compose
from attnjax.positions.cope import CoPE
from attnjax.positions.fire import FIRE
from attnjax.positions.kerple import Kerple
from attnjax.positions.log_n import LogN
from attnjax.positions.path import PaTH
from attnjax.positions.rerope import ReRoPE
from attnjax.positions.rope import RoPE
from attnjax.positions.sandwich import Sandwich
from attnjax.positions.stick_breaking import StickBreaking
from attnjax.positions.t5 import T5Bias
from attnjax.positions.transformer_xl import TransformerXL

SIZES = Sizes(model=8, heads=2, kv_heads=2, head_dim=4)


@dataclasses.dataclass(frozen=True)
class Affine(PositionEncoding):
    """x -> a x + b * pos, wherever an encoding may act: maps of this kind do not commute."""

    a: float
    b: float

    def embed(self, p, x, pos):
        return self.a * x + self.b * pos[:, None]

    def map_q(self, p, q, pos):
        return self.a * q + self.b * pos[:, None]

    def map_k(self, p, k, pos):
        return self.a * k - self.b * pos[:, None]

    def score(self, p, tile):
        return self.a * tile.logits + self.b


class Sums(PositionEncoding):
    """Positions that are running sums of the first channel, and a bias that is the distance."""

    def context(self, p, x, pos, before):
        return before + jnp.cumsum(x[:, 0])

    def bias(self, p, n):
        return n.astype(jnp.float32)


class Shares(PositionEncoding):
    """A score that mixes heads: the logits of all heads are added to those of each."""

    @property
    def traits(self):
        return super().traits | Trait.ALL_HEADS

    def score(self, p, tile):
        return tile.logits + tile.logits.sum(0, keepdims=True)


class NeedsLength(PositionEncoding):
    @property
    def traits(self):
        return super().traits | Trait.LENGTH

    def constants(self, sizes, length=None):
        return EncodingParams(shared={"length": length})

    def map_q(self, p, q, pos):
        return q


def first_head(p):
    return p._replace(head=jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], p.head))


def slope(value):
    return {"slope": np.float32(value)}


def test_maps_and_scores_act_in_order(make_tile):
    both = compose(Affine(2.0, 1.0), Affine(3.0, 5.0))
    p = resolve(both, None, SIZES)
    tile = make_tile(np.array([1.0, 2.0]), np.array([0.0, 4.0, 7.0]), dtype=np.float32)
    pos = tile.q_pos[:, None]
    np.testing.assert_allclose(both.embed(p, tile.q, tile.q_pos), 6 * tile.q + 8 * pos, rtol=1e-6)
    np.testing.assert_allclose(both.map_q(p, tile.q, tile.q_pos), 6 * tile.q + 8 * pos, rtol=1e-6)
    np.testing.assert_allclose(both.map_k(p, tile.q, tile.q_pos), 6 * tile.q - 8 * pos, rtol=1e-6)
    np.testing.assert_allclose(both.score(p, tile), 6 * tile.logits + 8, rtol=1e-6)


def test_biases_add_up(make_tile):
    both = compose(ALiBi(), Kerple(), NoPE())
    p = first_head(resolve(both, both.init(jax.random.key(0), SIZES), SIZES))
    tile = make_tile(np.arange(4), np.arange(6), dtype=np.float32)
    kerple = Kerple().bias(EncodingParams(head=p.head[1]), tile.distance)
    expected = -(2.0**-4) * np.asarray(tile.distance) + np.asarray(kerple)
    np.testing.assert_allclose(both.bias(p, tile.distance), expected, atol=1e-6)
    np.testing.assert_allclose(both.score(p, tile), tile.logits + expected, atol=1e-6)


def test_a_bias_in_double_precision_wins(x64):
    both = compose(ALiBi(), T5Bias())
    head = (slope(0.5), {"table": jnp.arange(32.0, dtype=jnp.float64)})
    bias = both.bias(EncodingParams(head=head), jnp.arange(4))
    assert bias.dtype == jnp.float64
    np.testing.assert_array_equal(bias, [0, 0.5, 1, 1.5])


def test_a_score_sees_the_logits_of_the_part_before(make_tile):
    tile = make_tile(np.arange(5), np.arange(5), dtype=np.float32)
    both = compose(ALiBi(), CoPE(max_position=3))
    table = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    p = EncodingParams(head=(slope(0.5), ()), shared=((), {"table": table}))
    logits, carry = both.score(p, tile, both.carry(p, tile.q))
    biased = tile._replace(logits=tile.logits - 0.5 * tile.distance.astype(np.float32))
    expected, state = CoPE(max_position=3).score(EncodingParams(shared={"table": table}), biased)
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert carry[0] == ()
    np.testing.assert_allclose(carry[1], state, atol=1e-6)


def test_carries_of_nested_parts_survive_tiles(make_tile, cut):
    tile = make_tile(np.arange(5), np.arange(8), dtype=np.float32)
    both = compose(CoPE(max_position=3), compose(ALiBi(), CoPE(max_position=4)))
    tables = [np.random.default_rng(seed).normal(size=(3 + seed, 4)).astype(np.float32) for seed in (0, 1)]
    head = ((), (slope(0.5), ()))
    p = EncodingParams(head=head, shared=({"table": tables[0]}, ((), {"table": tables[1]})))
    start = both.carry(p, tile.q)
    whole, _ = both.score(p, tile, start)
    right, carry = both.score(p, cut(tile, slice(None), slice(5, 8)), start)
    left, _ = both.score(p, cut(tile, slice(None), slice(0, 5)), carry)
    np.testing.assert_allclose(jnp.concatenate([left, right], axis=1), whole, atol=2e-6)


def test_parts_may_have_positions_of_their_own(make_tile):
    """A tuple with one array per part, whether attention asks for a score or for a bias."""
    tile = make_tile(np.arange(4), np.arange(6), dtype=np.float32)
    p = EncodingParams(head=(slope(0.5), ()))
    own_q, own_k = jnp.array([0.25, 0.5, 0.75, 2.0]), jnp.linspace(0.0, 1.0, 6)
    tile_of_both = tile._replace(q_pos=(tile.q_pos, own_q), k_pos=(tile.k_pos, own_k))
    expected = -0.5 * np.asarray(tile.distance) + (np.asarray(own_q)[:, None] - np.asarray(own_k)[None, :])
    both = compose(ALiBi(), Sums())
    np.testing.assert_allclose(both.score(p, tile_of_both) - tile.logits, expected, atol=1e-6)
    np.testing.assert_allclose(both.bias(p, tile_of_both.distance), expected, atol=1e-6)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_parts_of_one_head_beside_a_part_that_mixes_heads(make_tile, per_head, nested):
    """Four query heads in two groups: the composition equals each part by itself, one head after another."""
    N, K, t, s = 4, 2, 3, 5
    draw = np.random.default_rng(3)
    q, k = (draw.normal(size=shape).astype(np.float32) for shape in ((N, t, 4), (K, s, 4)))
    logits = draw.normal(size=(N, t, s)).astype(np.float32)
    q_pos, k_pos = np.arange(2, 2 + t), np.arange(s)
    table = draw.normal(size=(3, 4)).astype(np.float32)
    slopes = np.array([1.0, 0.5, 0.25, 0.125], np.float32)
    visible = q_pos[:, None] >= k_pos[None, :]
    tile = make_tile(q_pos, k_pos, dtype=np.float32)
    whole = tile._replace(logits=jnp.asarray(logits), q=jnp.asarray(q), k=jnp.asarray(k), visible=jnp.asarray(visible))
    q_rows = q_pos + (draw.integers(0, 9, (N, 1)) if per_head else np.zeros((N, 1), int))
    k_rows = k_pos + (draw.integers(0, 9, (K, 1)) if per_head else np.zeros((K, 1), int))
    if per_head:
        whole = whole._replace(q_pos=jnp.asarray(q_rows), k_pos=jnp.asarray(k_rows))
    both = compose(Shares(), ALiBi(), CoPE(max_position=3))
    p = EncodingParams(head=((), {"slope": slopes}, ()), shared=((), (), {"table": table}))
    if nested:
        both = compose(Shares(), compose(ALiBi(), CoPE(max_position=3)))
        p = EncodingParams(head=((), ({"slope": slopes}, ())), shared=((), ((), {"table": table})))
        own = lambda pos: (pos, (pos, pos))
        whole = whole._replace(q_pos=own(whole.q_pos), k_pos=own(whole.k_pos))
    assert both.traits == Trait.SCORE | Trait.CARRY | Trait.ALL_HEADS
    found, states = both.score(p, whole, both.carry(p, whole.q))
    counted = states[1][1] if nested else states[2]
    for h in range(N):
        n = q_rows[h][:, None] - k_rows[h // (N // K)][None, :]
        biased = logits[h] + logits.sum(0) - slopes[h] * n
        one = tile._replace(logits=jnp.asarray(biased), q=whole.q[h], k=whole.k[h // (N // K)])
        expected, state = CoPE(max_position=3).score(EncodingParams(shared={"table": table}), one)
        np.testing.assert_allclose(found[h], expected, atol=1e-5)
        np.testing.assert_allclose(counted[h], state, atol=1e-5)


def test_parameters_are_tuples_in_order():
    both = compose(T5Bias(), ALiBi(), FIRE())
    params = both.init(jax.random.key(0), SIZES)
    assert set(params.head[0]) == {"table"}
    assert params.head[1] == params.shared[0] == params.shared[1] == ()
    assert set(params.shared[2]) == {"hidden", "hidden_bias", "c", "threshold"}
    np.testing.assert_allclose(resolve(both, params, SIZES).head[1]["slope"], [2.0**-4, 2.0**-8])


def test_parts_draw_from_different_keys():
    params = compose(T5Bias(), T5Bias()).init(jax.random.key(0), SIZES)
    assert not np.array_equal(params.head[0]["table"], params.head[1]["table"])


@pytest.mark.parametrize(
    ("parts", "traits"),
    [
        ((NoPE(), NoPE()), Trait(0)),
        ((ALiBi(), Sandwich()), Trait.BIAS),
        ((ALiBi(), NoPE()), Trait.BIAS),
        ((ALiBi(), T5Bias()), Trait.BIAS),
        ((ALiBi(), RoPE()), Trait.BIAS | Trait.MAPS),
        ((ALiBi(), TransformerXL()), Trait.SCORE),
        ((ALiBi(), FIRE()), Trait.SCORE),
        ((ALiBi(), CoPE()), Trait.SCORE | Trait.CARRY),
        ((Sums(), Sums()), Trait.CONTEXT | Trait.SCORE),
        ((Sums(), RoPE()), Trait.CONTEXT | Trait.SCORE | Trait.MAPS),
        ((compose(ALiBi(), Sandwich()), compose(NoPE(), Kerple())), Trait.BIAS),
    ],
)
def test_traits(parts, traits):
    assert compose(*parts).traits == traits


def test_what_is_asked_of_all_parts():
    assert not learns(compose(ALiBi(), Sandwich()))
    assert learns(compose(ALiBi(), FIRE()))
    assert Trait.LENGTH not in compose(ALiBi(), FIRE()).traits
    both = compose(ALiBi(), NeedsLength())
    assert Trait.LENGTH in both.traits
    assert both.constants(SIZES, 7).shared == ((), {"length": 7})
    with pytest.raises(ValueError, match="needs a causal mask"):
        compose(NoPE(), ALiBi()).check(sizes=SIZES, causal=False)


def test_is_hashable_and_equal_by_value():
    assert compose(ALiBi(), FIRE()) == compose(ALiBi(), FIRE())
    assert hash(compose(ALiBi(), FIRE())) == hash(compose(ALiBi(), FIRE()))
    assert compose(ALiBi(), FIRE()) != compose(FIRE(), ALiBi())


@pytest.mark.parametrize(
    "parts",
    [
        (ALiBi(), ReRoPE(window=2)),
        (FIRE(), PaTH()),
        (NoPE(), compose(RoPE(), T5Bias()), compose(LogN(), ReRoPE(window=2))),
        (PaTH(), ReRoPE(window=2)),
    ],
    ids=str,
)
def test_refuses_to_lose_what_an_earlier_part_adds(parts):
    """A part that computes logits anew would leave it out."""
    with pytest.raises(ValueError, match=r"(PaTH|ReRoPE)\(.*\) replaces what .* adds to the logits: put \1\(.* first"):
        compose(*parts)


@pytest.mark.parametrize(
    "parts",
    [
        (StickBreaking(), T5Bias()),
        (compose(RoPE(), StickBreaking()), CoPE()),
        (StickBreaking(), NoPE(), compose(LogN(), FIRE())),
        (StickBreaking(), StickBreaking()),
    ],
    ids=str,
)
def test_refuses_to_change_weights_that_are_made(parts):
    """What was added to the logarithms of weights made rows that sum to 10."""
    message = r"(StickBreaking\(.*\)) makes the weights themselves, which .* would change: put \1 last"
    with pytest.raises(ValueError, match=message):
        compose(*parts)


def test_weights_are_made_of_what_the_parts_before_add():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 2, 4)), jnp.float32)
    encoding = compose(T5Bias(), StickBreaking(), RoPE())
    params = EncodingParams(head=({"table": jnp.full((2, 32), 3.0)}, (), ()))
    sums = attention_weights(q, q, encoding=encoding, params=params, mask=Mask(causal=True)).sum(-1)
    assert sums.max() <= 1 + 1e-6


def test_what_replaces_logits_comes_before_what_adds_to_them():
    q, k = (jnp.asarray(np.random.default_rng(seed).normal(size=(1, 6, 2, 4)), jnp.float32) for seed in (0, 1))
    weights = lambda encoding: attention_weights(q, k, encoding=encoding, mask=Mask(causal=True))
    logits = jnp.log(weights(compose(LogN(), ReRoPE(window=2), ALiBi()))[0])
    n = np.arange(6)[:, None] - np.arange(6)[None, :]
    expected = jnp.log(weights(ReRoPE(window=2))[0]) - np.array([2.0**-4, 2.0**-8])[:, None, None] * n
    for h in range(2):
        for t in range(6):
            row = logits[h, t, : t + 1] - expected[h, t, : t + 1]
            np.testing.assert_allclose(row - row[0], 0, atol=1e-5)


def test_refuses():
    with pytest.raises(ValueError, match="needs two or more encodings"):
        compose(ALiBi())
    with pytest.raises(ValueError, match=r"every argument must be a PositionEncoding such as RoPE\(\), got <class"):
        compose(ALiBi(), FIRE)
    with pytest.raises(ValueError, match="one entry per part"):
        resolve(compose(ALiBi(), T5Bias()), EncodingParams(head={"table": np.zeros((2, 32))}), SIZES)
    with pytest.raises(ValueError, match="one entry per part"):
        resolve(compose(ALiBi(), T5Bias()), EncodingParams(head=((), (), ())), SIZES)
    with pytest.raises(ValueError, match="one entry per part"):
        compose(ALiBi(), T5Bias()).each(EncodingParams(head=((), (), ())))
