"""Numbers of NumPy are numbers: an encoding made of them is the one made of Python's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions.checks import validate, validate_key
from attnjax.positions.factor_search import check_factors

SIZES = aj.Sizes(model=16, heads=2, kv_heads=2, head_dim=8)
MADE = {
    "theta": lambda number: aj.RoPE(theta=number(500)),
    "fraction": lambda number: aj.RoPE(fraction=number(0.5), keep=number(0.75)),
    "pi": lambda number: aj.RoPE(scaling=aj.PositionInterpolation(number(3))),
    "ntk": lambda number: aj.RoPE(theta=number(500), scaling=aj.NTKAware(number(3))),
    "yarn": lambda number: aj.RoPE(theta=number(500), scaling=aj.YaRN(number(3), np.int64(100), beta_fast=number(9))),
    "dynamic_ntk": lambda number: aj.RoPE(scaling=aj.DynamicNTK(number(3), np.int64(10))),
    "slopes": lambda number: aj.ALiBi(slopes=(number(0.5), number(0.25))),
    "sandwich": lambda number: aj.Sandwich(theta=number(500)),
    "xpos": lambda number: aj.XPos(scale_base=number(500), theta=number(500)),
    "fox": lambda number: aj.FoX(gate_bias=number(1)),
    "fire": lambda number: aj.FIRE(threshold=number(16)),
    "learned": lambda number: aj.Learned(4, std=number(0.5)),
}


@pytest.mark.parametrize("values", [[0.0, 3e9], [-(2.0**31), 0.0], [np.nan, 0.0], [np.inf, 0.0]])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_fractional_positions_that_int32_cannot_hold(array, values):
    """They were those at the end of int32, unless they came as arrays of NumPy to `attend`."""
    pos, x, q = array(np.asarray(values, np.float32)), jnp.zeros((1, 2, 4)), jnp.zeros((1, 2, 1, 4))
    message = r"pos must be finite and fit int32 \(\|position\| < 2\^31\), got \["
    with pytest.raises(ValueError, match=f"embed: {message}"):
        aj.embed(aj.Sinusoidal(), None, x, pos)
    with pytest.raises(ValueError, match=f"q_{message}"):
        aj.attend(q, q, q, encoding=aj.RoPE(), q_pos=pos)
    with pytest.raises(ValueError, match=f"k_{message}"):
        aj.KVCache.create(1, 4, 1, 4, encoding=aj.RoPE(), pos_dtype=jnp.float32).append(q, q, pos)


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_the_constants_are_those_of_numbers_of_python(make, number):
    ours, python = make(number), make(float)
    assert ours == python
    assert hash(ours) == hash(python)
    length = 37 if aj.Trait.LENGTH in python.traits else None
    jax.tree.map(np.testing.assert_array_equal, ours.constants(SIZES, length), python.constants(SIZES, length))
    of_key = jax.random.key(0)
    jax.tree.map(np.testing.assert_array_equal, ours.init(of_key, SIZES), python.init(of_key, SIZES))


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_parameters_stay_in_single_precision(number, x64):
    for name in ("fox", "fire", "learned"):
        assert {leaf.dtype for leaf in jax.tree.leaves(MADE[name](number).init(jax.random.key(0), SIZES))} == {
            jnp.dtype("float32")
        }, name


def test_whole_numbers_and_factors():
    assert aj.RoPE(theta=np.int64(500)) == aj.RoPE(theta=500)
    assert check_factors([np.float32(1.5), np.int32(2)]) == (1.5, 2.0)


@pytest.mark.parametrize("value", [np.bool_(True), True, np.ones(1), np.complex64(1), "1", None])
def test_what_is_no_number(value):
    with pytest.raises(ValueError, match="owner: size must be a number, got"):
        validate("owner", size=value)
    with pytest.raises(ValueError, match="factors of LongRoPE must be positive numbers"):
        check_factors([value])


@pytest.mark.parametrize("value", [np.float32("nan"), np.float32("inf"), np.float32(0), np.int64(-1)])
def test_numbers_out_of_range(value):
    with pytest.raises(ValueError, match="owner: size must be positive and finite, got"):
        validate("owner", size=value)


@pytest.mark.parametrize(
    "key", [0, jnp.zeros(2, jnp.uint32), jax.random.split(jax.random.key(0))], ids=["int", "raw", "two"]
)
def test_a_key_is_one_typed_key(key):
    with pytest.raises(ValueError, match=r"owner: key must be one typed key made by jax\.random\.key, got"):
        validate_key("owner", key)
    one = jax.random.key(1)
    assert validate_key("owner", one) is one
