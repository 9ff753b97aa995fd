"""Which products of a traced program have an operand that was a 16-bit array and was made wider, however it was moved since."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

PRODUCTS = ("dot_general", "conv_general_dilated")
MOVES = {*"broadcast_in_dim concatenate copy dynamic_slice gather optimization_barrier pad pvary reshape".split()}
MOVES |= {"rev", "select_n", "slice", "squeeze", "transpose"}
"""Primitives that pass numbers on as they are; `select_n` is what `jnp.where` becomes."""


def widened_products(jaxpr: Any) -> list[str]:
    """The products, as text, of the jaxpr that `jax.make_jaxpr` returns, those inside loops and calls included."""
    return [str(equation) for equation in _products(jaxpr.jaxpr, [False] * len(jaxpr.jaxpr.invars), [])]


def products(jaxpr: Any) -> dict[tuple[str, ...], int]:
    """How many products there are for each pair of types of operands."""
    found: dict[tuple[str, ...], int] = {}
    for equation in equations(jaxpr.jaxpr):
        if equation.primitive.name in PRODUCTS:
            kinds = tuple(str(operand.aval.dtype) for operand in equation.invars)
            found[kinds] = found.get(kinds, 0) + 1
    return found


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those inside others included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inner(equation):
            yield from equations(inner)


def _products(jaxpr: Any, inputs: Sequence[bool], results: list[bool]) -> Iterator[Any]:
    """Products with a widened operand. `inputs`: which inputs were widened; `results` becomes which results were."""
    wide: dict[Any, bool] = dict(zip(jaxpr.invars, inputs, strict=True))
    is_wide = lambda atom: not hasattr(atom, "val") and wide.get(atom, False)
    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, [is_wide(atom) for atom in equation.invars]
        found = [False] * len(equation.outvars)
        if name in PRODUCTS:
            if any(given):
                yield equation
        elif name == "convert_element_type":
            source, target = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
            half = jax.numpy.issubdtype(source, jax.numpy.floating) and source.itemsize == 2
            found = [target.itemsize > 2 and (half or given[0])]
        elif name in MOVES:
            found = given if name == "optimization_barrier" else [any(given)]
        for inner in _inner(equation):
            # Operands of a call are the last of its equation: a switch has an index in front, a loop its condition's constants.
            outcome: list[bool] = []
            yield from _products(inner, given[len(given) - len(inner.invars) :], outcome)
            found = outcome if len(outcome) == len(found) else found
        wide.update(zip(equation.outvars, found, strict=True))
    results += [is_wide(atom) for atom in jaxpr.outvars]


def _inner(equation: Any) -> Iterator[Any]:
    parameters = dict(equation.params)
    parameters.pop("cond_jaxpr", None)
    for inner in jax.tree.leaves(list(parameters.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
            yield inner
