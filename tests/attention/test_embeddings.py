"""Encodings that act on the embeddings, against the oracle; and one that does not, which leaves them alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import ALiBi, Learned, RoPE, Sinusoidal, Sizes, compose
from tests.oracle import embedded

B = 2
EMBEDDINGS = {
    "sinusoidal": Sinusoidal(),
    "concatenated": Sinusoidal("concatenated", theta=500.0),
    "learned": Learned(200),
    "rope": RoPE(),
}


@pytest.mark.quick("sinusoidal-float32", "concatenated-bfloat16", "learned-float32", "rope-float64")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embed_agrees_with_the_oracle(name, dtype):
    encoding = EMBEDDINGS[name]
    T, D = 13, 10
    random = np.random.default_rng(3)
    params = encoding.init(jax.random.key(4), Sizes(D, 1, 1, D))
    x = jnp.asarray(random.normal(size=(B, T, D)), "bfloat16").astype(np.float32)
    pos = np.stack([np.sort(random.choice(200, T, replace=False)) for _ in range(B)]).astype(np.int32)
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float64"), params)
        wide = jnp.asarray(x, "float64")
        run = jax.jit(
            lambda params: jnp.stack([embedded(encoding, params, *row) for row in zip(wide, jnp.asarray(pos))])
        )
        expected = np.asarray(run(double))
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float64" if dtype == "float64" else "float32"), params)
        x = jnp.asarray(x, dtype)
        embed = functools.partial(attnjax.embed, encoding)
        got, first = jax.jit(lambda params, x: (embed(params, x, pos), embed(params, x[:1], pos[0])))(params, x)
        assert got.dtype == dtype
    limit = {"float64": 1e-13, "float32": 1e-6, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=limit, atol=limit)
    np.testing.assert_array_equal(np.asarray(first, np.float32), np.asarray(got[:1], np.float32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int32"])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_positions_of_any_integer_type(array, dtype):
    """As in `attend`: a table longer than the type can count was an OverflowError, and |-128| is not an int8."""
    table = Learned(300).init(jax.random.key(0), Sizes(4, 1, 1, 4))
    first = 0 if dtype.startswith("u") else -128
    for encoding, params, values in ((Sinusoidal(), None, [first, 0, 127]), (Learned(300), table, [0, 1, 127])):
        run = lambda pos, encoding=encoding, params=params: attnjax.embed(encoding, params, jnp.zeros((1, 3, 4)), pos)
        np.testing.assert_array_equal(run(array(np.array(values, dtype))), run(np.array(values, np.int32)))


def test_the_width_of_the_model_is_no_matter_of_heads():
    """Three heads of five channels are 15, whatever the width of the model is, which is checked where it is known."""
    x = jnp.ones((1, 3, 3, 5))
    out = attnjax.attend(x, x, x, encoding=compose(Sinusoidal(), ALiBi()), mask=attnjax.Mask(causal=True))
    assert out.shape == (1, 3, 3, 5)
    with pytest.raises(ValueError, match="the width must be even, got 15"):
        attnjax.embed(compose(Sinusoidal(), ALiBi()), None, jnp.ones((1, 3, 15)), np.arange(3))


def test_gradient_of_a_learned_table_counts_its_rows():
    """Row p of the table receives the sum of the cotangents at position p, and no other row anything."""
    encoding, pos = Learned(6), np.array([[4, 4, 1], [0, 4, 5]])
    params = encoding.init(jax.random.key(0), Sizes(2, 1, 1, 2))
    cotangent = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    total = lambda params: (attnjax.embed(encoding, params, jnp.ones((2, 3, 2)), pos) * cotangent).sum()
    expected = np.zeros((6, 2), np.float32)
    np.add.at(expected, pos, cotangent)
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(params).shared["table"], expected)
