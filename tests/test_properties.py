"""Properties that hold for every encoding, any mask, any positions and any size, on cases drawn by hypothesis.

The same cases are drawn on every machine; a slow test runs the first property on 10,000 new ones. The reference
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

import attnjax as aj
from attnjax.attention.blockwise import blockwise
from attnjax.attention.dense import dense
from attnjax.attention.inputs import from_caller, prepare
from tests.cases import ATTENTION, FAST, LAYOUTS, Case, Data, Layout, cases, content, data, learned

pytestmark = pytest.mark.slow
MANY_CASES = 10_000

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
    """Output [B,T,N,H], log-sum-exp [B,T,N], mapped queries and keys, and the gradients of one sum of the first two."""

    out: Any
    lse: Any
    maps: Any
    gradient: Values


@functools.cache
def compiled(name: str, layout: Layout, implementation: str):
    """(values, data, cotangents, mapped queries and keys in place of its own, or None) -> `Result`."""
    encoding = ATTENTION[name]

    def run(values: Values, data: Data, cotangents: tuple[Any, Any], maps: Any) -> Result:
        def forward(values):
            mask = data.mask(layout.causal, layout.window)
            source = from_caller(values.q, values.k, values.v, data.k_pos)
            inputs = prepare(values.q, source, encoding, values.params, data.q_pos, mask, values.scale, None, None)
            inputs = inputs if maps is None else with_maps(inputs, *maps)
            tiling = aj.Tiling(*layout.tile, heads=layout.K)
            out, lse = blockwise(inputs, tiling) if implementation == "chunked" else dense(inputs)
            return (heads_last(out), heads_last(lse[..., None])[..., 0]), (inputs.queries.q, inputs.keys.k)

        (out, lse), pull, used = jax.vjp(forward, values, has_aux=True)
        return Result(out, lse, used, *pull(cotangents))

    return jax.jit(run, compiler_options=FAST)


def with_maps(inputs: Any, q: Any, k: Any) -> Any:
    """Inputs with other mapped queries and keys, and the gradients of their own map."""
    swap = lambda own, other: own + jax.lax.stop_gradient(other - own)
    queries, keys = inputs.queries, inputs.keys
    return inputs._replace(queries=queries._replace(q=swap(queries.q, q)), keys=keys._replace(k=swap(keys.k, k)))


def heads_last(x: Any) -> Any:
    """[B,K,G,T,H] -> [B,T,N,H]."""
    B, K, G, T, H = x.shape
    return x.reshape(B, K * G, T, H).swapaxes(1, 2)


def evaluate(
    name: str, layout: Layout, implementation: str, values: Values, data: Data, cotangents, maps=None
) -> Result:
    """One implementation, or "reference": dense in float64, on the same rounded numbers."""
    wide = implementation == "reference"
    dtype = jnp.float64 if wide else jnp.float32
    with jax.enable_x64(wide):
        cast = lambda tree: jax.tree.map(lambda x: np.asarray(x, dtype), tree)
        values = cast(values) if wide else values._replace(scale=np.float32(values.scale))
        result = compiled(name, layout, implementation)(values, data, cast(cotangents), maps)
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
    reference = functools.partial(evaluate, name, layout, "reference", values, arrays, everywhere)
    row = int(draw.integers(layout.T))
    one_row = tuple(x * np.eye(layout.T)[row].reshape(1, -1, *[1] * (x.ndim - 2)) for x in everywhere)
    sixteen = layout.dtype != "float32"
    of_float32 = None if sixteen else reference(None)
    for implementation in ("dense", "chunked"):
        result = evaluate(name, layout, implementation, values, arrays, everywhere)
        tolerance = LENGTH_DEPENDENT if aj.Trait.LENGTH in ATTENTION[name].traits else TOLERANCE
        # In 16 bits mapped queries and keys are rounded to their type, and the reference starts from them.
        expected = reference(result.maps) if sixteen else of_float32
        check_output(result, expected, tolerance + (rounding(layout) * np.abs(values.v).max() if sixteen else 0))
        if sixteen:
            check_gradients_in_sixteen_bits(
                result.gradient, expected.gradient, layout, floors(name, values, everywhere)
            )
        else:
            check_gradients(result.gradient, expected.gradient, tolerance)
        check_rows_that_see_nothing(result, ~visible.any(-1))
        alone = evaluate(name, layout, implementation, values, arrays, one_row)
        check_causality(alone.gradient, visible[:, row], row)


def rounding(layout: Layout) -> float:
    """Half a unit in the last place of 1."""
    return float(jnp.finfo(layout.dtype).eps) / 2


def check_output(result: Result, expected: Result, tolerance: float) -> None:
    """Close to float64, and minus infinity in the log-sum-exp where nothing is seen, in both.

    In 16 bits the weights are rounded, by at most 2^-8 or 2^-11 of themselves, and so is a mean of values at most.
    """
    np.testing.assert_allclose(result.out, expected.out, rtol=0, atol=tolerance)
    np.testing.assert_allclose(result.lse, expected.lse, rtol=1e-5, atol=tolerance)


def check_gradients(found: Values, wanted: Values, tolerance: float) -> None:
    """Every entry, in float32."""
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.isfinite(x).all()
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1, np.abs(y).max()))


def floors(name: str, values: Values, cotangents: tuple[np.ndarray, np.ndarray]) -> Values:
    """What the gradients consist of before it cancels.

    Row i passes p_ij (dout_i . v_j - delta_i + dlse_i) back, of which all three are rounded; it is multiplied by the scale
    and by k_j or q_i.
    """
    norm = lambda x: np.linalg.norm(np.asarray(x, np.float64), axis=-1).max()
    q, k, v = (norm(x) for x in values[:3])
    rows = np.linalg.norm(np.linalg.norm(cotangents[0], axis=-1) * v + np.abs(cotangents[1]))
    scale = abs(values.scale)
    by_params = POWERS_OF_DISTANCES if name == "kerple_power" else 1 + scale * q * k
    return Values(rows * scale * k, rows * scale * q, rows / v, rows * by_params, rows * q * k)


POWERS_OF_DISTANCES = 1000
"""How fast scores of power KERPLE change with their parameters, at distances of thousands."""
UNITS = 2
"""Errors of independent roundings add up like their squares: those of the weights, of dout, of ds, and of the result."""


def check_gradients_in_sixteen_bits(found: Values, wanted: Values, layout: Layout, floors: Values) -> None:
    """Each array as a whole, to a few units of the type, of its norm and of the norm of what cancels in it."""
    for field in Values._fields:
        for x, y in zip(*(jax.tree.leaves(getattr(of, field)) for of in (found, wanted)), strict=True):
            assert np.isfinite(x).all()
            # A tenth where all factors are known: norms multiply to that much more than vectors in no special direction.
            floor = getattr(floors, field) / (10 if field in "qkv" else 1)
            error, size = np.linalg.norm(x - y), np.linalg.norm(y) + floor
            assert error <= UNITS * rounding(layout) * size, f"{field}: {error:.2g} where numbers reach {size:.2g}"


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=-(-MANY_CASES // len(ATTENTION)), derandomize=False, print_blob=True)
@given(case=cases())
def test_ten_thousand_cases(name, case):
    check(name, LAYOUTS, case)
