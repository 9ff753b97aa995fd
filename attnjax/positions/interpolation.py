"""Reading a row of numbers between its whole positions, without gathers.

    read(v, p) = (1 - w) v[floor p] + w v[floor p + 1],    w = p - floor p,    0 <= p <= P - 1

The slope at p is v[floor p + 1] - v[floor p], to the right of a whole number, and 0 at p = P - 1.

A gather reads one number at a time on a CPU and its derivative scatters one at a time. With P numbers both neighbours
come from P - 1 comparisons, which become vector instructions; and the derivative towards v_m is the sum over all
positions of the hat function max(0, 1 - |p - m|), which is summed in `LANES` parts at once.
"""

import chex
import jax
import jax.numpy as jnp

from attnjax.typing import Array, Float

COMPARED = 64
"""Largest P that is compared. On a CPU, for rows of 128 positions, comparing takes 0.3 times as long as gathering with
P = 16, 0.5 with 32, 0.9 with 64 and 2.5 with 128; its derivatives 0.1, 0.15, 0.9 and 1.2 times."""
LANES = 16
"""Positions whose hat functions are summed side by side: as many numbers as the widest vector instructions take."""
BLOCK = 256
"""Positions of a row whose hat functions are summed in one piece of code. Sums hold P * LANES numbers for each block."""


def interpolate(values: Float[Array, "t p"], position: Float[Array, "t s"]) -> Float[Array, "t s"]:
    """values[i, position[i, j]], linear between neighbours, with derivatives to both.

    Positions must lie in 0 .. p - 1.

    Example:
        >>> interpolate(jnp.array([[0.0, 10.0, 40.0]]), jnp.array([[0.5, 1.5, 2.0]])).tolist()
        [[5.0, 25.0, 40.0]]
    """
    chex.assert_rank([values, position], 2)
    chex.assert_equal_shape_prefix([values, position], 1)
    return _compared(values, position) if values.shape[1] <= COMPARED else _gathered(values, position)


def _gathered(values: Float[Array, "t p"], position: Float[Array, "t s"]) -> Float[Array, "t s"]:
    whole = jnp.floor(position)
    weight = position - whole
    below = whole.astype(jnp.int32)
    above = jnp.minimum(below + 1, values.shape[1] - 1)
    at_below = jnp.take_along_axis(values, below, axis=1, mode="promise_in_bounds")
    at_above = jnp.take_along_axis(values, above, axis=1, mode="promise_in_bounds")
    return (1.0 - weight) * at_below + weight * at_above


@jax.custom_jvp
def _compared(values: Float[Array, "t p"], position: Float[Array, "t s"]) -> Float[Array, "t s"]:
    weight = position - jnp.floor(position)
    below, above = _neighbours(values, position)
    return (1.0 - weight) * below + weight * above


@_compared.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    values, position = primals
    change, moved = tangents
    below, above = _neighbours(values, position)
    # What the derivative is made from is the position: hat functions that wait for it would be P times as large.
    by_values = jax.checkpoint(_by_hats, prevent_cse=False)(change, position)
    return _compared(values, position), by_values + (above - below) * moved


def _neighbours(
    values: Float[Array, "t p"], position: Float[Array, "t s"]
) -> tuple[Float[Array, "t s"], Float[Array, "t s"]]:
    """values[floor position] and values[floor position + 1], of which the last has no other to its right."""
    last = values.shape[1] - 1
    column = lambda m: values[:, min(m, last)][:, None]
    below, above = (jnp.broadcast_to(column(m), position.shape) for m in (0, 1))
    for m in range(1, last + 1):
        reached = position >= m
        below, above = jnp.where(reached, column(m), below), jnp.where(reached, column(m + 1), above)
    return below, above


def _by_hats(values: Float[Array, "t p"], position: Float[Array, "t s"]) -> Float[Array, "t s"]:
    """sum_m values[:, m] * hat(position - m): the same as `interpolate`, in a form with a fast transpose."""
    (t, s), p = position.shape, values.shape[1]
    block = min(BLOCK, s + -s % LANES)
    # Put into memory, what is read P times is computed once, and the transpose of the spreading is a sum over lanes of sums
    # over positions, not one sum over all, which would take one number at a time.
    once = jax.lax.optimization_barrier
    position = once(jnp.pad(position, ((0, 0), (0, -s % block)))).reshape(t, -1, block)
    wide = once(jnp.broadcast_to(values[:, None, :, None], (t, position.shape[1], p, LANES)))
    number = jnp.arange(p, dtype=position.dtype)[None, None, :, None]
    hats = lambda part: jnp.maximum(1 - jnp.abs(part[:, :, None, :] - number), 0)
    parts = [(wide * hats(position[:, :, i : i + LANES])).sum(2) for i in range(0, block, LANES)]
    return once(jnp.concatenate(parts, axis=2).reshape(t, -1)[:, :s])
