import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.alibi import ALiBi
from attnjax.positions.base import EncodingParams, NoPE, PositionEncoding, Sizes
from attnjax.positions.compose import compose
from attnjax.positions.cope import CoPE
from attnjax.positions.fire import FIRE
from attnjax.positions.kerple import Kerple
from attnjax.positions.sandwich import Sandwich
from attnjax.positions.t5 import T5Bias
from attnjax.positions.transformer_xl import TransformerXL

SIZES = Sizes(model=8, heads=2, kv_heads=2, head=4)


@dataclasses.dataclass(frozen=True)
class Affine(PositionEncoding):
    """x -> a x + b * pos, wherever an encoding may act: maps of this kind do not commute."""

    a: float
    b: float

    def embed(self, shared, x, pos):
        return self.a * x + self.b * pos[:, None]

    def map_q(self, head, shared, q, pos):
        return self.a * q + self.b * pos[:, None]

    def map_k(self, shared, k, pos):
        return self.a * k - self.b * pos[:, None]

    def score(self, head, shared, tile, carry=()):
        return self.a * tile.logits + self.b


class NeedsLength(PositionEncoding):
    @property
    def length_dependent(self):
        return True

    def bind(self, params, heads, length=None):
        return EncodingParams(shared={"length": length})


def first_head(params):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], params.head)


def test_maps_and_scores_act_in_order(make_tile):
    both = compose(Affine(2.0, 1.0), Affine(3.0, 5.0))
    params = both.bind(EncodingParams(), 2)
    tile = make_tile(np.array([1.0, 2.0]), np.array([0.0, 4.0, 7.0]), dtype=np.float32)
    pos = tile.q_pos[:, None]
    np.testing.assert_allclose(both.embed((), tile.q, tile.q_pos), 6 * tile.q + 8 * pos, rtol=1e-6)
    np.testing.assert_allclose(both.map_q(*params, tile.q, tile.q_pos), 6 * tile.q + 8 * pos, rtol=1e-6)
    np.testing.assert_allclose(both.map_k(params.shared, tile.q, tile.q_pos), 6 * tile.q - 8 * pos, rtol=1e-6)
    np.testing.assert_allclose(both.score(*params, tile), 6 * tile.logits + 8, rtol=1e-6)


def test_biases_add_up(make_tile):
    both = compose(ALiBi(), Kerple(), NoPE())
    params = both.bind(both.init(jax.random.key(0), SIZES), 2)
    tile = make_tile(np.arange(4), np.arange(6), dtype=np.float32)
    head = first_head(params)
    bias = both.bias(head, params.shared, tile.distance)
    expected = -(2.0**-4) * np.asarray(tile.distance) + np.asarray(Kerple().bias(head[1], (), tile.distance))
    np.testing.assert_allclose(bias, expected, atol=1e-6)
    np.testing.assert_allclose(both.score(head, params.shared, tile), tile.logits + expected, atol=1e-6)


def test_a_bias_in_double_precision_wins(x64):
    both = compose(ALiBi(), T5Bias())
    head = (np.float32(0.5), {"table": jnp.arange(32.0, dtype=jnp.float64)})
    bias = both.bias(head, ((), ()), jnp.arange(4))
    assert bias.dtype == jnp.float64
    np.testing.assert_array_equal(bias, [0, 0.5, 1, 1.5])


def test_a_score_sees_the_logits_of_the_part_before(make_tile):
    tile = make_tile(np.arange(5), np.arange(5), dtype=np.float32)
    both = compose(ALiBi(), CoPE(max_position=3))
    table = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    head, shared = (np.float32(0.5), ()), ((), {"table": table})
    logits, carry = both.score(head, shared, tile, both.carry(5))
    biased = tile._replace(logits=tile.logits - 0.5 * tile.distance.astype(np.float32))
    expected, state = CoPE(max_position=3).score((), shared[1], biased)
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert carry[0] == ()
    np.testing.assert_allclose(carry[1], state, atol=1e-6)


def test_carries_of_nested_parts_survive_tiles(make_tile, cut):
    tile = make_tile(np.arange(5), np.arange(8), dtype=np.float32)
    both = compose(CoPE(max_position=3), compose(ALiBi(), CoPE(max_position=4)))
    tables = [np.random.default_rng(seed).normal(size=(3 + seed, 4)).astype(np.float32) for seed in (0, 1)]
    head = ((), (np.float32(0.5), ()))
    shared = ({"table": tables[0]}, ((), {"table": tables[1]}))
    whole, _ = both.score(head, shared, tile, both.carry(5))
    right, carry = both.score(head, shared, cut(tile, slice(None), slice(5, 8)), both.carry(5))
    left, _ = both.score(head, shared, cut(tile, slice(None), slice(0, 5)), carry)
    np.testing.assert_allclose(jnp.concatenate([left, right], axis=1), whole, atol=2e-6)


def test_parameters_are_tuples_in_order():
    both = compose(T5Bias(), ALiBi(), FIRE())
    params = both.init(jax.random.key(0), SIZES)
    assert set(params.head[0]) == {"table"}
    assert params.head[1] == params.shared[0] == params.shared[1] == ()
    assert set(params.shared[2]) == {"hidden", "hidden_bias", "c", "threshold"}
    np.testing.assert_allclose(both.bind(params, 2).head[1], [2.0**-4, 2.0**-8])


def test_parts_draw_from_different_keys():
    params = compose(T5Bias(), T5Bias()).init(jax.random.key(0), SIZES)
    assert not np.array_equal(params.head[0]["table"], params.head[1]["table"])


@pytest.mark.parametrize(
    ("parts", "hooks"),
    [
        ((NoPE(), NoPE()), set()),
        ((ALiBi(), Sandwich()), {"bias", "columns_q", "columns_k"}),
        ((ALiBi(), NoPE()), {"bias", "columns_q", "columns_k"}),
        ((ALiBi(), T5Bias()), {"bias"}),
        ((ALiBi(), TransformerXL()), {"score", "columns_q", "columns_k"}),
        ((ALiBi(), FIRE()), {"score"}),
        ((ALiBi(), CoPE()), {"score", "carry"}),
        ((compose(ALiBi(), Sandwich()), compose(NoPE(), Kerple())), {"bias"}),
    ],
)
def test_hooks(parts, hooks):
    assert compose(*parts).hooks() == hooks


def test_columns_stand_side_by_side(make_tile):
    both = compose(ALiBi(), TransformerXL(), NoPE())
    params = both.bind(both.init(jax.random.key(0), SIZES), 2)
    tile = make_tile(np.arange(4, 8), np.arange(8), dtype=np.float32)
    head = first_head(params)
    columns_q = both.columns_q(head, params.shared, tile.q, tile.q_pos, jnp.float32(tile.scale))
    product = columns_q @ both.columns_k(params.shared, tile.k, tile.k_pos).T
    difference = both.score(head, params.shared, tile) - tile.logits - product
    np.testing.assert_allclose(difference - difference[:, :1], np.zeros((4, 8)), atol=1e-5)


def test_what_is_asked_of_all_parts():
    assert not compose(ALiBi(), Sandwich()).learns
    assert compose(ALiBi(), FIRE()).learns
    assert not compose(ALiBi(), FIRE()).length_dependent
    both = compose(ALiBi(), NeedsLength())
    assert both.length_dependent
    assert both.bind(EncodingParams(), 2, 7).shared == ((), {"length": 7})
    with pytest.raises(ValueError, match="needs a causal mask"):
        compose(NoPE(), ALiBi()).check(SIZES, causal=False)


def test_is_hashable_and_equal_by_value():
    assert compose(ALiBi(), FIRE()) == compose(ALiBi(), FIRE())
    assert hash(compose(ALiBi(), FIRE())) == hash(compose(ALiBi(), FIRE()))
    assert compose(ALiBi(), FIRE()) != compose(FIRE(), ALiBi())


def test_refuses():
    with pytest.raises(ValueError, match="needs two or more encodings"):
        compose(ALiBi())
    with pytest.raises(ValueError, match="every argument must be a PositionEncoding, got <class"):
        compose(ALiBi(), FIRE)
    with pytest.raises(ValueError, match="one entry per part"):
        compose(ALiBi(), T5Bias()).bind(EncodingParams(head={"table": np.zeros((2, 32))}), 2)
    with pytest.raises(ValueError, match="one entry per part"):
        compose(ALiBi(), T5Bias()).bind(EncodingParams(head=((), (), ())), 2)
