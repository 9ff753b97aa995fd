"""Positions computed from content: toy encodings whose positions are known in advance, over heads, groups and parts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions import RoPE, compose, context_positions
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile, Trait

B, T, D = 2, 5, 6
SIZES = Sizes(model=D, heads=4, kv_heads=2, head_dim=4)
X = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, D)).astype(np.float32)
W_KV = np.random.default_rng(2).normal(size=(2, D)).astype(np.float32)
POS = np.array([[0, 1, 2, 3, 4], [5, 6, 9, 10, 11]], np.int32)


class PerQueryHead(PositionEncoding):
    """pos + running sums of w . x of a query head, plus w . x of its key head; the bias is the distance."""

    def init(self, key, sizes):
        return EncodingParams(head={"w": jnp.asarray(W)}, kv_head={"w": jnp.asarray(W_KV)})

    def context(self, p, x, pos, before):
        return before + pos.astype(x.dtype) + jnp.cumsum(x @ p.head["w"] + x @ p.kv_head["w"])

    def bias(self, p, n):
        return n.astype(jnp.float32)


class PerKeyHead(PositionEncoding):
    """Running sums of w . x times the constants 1, 2 and 3 of three channels, per key head."""

    @property
    def traits(self):
        return super().traits | Trait.AXES

    def init(self, key, sizes):
        return EncodingParams(head={"w": jnp.asarray(W)}, kv_head={"w": jnp.asarray(W_KV)})

    def constants(self, sizes, length=None):
        return EncodingParams(shared={"channels": np.array([1.0, 2.0, 3.0], np.float32)})

    def context(self, p, x, pos, before):
        assert p.head == ()
        return before[None, :] + jnp.cumsum(x @ p.kv_head["w"])[:, None] * p.shared["channels"][None, :]

    def map_k(self, p, k, pos):
        return k + pos.sum(-1, keepdims=True)


def per_query_head(pos=POS):
    w = W + np.repeat(W_KV, 2, axis=0)
    return np.broadcast_to(pos, (B, T))[:, None] + np.cumsum(np.einsum("btd,nd->bnt", X, w), axis=-1)


def per_key_head():
    sums = np.cumsum(np.einsum("btd,kd->bkt", X, W_KV), axis=-1)
    return sums[..., None] * np.array([1, 2, 3])


def found(encoding, pos=POS, x=X, before=None, params=None):
    params = encoding.init(jax.random.key(0), SIZES) if params is None else params
    run = lambda params, x, pos, before: context_positions(encoding, params, x, pos, SIZES, before)
    return jax.jit(run)(params, jnp.asarray(x), jnp.asarray(pos), before)


@pytest.mark.parametrize("pos", [POS, POS[1]], ids=["per example", "one row"])
def test_one_row_per_query_head(pos):
    made = found(PerQueryHead(), pos)
    assert made.shape == (B, 4, T)
    np.testing.assert_allclose(made, per_query_head(pos), atol=1e-5)


def test_one_row_of_channels_per_key_head_where_keys_are_mapped():
    made = found(PerKeyHead())
    assert made.shape == (B, 2, T, 3)
    np.testing.assert_allclose(made, per_key_head(), atol=1e-5)


@pytest.mark.parametrize("encoding", [PerQueryHead(), PerKeyHead()], ids=lambda one: type(one).__name__)
def test_two_pieces_equal_the_whole(encoding):
    """The last position of the first piece is what the second starts from."""
    pos = np.zeros(T, np.int32)
    whole = found(encoding, pos)
    first = found(encoding, pos[:3], X[:, :3])
    second = found(encoding, pos[3:], X[:, 3:], before=first[:, :, -1])
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=2), whole, atol=1e-5)


def test_parts_have_positions_of_their_own():
    both = compose(RoPE(), PerQueryHead(), compose(PerKeyHead(), RoPE()), compose(RoPE(), RoPE()))
    rope, query_head, (key_head, inner), plain = found(both)
    np.testing.assert_array_equal(rope, POS)
    np.testing.assert_allclose(query_head, per_query_head(), atol=1e-5)
    np.testing.assert_allclose(key_head, per_key_head(), atol=1e-5)
    np.testing.assert_array_equal(inner, POS)
    np.testing.assert_array_equal(plain, POS)
    before = (None, query_head[:, :, -1], (key_head[:, :, -1], None), None)
    later = found(both, before=before)
    np.testing.assert_allclose(later[1], per_query_head() + per_query_head()[:, :, -1:], atol=1e-4)
    np.testing.assert_allclose(later[2][0], per_key_head() + per_key_head()[:, :, -1:], atol=1e-4)


def test_a_composition_scores_with_the_positions_of_each_part():
    """RoPE at the tokens' indices and a bias of contextual distances: the maps of one, then the bias of the other."""
    both = compose(RoPE(), PerQueryHead())
    assert both.traits == Trait.CONTEXT | Trait.MAPS | Trait.SCORE
    params = both.init(jax.random.key(0), SIZES)
    q_pos = jax.tree.map(lambda leaf: leaf[0] if leaf.ndim == 2 else leaf[0, 1], found(both))
    p = EncodingParams(
        head=((), {"w": W[1]}), kv_head=((), {"w": W_KV[0]}), shared=(RoPE().constants(SIZES).shared, ())
    )
    q, k = (jnp.asarray(np.random.default_rng(seed).normal(size=(T, 4)), jnp.float32) for seed in (5, 6))
    mapped = both.map_q(p, q, q_pos), both.map_k(p, k, q_pos)
    np.testing.assert_array_equal(mapped[0], RoPE().map_q(RoPE().constants(SIZES), q, POS[0]))
    logits = mapped[0] @ mapped[1].T
    tile = Tile(logits, *mapped, q_pos, q_pos, jnp.ones((T, T), bool), 1.0)
    row = per_query_head()[0, 1]
    np.testing.assert_allclose(both.score(p, tile) - logits, row[:, None] - row[None, :], atol=1e-4)
    assert params.head[1]["w"].shape == (4, D)


def test_without_the_hook_positions_stay_as_they_are():
    assert context_positions(RoPE(), None, X, POS, SIZES) is POS
    assert context_positions(compose(RoPE(), RoPE()), None, X, POS, SIZES) is POS


def test_gradients_reach_content_and_the_parameters_of_both_kinds_of_heads():
    encoding = PerQueryHead()
    params = encoding.init(jax.random.key(0), SIZES)
    weights = np.random.default_rng(3).normal(size=(B, 4, T)).astype(np.float32)

    def loss(params, x):
        return jnp.sum(weights * context_positions(encoding, params, x, POS, SIZES))

    by_params, by_x = jax.grad(loss, argnums=(0, 1))(params, jnp.asarray(X))
    later = np.cumsum(weights[..., ::-1], axis=-1)[..., ::-1]
    per_head = np.einsum("bnt,btd->nd", later, X)
    np.testing.assert_allclose(by_params.head["w"], per_head, atol=1e-4)
    np.testing.assert_allclose(by_params.kv_head["w"], per_head.reshape(2, 2, D).sum(1), atol=1e-4)
    np.testing.assert_allclose(by_x, np.einsum("bnt,nd->btd", later, W + np.repeat(W_KV, 2, axis=0)), atol=1e-4)


@dataclasses.dataclass(frozen=True)
class Returns(PositionEncoding):
    """Positions of a shape that may be wrong."""

    shape: tuple[int, ...]
    axes: bool = False

    @property
    def traits(self):
        return super().traits | (Trait.AXES if self.axes else Trait(0))

    def context(self, p, x, pos, before):
        return jnp.zeros(self.shape)


@pytest.mark.parametrize(
    ("encoding", "allowed"),
    [
        *((Returns(shape), r"\[T\] = \(5,\), or \[T, F\] with Trait.AXES") for shape in [(), (T - 1,), (T, 2), (2, T)]),
        *((Returns(shape, axes=True), r"\[T, F\] = \(5, F\), because it") for shape in [(T,), (2, T), (T, 2, 2)]),
    ],
)
def test_refuses_what_is_no_row_of_positions(encoding, allowed):
    for before in (None, jnp.zeros((B, 4))):
        message = rf"Returns\(.*\): the hook context must return positions of shape {allowed}.*; got \("
        with pytest.raises(ValueError, match=message):
            context_positions(encoding, None, X, POS, SIZES, before)


@pytest.mark.parametrize("pos", [POS[:1], POS[:, :4], POS[0, :4], POS[0, 0]])
def test_refuses_positions_of_another_shape(pos):
    with pytest.raises(ValueError, match=r"needs x \[B, T, D\] and pos \[T\] or \[B, T\]"):
        context_positions(PerQueryHead(), None, X, np.asarray(pos), SIZES)


def test_refuses_to_run_without_parameters():
    with pytest.raises(
        ValueError, match=r"learns parameters: pass params=encoding.init\(key, sizes\), got params=None"
    ):
        context_positions(PerQueryHead(), None, X, POS, SIZES)
    with pytest.raises(ValueError, match=r"learns parameters"):
        context_positions(compose(RoPE(), PerQueryHead()), None, X, POS, SIZES)
