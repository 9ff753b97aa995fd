"""What a file of another project may look like: it runs with an installed attnjax, and type checkers know its types."""

import dataclasses
from typing import assert_type

import jax
import jax.numpy as jnp
from flax import nnx

import attnjax as aj
from attnjax.modules import Decoder, TransformerConfig, generate


@dataclasses.dataclass(frozen=True)
class Recent(aj.PositionEncoding):
    """score(i, j) = logit - |n| / span."""

    span: float = 8.0

    def bias(self, p: aj.EncodingParams, n: jax.Array) -> jax.Array:
        return -jnp.abs(n) / self.span


q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 12, 2, 8))
mask = aj.Mask(causal=True, window=4)
out = assert_type(aj.attend(q, k, v, encoding=aj.compose(aj.RoPE(), Recent()), mask=mask), jax.Array)
assert out.shape == (1, 12, 2, 8)
assert_type(aj.RoPE(theta=500.0).theta, float)
assert_type(aj.encoding("alibi"), aj.PositionEncoding)
assert_type(aj.Sizes(model=16, heads=2, kv_heads=2, head_dim=8).heads, int)

config = TransformerConfig(vocab=16, layers=1, model=16, heads=2, hidden=16, encoding=Recent())
model = assert_type(Decoder(config, rngs=nnx.Rngs(0)), Decoder)
tokens = generate(model, jnp.array([[1, 2, 3]]), 4)
assert tokens.shape == (1, 4)
print("used")
