"""Mistakes of callers of `attend`: each is a ValueError that says what came and what is possible, before anything is computed.

Sentences may change: what is matched are names and numbers.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import ALiBi, AxialRoPE, FoX, LogN, Mask, MRoPE, NoPE, RoPE, SSMax, XPos, compose
from tests.attention.matrix import compiled

B, T, S, N, K, H = 2, 3, 5, 4, 2, 4
CAUSAL = Mask(causal=True)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


GOOD = {"q": zeros(B, T, N, H), "k": zeros(B, S, K, H), "v": zeros(B, S, K, H)}
SQUARE = GOOD | {"q": zeros(B, S, N, H)}
"""As many queries as keys."""


def attend(good=GOOD, **change):
    """`attend` traced without running it."""
    return jax.eval_shape(lambda: aj.attend(**good | change))


def wide(dtype, **change):
    """A call with queries, keys and values of this type."""
    return {name: x.astype(dtype) for name, x in SQUARE.items()} | {"mask": CAUSAL} | change


ARRAYS = [
    ({"q": zeros(T, N, H)}, r"^q .*4 axes.*\(3, 4, 4\)"),
    ({"q": zeros(B, T, N, H, dtype=np.int32)}, "^q .*floating.*int32"),
    ({"v": zeros(B, S + 1, K, H)}, r"k \(2, 5, 2, 4\) and v \(2, 6, 2, 4\)"),
    ({"q": zeros(1, T, N, H)}, r"batch.*q \(1, 3, 4, 4\) and k \(2, 5, 2, 4\)"),
    ({"q": zeros(B, T, N, 6)}, r"head dimension.*q \(2, 3, 4, 6\) and k \(2, 5, 2, 4\)"),
    ({"q": zeros(B, T, 3, H)}, "multiple of key heads.*N=3 and K=2"),
    ({"q": zeros(B, 0, N, H)}, r"^q .*at least one.*\(2, 0, 4, 4\)"),
    ({"v": None}, "needs k and v, or a cache"),
    (wide("float16", encoding=XPos()), "XPos.*float16.*bfloat16 or float32"),
]
AXES_LAST = "q_pos.*last axis.*AxialRoPE|q_pos.*AxialRoPE.*last axis"
POSITIONS = [
    ({"q_pos": np.arange(S)}, r"q_pos.*\(3,\), \(2, 3\).*got \(5,\)"),
    ({"k_pos": np.zeros((1, S), int)}, r"k_pos.*\(5,\), \(2, 5\).*got \(1, 5\)"),
    ({"q_pos": np.array([0, 1, 2**31])}, r"q_pos .*int32.* 0\.\.2147483648"),
    ({"q_pos": np.array([0.0, 1.0, 3e9])}, "q_pos .*finite.*int32"),
    ({"q_pos": np.array([0.0, 1.0, 2**24 + 1])}, "q_pos .*16777217.*pass integers"),
    ({"q_pos": jnp.zeros(T, jnp.bfloat16)}, "q_pos .*integers or float32.*256.*bfloat16"),
    ({"q_pos": zeros(B, 3, T)}, r"q_pos .*\(2, 4, 3\), \(2, 2, 3\).*got \(2, 3, 3\)"),
    ({"k_pos": zeros(B, N, S), "encoding": RoPE()}, r"k_pos of RoPE.*4 query heads.*\[B, 2, 5\]"),
    ({"encoding": XPos(), "mask": Mask(True, q_index=np.arange(T)), "q_pos": np.array([0, 1, 20_000])}, "XPos.*0..20000"),
    # A tuple has an entry for each part of a composition, and means nothing else.
    ({"q_pos": (0, 1, 2)}, r"q_pos.*tuple.*composition.*NoPE\(\)"),
    ({"encoding": compose(NoPE(), RoPE()), "q_pos": (np.arange(T),)}, "q_pos .*2 parts.*1 entries"),
    # Coordinates are last.
    ({"encoding": AxialRoPE(), "q_pos": zeros(T, 3), "k_pos": zeros(S, 2)}, rf"({AXES_LAST}).* 2, got \(3, 3\)"),
    ({"encoding": FoX(), "mask": Mask(True, q_index=np.arange(T))}, "FoX.*content.*q_pos.*context_positions"),
    (
        {"encoding": compose(RoPE(), FoX()), "mask": Mask(True, q_index=np.arange(T)), "q_pos": np.arange(T)},
        r"q_pos of FoX.*\(2, 4, 3\).*got \(3,\)",
    ),
    (wide("float32", encoding=ALiBi(), q_pos=np.arange(S) + 2**31 - 5, k_pos=np.arange(S) - 3), "int32.*ALiBi.*-3..21474"),
]  # fmt: skip
MASKS = [
    ({"mask": Mask(k_valid=np.ones(T, bool))}, r"mask.k_valid .*\(5,\) or \(2, 5\).*\[3\]"),
    ({"mask": Mask(k_valid=np.ones(S))}, "mask.k_valid .*boolean.*float64"),
    ({"mask": Mask(allowed=np.ones((S, T), bool))}, r"mask.allowed .*\(3, 5\) or \(2, 3, 5\).*\[5, 3\]"),
    ({"mask": Mask(q_segments=zeros(S, dtype=int), k_segments=zeros(S, dtype=int))}, r"q_segments .*\(3,\).*\[5\]"),
    (
        {"mask": Mask(q_segments=zeros(T, dtype=int), k_segments=np.full(S, 2**40))},
        r"k_segments .*int32.*1099511627776",
    ),
    ({"mask": Mask(q_index=np.zeros(T))}, "mask.q_index .*integers.*float64"),
    # Fewer queries than keys, whose indices would be those of the first keys.
    ({"mask": jnp.ones((T, S), bool)}, r"mask .*Mask\(causal=True\).*Mask\(allowed=array\)"),
    ({"mask": CAUSAL}, r"3 queries and 5 keys.*q_index.*arange\(2, 5\)"),
    # What an encoding needs of the mask.
    ({"encoding": ALiBi()}, r"ALiBi.*Mask\(causal=True\)"),
    ({"encoding": compose(NoPE(), SSMax()), "params": ({}, {"s": zeros(N)})}, r"SSMax.*Mask\(causal=True\)"),
    ({"encoding": XPos(), "mask": Mask(window=(2, 1), q_index=np.arange(T))}, r"XPos.*Mask\(causal=True\)"),
]
BY_LENGTH = (RoPE(scaling=aj.DynamicNTK(2.0, 4)), RoPE(scaling=aj.LongRoPE((1.0, 1.0), (2.0, 3.0), 4, factor=2.0)))
PACKED = Mask(causal=True, q_segments=np.zeros(S, int), k_segments=np.zeros(S, int))
OTHERS = [
    ({"length": 0}, "length .*at least 1.*got 0"),
    ({"length": jnp.int32(4)}, "length .*known"),
    *((SQUARE | {"encoding": part, "mask": PACKED}, r"RoPE.*length.*pass length=") for part in BY_LENGTH),
    ({"sink": zeros(3)}, r"sink .*\(4,\).*float32\[3\]"),
    ({"sink": zeros(N), "encoding": aj.StickBreaking()}, "StickBreaking.*sink"),
    ({"scale": float("nan")}, "scale .*finite.*nan"),
    ({"scale": np.ones(N)}, r"scale .*\[1., 1., 1., 1.\]"),
    ({"dropout": 0.1}, r"Dropout\(key, rate\).*0.1"),
    ({"implementation": "flash"}, "'flash'.*dense, chunked, cudnn"),
    ({"encoding": "rope"}, r"RoPE\(\), got 'rope'"),
    ({"encoding": aj.Sinusoidal()}, "Sinusoidal.*embeddings.*attnjax.embed"),
    ({"encoding": RoPE(fraction=0.2)}, "fraction=0.2 .* 4"),
    (wide("float32", encoding=ALiBi((0.5, 0.1))), "2 slopes for 4 heads"),
    ({"encoding": RoPE(), **{name: x[..., :3] for name, x in GOOD.items()}}, "RoPE .*even, got 3"),
]


@pytest.mark.parametrize(("change", "message"), ARRAYS + POSITIONS + MASKS + OTHERS)
def test_attend_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        attend(**change)


def test_axes_that_fit_by_chance_are_refused():
    """M-RoPE positions [3, B, T] with B = T = 3 were read as [B, T, 3]."""
    cube = np.stack([np.arange(9).reshape(3, 3)] * 3)
    x = {"q": zeros(3, 3, 2, H), "k": zeros(3, 3, 2, H), "v": zeros(3, 3, 2, H), "encoding": MRoPE()}
    with pytest.raises(ValueError, match=r"q_pos.*\(3, 3, 3\).*MRoPE.*last.*moveaxis"):
        attend(x, q_pos=cube, k_pos=cube)
    said = jnp.moveaxis(jnp.asarray(cube), 0, -1)[:, None]
    assert attend(x, q_pos=said, k_pos=said).shape == (3, 3, 2, H)


def test_lists_of_numbers_are_positions():
    """A list was read as positions of the parts of a composition, or refused as such. A tuple is of the parts."""
    both, rows = compose(RoPE(), ALiBi()), [[0, 1, 2, 3, 5], [0, 2, 4, 6, 9]]
    x = {name: np.random.default_rng(0).normal(size=array.shape).astype(np.float32) for name, array in SQUARE.items()}
    ways = (rows, np.array(rows), [np.array(row) for row in rows], tuple(rows))
    found = compiled(lambda: [aj.attend(**x, encoding=both, q_pos=pos, k_pos=pos, mask=CAUSAL) for pos in ways])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[1])
    assert np.abs(found[3] - found[1]).max() > 1e-3
    assert attend(SQUARE, encoding=RoPE(), q_pos=rows[0], k_pos=rows[0]).shape == (B, S, N, H)


@pytest.mark.parametrize("encoding", [ALiBi(), LogN(length=2)], ids=str)
def test_positions_restart_at_each_document(encoding):
    """Of a row with the same document twice, the second half is the first; an array of positions is taken as it is."""
    x = np.random.default_rng(0).normal(size=(1, 4, N, H)).astype(np.float32)
    row, ids, index = np.concatenate([x, x], 1), np.array([7, 7, 7, 7, 2, 2, 2, 2]), np.arange(8)
    packed = Mask(causal=True, q_segments=ids, k_segments=ids)
    run = lambda x, mask, pos=None: aj.attend(x, x, x, mask=mask, encoding=encoding, q_pos=pos, k_pos=pos)
    out, alone, counted = compiled(lambda: (run(row, packed), run(x, CAUSAL), run(row, packed, index)))
    np.testing.assert_array_equal(out[:, 4:], out[:, :4])
    np.testing.assert_allclose(out[:, :4], alone, atol=1e-6)
    assert (np.abs(counted[:, 4:] - out[:, 4:]).max() > 1e-3) == (encoding == LogN(length=2))


@pytest.mark.parametrize("encoding", BY_LENGTH, ids=["dynamic", "longrope"])
def test_a_neighbour_does_not_change_the_frequencies_of_a_document(encoding):
    """With one length for all documents, each of a packed row has the numbers that it has alone."""
    draw = np.random.default_rng(0)
    first, second = (draw.normal(size=(1, n, N, H)).astype(np.float32) for n in (8, 3))
    row, ids = np.concatenate([first, second], 1), np.repeat([0, 1], [8, 3])
    packed = Mask(causal=True, q_segments=ids, k_segments=ids)

    def found():
        run = lambda x, mask, length=None: aj.attend(x, x, x, encoding=encoding, mask=mask, length=length)
        alone = [run(x, CAUSAL, length) for length in (8, None) for x in (first, second)]
        return run(row, packed, 8), *alone

    out, first, second, by_keys, short = compiled(found)
    np.testing.assert_allclose(out, np.concatenate([first, second], 1), atol=1e-6)
    np.testing.assert_array_equal(first, by_keys)
    assert np.abs(second - short).max() > 1e-4, "the length decides"


MAKES = [
    (lambda: Mask(window=(2, -1)), r"window .*\(2, -1\)"),
    (lambda: Mask(causal=1), "causal .*1"),
    (lambda: Mask(first=-1), "first .*-1"),
    (lambda: Mask(window=(0, 2**40)), "window .*2147483647"),
    (lambda: aj.attention_fn(NoPE(), mask=jnp.ones((4, 4), bool)), r"Mask\(allowed=array\)"),
    (lambda: Mask(q_segments=np.zeros(3, int)), "q_segments and k_segments"),
    (lambda: Mask(first=1, q_segments=np.zeros(3, int), k_segments=np.zeros(3, int)), "first .*segments"),
    (lambda: aj.Dropout(jax.random.key(0), 1.0), r"rate .*1.0"),
    (lambda: aj.Dropout(jnp.zeros(2, jnp.uint32), 0.1), r"typed PRNG key.*jax.random.key\(seed\)"),
    (lambda: aj.combine(zeros(2, B, T, N, H), zeros(2, B, N, T)), r"lses.*\(2, 2, 4, 3\)"),
    (lambda: aj.gate_heads(zeros(B, T, N, H), zeros(3)), r"gate .*\(4,\) or \(2, 4\).*\(3,\)"),
]


@pytest.mark.parametrize(("make", "message"), MAKES)
def test_records_and_helpers_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()
