"""What property tests draw: every encoding with parameters away from zero, shapes and masks, positions and content.

Static choices (sizes, tiles, types, kinds of mask) come from the short list `LAYOUTS`, so that programs are compiled a
few times and run often; everything else is data, drawn freely.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import attnjax as aj

BATCH, HEAD = 2, 8
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options of `jax.jit`: compiled in a third of the time. What is checked is the program, not the optimizer of XLA."""
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
if jax.__version_info__ < (0, 11):
    OPTIMISED["xla_cpu_use_fusion_emitters"] = True
"""Options of `jax.jit`: compiled as users do, whatever `conftest.py` says, where rounding or speed are the matter."""


def slow_except(cases: Iterable[Any], *quick: Any) -> list:
    """Parameters of a test, all of them slow but those named, which stand for all in the quick run.

    A tuple holds one value for each of several parameters.
    """
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    quick = [case if isinstance(case, tuple) else (case,) for case in quick]
    assert all(case in cases for case in quick), "a quick case that does not exist"
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in cases]


MAPS = {
    "nope": aj.NoPE(),
    "rope": aj.RoPE(),
    "rope_partial": aj.RoPE(layout="interleaved", fraction=0.5, keep=0.5),
    "yarn": aj.RoPE(scaling=aj.YaRN(4.0, original_length=64)),
    "dynamic_ntk": aj.RoPE(scaling=aj.DynamicNTK(4.0, original_length=20)),
    "xpos": aj.XPos(),
    "pope": aj.PoPE(),
    "ssmax": aj.SSMax(),
    "llama4_temperature": aj.Llama4Temperature(floor_scale=16.0, attn_scale=0.3),
}
SCORES = {
    "alibi": aj.ALiBi(),
    "alibi_symmetric": aj.ALiBi(symmetric=True),
    "t5": aj.T5Bias(),
    "t5_bidirectional": aj.T5Bias(buckets=8, max_distance=20, bidirectional=True),
    "kerple": aj.Kerple(),
    "kerple_power": aj.Kerple("power"),
    "fire": aj.FIRE(hidden=8, threshold=16.0),
    "transformer_xl": aj.TransformerXL(),
    "cope": aj.CoPE(max_position=6),
    "sandwich": aj.Sandwich(width=16),
    "composed": aj.compose(aj.RoPE(), aj.CoPE(max_position=4), aj.T5Bias(buckets=4, max_distance=9)),
    "dape": aj.DAPE(width=5),
}
EMBEDDINGS = {"sinusoidal": aj.Sinusoidal(), "learned": aj.Learned(length=8192)}
ATTENTION = MAPS | SCORES
"""Encodings that act inside attention, at positions that are given, with a softmax."""
ALL = EMBEDDINGS | ATTENTION

CAUSAL_ONLY = {"alibi", "xpos", "ssmax"}


class Layout(NamedTuple):
    """One set of shapes and static choices. `options` names the arrays that the mask is given."""

    T: int
    S: int
    N: int
    K: int
    tile: tuple[int, int]
    dtype: str
    causal: bool
    window: int | tuple[int, int] | None
    options: frozenset[str]
    pos_dtype: str
    batched: bool

    @property
    def sizes(self) -> aj.Sizes:
        return aj.Sizes(model=self.N * HEAD, heads=self.N, kv_heads=self.K, head_dim=HEAD)

    def serving(self, name: str) -> "Layout":
        """This layout, causal where the encoding of this name serves no other."""
        return self._replace(causal=self.causal or name in CAUSAL_ONLY)


def _layout(
    T, S, heads, tile, dtype, causal=False, window=None, options="", pos_dtype="int32", batched=False
) -> Layout:
    return Layout(T, S, *heads, tile, dtype, causal, window, frozenset(options.split()), pos_dtype, batched)


# Every third one, from any start, covers two float types or more, several groupings of heads and kinds of mask. CI gives an
# encoding one of these thirds.
LAYOUTS = (
    _layout(1, 1, (1, 1), (128, 128), "float32"),
    _layout(7, 7, (4, 2), (2, 3), "float16", causal=True, window=(2, 0), options="segments"),
    _layout(17, 40, (4, 1), (8, 16), "float16", options="valid", batched=True),
    _layout(65, 65, (4, 4), (16, 32), "float32", causal=True, options="valid", batched=True),
    _layout(96, 64, (4, 4), (32, 16), "float32", window=(20, 10), options="index valid", batched=True),
    _layout(130, 130, (4, 1), (128, 128), "bfloat16", causal=True, options="index segments valid", batched=True),
    _layout(300, 257, (4, 2), (64, 128), "bfloat16", causal=True, options="allowed segments", pos_dtype="float32"),
    _layout(33, 300, (1, 1), (16, 300), "bfloat16", window=40, options="segments", pos_dtype="float32"),
    _layout(1, 129, (4, 2), (1, 32), "float32", causal=True, options="index valid"),
)


class Data(NamedTuple):
    """Positions and the arrays of the mask, as `attend` and `Mask` take them; None where the layout has none."""

    q_pos: Any
    k_pos: Any
    q_segments: Any = None
    k_segments: Any = None
    k_valid: Any = None
    q_index: Any = None
    k_index: Any = None
    allowed: Any = None

    def mask(self, causal: bool, window: Any = None) -> aj.Mask:
        return aj.Mask(causal, window, *self[2:])

    def visible(self, causal: bool, window: Any, T: int, S: int) -> np.ndarray:
        """[B, T, S] from the definition of each rule, entry by entry of whole arrays."""
        along = lambda x, default, n: np.broadcast_to(default if x is None else x, (BATCH, n))
        i, j = along(self.q_index, np.arange(T), T), along(self.k_index, np.arange(S), S)
        ahead = j[:, None, :] - i[:, :, None]
        left, right = window if isinstance(window, tuple) else (window, window)
        seen = np.broadcast_to(along(self.k_valid, True, S)[:, None, :], ahead.shape)
        seen = seen & ((ahead <= 0) if causal else True)
        seen = seen & (True if left is None else ahead >= -left) & (True if right is None else ahead <= right)
        same = along(self.q_segments, 0, T)[:, :, None] == along(self.k_segments, 0, S)[:, None, :]
        return seen & same & (True if self.allowed is None else self.allowed)


POSITIONS = ("arange", "offset", "random", "unsorted", "restarting")
VALIDITY = ("all", "left padding", "right padding", "random", "few", "none")


class Case(NamedTuple):
    """Everything drawn but the encoding. `turn` picks a layout, `seed` all that has no name of its own."""

    turn: int
    seed: int
    q_positions: str
    k_positions: str
    validity: str
    scale: float
    size: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One case."""
    return Case(
        turn=draw(st.integers(0, len(LAYOUTS) - 1)),
        seed=draw(st.integers(0, 2**32 - 1)),
        q_positions=draw(st.sampled_from(POSITIONS)),
        k_positions=draw(st.sampled_from(POSITIONS)),
        validity=draw(st.sampled_from(VALIDITY)),
        scale=draw(st.sampled_from([0.0, 0.1, HEAD**-0.5, 1.0])),
        size=draw(st.sampled_from([0.1, 1.0, 3.0])),
    )


def positions(
    draw: np.random.Generator, kind: str, n: int, rows: tuple[int, ...] = (), spread: int = 600
) -> np.ndarray:
    """int32 positions [*rows, n] that span at most `spread`, or n where that is more."""
    if kind == "offset":
        return (np.arange(n) + draw.integers(0, 4096, (*rows, 1))).astype(np.int32)
    if kind == "random":
        picked = [draw.choice(max(spread, n), n, replace=False) for _ in range(int(np.prod(rows)))]
        return np.sort(np.reshape(picked, (*rows, n)), -1).astype(np.int32)
    if kind == "unsorted":
        return draw.integers(-20, 300, (*rows, n)).astype(np.int32)
    if kind == "restarting":
        return (np.arange(n) % draw.integers(1, n + 1, (*rows, 1))).astype(np.int32)
    return np.broadcast_to(np.arange(n, dtype=np.int32), (*rows, n))


def validity(draw: np.random.Generator, kind: str, n: int, rows: tuple[int, ...] = ()) -> np.ndarray:
    """Booleans [*rows, n]."""
    cut = draw.integers(0, n + 1, (*rows, 1))
    index = np.arange(n)
    return {
        "all": np.ones((*rows, n), bool),
        "left padding": np.broadcast_to(index, (*rows, n)) >= cut,
        "right padding": np.broadcast_to(index, (*rows, n)) < cut,
        "random": draw.random((*rows, n)) < 0.5,
        "few": draw.random((*rows, n)) < 0.05,
        "none": np.zeros((*rows, n), bool),
    }[kind]


def data(case: Case, layout: Layout) -> Data:
    """Positions and mask arrays of a case in the shapes of a layout."""
    draw = np.random.default_rng([case.seed, 1])
    rows = (BATCH,) if layout.batched else ()
    T, S, has = layout.T, layout.S, layout.options.__contains__
    q_pos, k_pos = positions(draw, case.q_positions, T, rows), positions(draw, case.k_positions, S, rows)
    if layout.pos_dtype == "float32":
        # In float32, because T5 rounds distances down, and those of float64 positions fall elsewhere.
        q_pos, k_pos = ((pos + draw.random(pos.shape).round(2)).astype(np.float32) for pos in (q_pos, k_pos))
    runs = lambda n: np.sort(draw.integers(0, 4, (*rows, n)), -1).astype(np.int32)
    places = np.broadcast_to(np.arange(max(T, S), dtype=np.int32), (*rows, max(T, S)))
    index = lambda n: draw.permuted(places, axis=-1)[..., :n]
    return Data(
        q_pos,
        k_pos,
        runs(T) if has("segments") else None,
        runs(S) if has("segments") else None,
        validity(draw, case.validity, S, rows) if has("valid") else None,
        index(T) if has("index") else None,
        index(S) if has("index") else None,
        draw.random((*rows, T, S)) < 0.3 if has("allowed") else None,
    )


def content(seed: int, layout: Layout, size: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v of normal numbers, already rounded to the type of the layout."""
    draw = np.random.default_rng([seed, 2])
    shapes = (
        (BATCH, n, heads, HEAD) for n, heads in ((layout.T, layout.N), (layout.S, layout.K), (layout.S, layout.K))
    )
    q, k, v = (draw.normal(size=shape).astype(np.float32) for shape in shapes)
    return tuple(x.astype(jnp.dtype(layout.dtype)) for x in (size * q, size * k, v))


@functools.cache
def learned(encoding: aj.PositionEncoding, sizes: aj.Sizes) -> Any:
    """Parameters away from their initial value, which is often zero; NumPy arrays, float32. None where nothing is learned."""
    if not aj.learns(encoding):
        return None
    draw = np.random.default_rng(7)
    params = jax.tree.map(np.asarray, encoding.init(jax.random.key(3), sizes))
    if encoding == aj.Kerple("power"):
        # The square of a distance of hundreds would leave float32 no digits for the content.
        return params | {"r2": np.full(sizes.heads, -0.7, np.float32)}
    return jax.tree.map(lambda x: (x + 0.3 * draw.normal(size=x.shape)).astype(np.float32), params)


def attend(q: Any, k: Any = None, v: Any = None, **options: Any) -> Any:
    """`attnjax.attend` as one compiled program, where one by one its operations would be a program each.

    Positions, masks and parameters are constants of it, so that what is known while tracing is known as in eager use.
    """
    return jax.jit(lambda q, k, v: aj.attend(q, k, v, **options))(q, k, v)
