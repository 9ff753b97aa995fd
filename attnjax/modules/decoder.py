"""The decoder, a causal language model: every token sees itself and the tokens before it."""

import jax.numpy as jnp

from attnjax.attention import Mask
from attnjax.attention.masks import causal
from attnjax.config.architecture import Window
from attnjax.modules.query_subset import gathered
from attnjax.modules.stack import Caches
from attnjax.modules.token_model import TokenModel
from attnjax.typing import Array, ArrayLike, Float, Int


class Decoder(TokenModel):
    """Maps tokens [B, T] to logits of the next token [B, T, V], all at once or in parts through KV caches.

    Its methods and their arguments are those of `TokenModel`, and `cache` and `decode`:

        caches = model.cache(batch, capacity)
        logits, caches = model.decode(tokens, caches)       one token or a chunk, as often as the capacity allows

    The logits of `decode` equal those of one call with all tokens, except for encodings that depend on the length
    (`DynamicNTK`, `LongRoPE`) past their original length in more than one layer: the cached features of deeper layers
    were computed when the sequence was shorter.

    Args:
      config: sizes and options.
      rngs: the stream `params` draws the initial values.

    Example:
      >>> from attnjax.modules import TransformerConfig
      >>> from flax import nnx
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32)
      >>> decoder = Decoder(config, rngs=nnx.Rngs(0))
      >>> tokens = jnp.array([[1, 2, 3]])
      >>> decoder(tokens).shape
      (1, 3, 11)
      >>> logits, caches = decoder.decode(tokens[:, :1], decoder.cache(batch=1, capacity=3))
      >>> bool(jnp.allclose(logits, decoder(tokens)[:, :1], atol=1e-5))
      True
    """

    def rules(self, mask: Mask) -> Mask:
        """Returns the mask with `causal=True`."""
        return causal(mask)

    def cache(self, batch: int, capacity: int, *, window: Window | None = None, pos_dtype=jnp.int32) -> Caches:
        """Returns an empty KV cache per layer for `capacity` tokens; with a `window`, ring buffers of that window."""
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
        query_indices: Int[Array, "B M"] | None = None,
    ) -> tuple[Float[Array, "B M V"], Caches]:
        """Returns the logits at the next T tokens, [B, T, V], and the caches with these tokens appended.

        Args:
          tokens: the new tokens, [B, T].
          caches: from `cache`, or returned by an earlier call.
          pos: positions of the new tokens. Unless given, the first is the number of tokens in the cache, padding included,
            whatever the positions of these are.
          valid: booleans [T] or [B, T]; False marks padding.
          gate, types: as in `TokenModel`.
          query_indices: [B, M], those of the T tokens at which logits are computed; all T unless given.

        Raises:
          ValueError: shapes that do not fit, or more tokens than the capacity.
        """
        x, caches = self.stack.decode(self.embedding(tokens, types), caches, pos=pos, valid=valid, gate=gate)
        return self.output(gathered(x, query_indices)), caches
