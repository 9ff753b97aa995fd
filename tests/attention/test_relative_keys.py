"""Relative-position keys, once per distance: the numbers that the encoding makes from positions that are not known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Mask, NoPE, RoPE, Sizes, Tiling, TransformerXL, attend, compose
from attnjax.attention.inputs import from_caller, prepare
from attnjax.attention.relative_bias import per_distance
from attnjax.attention.relative_keys import BLOCK, HasRelativeKeys, RelativeKeys, _products, rel_shift
from attnjax.positions.base import EncodingParams, PositionEncoding

B, N, K, H = 3, 4, 2, 8
ENCODINGS = {"two_sided": TransformerXL(), "clamped": TransformerXL(table="clamped", length=200)}


def drawn(T, S, encoding):
    """q, k, v and parameters far from zero, in float64."""
    draw = np.random.default_rng(0)
    q, k, v = (draw.normal(size=shape) for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, H)))
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, K, H))
    return jax.tree.map(lambda leaf: draw.normal(size=leaf.shape) * 0.5, params), q, k, v


@pytest.mark.quick("dense-two_sided", "window-clamped")
@pytest.mark.parametrize("table", ENCODINGS)
@pytest.mark.parametrize(
    ("T", "S", "first", "implementation", "mask"),
    [
        (45, 83, 38, "dense", Mask(causal=True, q_index=np.arange(45) + 38)),
        (83, 45, 0, Tiling(40, 24), Mask(window=(9, 4))),
        (70, 70, 5, Tiling(16, 48, 1), Mask(causal=True)),
        (40, 40, 0, Tiling(16, 8), Mask(causal=True, q_index=np.arange(40) - 100)),
    ],
    ids=["dense", "window", "causal", "nothing seen"],
)
def test_output_and_gradients_are_those_of_unknown_positions(x64, table, T, S, first, implementation, mask):
    encoding, q_pos, k_pos = ENCODINGS[table], np.arange(T) + first, np.arange(S)
    arguments = drawn(T, S, encoding)

    def loss(q_pos, params, q, k, v):
        options = {"mask": mask, "q_pos": q_pos, "k_pos": k_pos, "implementation": implementation}
        out = attend(q, k, v, encoding=encoding, params=params, **options)
        return jnp.sin(out).sum(), out

    gradient = jax.grad(loss, argnums=(1, 2, 3, 4), has_aux=True)
    known = jax.jit(lambda arguments: gradient(q_pos, *arguments))(arguments)
    traced = jax.jit(gradient)(q_pos, *arguments)
    for ours, theirs in zip(*map(jax.tree.leaves, (known, traced)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("blocks", "s"), [(1, 1), (1, 40), (3, 7)])
def test_a_tile_by_hand(blocks, s):
    t = blocks * BLOCK
    draw = np.random.default_rng(1)
    q, r = draw.normal(size=(t, 3)).astype(np.float32), draw.normal(size=(t + s, 3)).astype(np.float32)
    expected = [[q[a] @ r[b + t - 1 - a] for b in range(s)] for a in range(t)]
    np.testing.assert_allclose(jax.jit(_products)(q, r), expected, atol=1e-5)


def inputs_of(encoding, T=40, S=40, q_pos=None, k_pos=None):
    params, q, k, v = (jax.tree.map(np.float32, x) for x in drawn(T, S, encoding))
    return prepare(q, from_caller(q, k, v, k_pos), encoding, params, q_pos, Mask(), None, None, None)


def test_distances_fall_and_reach_past_both_ends():
    made = per_distance(inputs_of(TransformerXL(), q_pos=np.arange(40) + 1000), (16, 24))
    assert made.encoding == RelativeKeys(1000 + 47 + BLOCK - 1)
    assert made.params.head["r"].shape == (K, N // K, 48 + 48 + BLOCK - 1, H)


def test_distances_of_tiles_that_are_skipped_are_not_made():
    """Causal over 40 queries and keys: tiles of 8 x 4 on the diagonal reach down to -(8 - 1) - (4 - 1)."""
    inputs = inputs_of(TransformerXL())
    inputs = inputs._replace(span=Mask(causal=True).span)
    made = [per_distance(inputs, (8, 4), skipping=skipping) for skipping in (True, False)]
    sizes = [one.params.head["r"].shape[2] for one in made]
    assert sizes == [39 + BLOCK - 1 + 10 + 2, 39 + BLOCK - 1 + 39 + 2]


@pytest.mark.quick("values not known", "composed")
@pytest.mark.parametrize(
    "make",
    [
        lambda: inputs_of(TransformerXL(), q_pos=np.arange(40)[::-1]),
        lambda: inputs_of(TransformerXL(), k_pos=jnp.arange(40)),
        lambda: inputs_of(TransformerXL(), T=1),
        lambda: inputs_of(compose(RoPE(), TransformerXL())),
        lambda: inputs_of(NoPE()),
    ],
    ids=["backwards", "values not known", "one query", "composed", "no keys"],
)
def test_others_go_to_the_encoding(make):
    inputs = make()
    assert per_distance(inputs, (8, 8)) is inputs


class Shaw(PositionEncoding):
    """score = scale * q_i . (k_j + e[clip(i - j)]), a table of 2 * 3 + 1 rows (Shaw et al. 2018, arXiv:1803.02155)."""

    def init(self, key, sizes):
        return EncodingParams(shared={"table": jax.random.normal(key, (7, sizes.head_dim))})

    def score(self, p, tile):
        by_row = tile.q @ p.shared["table"].T
        return tile.logits + tile.scale * jnp.take_along_axis(by_row, jnp.clip(tile.distance, -3, 3) + 3, axis=1)

    def relative_keys(self, p, n):
        table = p.shared["table"]
        nothing = jnp.zeros(table.shape[1], table.dtype)
        return table[jnp.clip(n, -3, 3) + 3], nothing, nothing


def test_an_encoding_of_relative_keys_that_is_not_ours():
    encoding = Shaw()
    params, q, k, v = (jax.tree.map(np.float32, x) for x in drawn(40, 40, encoding))
    run = lambda pos: attend(q, k, v, encoding=encoding, params=params, mask=Mask(causal=True), q_pos=pos, k_pos=pos)
    assert isinstance(per_distance(inputs_of(encoding), (1, 1)).encoding, RelativeKeys)
    np.testing.assert_allclose(run(np.arange(40)), jax.jit(run)(jnp.arange(40)), atol=2e-6)


def test_only_encodings_that_say_so_have_relative_keys():
    assert isinstance(TransformerXL(), HasRelativeKeys)
    assert not any(isinstance(encoding, HasRelativeKeys) for encoding in (NoPE(), RoPE(), compose(RoPE(), Shaw())))


def test_rel_shift_moves_each_row_one_further():
    y = jnp.arange(2 * 3 * 8).reshape(2, 3, 8)
    expected = [[[y[block, a, b + 2 - a] for b in range(5)] for a in range(3)] for block in range(2)]
    np.testing.assert_array_equal(rel_shift(y), expected)
