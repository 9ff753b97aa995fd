"""The last layer at a subset of query positions is that layer at all of them, whatever axes the positions have."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.modules import Decoder, EncoderDecoder
from attnjax.modules.query_subset import gather_positions
from attnjax.positions import ALiBi, LogN, MRoPE, NoPE, PaTH, SelectiveRoPE, compose

INDICES = np.array([[1, 2, 6], [0, 2, 5]])
COMPUTED = {
    "selective_rope": SelectiveRoPE(rank=2),
    "path": PaTH(rank=2),
    "path_fox": PaTH(rank=2, forget=True),
    "composed": compose(SelectiveRoPE(rank=2), LogN(4)),
}
"""Positions that have channels, computed from the tokens and from plain positions."""
ROWS = np.random.default_rng(1).integers(0, 20, (2, 8, 3)).cumsum(1)
POSITIONS = {
    "none": None,
    "one row": np.arange(8) + 3,
    "rows": np.stack([np.arange(8), np.arange(8) * 2]),
    "coordinates": ROWS[0],
    "rows of coordinates": ROWS,
}


def check(call, model, tokens, pos, indices=INDICES):
    every = call(model, tokens, pos=pos)
    some = call(model, tokens, pos=pos, query_indices=jnp.asarray(indices))
    np.testing.assert_allclose(some, np.take_along_axis(np.asarray(every), indices[:, :, None], 1), atol=1e-5)


@pytest.mark.parametrize("name", COMPUTED)
def test_positions_with_channels(config, build, call, tokens, name):
    check(call, build(Decoder, config(layers=1, encoding=COMPUTED[name])), tokens, None)


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_with_coordinates(config, build, call, tokens, name):
    """Those of a text may leave them out, in a row for all examples or a row for each."""
    check(call, build(Decoder, config(layers=1, encoding=MRoPE())), tokens, POSITIONS[name])


def test_a_part_without_coordinates_takes_the_positions_of_a_text(config, build, call, tokens):
    check(call, build(Decoder, config(layers=1, encoding=compose(MRoPE(), ALiBi()))), tokens, POSITIONS["rows"])


def test_as_many_tokens_as_coordinates_as_examples(config, build, call):
    """A square of positions is refused, as it is in `attend`: it may be rows of examples or one row with coordinates."""
    tokens, pos = np.arange(9).reshape(3, 3), np.array([[0, 0, 0], [1, 5, 2], [2, 5, 9]])
    model, indices = build(Decoder, config(layers=1, encoding=MRoPE())), np.array([[0, 2], [1, 2], [2, 1]])
    with pytest.raises(ValueError, match=r"positions \(3, 3\) may be rows of 3 examples or one row with 3 coordinates"):
        call(model, tokens, pos=pos)
    check(call, model, tokens, np.broadcast_to(pos, (3, 3, 3)), indices)


def test_as_many_queries_as_coordinates_as_examples(config, build, call):
    """Rows of examples stay such where those of the queries are a square."""
    tokens, pos = np.arange(12).reshape(3, 4), np.array([[0, 1, 5, 7], [0, 2, 3, 9], [0, 4, 6, 8]])
    indices = np.array([[0, 2, 3], [1, 2, 3], [2, 1, 0]])
    check(call, build(Decoder, config(layers=1, encoding=MRoPE())), tokens, pos, indices)


def test_positions_that_are_gathered_by_hand():
    rows, indices = np.arange(12).reshape(2, 6), jnp.array([[5, 0], [1, 1]])
    gather = lambda pos, encoding: np.asarray(gather_positions(pos, indices, encoding, 6)).tolist()
    assert gather(rows[1], MRoPE()) == [[11, 6], [7, 7]]
    assert gather(rows, MRoPE()) == [[5, 0], [7, 7]]
    assert gather(np.stack([rows, rows + 20], 1), NoPE()) == [[[5, 0], [25, 20]], [[7, 7], [27, 27]]]
    of_parts = gather_positions(rows, indices, compose(MRoPE(), ALiBi()), 6)
    assert [one.tolist() for one in of_parts] == [[[5, 0], [7, 7]]] * 2
    channels = np.stack([rows, -rows], -1)[:, None]
    assert gather(channels, PaTH()) == [[[[5, -5], [0, 0]]], [[[7, -7], [7, -7]]]]


@pytest.mark.slow
def test_cross_attention_has_no_positions(config, build, call, tokens):
    """Coordinates of the target reach its self-attention alone, in a call, in its weights and in a step."""
    model = build(EncoderDecoder, config(layers=1, encoding=MRoPE()))
    same = np.stack([np.arange(8)] * 3, -1)
    plain = call(model, tokens, tokens)
    np.testing.assert_allclose(call(model, tokens, tokens, target_pos=same), plain, atol=1e-6)
    assert np.abs(call(model, tokens, tokens, target_pos=ROWS) - plain).max() > 1e-3
    found = call(model.weights, tokens, tokens, target_pos=same).cross
    np.testing.assert_allclose(found, call(model.weights, tokens, tokens).cross, atol=1e-6)
    decoded, _ = model.decode(tokens, model.start(tokens, 8), pos=same)
    np.testing.assert_allclose(decoded, plain, atol=1e-5)
