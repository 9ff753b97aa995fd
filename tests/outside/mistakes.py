"""Mistakes in the use of attnjax that a type checker must find from outside: one in each line that says so."""

import jax
import jax.numpy as jnp
from flax import nnx

import attnjax as aj
from attnjax.modules import Decoder, TransformerConfig
from attnjax.tasks import task

x = jnp.zeros((1, 4, 2, 8))
aj.attend(x, x, x, encoding="rope")  # wrong
aj.attend(x, x, x, mask=4)  # wrong
aj.attend(x, x, x, implementation=5)  # wrong
aj.Mask(causl=True)  # wrong
aj.Rope()  # wrong
aj.RoPE(theta="large")  # wrong
text: str = aj.attend(x, x, x)  # wrong
number: int = aj.encoding("rope")  # wrong
array: jax.Array = task("copy")  # wrong
Decoder(TransformerConfig(vocab=16, layers=1, model=16, heads=2, hidden=16))  # wrong
Decoder("decoder", rngs=nnx.Rngs(0))  # wrong
