"""A stretched table: its rows by hand, what it leaves as it is, and models past the end of their table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax.models.param_paths import parameters
from attnjax.modules import Decoder, Encoder, TransformerConfig, stretched
from attnjax.modules.longer_table import stretched_table

SIZES = {"vocab": 11, "model": 16, "layers": 2, "heads": 2, "hidden": 32}
TABLE = jnp.array([[0.0, 1.0], [10.0, 1.0], [40.0, 4.0]])


def made(encoding, kind=Encoder):
    return kind(TransformerConfig(**SIZES, encoding=encoding), rngs=nnx.Rngs(0))


def table(model):
    (inputs,) = model.stack.inputs
    return inputs.shared["table"][...]


def test_rows_are_those_made_by_hand():
    assert stretched_table(TABLE, 5).tolist() == [[0, 1], [5, 1], [10, 1], [25, 2.5], [40, 4]]
    # 3 steps over 2: rows 0, 2/3, 4/3, 2.
    np.testing.assert_allclose(stretched_table(TABLE, 4)[:, 0], [0, 20 / 3, 20, 40], rtol=1e-6)
    assert stretched_table(TABLE[:1], 3).tolist() == [[0, 1]] * 3


def test_a_table_of_its_own_length_stays_and_the_ends_of_a_longer_one_do():
    rows = jax.random.normal(jax.random.key(0), (512, 8))
    assert (stretched_table(rows, 512) == rows).all()
    longer = stretched_table(rows, 2042)
    assert (longer[0] == rows[0]).all()
    assert (longer[-1] == rows[-1]).all()
    assert stretched_table(rows.astype(jnp.float16), 600).dtype == jnp.float16


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_the_model_is_the_same_but_for_its_table(kind):
    model = made(aj.Learned(8), kind)
    longer = stretched(model, 15)  # 14 steps over 7: every other row is an old one
    assert (type(longer), longer.config.encoding) == (kind, aj.Learned(15))
    assert (table(model).shape, table(longer).shape) == ((8, 16), (15, 16))
    before, after = (parameters(one) for one in (model, longer))
    assert list(before) == list(after)
    assert [path for path in before if before[path] is not after[path]] == [("stack", "inputs", 0, "shared", "table")]
    x = jnp.ones((1, 15, 16))
    np.testing.assert_array_equal(
        longer.stack.embed(x, np.arange(15))[:, ::2], model.stack.embed(x[:, :8], np.arange(8))
    )
    with pytest.raises(ValueError, match=r"rows for positions 0\.\.7"):
        model.stack.embed(x, np.arange(15))


def test_the_table_of_a_composed_encoding_and_of_layers_that_differ_is_found():
    both = stretched(made(aj.compose(aj.Learned(8), aj.ALiBi())), 12)
    assert both.config.encoding == aj.compose(aj.Learned(12), aj.ALiBi())
    mixed = stretched(made((aj.RoPE(), aj.Learned(8))), 12)
    assert mixed.config.encoding == (aj.RoPE(), aj.Learned(12))
    assert table(both).shape == table(mixed).shape == (12, 16)


@pytest.mark.parametrize(
    ("encoding", "length", "error"),
    [
        (aj.Learned(8), 7, "stretched: length must be at least 8, got 7"),
        (aj.Learned(8), 16.0, r"stretched: length must be an integer, got 16\.0"),
        (aj.RoPE(), 16, r"must have one table of positions \(Learned\), it has 0"),
        ((aj.Learned(8), aj.Learned(9)), 16, "it has 2"),
    ],
)
def test_what_cannot_be_stretched_is_refused(encoding, length, error):
    with pytest.raises(ValueError, match=error):
        stretched(made(encoding), length)
