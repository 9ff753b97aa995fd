"""Properties that hold for every encoding, any mask, any positions and any size, on cases drawn by hypothesis.

The same cases are drawn on every machine; a second test runs 10,000 new ones. The reference is the dense implementation in
float64: that dense itself is right, `attention/test_agreement.py` shows against an independent one. `test_invariances.py` holds
the properties that relate two calls.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import attnjax as aj
from attnjax.positions.compose import parts_of
from tests.cases import ATTENTION, FAST, LAYOUTS, Case, Data, Layout, cases, content, data, learned

pytestmark = pytest.mark.slow
MANY_CASES = 10_000
TOLERANCE = 1e-4
ROUNDINGS = 2
"""In 16 bits queries, keys, weights and the result are rounded."""


class Values(NamedTuple):
    """The arguments that are differentiated."""

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
    way = aj.Tiling(*layout.tile, heads=layout.K) if implementation == "chunked" else "dense"

    def run(values: Values, data: Data, cotangents: tuple[Any, Any]) -> Result:
        def forward(values):
            q, k, v, params, scale = values
            options = dict(encoding=ATTENTION[name], params=params, q_pos=data.q_pos, k_pos=data.k_pos, scale=scale)
            mask = data.mask(layout.causal, layout.window)
            out, lse = aj.attend_with_lse(q, k, v, mask=mask, implementation=way, length=layout.S, **options)
            return out.astype(lse.dtype), lse

        (out, lse), pull = jax.vjp(forward, values)
        return Result(out, lse, *pull(cotangents))

    return jax.jit(run, compiler_options=FAST)


def evaluate(name: str, layout: Layout, implementation: str, values: Values, data: Data, cotangents: Any) -> Result:
    """One implementation, or "reference": dense in float64, on the same rounded numbers."""
    wide = implementation == "reference"
    dtype = jnp.float64 if wide else jnp.float32
    with jax.enable_x64(wide):
        cast = lambda tree: jax.tree.map(lambda x: np.asarray(x, dtype), tree)
        values = cast(values) if wide else values._replace(scale=np.float32(values.scale))
        result = compiled(name, layout, implementation)(values, data, cast(cotangents))
        return jax.tree.map(lambda x: np.asarray(x, np.float64), result)


def check(name: str, layouts: tuple[Layout, ...], case: Case) -> None:
    """Everything that is promised about one case."""
    layout = layouts[case.turn % len(layouts)].serving(name)
    if layout.dtype == "float16" and not all(part.float16 for part in parts_of(ATTENTION[name])):
        layout = layout._replace(dtype="bfloat16")
    arrays = data(case, layout)
    if arrays.q_index is None:
        arrays = arrays._replace(q_index=np.arange(layout.T, dtype=np.int32))
    values = Values(*content(case.seed, layout, case.size), learned(ATTENTION[name], layout.sizes), case.scale)
    visible = arrays.visible(layout.causal, layout.window, layout.T, layout.S)
    draw = np.random.default_rng([case.seed, 3])
    shape = (len(visible), layout.T, layout.N, values.v.shape[-1])
    everywhere = draw.normal(size=shape), draw.normal(size=shape[:-1])
    expected = evaluate(name, layout, "reference", values, arrays, everywhere)
    row = int(draw.integers(layout.T))
    one_row = tuple(x * np.eye(layout.T)[row].reshape(1, -1, *[1] * (x.ndim - 2)) for x in everywhere)
    whole = any(part.whole_table for part in parts_of(ATTENTION[name]))
    for implementation in ("dense",) if whole else ("dense", "chunked"):
        result = evaluate(name, layout, implementation, values, arrays, everywhere)
        check_close(result, expected, layout, np.abs(values.v).max())
        check_rows_that_see_nothing(result, ~visible.any(-1))
        alone = evaluate(name, layout, implementation, values, arrays, one_row)
        check_causality(alone.gradient, visible[:, row], row)


def check_close(result: Result, expected: Result, layout: Layout, largest: float) -> None:
    """Every entry in float32. In 16 bits output and log-sum-exp; gradients, in which large numbers cancel, are finite."""
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.gradient))
    if layout.dtype == "float32":
        np.testing.assert_allclose(result.out, expected.out, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(result.lse, expected.lse, rtol=1e-5, atol=TOLERANCE)
        for x, y in zip(jax.tree.leaves(result.gradient), jax.tree.leaves(expected.gradient), strict=True):
            np.testing.assert_allclose(x, y, rtol=TOLERANCE, atol=TOLERANCE * max(1, np.abs(y).max()))
        return
    bound = ROUNDINGS * float(jnp.finfo(layout.dtype).eps) / 2
    seen = np.isfinite(expected.lse)
    unit = max(1, np.abs(expected.lse[seen]).max(initial=0))
    np.testing.assert_allclose(result.out, expected.out, rtol=0, atol=bound * unit * largest)
    np.testing.assert_allclose(result.lse, expected.lse, rtol=0, atol=bound * unit)


def check_rows_that_see_nothing(result: Result, blind: np.ndarray) -> None:
    assert np.all(result.out[blind] == 0)
    assert np.all(np.isneginf(result.lse) == blind[:, :, None])
    assert np.all(result.gradient.q[blind] == 0)


def check_causality(gradient: Values, visible: np.ndarray, row: int) -> None:
    """With a loss on one row, keys and values that it does not see have a gradient of exactly 0, and so have other queries."""
    assert np.all(gradient.k[~visible] == 0)
    assert np.all(gradient.v[~visible] == 0)
    assert np.all(np.delete(gradient.q, row, axis=1) == 0)


@pytest.mark.parametrize("name", ATTENTION)
@given(case=cases())
def test_any_case(name, case):
    # A third of the layouts each, because compiling takes longer than all cases together.
    check(name, LAYOUTS[list(ATTENTION).index(name) % 3 :: 3], case)


@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=-(-MANY_CASES // len(ATTENTION)), derandomize=False, print_blob=True)
@given(case=cases())
def test_ten_thousand_cases(name, case):
    check(name, LAYOUTS, case)
