"""Biases of heads against the formulas of their encodings, and what has no curve."""

import jax
import numpy as np
import pytest

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.modules import Decoder, Encoder
from attnjax.positions import FIRE, ALiBi, CoPE, Kerple, NoPE, RoPE, T5Bias, compose
from experiments.reading_positions import curves
from tests.evaluation import planted_heads as planted

DISTANCES = np.array([0, 1, 2, 5, 9, 20])


def subject(encoding, kind=Decoder, **fields) -> LoadedModel:
    """Two layers of random numbers under an encoding."""
    return planted.drawn(planted.config(encoding=encoding, layers=2, **fields), kind=kind)


def parameters(one: LoadedModel, layer: int = 0):
    """What the encoding of a layer learned."""
    params = one.module().stack.blocks[layer].attention.encoding_params()
    return jax.tree.map(np.asarray, params)


def test_alibi():
    found = curves.bias_curves(subject(ALiBi()), DISTANCES)
    # Two heads: slopes 2^-4 and 2^-8.
    expected = -np.array([2.0**-4, 2.0**-8])[:, None] * DISTANCES
    np.testing.assert_allclose(found, [expected, expected], rtol=1e-6)


def test_t5():
    one = subject(T5Bias(buckets=8, max_distance=16))
    for layer in range(2):
        table = parameters(one, layer)["table"]
        # Four exact buckets; then 4, 5 | 6, 7 | 8 .. 11 | 12 and more begin at 4 * 4^(r/4), rounded up.
        expected = table[:, [0, 1, 2, 4, 6, 7]]
        np.testing.assert_allclose(curves.bias_curves(one, DISTANCES)[layer], expected, rtol=1e-6)


def test_t5_shared_by_all_layers():
    one = subject(T5Bias(buckets=8, max_distance=16), share_encoding=True)
    found = curves.bias_curves(one, DISTANCES)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], parameters(one)["table"][:, [0, 1, 2, 4, 6, 7]], rtol=1e-6)


def test_t5_in_both_directions():
    one = subject(T5Bias(buckets=8, max_distance=16, bidirectional=True), Encoder)
    found = curves.bias_curves(one, np.array([-1, 0, 1]), place=1)
    np.testing.assert_allclose(found[0], parameters(one)["table"][:, [5, 0, 1]], rtol=1e-6)


def test_kerple():
    one = subject(Kerple())
    p = parameters(one)
    r1, r2 = (np.log1p(np.exp(p[name]))[:, None] for name in ("r1", "r2"))
    np.testing.assert_allclose(
        curves.bias_curves(one, DISTANCES)[0], -r1 * np.log1p(r2 * DISTANCES), rtol=1e-5, atol=1e-6
    )


def test_fire_at_a_place():
    one = subject(FIRE(hidden=8, threshold=4.0))
    p = parameters(one)
    c, threshold = abs(p["c"]), abs(4.0 * p["threshold"])
    for place in (20, 500):
        x = np.log1p(c * DISTANCES) / (np.log1p(c * max(place, threshold)) + 1e-6)
        hidden = np.maximum(x[:, None] * p["hidden"] + p["hidden_bias"], 0)
        expected = p["out"] @ hidden.T + p["out_bias"][:, None]
        np.testing.assert_allclose(curves.bias_curves(one, DISTANCES, place)[0], expected, rtol=1e-4, atol=1e-5)


def test_of_a_composition_the_part_with_a_bias_counts():
    plain, with_rope = (subject(e) for e in (ALiBi(), compose(RoPE(), ALiBi())))
    np.testing.assert_allclose(
        curves.bias_curves(with_rope, DISTANCES), curves.bias_curves(plain, DISTANCES), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("encoding", "distances", "place", "message"),
    [
        (RoPE(), DISTANCES, None, r"RoPE\(.*\) has no bias that depends on positions alone"),
        (NoPE(), DISTANCES, None, "has no bias that depends on positions alone"),
        (CoPE(max_position=4), DISTANCES, None, r"CoPE\(.*\) has no bias that depends on positions alone"),
        (ALiBi(), DISTANCES / 2, None, r"distances must be integers \[X\], at least one, got float64\[6\]"),
        (ALiBi(), DISTANCES[:0], None, r"distances must be integers \[X\], at least one, got int64\[0\]"),
        (ALiBi(), DISTANCES, 19, "place 19 has no token 20 before it"),
    ],
)
def test_mistakes_are_named(encoding, distances, place, message):
    with pytest.raises(ValueError, match=message):
        curves.bias_curves(LoadedModel(planted.blank(planted.config(encoding=encoding))), distances, place)
