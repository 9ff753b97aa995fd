"""Models of one token sequence: tokens to logits through a single stack. `Encoder` is the bidirectional one."""

from flax import nnx

from attnjax.attention import Mask
from attnjax.attention.sequence_axis import indices_of_device
from attnjax.modules.config import TransformerConfig
from attnjax.modules.embedding import TokenEmbedding
from attnjax.modules.stack import Stack
from attnjax.typing import Array, ArrayLike, Float, Int, Key


class TokenModel(nnx.Module):
    """Maps token ids [B, T] to features [B, T, D] and to logits [B, T, V]; the base of `Encoder` and `Decoder`.

    Arguments of its methods:
      tokens: [B, T] in 0 .. V-1.
      pos: positions [T] or [B, T], or [L, B, T] where every layer has its own; 0, 1, ... unless given.
      mask: padding, packing and windows; see `Mask`. A window in it replaces those of the config.
      gate: a factor of the output of each head, [L, N] or [L, B, N]; 0 removes a head.
      key: applies dropout at the rates of the config; without it nothing is dropped.
      query_indices: [B, M], the indices at which the last layer and the logits are computed; all T unless given.
      types: [B, T], the type of each token where the config has `token_types`; 0 unless given.
      axis_name: inside `jax.shard_map`, the mesh axis over which the T tokens are spread, as in `attend`.

    Raises:
      ValueError: tokens, types or shapes that do not fit the config.
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
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M V"]:
        """Returns the logits over the vocabulary, [B, T, V], or [B, M, V] at `query_indices`."""
        options: dict = {"pos": pos, "mask": mask, "gate": gate, "key": key, "types": types, "axis_name": axis_name}
        return self.output(self.features(tokens, query_indices=query_indices, **options))

    def features(
        self,
        tokens: Int[ArrayLike, "B T"],
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Float[Array, "L *B N"] | None = None,
        key: Key[Array, ""] | None = None,
        types: Int[ArrayLike, "B T"] | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the output of the last layer after the final norm, [B, T, D], or [B, M, D] at `query_indices`."""
        x, pos = self.embedding(tokens, types), positions(tokens, pos, axis_name)
        options = {"gate": gate, "key": key, "query_indices": query_indices, "axis_name": axis_name}
        return self.stack(x, mask=self.rules(mask), pos=pos, **options)

    def hidden_states(
        self,
        tokens: Int[ArrayLike, "B T"],
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Float[Array, "L *B N"] | None = None,
        types: Int[ArrayLike, "B T"] | None = None,
    ) -> Float[Array, "_ B T D"]:
        """Returns the input of each layer and the features of the last, [L + 1, B, T, D]."""
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
        """Returns the attention weights of every layer: row t is those of position t over the keys that it sees.

        A row sums to 1, or to less with `attention_sink` and under encodings without a softmax, such as `StickBreaking`.
        """
        x, pos = self.embedding(tokens, types), positions(tokens, pos)
        return self.stack.weights(x, mask=self.rules(mask), pos=pos, gate=gate)[0]

    def output(self, features: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Returns the logits of features: the output layer alone."""
        return self.embedding.logits(features)

    def rules(self, mask: Mask) -> Mask:
        """Returns the mask with what this kind of model adds to it."""
        return mask


class Encoder(TokenModel):
    """Maps tokens to logits in both directions, as BERT; its `features` are what a decoder attends to.

    Its methods and their arguments are those of `TokenModel`.

    Args:
      config: sizes and options.
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: in a call, an encoding that exists for causal masks alone, such as `ALiBi(symmetric=False)`.

    Example:
      >>> import numpy as np
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32)
      >>> encoder = Encoder(config, rngs=nnx.Rngs(0))
      >>> encoder(np.array([[1, 2, 3]])).shape
      (1, 3, 11)
    """


def positions(tokens: Int[ArrayLike, "B T"], pos: ArrayLike | None, axis_name: str | None = None) -> ArrayLike:
    """Returns `pos`, or if it is None the indices 0 .. T-1, those of the device where tokens are spread over a mesh axis.

    The indices are a NumPy array, so that an encoding can check their values while tracing.
    """
    return indices_of_device(axis_name, tokens.shape[1]) if pos is None else pos
