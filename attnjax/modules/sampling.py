"""Chooses the next token from logits: greedily, or at random at a temperature."""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from attnjax.positions.checks import validate, validate_integer
from attnjax.typing import Array, Bool, Float, Int, Key

NOT_A_TOKEN = -1


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The rule that picks the next token, and the token that ends an example.

    Args:
      vocab: number V of tokens.
      temperature: 0 picks the likeliest token; otherwise tokens are drawn from softmax(logits / temperature).
      top_k: restricts the draw to the k likeliest tokens; all unless given.
      stop: the token that ends an example; none unless given.

    Raises:
      ValueError: a negative temperature, `top_k` at temperature 0, or numbers out of range.
    """

    vocab: int
    temperature: float
    top_k: int | None
    stop: int | None

    def __post_init__(self) -> None:
        if self.temperature != 0:
            validate("generate", temperature=self.temperature)
        for name, lowest, highest in (("top_k", 1, self.vocab), ("stop", 0, self.vocab - 1)):
            value = getattr(self, name)
            if value is not None:
                validate_integer("generate", minimum=lowest, **{name: value})
                if value > highest:
                    raise ValueError(f"generate: {name} must be at most {highest}, got {value}")
        if self.top_k is not None and self.temperature == 0:
            raise ValueError(f"generate: top_k={self.top_k} needs a temperature above 0, got temperature=0")

    def pick(self, key: Key[Array, ""], logits: Float[Array, "B V"]) -> Int[Array, " B"]:
        """Returns the next token of every example, -1 where its logits hold NaN."""
        chex.assert_shape(logits, (None, self.vocab))
        if self.temperature == 0:
            token = jnp.argmax(logits, axis=-1)
        elif self.top_k is None:
            token = jax.random.categorical(key, logits / jnp.asarray(self.temperature, logits.dtype))
        else:
            best, tokens = jax.lax.top_k(logits, self.top_k)
            drawn = jax.random.categorical(key, best / jnp.asarray(self.temperature, logits.dtype))
            token = jnp.take_along_axis(tokens, drawn[:, None], axis=-1)[:, 0]
        return jnp.where(jnp.isnan(logits).any(-1), NOT_A_TOKEN, token.astype(jnp.int32))

    def ends(self, token: Int[Array, " B"]) -> Bool[Array, " B"]:
        """Returns whether each token ends its example."""
        chex.assert_rank(token, 1)
        return jnp.zeros(token.shape, bool) if self.stop is None else token == self.stop
