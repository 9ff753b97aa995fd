"""The decoder: a language model. Every token sees those before it and itself."""

import dataclasses

import jax.numpy as jnp

from attnjax.attention import Mask
from attnjax.modules.config import Window
from attnjax.modules.stack import Caches
from attnjax.modules.token_model import TokenModel
from attnjax.typing import Array, ArrayLike, Float, Int


class Decoder(TokenModel):
    """Tokens to logits of the next token, causal, all at once or some at a time through caches:

        caches = model.cache(batch, capacity)
        logits, caches = model.decode(tokens, caches)       one token or a chunk, as often as the capacity allows

    Logits equal those of one call with all tokens. The exception are encodings that depend on the length (`DynamicNTK`,
    `LongRoPE`) past their original length in more than one layer: what deeper layers remember was computed when the
    sequence was shorter.
    """

    def rules(self, mask: Mask) -> Mask:
        """The mask, made causal."""
        return dataclasses.replace(mask, causal=True)

    def cache(self, batch: int, capacity: int, *, window: Window | None = None, pos_dtype=jnp.int32) -> Caches:
        """An empty cache per layer, for `capacity` tokens; with a `window`, rings that forget what it hides."""
        return self.stack.cache(batch, capacity, window=window, pos_dtype=pos_dtype)

    def decode(
        self,
        tokens: Int[ArrayLike, "B T"],
        caches: Caches,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        gate: Float[Array, "L *B N"] | None = None,
        types: Int[ArrayLike, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T V"], Caches]:
        """Logits of the next T tokens, and the caches with them.

        `pos` defaults to the running index; `valid=False` marks padding. Raises ValueError where shapes do not fit, or
        where the tokens exceed the capacity.
        """
        x, caches = self.stack.decode(self.embedding(tokens, types), caches, pos=pos, valid=valid, gate=gate)
        return self.output(x), caches
