"""What `Encoder` and `Decoder` have in common: tokens to logits through one stack."""

import numpy as np
from flax import nnx

from attnjax.attention import Mask
from attnjax.modules.config import TransformerConfig
from attnjax.modules.embedding import TokenEmbedding
from attnjax.modules.stack import Stack
from attnjax.typing import Array, ArrayLike, Float, Int, Key


class TokenModel(nnx.Module):
    """Token ids [B, T] to features [B, T, D] to logits [B, T, V].

    Arguments, where a method has them:
      tokens: [B, T] in 0 .. V-1.
      pos: positions, [T], [B, T], or [L, B, T] with their own for each layer; 0, 1, ... unless given.
      mask: padding, packing, windows; see `Mask`. A window in it replaces those of the config.
      gate: factor of each head's output, [L, N] or [L, B, N].
      key: for dropout at the config's rates; without it nothing is dropped.
      rows: [B, M], the indices whose features are asked for, all unless given: the last layer computes no others.
      types: [B, T], the type of each token where the config has `token_types`; 0 unless given.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = TokenEmbedding(config, rngs=rngs)
        self.stack = Stack(config, rngs=rngs)

    def __call__(
        self,
        tokens: Int[ArrayLike, "B T"],
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Float[Array, "L *B N"] | None = None,
        key: Key[Array, ""] | None = None,
        types: Int[ArrayLike, "B T"] | None = None,
        rows: Int[Array, "B M"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Logits over the vocabulary."""
        return self.output(self.features(tokens, pos=pos, mask=mask, gate=gate, key=key, types=types, rows=rows))

    def features(
        self,
        tokens: Int[ArrayLike, "B T"],
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Float[Array, "L *B N"] | None = None,
        key: Key[Array, ""] | None = None,
        types: Int[ArrayLike, "B T"] | None = None,
        rows: Int[Array, "B M"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Output of the last layer, after the last norm."""
        x, pos = self.embedding(tokens, types), positions(tokens, pos)
        return self.stack(x, mask=self.rules(mask), pos=pos, gate=gate, key=key, rows=rows)

    def hidden_states(
        self,
        tokens: Int[ArrayLike, "B T"],
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Float[Array, "L *B N"] | None = None,
        types: Int[ArrayLike, "B T"] | None = None,
    ) -> Float[Array, "_ B T D"]:
        """The input of each layer, and last the features."""
        x, pos = self.embedding(tokens, types), positions(tokens, pos)
        return self.stack.hidden_states(x, mask=self.rules(mask), pos=pos, gate=gate)

    def weights(
        self,
        tokens: Int[ArrayLike, "B T"],
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Float[Array, "L *B N"] | None = None,
        types: Int[ArrayLike, "B T"] | None = None,
    ) -> Float[Array, "L B N T T"]:
        """Attention weights of every layer: row t sums to 1 over the keys that position t sees."""
        x, pos = self.embedding(tokens, types), positions(tokens, pos)
        return self.stack.weights(x, mask=self.rules(mask), pos=pos, gate=gate)[0]

    def output(self, features: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Logits of features."""
        return self.embedding.logits(features)

    def rules(self, mask: Mask) -> Mask:
        """The mask as this kind of model uses it."""
        return mask


def positions(tokens: Int[ArrayLike, "B T"], pos: ArrayLike | None) -> ArrayLike:
    """The positions given, or the indices as NumPy, so that an encoding can check them while tracing."""
    return np.arange(tokens.shape[1], dtype=np.int32) if pos is None else pos
