"""A trained model with learned positions, read past the end of its table without training: the table is stretched.

With L rows of the table E and T >= L positions, row i of the longer table lies between two old rows:

    E'_i = (1 - w) E_(floor(x)) + w E_(floor(x) + 1),    x = i (L - 1) / (T - 1),    w = x - floor(x)

So the first and the last row stay what they were, and all others are moved together, as Position Interpolation does with
the positions of RoPE. Positions in groups of g, floor(i / g), need no other table: `model(tokens, pos=np.arange(T) // g)`.
"""

import dataclasses
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.modules.stack import with_parameters
from attnjax.modules.token_model import TokenModel
from attnjax.positions import Compose, Learned, PositionEncoding, compose
from attnjax.positions.checks import validate_integer
from attnjax.typing import Array, Float

Model = TypeVar("Model", bound=TokenModel)


def stretched(model: Model, length: int) -> Model:
    """A model with the parameters of `model`, whose table of positions is stretched to `length` rows. The model stays as it is.

    Args:
      model: an `Encoder` or a `Decoder`, one of `attnjax.models` or not, with one table of positions.
      length: rows of the longer table, at least as many as there are.

    Raises:
      ValueError: a length below that of the table, and a model without a table or with several.

    Example:
      >>> from attnjax.modules import Encoder, TransformerConfig
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=Learned(8))
      >>> model = stretched(Encoder(config, rngs=nnx.Rngs(0)), 20)
      >>> model.config.encoding.length, model(np.arange(20)[None] % 11).shape
      (20, (1, 20, 11))
    """
    tables = [(i, one) for i, one in enumerate(model.stack.encodings) if isinstance(one, Learned)]
    if len(tables) != 1:
        raise ValueError(f"stretched: the model must have one table of positions (Learned), it has {len(tables)}")
    ((index, learned),) = tables
    validate_integer("stretched", minimum=learned.length, length=length)
    config = model.config
    made = [_longer(one, length) for one in config.encodings]
    encoding = tuple(made) if isinstance(config.encoding, tuple) else made[0]
    config = dataclasses.replace(config, encoding=encoding)
    params = nnx.to_pure_dict(nnx.split(model, graph=False)[1])
    shared = params["stack"]["inputs"][index]["shared"]
    shared["table"] = stretched_table(shared["table"], length)
    return with_parameters(lambda: type(model)(config, rngs=nnx.Rngs(0)), params)


def stretched_table(table: Float[Array, "L D"], length: int) -> Float[Array, "T D"]:
    """The rows of a table, interpolated to `length` of them, in its type.

    Example:
      >>> stretched_table(jnp.array([[0.0], [10.0], [40.0]]), 5)[:, 0].tolist()
      [0.0, 5.0, 10.0, 25.0, 40.0]
    """
    last = table.shape[0] - 1
    at = np.arange(length) * last / max(length - 1, 1)
    below = np.minimum(at.astype(int), max(last - 1, 0))
    weight = jnp.asarray(at - below, table.dtype)[:, None]
    return (1 - weight) * table[below] + weight * table[np.minimum(below + 1, last)]


def _longer(encoding: PositionEncoding, length: int) -> PositionEncoding:
    """The encoding with `length` rows in its table, if it has one."""
    if isinstance(encoding, Compose):
        return compose(*(_longer(part, length) for part in encoding.parts))
    return dataclasses.replace(encoding, length=length) if isinstance(encoding, Learned) else encoding
