"""Positions computed from content: sums and windows against loops; in pieces, in packed rows, with padding, over devices.

The positions of each encoding are compared with those of its authors in `test_gates.py` and `test_whole_table.py`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import attnjax as aj
from attnjax.positions.contextual import Past
from tests.positions.hooks import close, drawn, run

B, T, D = 2, 8, 6
SIZES = aj.Sizes(model=D, heads=4, kv_heads=2, head_dim=4)
DRAW = np.random.default_rng(0)
X, POS = DRAW.normal(size=(B, T, D)).astype(np.float32), np.arange(T)
SEGMENTS = np.array([7, 7, 7, 3, 5, 5, 5, 5])
BOTH = aj.compose(aj.RoPE(), aj.PaTH(rank=3, forget=True), aj.FoX(), aj.SelectiveRoPE(rank=3))
ROWS = ((4, 14), (4,), (2, 8))
"""Rows of the last three parts: per query head or per key head, with their features."""
PARAMS = drawn(BOTH, SIZES)
BEFORE = (None, *(DRAW.normal(size=(B, *shape)).astype(np.float32) for shape in ROWS))


@functools.partial(jax.jit, static_argnames="axis_name")
def found(x, pos=POS, before=None, **options):
    return aj.context_positions(BOTH, PARAMS, x, pos, SIZES, before, **options)


def test_sums_and_windows_against_loops():
    """Document by document, and the first one goes on from the past."""
    place = np.array([0, 1, 2, 0, 0, 1, 2, 3], np.int32)
    x, start, before = X[0, :, :3], np.float32([10, 20, 30]), np.float32(DRAW.normal(size=(2, 3)))
    sums, windows = np.zeros((T, 3)), np.zeros((3, T, 3))
    for t in range(T):
        first = t - place[t]
        sums[t] = x[first : t + 1].astype(np.float64).sum(0) + (start if first == 0 else 0)
        for back in range(3):
            if back <= place[t]:
                windows[2 - back, t] = x[t - back]
            elif first == 0:
                windows[2 - back, t] = before[2 + t - back]
    both = run(
        lambda past, x, before: (past.sums(x, past.state), past.windows(x, before)), Past(start, place), x, before
    )
    close(both[0], sums, 1e-5)
    np.testing.assert_array_equal(both[1], windows.astype(np.float32))


def test_each_part_has_rows_of_its_own():
    """Per query head or per key head, and features; without the hook positions stay the very array."""
    rope, *others = found(X)
    np.testing.assert_array_equal(rope, POS)
    assert [one.shape for one in others] == [(B, *rows[:1], T, *rows[1:]) for rows in ROWS]
    assert aj.context_positions(aj.RoPE(), None, X, POS, SIZES) is POS
    assert aj.context_positions(aj.compose(aj.RoPE(), aj.ALiBi()), None, X, POS, SIZES) is POS


def test_pieces_equal_the_whole():
    """The last positions of a piece are all that the next one starts from."""
    whole, before, pieces = found(X, before=BEFORE), BEFORE, []
    for start, stop in ((0, 6), (6, 7), (7, T)):
        _, *piece = found(X[:, start:stop], POS[start:stop], before)
        before = (None, *(one[:, :, -1] for one in piece))
        pieces.append(piece)
    for part, expected in enumerate(whole[1:]):
        close(np.concatenate([piece[part] for piece in pieces], 2), expected, 1e-5)


def test_a_packed_document_has_the_bits_of_a_row_of_its_own():
    """Whatever lies beside it, convolutions included; in the first document the past goes on."""
    packed = found(X, before=BEFORE, segments=SEGMENTS)
    for document in np.unique(SEGMENTS):
        at = np.flatnonzero(document == SEGMENTS)
        # At the front of a row whose other tokens are a document of zeros.
        moved = np.zeros_like(X)
        moved[:, : len(at)] = X[:, at]
        before = jax.tree.map(lambda leaf: leaf * (at[0] == 0), BEFORE)  # noqa: B023, called at once
        alone = found(moved, before=before, segments=np.array(np.arange(T) >= len(at), int))
        for one, expected in zip(packed[1:], alone[1:], strict=True):
            np.testing.assert_array_equal(one[:, :, at], expected[:, :, : len(at)])


def test_padding_counts_as_zeros():
    """On the left too, where a convolution would mix it into the first token."""
    valid = np.arange(T) >= np.array([[3], [0]])
    padded, zeros = (np.where(valid[..., None], X, np.float32(junk)) for junk in (np.nan, 0))
    jax.tree.map(np.testing.assert_array_equal, found(padded, valid=valid), found(zeros))


def test_tokens_over_devices_equal_one_row():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("t",))
    call = lambda x, pos: found(x, pos, BEFORE, axis_name="t")
    specs = (P("t"), *(P(None, None, "t"),) * 3)
    over = jax.shard_map(call, mesh=mesh, in_specs=(P(None, "t"), P("t")), out_specs=specs)
    for one, expected in zip(run(over, X, POS), found(X, before=BEFORE), strict=True):
        close(one, expected, 1e-5)


@dataclasses.dataclass(frozen=True)
class Returns(aj.PositionEncoding):
    shape: tuple[int, ...]
    width: int = 0

    def features(self, sizes):
        return (self.width,) if self.width else ()

    def context(self, p, x, pos, past):
        return jnp.zeros(self.shape)


@pytest.mark.parametrize(
    ("encoding", "pos", "options", "message"),
    [
        *((Returns(shape), POS, {}, r"return positions \(8,\); got \(") for shape in [(), (7,), (8, 2), (2, 8)]),
        *((Returns(shape, 2), POS, {}, r"return positions \(8, 2\); got \(") for shape in [(8,), (8, 3)]),
        *(
            (aj.FoX(), pos, {}, r"pos \[T\] or \[B, T\]")
            for pos in (POS[:4], np.int32(0), POS[None], POS.reshape(2, 4))
        ),
        (aj.FoX(), POS, {}, "FoX.* learns parameters"),
        (BOTH, POS, {}, "PaTH.* learns parameters"),
        (BOTH, POS, {"before": np.zeros((B, 4))}, "before must be a tuple with one entry for each of the 4 parts"),
        (BOTH, POS, {"segments": SEGMENTS, "axis_name": "t"}, "segments and axis_name"),
    ],
)
def test_refuses_what_does_not_fit(encoding, pos, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: aj.context_positions(encoding, None, X, pos, SIZES, **options))
