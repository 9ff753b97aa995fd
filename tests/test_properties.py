"""Properties that hold for every encoding, any mask, any positions and any size, on cases drawn by hypothesis.

CI draws the same cases on every machine; `pytest -m nightly` runs the first property on 10,000 new ones. The reference
is the dense implementation in float64: that dense itself is right, `attention/test_matrix.py` shows against an
independent one. `test_invariances.py` holds the properties that relate two calls.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from attnjax.attention.chunked import chunked
from attnjax.attention.dense import dense
from attnjax.attention.problem import Keys, prepare
from attnjax.attention.tiling import Tiling
from tests.cases import ATTENTION, FAST, LAYOUTS, Case, Data, Layout, cases, content, data, learned

pytestmark = pytest.mark.once
NIGHTLY_CASES = 10_000

TOLERANCE = 1e-4
LENGTH_DEPENDENT = 2e-2
"""Where frequencies come from a traced length, they are good to 1e-6 of themselves, at distances of thousands here."""


class Values(NamedTuple):
    """What is differentiated."""

    q: Any
    k: Any
    v: Any
    params: Any
    scale: Any


class Result(NamedTuple):
    """Output [B,T,N,H], log-sum-exp [B,T,N], and the gradients of one sum of both."""

    out: Any
    lse: Any
    gradient: Values


@functools.cache
def compiled(name: str, layout: Layout, implementation: str):
    """(values, data, cotangents) -> `Result`."""
    encoding = ATTENTION[name]

    def run(values: Values, data: Data, cotangents: tuple[Any, Any]) -> Result:
        def forward(values):
            keys, mask = Keys(values.k, values.v, data.k_pos, None, None), data.mask(layout.causal, layout.window)
            problem = prepare(values.q, keys, encoding, values.params, data.q_pos, mask, values.scale, None)
            out, lse = (
                dense(problem) if implementation == "dense" else chunked(problem, Tiling(*layout.tile, heads=layout.K))
            )
            return heads_last(out), heads_last(lse[..., None])[..., 0]

        (out, lse), pull = jax.vjp(forward, values)
        return Result(out, lse, *pull(cotangents))

    return jax.jit(run, compiler_options=FAST)


def heads_last(x: Any) -> Any:
    """[B,K,G,T,H] -> [B,T,N,H]."""
    B, K, G, T, H = x.shape
    return x.reshape(B, K * G, T, H).swapaxes(1, 2)


def evaluate(name: str, layout: Layout, implementation: str, values: Values, data: Data, cotangents) -> Result:
    """One implementation, or "reference": dense in float64, on the same rounded numbers."""
    wide = implementation == "reference"
    dtype = jnp.float64 if wide else jnp.float32
    with jax.enable_x64(wide):
        cast = lambda tree: jax.tree.map(lambda x: np.asarray(x, dtype), tree)
        values = cast(values) if wide else values._replace(scale=np.float32(values.scale))
        result = compiled(name, layout, "dense" if wide else implementation)(values, data, cast(cotangents))
        return jax.tree.map(lambda x: np.asarray(x, np.float64), result)


def check(name: str, layouts: tuple[Layout, ...], case: Case) -> None:
    """Everything that is promised about one case."""
    layout = layouts[case.turn % len(layouts)].serving(name)
    arrays = data(case, layout)
    values = Values(*content(case.seed, layout, case.size), learned(ATTENTION[name], layout.sizes), case.scale)
    visible = arrays.visible(layout.causal, layout.window, layout.T, layout.S)
    draw = np.random.default_rng([case.seed, 3])
    shape = (len(visible), layout.T, layout.N, values.v.shape[-1])
    everywhere = draw.normal(size=shape), draw.normal(size=shape[:-1])
    row = int(draw.integers(layout.T))
    one_row = tuple(x * np.eye(layout.T)[row].reshape(1, -1, *[1] * (x.ndim - 2)) for x in everywhere)
    expected = evaluate(name, layout, "reference", values, arrays, everywhere)
    for implementation in ("dense", "chunked"):
        result = evaluate(name, layout, implementation, values, arrays, everywhere)
        tolerance = LENGTH_DEPENDENT if ATTENTION[name].length_dependent else TOLERANCE
        check_agreement(result, expected, layout, tolerance)
        check_rows_that_see_nothing(result, ~visible.any(-1))
        alone = evaluate(name, layout, implementation, values, arrays, one_row)
        check_causality(alone.gradient, visible[:, row], row)


def check_agreement(result: Result, expected: Result, layout: Layout, tolerance: float) -> None:
    """Close to float64, and finite; the log-sum-exp is minus infinity where nothing is seen, in both."""
    np.testing.assert_allclose(result.out, expected.out, rtol=0, atol=tolerance)
    np.testing.assert_allclose(result.lse, expected.lse, rtol=1e-5, atol=tolerance)
    rounding = float(jnp.finfo(layout.dtype).eps)
    for field in Values._fields:
        # Gradients come in the type of what they belong to; parameters and the scale are float32 always.
        rtol = rounding if field in "qkv" else tolerance
        found, wanted = (jax.tree.leaves(getattr(r.gradient, field)) for r in (result, expected))
        for x, y in zip(found, wanted, strict=True):
            assert np.isfinite(x).all()
            atol = tolerance * max(1, np.abs(y).max())
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=field)


def check_rows_that_see_nothing(result: Result, blind: np.ndarray) -> None:
    assert np.all(result.out[blind] == 0)
    assert np.all(np.isneginf(result.lse) == blind[:, :, None])
    assert np.all(result.gradient.q[blind] == 0)


def check_causality(gradient: Values, visible: np.ndarray, row: int) -> None:
    """With a loss on one row, what it does not see has a gradient of exactly 0, and so have all other queries."""
    assert np.all(gradient.k[~visible] == 0)
    assert np.all(gradient.v[~visible] == 0)
    assert np.all(np.delete(gradient.q, row, axis=1) == 0)


@pytest.mark.parametrize("name", ATTENTION)
@given(case=cases())
def test_any_case(name, case):
    # A third of the layouts each, because compiling takes longer than all cases together.
    check(name, LAYOUTS[list(ATTENTION).index(name) % 3 :: 3], case)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=-(-NIGHTLY_CASES // len(ATTENTION)), derandomize=False, print_blob=True)
@given(case=cases())
def test_ten_thousand_cases(name, case):
    check(name, LAYOUTS, case)
